r"""Base classes of latent dynamics; derive a new model from them.

Dynamics give the distribution of the next latent state z, given this state and an input u.
Paper: the conditional exponential family of section 3.1, with natural parameters
$\lambda_\theta(z)$.
"""

from abc import abstractmethod
from typing import ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.families import Family, GaussianBelief, GaussianFamily
from evkf.numerics.checks import read_array
from evkf.numerics.covariance import Covariance
from evkf.types import Belief, Input, Matrix, Vector


class Dynamics(eqx.Module):
    r"""Latent dynamics, a conditional distribution $p_\theta(z_t | z_{t-1}, u_t)$.

    $z_t$ is the latent state of bin t. $u_t$ is the input of bin t, a vector of length `num_inputs`
    (such as a stimulus). Dynamics without inputs have `num_inputs` 0.
    """

    family: eqx.AbstractVar[Family]
    r"""Exponential family of the distribution of the next state."""
    num_inputs: eqx.AbstractVar[int]

    @abstractmethod
    def transition(self, z: Vector, u: Input) -> Belief:
        """Return the distribution of the next state as a belief, given state z and input u."""

    @property
    def dim(self) -> int:
        """Number of latent dimensions."""
        return self.family.dim


class GaussianDynamics(Dynamics):
    r"""Dynamics with additive Gaussian noise, $z_t \sim N(f_\theta(z_{t-1}, u_t), Q)$.

    `mean` is the map $f_\theta$, and `noise` the covariance Q, which does not depend on the state.
    """

    noise: eqx.AbstractVar[Covariance]
    any_coordinates: ClassVar[bool] = False
    """True if the class can also represent the same dynamics after any affine change of z."""

    @abstractmethod
    def mean(self, z: Vector, u: Input) -> Vector:
        r"""Return $f_\theta(z, u)$, the expected next state."""

    def visited(self, mean: Vector, std: Vector) -> Self:
        """Return the dynamics after a state of given mean and standard deviation was visited.

        Learned maps record visited states, so as not to extrapolate far from them. By default,
        nothing is recorded, and the dynamics are returned unchanged.
        """
        del mean, std
        return self

    def covers(self, z: Vector) -> Bool[Array, ""]:
        """Return True if the map is known at z, or was learned near z; True by default."""
        del z
        return jnp.asarray(True)

    def transition(self, z: Vector, u: Input) -> GaussianBelief:
        return GaussianBelief(self.mean(z, u), self.noise.matrix())

    @property
    def family(self) -> GaussianFamily:
        return GaussianFamily(self.noise.var().shape[0])


def read_input_weight(value: ArrayLike | None, dim: int) -> Float[Array, "L U"]:
    """Return the weights of inputs as an array (latents, inputs); None gives no inputs.

    Raise InputError if the weights are not finite or have a wrong shape.
    """
    return read_array(np.zeros((dim, 0)) if value is None else value, (dim, None), "input_weight")


def read_square(value: ArrayLike, where: str) -> Matrix:
    """Return a square matrix as a JAX array; raise InputError if not square or not finite."""
    matrix = read_array(value, (None, None), where)
    rows, columns = matrix.shape
    if rows != columns:
        what, remedy = f"{where} of shape {matrix.shape}", f"pass a square matrix, {(rows, rows)}"
        raise InputError(what, where, remedy)
    return matrix
