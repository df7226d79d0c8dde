"""Dynamics learned as a sum of radial basis functions, linear in the learned weights."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from evkf.dynamics.base import GaussianDynamics
from evkf.numerics.checks import check_whole
from evkf.numerics.covariance import Covariance, as_covariance
from evkf.types import Input, Key, Vector

EXTENT, OVERLAP = 2.0, 1.5
"""Largest initial coordinate of a centre; width of a function, in distances of neighbours."""


class ResidualRBF(GaussianDynamics):
    r"""$z_t \sim N(z_{t-1} + \Phi(z_{t-1}, u_t)^\top W, Q)$ with Gaussian radial basis functions.

    $\Phi = [\exp(-\tfrac12 |(z - c_k)/w|^2)]_k$, followed by the inputs $u_t$. With zero weights,
    and far from all centres, it is a random walk. Given the centres it is linear in W, which
    recursive least squares can learn.

    Args:
        dim: Latent dimensions.
        noise: Q: a variance, one per latent, or a full matrix.
        key: Randomness of the centres, uniform within 2 of the origin.
        num: Number of functions.
        num_inputs: Length of u.

    Example:
        >>> import jax
        >>> dynamics = ResidualRBF(2, noise=0.01, key=jax.random.key(0))
        >>> dynamics.mean(jax.numpy.ones(2), jax.numpy.zeros(0))
        Array([1., 1.], dtype=float32)
    """

    centres: Float[Array, "K L"]
    log_width: Vector
    weight: Float[Array, "D L"]
    """W: a row for every function, then one for every input."""
    noise: Covariance
    num_inputs: int = eqx.field(static=True)

    def __init__(
        self,
        dim: int,
        noise: "ArrayLike | Covariance",
        key: Key,
        num: int = 100,
        num_inputs: int = 0,
    ):
        for name, value, least in (("dim", dim, 1), ("num", num, 1), ("num_inputs", num_inputs, 0)):
            check_whole(value, least, name)
        self.noise = as_covariance(noise, dim, "noise")
        dtype = self.noise.var().dtype
        self.centres = jax.random.uniform(key, (num, dim), dtype, -EXTENT, EXTENT)
        self.log_width = _log_width(jnp.full(dim, 2 * EXTENT, dtype), num)
        self.weight = jnp.zeros((num + num_inputs, dim), dtype)
        self.num_inputs = num_inputs

    def features(self, z: Vector, u: Input) -> Float[Array, " D"]:
        r"""$\Phi(z, u)$: the functions at z, then the inputs."""
        distance = (z - self.centres) / jnp.exp(self.log_width)
        return jnp.concatenate([jnp.exp(-0.5 * jnp.sum(distance**2, axis=-1)), u])

    def mean(self, z: Vector, u: Input) -> Vector:
        return z + self.features(z, u) @ self.weight

    def placed(self, key: Key, low: Vector, high: Vector) -> Self:
        """Draw new centres, uniform over a box, and set the weights to zero."""
        size = jnp.maximum(high - low, 1e-6)
        centres = low + size * jax.random.uniform(key, self.centres.shape, size.dtype)
        new = (centres, _log_width(size, len(centres)), jnp.zeros_like(self.weight))
        return eqx.tree_at(lambda d: (d.centres, d.log_width, d.weight), self, new)


def _log_width(size: Vector, num: int) -> Vector:
    """Width at which neighbours overlap, if the centres were a grid over a box of this size."""
    return jnp.log(OVERLAP * size / num ** (1 / len(size)))
