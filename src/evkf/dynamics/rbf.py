"""Learned dynamics, a weighted sum of radial basis functions (bumps around centres)."""

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
"""Largest initial coordinate of a centre; width of a function, divided by the distance between
neighbouring centres."""


class ResidualRBF(GaussianDynamics):
    r"""Random walk plus radial basis functions, $z_t \sim N(z_{t-1} + \Phi^\top W, Q)$.

    The features $\Phi(z_{t-1}, u_t)$ are Gaussian bumps $\exp(-\tfrac12 |(z_{t-1} - c_k)/w|^2)$
    around centres $c_k$, of width $w$ in each dimension, followed by the inputs $u_t$. The weights
    W are zero at first, which makes the dynamics a random walk; far from all centres and without
    inputs, the dynamics stay a random walk. The mean is linear in W, so recursive least squares can
    learn W.

    Args:
        dim: Number of latent dimensions.
        noise: Q: one variance, one variance for each latent, or a full covariance matrix.
        key: JAX random key for the centres, whose coordinates are uniform from -2 to 2.
        num: Number of basis functions.
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
    """W: one row for each basis function, then one row for each input."""
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
        r"""Return $\Phi(z, u)$: the value of each basis function at z, then the inputs."""
        distance = (z - self.centres) / jnp.exp(self.log_width)
        return jnp.concatenate([jnp.exp(-0.5 * jnp.sum(distance**2, axis=-1)), u])

    def mean(self, z: Vector, u: Input) -> Vector:
        return z + self.features(z, u) @ self.weight

    def placed(self, key: Key, low: Vector, high: Vector) -> Self:
        """Return dynamics with new random centres, uniform in a box, and with weights zero.

        Args:
            key: JAX random key.
            low: Smallest coordinates of the box, (latents,).
            high: Largest coordinates of the box, (latents,).
        """
        size = jnp.maximum(high - low, 1e-6)
        centres = low + size * jax.random.uniform(key, self.centres.shape, size.dtype)
        new = (centres, _log_width(size, len(centres)), jnp.zeros_like(self.weight))
        return eqx.tree_at(lambda d: (d.centres, d.log_width, d.weight), self, new)


def _log_width(size: Vector, num: int) -> Vector:
    """Return the log width of the basis functions, for `num` centres in a box of a given size.

    The width is `OVERLAP` times the distance between neighbours if the centres were a grid.
    """
    return jnp.log(OVERLAP * size / num ** (1 / len(size)))
