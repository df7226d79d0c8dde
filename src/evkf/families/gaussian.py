"""The Gaussian family with full covariances, stored as mean and covariance."""

import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evkf.families.base import Family, Nodes
from evkf.numerics.linalg import cholesky, inverse_lower, solve_lower, symmetrize
from evkf.types import Key, Matrix, Scalar, Vector

MAX_TILT = 2.0
"""Bound on the Cholesky factor in `from_unconstrained`: in each row, the norm of the entries left
of the diagonal is at most this number times the diagonal entry."""


class GaussianBelief(NamedTuple):
    """A Gaussian belief: mean $m$ and covariance matrix $P$."""

    mean: Vector
    cov: Matrix


class GaussianNat(NamedTuple):
    r"""Natural parameters of a Gaussian, $(P^{-1}m, -\tfrac12 P^{-1})$.

    $m$ is the mean and $P$ the covariance. The paper misprints the first parameter.
    """

    linear: Vector
    quadratic: Matrix


class GaussianMean(NamedTuple):
    r"""Mean parameters of a Gaussian, $(E[z], E[zz^\top])$."""

    first: Vector
    second: Matrix


class GaussianFamily(Family):
    """The Gaussian family with full covariance matrix; a belief is a `GaussianBelief`.

    Args:
        dim: Number of latent dimensions.

    Example:
        >>> import jax.numpy as jnp
        >>> family = GaussianFamily(2)
        >>> belief = family.from_moments(jnp.zeros(2), jnp.eye(2))
        >>> round(float(family.entropy(belief)), 4)
        2.8379
    """

    dim: int = eqx.field(static=True)
    correctable: ClassVar[bool] = True

    def nat(self, belief: GaussianBelief) -> GaussianNat:
        inverse = inverse_lower(cholesky(belief.cov))
        precision = inverse.T @ inverse
        return GaussianNat(precision @ belief.mean, -0.5 * precision)

    def from_nat(self, nat: GaussianNat) -> GaussianBelief:
        inverse = inverse_lower(cholesky(-2 * nat.quadratic))
        cov = inverse.T @ inverse
        return GaussianBelief(cov @ nat.linear, cov)

    def to_mean(self, nat: GaussianNat) -> GaussianMean:
        mean, cov = self.from_nat(nat)
        return GaussianMean(mean, cov + jnp.outer(mean, mean))

    def to_nat(self, mean_params: GaussianMean) -> GaussianNat:
        first, second = mean_params
        return self.nat(GaussianBelief(first, symmetrize(second - jnp.outer(first, first))))

    def log_partition(self, nat: GaussianNat) -> Scalar:
        root = cholesky(-2 * nat.quadratic)
        white = solve_lower(root, nat.linear)
        return 0.5 * white @ white - jnp.sum(jnp.log(jnp.diagonal(root)))

    def stats(self, z: Vector) -> GaussianMean:
        return GaussianMean(z, jnp.outer(z, z))

    @property
    def log_base(self) -> float:
        return -0.5 * self.dim * math.log(2 * math.pi)

    def log_prob(self, belief: GaussianBelief, z: Vector) -> Scalar:
        root = cholesky(belief.cov)
        white = solve_lower(root, z - belief.mean)
        return self.log_base - 0.5 * white @ white - jnp.sum(jnp.log(jnp.diagonal(root)))

    def entropy(self, belief: GaussianBelief) -> Scalar:
        log_det = jnp.sum(jnp.log(jnp.diagonal(cholesky(belief.cov))))
        return 0.5 * self.dim - self.log_base + log_det

    def kl(self, belief: GaussianBelief, other: GaussianBelief) -> Scalar:
        root, target = cholesky(belief.cov), cholesky(other.cov)
        spread = solve_lower(target, root)
        shift = solve_lower(target, belief.mean - other.mean)
        log_det = jnp.sum(jnp.log(jnp.diagonal(spread)))
        return 0.5 * (jnp.sum(spread**2) - self.dim + shift @ shift) - log_det

    def sample(self, belief: GaussianBelief, key: Key, num: int) -> Float[Array, "S L"]:
        noise = jax.random.normal(key, (num, self.dim), belief.mean.dtype)
        return belief.mean + noise @ cholesky(belief.cov).T

    def mean(self, belief: GaussianBelief) -> Vector:
        return belief.mean

    def cov(self, belief: GaussianBelief) -> Matrix:
        return belief.cov

    def var(self, belief: GaussianBelief) -> Vector:
        return jnp.diagonal(belief.cov)

    def from_moments(self, mean: Vector, cov: Matrix) -> GaussianBelief:
        return GaussianBelief(mean, cov)

    def nodes(self, belief: GaussianBelief) -> Nodes:
        r"""Return the $2L$ nodes of spherical cubature, of equal weights (see `cubature`)."""
        return cubature(belief.mean, cholesky(belief.cov))

    def from_unconstrained(self, raw: Float[Array, " R"]) -> GaussianNat:
        """Return natural parameters of any real vector.

        The first L entries are the mean. The other entries give a Cholesky factor of the precision
        (the inverse covariance), row by row. The norm of a row is the softplus of its diagonal
        entry plus 1e-4. `MAX_TILT` bounds the entries left of the diagonal, so that the covariance
        is positive definite even in float32, whatever the entries are.
        """
        mean, entries = raw[: self.dim], raw[self.dim :]
        lower = (
            jnp.zeros((self.dim, self.dim), raw.dtype).at[jnp.tril_indices(self.dim)].set(entries)
        )
        length = jax.nn.softplus(jnp.diagonal(lower)) + 1e-4
        below = jnp.tril(lower, -1)
        square = jnp.sum(below**2, axis=-1, keepdims=True)
        below = below / jnp.sqrt(1 + square / MAX_TILT**2)
        root = below + jnp.eye(self.dim, dtype=raw.dtype)
        root = root * (length / jnp.linalg.norm(root, axis=-1))[:, None]
        precision = root @ root.T
        return GaussianNat(precision @ mean, -0.5 * precision)

    @property
    def num_raw(self) -> int:
        return self.dim + self.dim * (self.dim + 1) // 2

    def valid(self, belief: GaussianBelief) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(belief.mean)) & jnp.all(jnp.isfinite(cholesky(belief.cov)))


def cubature(mean: Vector, root: Matrix) -> Nodes:
    r"""Return the spherical cubature rule of a Gaussian: $2L$ nodes of equal weights.

    The nodes are $m \pm \sqrt{L} c_i$, where $c_i$ are the columns of `root`, the Cholesky factor
    of the covariance.
    """
    dim = mean.shape[0]
    offsets = math.sqrt(dim) * root.T
    points = jnp.concatenate([mean + offsets, mean - offsets])
    return Nodes(points, jnp.full(2 * dim, 0.5 / dim, points.dtype))
