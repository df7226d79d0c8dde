r"""Base classes of exponential families of latent states; derive a new family from them.

A family is stored in one fixed form, its *belief*: mean and covariance for the full Gaussian,
mean, diagonal and factor for the low-rank one, natural parameters for everything else. The paper's
coordinates are functions of it: `nat(belief)` gives $\lambda$, `to_mean(nat)` gives
$\mu = E[t(z)] = \nabla A(\lambda)$.

Paper: eq:expfam, with constant base measure throughout.
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
"""Largest number of dimensions for which `nodes` is a tensor product of two-point rules."""


class Nodes(NamedTuple):
    """Points and weights of a deterministic rule for expectations under a belief."""

    points: Float[Array, "S L"]
    weights: Float[Array, " S"]


def tensor_nodes(points: Float[Array, "2 L"], weights: Float[Array, "2 L"]) -> Nodes:
    """Return the tensor product of the two-point rules of every dimension: $2^L$ nodes."""
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

    $q(z) = h \exp(\lambda^\top t(z) - A(\lambda))$.
    """

    dim: eqx.AbstractVar[int]
    correctable: eqx.AbstractVar[bool]
    """True if mean and variance can be set independently, as the variance correction needs."""

    def __check_init__(self):
        check_whole(self.dim, 1, "dim")

    @abstractmethod
    def nat(self, belief: Belief) -> Nat:
        r"""Natural parameters $\lambda$ of a belief."""

    @abstractmethod
    def from_nat(self, nat: Nat) -> Belief:
        r"""Belief with natural parameters $\lambda$."""

    @abstractmethod
    def to_mean(self, nat: Nat) -> Nat:
        r"""Mean parameters $\mu = \nabla A(\lambda)$."""

    @abstractmethod
    def to_nat(self, mean_params: Nat) -> Nat:
        """Natural parameters of given mean parameters, the inverse of `to_mean`."""

    @abstractmethod
    def log_partition(self, nat: Nat) -> Scalar:
        r"""Log-partition $A(\lambda)$."""

    @abstractmethod
    def stats(self, z: Vector) -> Nat:
        """Sufficient statistics $t(z)$."""

    @property
    @abstractmethod
    def log_base(self) -> float:
        """Log of the constant base measure $h$."""

    @abstractmethod
    def log_prob(self, belief: Belief, z: Vector) -> Scalar:
        """Log density at z."""

    @abstractmethod
    def entropy(self, belief: Belief) -> Scalar:
        """Differential entropy."""

    @abstractmethod
    def kl(self, belief: Belief, other: Belief) -> Scalar:
        """KL divergence from `belief` to `other`."""

    @abstractmethod
    def sample(self, belief: Belief, key: Key, num: int) -> Float[Array, "S L"]:
        """Reparameterised samples: gradients flow to the belief."""

    @abstractmethod
    def mean(self, belief: Belief) -> Vector:
        """Mean of z."""

    @abstractmethod
    def cov(self, belief: Belief) -> Matrix:
        """Covariance of z."""

    @abstractmethod
    def var(self, belief: Belief) -> Vector:
        """Marginal variances of z."""

    @abstractmethod
    def from_moments(self, mean: Vector, cov: Matrix) -> Belief:
        """Belief with a given mean and covariance, as near as the family allows."""

    @abstractmethod
    def nodes(self, belief: Belief) -> Nodes:
        """Deterministic rule for expectations, exact for the first moments."""

    @abstractmethod
    def from_unconstrained(self, raw: Float[Array, " R"]) -> Nat:
        """Map any vector of length `num_raw` into the valid natural parameters."""

    @property
    @abstractmethod
    def num_raw(self) -> int:
        """Length of the vector `from_unconstrained` takes."""

    @property
    def has_log_mgf(self) -> bool:
        """True if `log_mgf` has a closed form."""
        return False

    def log_mgf(self, nat: Nat, C: Float[Array, "N L"]) -> Float[Array, "N L"]:
        r"""Log moment-generating function $\log E[e^{C_{nl} z_l}]$ of every dimension.

        With it, expectations of Poisson counts with exponential link have a closed form.
        """
        raise NotImplementedError

    @abstractmethod
    def valid(self, belief: Belief) -> Bool[Array, ""]:
        """True if a belief is finite and inside the family."""


class Univariate(Family):
    """A product of `dim` independent one-dimensional members.

    Natural and mean parameters are arrays of shape (L, K); the belief is the natural parameters.
    A new family defines the element-wise functions below, whose names begin with `each_` and which
    map (L, K) to (L,) unless noted, and `to_mean`, `natural_gradient`, `stats`, `log_base`,
    `sample` and `from_unconstrained`. All others of `Family` follow from these.
    """

    num_params: eqx.AbstractClassVar[int]
    """Natural parameters per dimension, K."""
    support: eqx.AbstractClassVar[tuple[float, float]]
    """Ends of the interval that z lies in."""

    @abstractmethod
    def each_log_partition(self, nat: Float[Array, "L K"]) -> Vector:
        """A of every dimension."""

    @abstractmethod
    def each_log_prob(self, nat: Float[Array, "L K"], z: Vector) -> Vector:
        """Log density of every dimension."""

    @abstractmethod
    def each_entropy(self, nat: Float[Array, "L K"]) -> Vector:
        """Entropy of every dimension."""

    @abstractmethod
    def each_kl(self, nat: Float[Array, "L K"], other: Float[Array, "L K"]) -> Vector:
        """KL divergence of every dimension."""

    @abstractmethod
    def each_moments(self, nat: Float[Array, "L K"]) -> tuple[Vector, Vector, Vector]:
        """Mean, variance and skewness of every dimension."""

    @abstractmethod
    def natural_gradient(self, nat: Nat, grad: Nat) -> Nat:
        r"""Gradient in mean parameters from the gradient in natural ones: $F(\lambda)^{-1} g$.

        $F$ is nearly singular at extreme parameters: solve with a Schur complement in closed form.
        """

    @abstractmethod
    def each_to_nat(self, mean_params: Float[Array, "L K"]) -> Float[Array, "L K"]:
        """Values of `to_nat`; need not be differentiable."""

    @abstractmethod
    def each_from_moments(self, mean: Vector, var: Vector) -> Float[Array, "L K"]:
        """Natural parameters with a given mean and variance, the variance clipped to its range."""

    @abstractmethod
    def each_valid(self, nat: Float[Array, "L K"]) -> Bool[Array, " L"]:
        """True for every dimension whose parameters are inside the family."""

    # The rest follows from these.

    def each_rule(
        self, nat: Float[Array, "L K"]
    ) -> tuple[Float[Array, "2 L"], Float[Array, "2 L"]]:
        """Points and weights of the two-point Gauss rule of every dimension.

        It matches mean, variance and third moment, and its points lie inside the support.
        """
        mean, var, skew = self.each_moments(nat)
        half = skew / 2
        # The offsets, in standard deviations, are the roots of x^2 - skew x - 1; the larger one is
        # free of cancellation and the other is its negative reciprocal.
        large = jnp.sqrt(1 + half**2) + jnp.where(half < 0, -half, half)
        high = jnp.where(half < 0, 1 / large, large)
        offsets = jnp.stack([-1 / high, high])
        return self.inside(mean + jnp.sqrt(var) * offsets), 1 / (1 + offsets**2)

    def inside(self, z: Float[Array, "... L"]) -> Float[Array, "... L"]:
        """Move points that rounding put at the ends of the support back into its interior."""
        info = jnp.finfo(z.dtype)
        low, high = self.support
        high = min(high * (1 - float(info.epsneg)), float(info.max))
        return jnp.clip(z, max(low + float(info.tiny), -float(info.max)), high)

    def nat(self, belief: Belief) -> Nat:
        return belief

    def from_nat(self, nat: Nat) -> Belief:
        return nat

    def to_nat(self, mean_params: Nat) -> Nat:
        """Natural parameters of given mean parameters; its derivative is $F^{-1}$."""
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
        """Tensor product of the two-point rules of `each_rule`, for up to 10 dimensions.

        Raises:
            InputError: With more dimensions.
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
