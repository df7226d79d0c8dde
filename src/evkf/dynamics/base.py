r"""Base classes of latent dynamics, the map $\lambda_\theta(z)$; derive a new model from them.

Paper: the conditional exponential family of section 3.1.
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
    r"""A conditional exponential family $p_\theta(z_t | z_{t-1}, u_t)$.

    Inputs u (a stimulus, a stimulation) are vectors of length `num_inputs`, which may be zero.
    """

    family: eqx.AbstractVar[Family]
    r"""The family of $p_\theta(z_t | z_{t-1})$."""
    num_inputs: eqx.AbstractVar[int]

    @abstractmethod
    def transition(self, z: Vector, u: Input) -> Belief:
        """Distribution of the next state, given this one."""

    @property
    def dim(self) -> int:
        """Latent dimensions."""
        return self.family.dim


class GaussianDynamics(Dynamics):
    r"""Additive Gaussian noise: $z_t \sim N(f_\theta(z_{t-1}, u_t), Q)$."""

    noise: eqx.AbstractVar[Covariance]
    any_coordinates: ClassVar[bool] = False
    """True if the same dynamics in other (affine) coordinates are of the same class."""

    @abstractmethod
    def mean(self, z: Vector, u: Input) -> Vector:
        r"""$f_\theta(z, u)$."""

    def visited(self, mean: Vector, std: Vector) -> Self:
        """Return the dynamics after a state was visited; learned maps may keep to such states."""
        del mean, std
        return self

    def covers(self, z: Vector) -> Bool[Array, ""]:
        """True if the map is learned or known at z, and not extrapolated."""
        del z
        return jnp.asarray(True)

    def transition(self, z: Vector, u: Input) -> GaussianBelief:
        return GaussianBelief(self.mean(z, u), self.noise.matrix())

    @property
    def family(self) -> GaussianFamily:
        return GaussianFamily(self.noise.var().shape[0])


def read_input_weight(value: ArrayLike | None, dim: int) -> Float[Array, "L U"]:
    """Check and convert the weight of inputs, (latents, inputs); None for no inputs."""
    return read_array(np.zeros((dim, 0)) if value is None else value, (dim, None), "input_weight")


def read_square(value: ArrayLike, where: str) -> Matrix:
    """Check and convert a square matrix."""
    matrix = read_array(value, (None, None), where)
    rows, columns = matrix.shape
    if rows != columns:
        what, remedy = f"{where} of shape {matrix.shape}", f"pass a square matrix, {(rows, rows)}"
        raise InputError(what, where, remedy)
    return matrix
