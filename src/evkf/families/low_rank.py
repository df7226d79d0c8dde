"""The Gaussian family whose covariance is a diagonal matrix plus a matrix of low rank."""

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
    r"""A Gaussian belief with mean $m$ and covariance $\text{diag}(d) + UU^\top$.

    Attributes:
        mean: $m$, (L,).
        diagonal: $d$, (L,); variances of the part that is independent between dimensions.
        factor: $U$, (L, R); loadings of the shared part, with R much smaller than L.
    """

    mean: Vector
    diagonal: Vector
    factor: Factor


class Inverse(NamedTuple):
    r"""The precision $P^{-1} = \text{diag}(d)^{-1} - BB^\top$ of a low-rank covariance.

    The covariance is $P = \text{diag}(d) + UU^\top$. `inverse` makes objects of this class.
    """

    diagonal: Vector
    """$d$, the diagonal part of the covariance (not inverted)."""
    factor: Factor
    """$B$, (L, R)."""
    log_det_root: Scalar
    r"""Half the log-determinant of the covariance, $\tfrac12 \log |P|$."""

    def times(self, columns: Float[Array, "L ..."]) -> Float[Array, "L ..."]:
        """Return $P^{-1}$ times a vector or a matrix."""
        return (columns.T / self.diagonal).T - self.factor @ (self.factor.T @ columns)

    def var(self) -> Vector:
        """Return the diagonal of the precision $P^{-1}$ (not the variances, which $P$ has)."""
        return 1 / self.diagonal - jnp.sum(self.factor**2, axis=1)


def inverse(diagonal: Vector, factor: Factor) -> Inverse:
    """Return the inverse of a low-rank covariance by Woodbury's identity, at cost $O(LR^2)$.

    Args:
        diagonal: $d$, (L,).
        factor: $U$, (L, R).
    """
    scaled = factor / diagonal[:, None]
    root = cholesky(jnp.eye(factor.shape[1], dtype=factor.dtype) + factor.T @ scaled)
    log_det = jnp.sum(jnp.log(jnp.diagonal(root))) + 0.5 * jnp.sum(jnp.log(diagonal))
    return Inverse(diagonal, solve_lower(root, scaled.T).T, log_det)


class LowRankGaussianFamily(Family):
    r"""Gaussian family with covariance $\text{diag}(d) + UU^\top$, where U has R columns.

    The functions that the filter uses cost $O(LR^2)$ for L dimensions, and not $O(L^3)$ as for
    `GaussianFamily`. Natural and mean parameters are those of `GaussianFamily`, and functions of
    these parameters cost as much as there.

    Args:
        dim: Number of latent dimensions, L.
        rank: R, the number of columns of U; at most `dim`.

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
        """The Gaussian family of the same dimensions with full covariance."""
        return GaussianFamily(self.dim)

    def dense(self, belief: LowRankBelief) -> GaussianBelief:
        """Return the same belief with the full (L, L) covariance matrix."""
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
        """Return a low-rank belief with a given mean and the marginal variances of `cov`.

        Principal factor analysis of the correlation matrix gives the factor. Covariances between
        dimensions are approximate if the rank is too small for `cov`.
        """
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
        """Return the spherical cubature rule of the full covariance matrix, at cost $O(L^3)$."""
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
"""Number of steps of factor analysis; smallest fraction of a variance that the diagonal keeps."""


def divergence(belief: LowRankBelief, mean: Vector, other: Inverse) -> Scalar:
    """Return KL(belief || p) in nats, where p is the Gaussian of a given mean and precision."""
    shift = belief.mean - mean
    spread = belief.diagonal @ other.var() + jnp.sum(belief.factor * other.times(belief.factor))
    own = inverse(*belief[1:]).log_det_root
    return 0.5 * (spread - len(mean) + shift @ other.times(shift)) + other.log_det_root - own


def readout_var(
    C: Float[Array, "N L"], diagonal: Vector, loads: Float[Array, "N R"]
) -> Float[Array, " N"]:
    """Return the variance of each entry of $Cz$ under a low-rank belief.

    Args:
        C: Readout weights, (channels, latents).
        diagonal: $d$ of the belief, (latents,).
        loads: The product $CU$ with the factor of the belief, (channels, rank).
    """
    # Not as C * C times D: XLA would keep the squares, which are as large as C.
    return jnp.sum((C * jnp.sqrt(diagonal)) ** 2, axis=1) + jnp.sum(loads**2, axis=1)
