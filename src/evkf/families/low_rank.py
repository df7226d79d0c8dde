"""The Gaussian family with low-rank covariances: a diagonal and a factor of few columns."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evkf.families.base import Family, Nodes
from evkf.families.gaussian import (
    GaussianBelief,
    GaussianFamily,
    GaussianMean,
    GaussianNat,
    cubature,
)
from evkf.numerics.checks import check_whole
from evkf.numerics.linalg import cholesky, solve_lower
from evkf.types import Key, Matrix, Scalar, Vector

Factor = Float[Array, "L R"]


class LowRankBelief(NamedTuple):
    r"""Mean $m$ and covariance $\text{diag}(d) + UU^\top$."""

    mean: Vector
    diagonal: Vector
    factor: Factor


class Inverse(NamedTuple):
    r"""Inverse of $P = \text{diag}(d) + UU^\top$: $P^{-1} = \text{diag}(d)^{-1} - BB^\top$."""

    diagonal: Vector
    """$d$ itself."""
    factor: Factor
    """$B$."""
    log_det_root: Scalar
    r"""$\tfrac12 \log |P|$."""

    def times(self, columns: Float[Array, "L ..."]) -> Float[Array, "L ..."]:
        """$P^{-1}$ times a vector, or the columns of a matrix."""
        return (columns.T / self.diagonal).T - self.factor @ (self.factor.T @ columns)

    def var(self) -> Vector:
        """The diagonal of $P^{-1}$."""
        return 1 / self.diagonal - jnp.sum(self.factor**2, axis=1)


def inverse(diagonal: Vector, factor: Factor) -> Inverse:
    """Invert a covariance of low rank by Woodbury's identity, in $O(LR^2)$."""
    scaled = factor / diagonal[:, None]
    root = cholesky(jnp.eye(factor.shape[1], dtype=factor.dtype) + factor.T @ scaled)
    log_det = jnp.sum(jnp.log(jnp.diagonal(root))) + 0.5 * jnp.sum(jnp.log(diagonal))
    return Inverse(diagonal, solve_lower(root, scaled.T).T, log_det)


class LowRankGaussianFamily(Family):
    r"""Gaussian with covariance $\text{diag}(d) + UU^\top$, U of `rank` columns.

    The functions that the filter uses cost $O(LR^2)$ rather than $O(L^3)$. Natural and mean
    parameters are those of the full Gaussian, at the same cost.

    Example:
        >>> import jax.numpy as jnp
        >>> family = LowRankGaussianFamily(3, rank=1)
        >>> cov = jnp.eye(3) + jnp.ones((3, 3))
        >>> belief = family.from_moments(jnp.zeros(3), cov)
        >>> bool(jnp.allclose(family.cov(belief), cov, atol=1e-4))
        True
    """

    dim: int = eqx.field(static=True)
    rank: int = eqx.field(static=True)
    correctable: ClassVar[bool] = True

    def __init__(self, dim: int, rank: int = 16):
        check_whole(rank, 1, "rank")
        self.dim, self.rank = dim, min(rank, dim)

    @property
    def full(self) -> GaussianFamily:
        """The family with full covariance."""
        return GaussianFamily(self.dim)

    def dense(self, belief: LowRankBelief) -> GaussianBelief:
        """Return the belief with its covariance as a matrix."""
        return GaussianBelief(belief.mean, self.cov(belief))

    def nat(self, belief: LowRankBelief) -> GaussianNat:
        return self.full.nat(self.dense(belief))

    def from_nat(self, nat: GaussianNat) -> LowRankBelief:
        return self.from_moments(*self.full.from_nat(nat))

    def to_mean(self, nat: GaussianNat) -> GaussianMean:
        return self.full.to_mean(nat)

    def to_nat(self, mean_params: GaussianMean) -> GaussianNat:
        return self.full.to_nat(mean_params)

    def log_partition(self, nat: GaussianNat) -> Scalar:
        return self.full.log_partition(nat)

    def stats(self, z: Vector) -> GaussianMean:
        return self.full.stats(z)

    @property
    def log_base(self) -> float:
        return self.full.log_base

    def log_prob(self, belief: LowRankBelief, z: Vector) -> Scalar:
        precision, shift = inverse(*belief[1:]), z - belief.mean
        return self.log_base - 0.5 * shift @ precision.times(shift) - precision.log_det_root

    def entropy(self, belief: LowRankBelief) -> Scalar:
        return 0.5 * self.dim - self.log_base + inverse(*belief[1:]).log_det_root

    def kl(self, belief: LowRankBelief, other: LowRankBelief) -> Scalar:
        return divergence(belief, other.mean, inverse(*other[1:]))

    def sample(self, belief: LowRankBelief, key: Key, num: int) -> Float[Array, "S L"]:
        own, shared = jax.random.split(key)
        dtype, rank = belief.mean.dtype, belief.factor.shape[1]
        noise = jax.random.normal(own, (num, self.dim), dtype) * jnp.sqrt(belief.diagonal)
        return belief.mean + noise + jax.random.normal(shared, (num, rank), dtype) @ belief.factor.T

    def mean(self, belief: LowRankBelief) -> Vector:
        return belief.mean

    def cov(self, belief: LowRankBelief) -> Matrix:
        return jnp.diag(belief.diagonal) + belief.factor @ belief.factor.T

    def var(self, belief: LowRankBelief) -> Vector:
        return belief.diagonal + jnp.sum(belief.factor**2, axis=1)

    def from_moments(self, mean: Vector, cov: Matrix) -> LowRankBelief:
        """Keep the marginal variances; find the factor by principal factor analysis."""
        var = jnp.diagonal(cov)
        scale = jnp.sqrt(var)
        correlation = cov / scale / scale[:, None]
        share, factor = jnp.ones_like(var), jnp.zeros((self.dim, self.rank), var.dtype)
        for _ in range(FACTOR_STEPS):
            values, vectors = jnp.linalg.eigh(correlation - jnp.diag(share))
            values = jnp.maximum(values[-self.rank :], 0)
            factor = vectors[:, -self.rank :] * jnp.sqrt(values)
            share = jnp.clip(1 - jnp.sum(factor**2, axis=1), LEAST_SHARE, 1)
        factor = factor * jnp.sqrt((1 - share) / jnp.maximum(jnp.sum(factor**2, 1), 1e-30))[:, None]
        return LowRankBelief(mean, share * var, factor * scale[:, None])

    def nodes(self, belief: LowRankBelief) -> Nodes:
        """Return the spherical cubature rule of the full Gaussian."""
        return cubature(belief.mean, cholesky(self.cov(belief)))

    def from_unconstrained(self, raw: Float[Array, " R"]) -> GaussianNat:
        return self.full.from_unconstrained(raw)

    @property
    def num_raw(self) -> int:
        return self.full.num_raw

    def valid(self, belief: LowRankBelief) -> Bool[Array, ""]:
        finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in belief])
        return jnp.all(finite) & jnp.all(belief.diagonal > 0)


FACTOR_STEPS, LEAST_SHARE = 50, 1e-4
"""Steps of factor analysis; the least share of a variance that is left to the diagonal."""


def divergence(belief: LowRankBelief, mean: Vector, other: Inverse) -> Scalar:
    """KL divergence from a belief to the Gaussian with this mean and inverse covariance."""
    shift = belief.mean - mean
    spread = belief.diagonal @ other.var() + jnp.sum(belief.factor * other.times(belief.factor))
    own = inverse(*belief[1:]).log_det_root
    return 0.5 * (spread - len(mean) + shift @ other.times(shift)) + other.log_det_root - own


def readout_var(
    C: Float[Array, "N L"], diagonal: Vector, loads: Float[Array, "N R"]
) -> Float[Array, " N"]:
    """Variances of $Cz$ under a belief of low rank, given the loads $CU$."""
    # Not as C * C times D: XLA would keep the squares, which are as large as C.
    return jnp.sum((C * jnp.sqrt(diagonal)) ** 2, axis=1) + jnp.sum(loads**2, axis=1)
