r"""Base classes of exponential families of latent states; derive a new family from them.

A distribution of a family is stored as a *belief*. A belief is mean and covariance for the full
Gaussian; mean, diagonal and factor for the low-rank Gaussian; natural parameters for all others.
`nat(belief)` gives the natural parameters $\lambda$. `to_mean(nat)` gives the mean parameters
$\mu = E[t(z)] = \nabla A(\lambda)$, where $t(z)$ are the sufficient statistics of the latent
state $z$ and $A$ is the log-partition.

Paper: eq:expfam. The base measure is constant in every family.
"""

from abc import abstractmethod
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evkf.errors import InputError
from evkf.numerics.checks import check_whole
from evkf.types import Belief, Key, Matrix, Nat, Scalar, Vector

MAX_TENSOR_DIM = 10
"""Largest number of dimensions for which `nodes` can be a tensor product of two-point rules."""


class Nodes(NamedTuple):
    """Points and weights: the expectation of f(z) is about the sum of `weights * f(points)`."""

    points: Float[Array, "S L"]
    weights: Float[Array, " S"]


def tensor_nodes(points: Float[Array, "2 L"], weights: Float[Array, "2 L"]) -> Nodes:
    """Combine the two-point rules of all L dimensions into $2^L$ nodes, and return the nodes.

    Raise InputError if L is above `MAX_TENSOR_DIM`.
    """
    dim = points.shape[1]
    if dim > MAX_TENSOR_DIM:
        raise InputError(
            f"{dim} dimensions need 2^{dim} nodes",
            "Family.nodes",
            f"use rule='monte_carlo' above {MAX_TENSOR_DIM} dimensions",
        )
    choice = jnp.stack(jnp.meshgrid(*[jnp.arange(2)] * dim, indexing="ij"), -1).reshape(-1, dim)
    dims = jnp.arange(dim)
    return Nodes(points[choice, dims], jnp.prod(weights[choice, dims], axis=-1))


class Family(eqx.Module):
    r"""An exponential family with constant base measure over `dim` latent dimensions.

    The density of the latent state $z$ is $q(z) = h \exp(\lambda^\top t(z) - A(\lambda))$, with
    base measure $h$, natural parameters $\lambda$, sufficient statistics $t$ and log-partition
    $A$.
    """

    dim: eqx.AbstractVar[int]
    correctable: eqx.AbstractVar[bool]
    """True if mean and variance can be set independently of each other.

    The variance correction of the filter's prediction needs such a family.
    """

    def __check_init__(self):
        check_whole(self.dim, 1, "dim")

    @abstractmethod
    def nat(self, belief: Belief) -> Nat:
        r"""Return the natural parameters $\lambda$ of a belief."""

    @abstractmethod
    def from_nat(self, nat: Nat) -> Belief:
        r"""Return the belief that has natural parameters $\lambda$."""

    @abstractmethod
    def to_mean(self, nat: Nat) -> Nat:
        r"""Return the mean parameters $\mu = \nabla A(\lambda)$ of natural parameters."""

    @abstractmethod
    def to_nat(self, mean_params: Nat) -> Nat:
        """Return the natural parameters of given mean parameters; the inverse of `to_mean`."""

    @abstractmethod
    def log_partition(self, nat: Nat) -> Scalar:
        r"""Return the log-partition $A(\lambda)$."""

    @abstractmethod
    def stats(self, z: Vector) -> Nat:
        """Return the sufficient statistics $t(z)$ of a latent state."""

    @property
    @abstractmethod
    def log_base(self) -> float:
        """Logarithm of the constant base measure $h$."""

    @abstractmethod
    def log_prob(self, belief: Belief, z: Vector) -> Scalar:
        """Return the log density of a belief at z (for binary z, the log-probability)."""

    @abstractmethod
    def entropy(self, belief: Belief) -> Scalar:
        """Return the entropy of a belief in nats (differential entropy if z is continuous)."""

    @abstractmethod
    def kl(self, belief: Belief, other: Belief) -> Scalar:
        """Return the KL divergence KL(belief || other) in nats."""

    @abstractmethod
    def sample(self, belief: Belief, key: Key, num: int) -> Float[Array, "S L"]:
        """Draw `num` samples from a belief, one per row.

        JAX can differentiate the samples with respect to the belief.
        """

    @abstractmethod
    def mean(self, belief: Belief) -> Vector:
        """Return the mean of z under a belief."""

    @abstractmethod
    def cov(self, belief: Belief) -> Matrix:
        """Return the covariance matrix of z under a belief."""

    @abstractmethod
    def var(self, belief: Belief) -> Vector:
        """Return the marginal variance of each dimension of z under a belief."""

    @abstractmethod
    def from_moments(self, mean: Vector, cov: Matrix) -> Belief:
        """Return a belief that has a given mean and covariance.

        A family that cannot represent the covariance keeps only a part of it: all one-dimensional
        families ignore correlations, and those of one parameter also the variances.
        """

    @abstractmethod
    def nodes(self, belief: Belief) -> Nodes:
        """Return points and weights whose mean and marginal variances are those of a belief."""

    @abstractmethod
    def from_unconstrained(self, raw: Float[Array, " R"]) -> Nat:
        """Map any real vector of length `num_raw` to valid natural parameters, and return them."""

    @property
    @abstractmethod
    def num_raw(self) -> int:
        """Length of the vector that `from_unconstrained` takes."""

    @property
    def has_log_mgf(self) -> bool:
        """True if the family has `log_mgf` in closed form; False unless a class overrides it."""
        return False

    def log_mgf(self, nat: Nat, C: Float[Array, "N L"]) -> Float[Array, "N L"]:
        r"""Return the log moment-generating functions $\log E[e^{C_{nl} z_l}]$, entry by entry.

        $C$ are readout weights of N channels on L dimensions. These functions give a closed form
        to the expected log-likelihood of Poisson counts with exponential link.
        """
        raise NotImplementedError

    @abstractmethod
    def valid(self, belief: Belief) -> Bool[Array, ""]:
        """Return True if a belief is finite and its parameters are valid in the family."""


class Univariate(Family):
    """A family in which the `dim` dimensions of z are independent.

    Natural and mean parameters are arrays of shape (L, K): L dimensions, K parameters per
    dimension. The belief is the array of natural parameters. To make a new family, define
    `to_mean`, `natural_gradient`, `stats`, `log_base`, `sample`, `from_unconstrained`, and the
    abstract functions below whose names begin with `each_`. An `each_` function treats every
    dimension separately, and returns shape (L,) unless its signature says otherwise. This class
    derives all other functions of `Family`.
    """

    num_params: eqx.AbstractClassVar[int]
    """K, the number of natural parameters per dimension."""
    support: eqx.AbstractClassVar[tuple[float, float]]
    """Lower and upper end of the interval that every dimension of z lies in."""

    @abstractmethod
    def each_log_partition(self, nat: Float[Array, "L K"]) -> Vector:
        """Return the log-partition of each dimension."""

    @abstractmethod
    def each_log_prob(self, nat: Float[Array, "L K"], z: Vector) -> Vector:
        """Return the log density of each dimension at z."""

    @abstractmethod
    def each_entropy(self, nat: Float[Array, "L K"]) -> Vector:
        """Return the entropy of each dimension."""

    @abstractmethod
    def each_kl(self, nat: Float[Array, "L K"], other: Float[Array, "L K"]) -> Vector:
        """Return the KL divergence from `nat` to `other` of each dimension."""

    @abstractmethod
    def each_moments(self, nat: Float[Array, "L K"]) -> tuple[Vector, Vector, Vector]:
        """Return mean, variance and skewness of each dimension."""

    @abstractmethod
    def natural_gradient(self, nat: Nat, grad: Nat) -> Nat:
        r"""Return the natural gradient $F(\lambda)^{-1} g$.

        $g$ is a gradient with respect to the natural parameters $\lambda$, and the result is the
        gradient with respect to the mean parameters. $F$ is the Fisher information. At extreme
        parameters $F$ is nearly singular, so solve using a Schur complement in closed form.
        """

    @abstractmethod
    def each_to_nat(self, mean_params: Float[Array, "L K"]) -> Float[Array, "L K"]:
        """Compute `to_nat` from mean parameters; JAX never differentiates this function."""

    @abstractmethod
    def each_from_moments(self, mean: Vector, var: Vector) -> Float[Array, "L K"]:
        """Return natural parameters that have a given mean and variance.

        The variance is first clipped to the values that the family allows.
        """

    @abstractmethod
    def each_valid(self, nat: Float[Array, "L K"]) -> Bool[Array, " L"]:
        """Return, for each dimension, True if its natural parameters are valid in the family."""

    # The functions below follow from those above.

    def each_rule(
        self, nat: Float[Array, "L K"]
    ) -> tuple[Float[Array, "2 L"], Float[Array, "2 L"]]:
        """Return points and weights of the two-point Gauss rule of each dimension.

        The rule has the mean, variance and third moment of the dimension. All points lie inside the
        support.
        """
        mean, var, skew = self.each_moments(nat)
        half = skew / 2
        # The offsets, in standard deviations, are the roots of x^2 - skew x - 1; the larger root
        # is free of cancellation, and the smaller root is its negative reciprocal.
        large = jnp.sqrt(1 + half**2) + jnp.where(half < 0, -half, half)
        high = jnp.where(half < 0, 1 / large, large)
        offsets = jnp.stack([-1 / high, high])
        return self.inside(mean + jnp.sqrt(var) * offsets), 1 / (1 + offsets**2)

    def inside(self, z: Float[Array, "... L"]) -> Float[Array, "... L"]:
        """Return points; those on or outside the ends of the support are moved just inside."""
        info = jnp.finfo(z.dtype)
        low, high = self.support
        high = min(high * (1 - float(info.epsneg)), float(info.max))
        return jnp.clip(z, max(low + float(info.tiny), -float(info.max)), high)

    def nat(self, belief: Belief) -> Nat:
        return belief

    def from_nat(self, nat: Nat) -> Belief:
        return nat

    def to_nat(self, mean_params: Nat) -> Nat:
        """Return the natural parameters of given mean parameters.

        The derivative is the inverse Fisher information $F^{-1}$, by `natural_gradient`.
        """
        return _invert(self, mean_params)

    def log_partition(self, nat: Nat) -> Scalar:
        return jnp.sum(self.each_log_partition(nat))

    def log_prob(self, belief: Belief, z: Vector) -> Scalar:
        return jnp.sum(self.each_log_prob(belief, z))

    def entropy(self, belief: Belief) -> Scalar:
        return jnp.sum(self.each_entropy(belief))

    def kl(self, belief: Belief, other: Belief) -> Scalar:
        return jnp.sum(self.each_kl(belief, other))

    def mean(self, belief: Belief) -> Vector:
        return self.each_moments(belief)[0]

    def var(self, belief: Belief) -> Vector:
        return self.each_moments(belief)[1]

    def cov(self, belief: Belief) -> Matrix:
        return jnp.diag(self.var(belief))

    def from_moments(self, mean: Vector, cov: Matrix) -> Belief:
        return self.each_from_moments(mean, jnp.diagonal(cov))

    def nodes(self, belief: Belief) -> Nodes:
        """Return the tensor product of the two-point rules of `each_rule`: $2^L$ nodes.

        Raises:
            InputError: The family has more than 10 dimensions.
        """
        return tensor_nodes(*self.each_rule(belief))

    @property
    def num_raw(self) -> int:
        return self.num_params * self.dim

    def valid(self, belief: Belief) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(belief)) & jnp.all(self.each_valid(belief))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _invert(family: Univariate, mean_params: Float[Array, "L K"]) -> Float[Array, "L K"]:
    return family.each_to_nat(mean_params)


@_invert.defjvp
def _(family, primals, tangents):
    nat = _invert(family, *primals)
    return nat, family.natural_gradient(nat, *tangents)
