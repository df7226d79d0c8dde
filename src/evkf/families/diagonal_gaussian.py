"""The Gaussian family whose dimensions are independent (diagonal covariance)."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from evkf.families.base import Nodes, Univariate
from evkf.numerics.special import log_gap
from evkf.types import Belief, Key, Nat, Vector


class DiagonalGaussianFamily(Univariate):
    r"""Independent Gaussian states z with mean $m$ and variance $v$ in each dimension.

    The sufficient statistics are $t(z) = (z, z^2)$, the natural parameters
    $\lambda = (m/v, -1/(2v))$, and the mean parameters $\mu = (m, v + m^2)$. The log-partition is
    $A = \tfrac12 (m^2/v + \log v)$ per dimension, and the base measure of L dimensions
    $(2\pi)^{-L/2}$.

    Args:
        dim: Number of latent dimensions, L.

    Example:
        >>> import jax.numpy as jnp
        >>> family = DiagonalGaussianFamily(2)
        >>> belief = family.from_moments(jnp.zeros(2), jnp.eye(2))
        >>> round(float(family.entropy(belief)), 4)
        2.8379
    """

    dim: int = eqx.field(static=True)
    correctable: ClassVar[bool] = True
    num_params: ClassVar[int] = 2
    support: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    def each_log_partition(self, nat: Float[Array, "L K"]) -> Vector:
        mean, var = _moments(nat)
        return 0.5 * (nat[:, 0] * mean + jnp.log(var))

    def each_log_prob(self, nat: Float[Array, "L K"], z: Vector) -> Vector:
        mean, var = _moments(nat)
        return -0.5 * ((z - mean) ** 2 / var + jnp.log(2 * math.pi * var))

    def each_entropy(self, nat: Float[Array, "L K"]) -> Vector:
        return 0.5 * jnp.log(2 * math.pi * math.e * _moments(nat)[1])

    def each_kl(self, nat: Float[Array, "L K"], other: Float[Array, "L K"]) -> Vector:
        step = nat - other
        excess = -step[:, 1] / nat[:, 1]
        # The difference of the means. If it is small, its value is more accurate from the
        # difference of the natural parameters; its gradient is taken from the means in any case.
        mean, mean_o = _moments(nat)[0], _moments(other)[0]
        close = -(0.5 * step[:, 0] + mean_o * step[:, 1]) / nat[:, 1]
        shift = mean - mean_o
        shift = shift + lax.stop_gradient(jnp.where(jnp.abs(excess) < 0.5, close - shift, 0))
        return 0.5 * log_gap(nat[:, 1], other[:, 1], excess) - other[:, 1] * shift**2

    def each_moments(self, nat: Float[Array, "L K"]) -> tuple[Vector, Vector, Vector]:
        mean, var = _moments(nat)
        return mean, var, jnp.zeros_like(mean)

    def natural_gradient(self, nat: Nat, grad: Nat) -> Nat:
        mean, var = _moments(nat)
        second = (grad[:, 1] - 2 * mean * grad[:, 0]) / var / (2 * var)
        return jnp.stack([grad[:, 0] / var - 2 * mean * second, second], -1)

    def each_to_nat(self, mean_params: Float[Array, "L K"]) -> Float[Array, "L K"]:
        r"""Return natural parameters; the variance is at least the rounding error of $\mu_2$."""
        mean, second = mean_params[:, 0], mean_params[:, 1]
        info = jnp.finfo(mean.dtype)
        return _pack(mean, jnp.maximum(second - mean**2, info.eps * second + info.tiny))

    def each_from_moments(self, mean: Vector, var: Vector) -> Float[Array, "L K"]:
        return _pack(mean, var)

    def each_valid(self, nat: Float[Array, "L K"]) -> Bool[Array, " L"]:
        return nat[:, 1] < 0

    def to_mean(self, nat: Nat) -> Nat:
        mean, var = _moments(nat)
        return jnp.stack([mean, var + mean**2], -1)

    def stats(self, z: Vector) -> Nat:
        return jnp.stack([z, z**2], -1)

    @property
    def log_base(self) -> float:
        return -0.5 * self.dim * math.log(2 * math.pi)

    def sample(self, belief: Belief, key: Key, num: int) -> Float[Array, "S L"]:
        mean, var = _moments(belief)
        return mean + jnp.sqrt(var) * jax.random.normal(key, (num, self.dim), mean.dtype)

    def nodes(self, belief: Belief) -> Nodes:
        r"""Return the $2L$ nodes of spherical cubature, for any number of dimensions L.

        The nodes are $m \pm \sqrt{L v_l}\,e_l$ with unit vectors $e_l$, and have equal weights.
        """
        mean, var = _moments(belief)
        offsets = jnp.diag(jnp.sqrt(self.dim * var))
        points = jnp.concatenate([mean + offsets, mean - offsets])
        return Nodes(points, jnp.full(2 * self.dim, 0.5 / self.dim, points.dtype))

    def from_unconstrained(self, raw: Float[Array, " R"]) -> Nat:
        """Return natural parameters of any real vector.

        The first L entries are the means. The last L entries give the precisions (inverse
        variances): each precision is the square of softplus(entry) + 1e-4.
        """
        precision = (jax.nn.softplus(raw[self.dim :]) + 1e-4) ** 2
        return jnp.stack([precision * raw[: self.dim], -0.5 * precision], -1)


def _moments(nat: Float[Array, "L 2"]) -> tuple[Vector, Vector]:
    var = -0.5 / nat[:, 1]
    return nat[:, 0] * var, var


def _pack(mean: Vector, var: Vector) -> Float[Array, "L 2"]:
    return jnp.stack([mean / var, -0.5 / var], -1)
