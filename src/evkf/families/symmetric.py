"""Base class of the continuous Bernoulli and the Bernoulli family."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evkf.families.base import Univariate
from evkf.numerics.special import Real, bregman
from evkf.types import Nat, Vector


class Symmetric(Univariate):
    r"""A family on [0, 1] that has one natural parameter $\lambda$ per dimension.

    The sufficient statistic is the latent state $z$ itself. Replacing $z$ by $1-z$ changes the sign
    of $\lambda$, so the log-partition fulfils $A(-\lambda) = A(\lambda) - \lambda$. Log density,
    entropy and KL divergence are computed at $-|\lambda|$, where the mean is small and has all
    its digits, and then mirrored.
    """

    num_params: ClassVar[int] = 1
    support: ClassVar[tuple[float, float]] = (0.0, 1.0)
    correctable: ClassVar[bool] = False

    reach: eqx.AbstractClassVar[float]
    r"""Largest step of $\lambda$, divided by $|\lambda|$, for which `each_kl` integrates $A''$.

    Over such a step $A''$ is a polynomial of low degree, to rounding. Steps up to 1 always count.
    """

    @staticmethod
    @abstractmethod
    def cumulant(nat: Real, order: int) -> Real:
        """Return a derivative of the log-partition: order 0 is $A$ itself, orders 1 to 3 follow.

        JAX differentiates order n to order n + 1 (a ladder of `evkf.numerics.special`).
        """

    def each_log_partition(self, nat: Float[Array, "L K"]) -> Vector:
        return self.cumulant(nat[:, 0], 0)

    def each_log_prob(self, nat: Float[Array, "L K"], z: Vector) -> Vector:
        folded = _fold(nat) * nat[:, 0]
        return folded * jnp.where(nat[:, 0] > 0, 1 - z, z) - self.cumulant(folded, 0)

    def each_entropy(self, nat: Float[Array, "L K"]) -> Vector:
        folded = _fold(nat) * nat[:, 0]
        return self.cumulant(folded, 0) - folded * self.cumulant(folded, 1)

    def each_kl(self, nat: Float[Array, "L K"], other: Float[Array, "L K"]) -> Vector:
        sign = _fold(nat)
        folded, end, step = (sign * x[:, 0] for x in (nat, other, other - nat))
        return bregman(self.cumulant, folded, end, step, jnp.maximum(1, -self.reach * folded))

    def each_moments(self, nat: Float[Array, "L K"]) -> tuple[Vector, Vector, Vector]:
        mean, var, third = (self.cumulant(nat[:, 0], order) for order in (1, 2, 3))
        safe = jnp.maximum(var, jnp.finfo(var.dtype).tiny)
        return mean, var, third / safe / jnp.sqrt(safe)

    def natural_gradient(self, nat: Nat, grad: Nat) -> Nat:
        # The variance of a belief very near 0 or 1 underflows.
        return grad / jnp.maximum(self.cumulant(nat, 2), jnp.finfo(nat.dtype).tiny)

    def each_from_moments(self, mean: Vector, var: Vector) -> Float[Array, "L K"]:
        """Return natural parameters that have a given mean; `var` is ignored: the mean fixes it."""
        return self.to_nat(mean[:, None])

    def each_valid(self, nat: Float[Array, "L K"]) -> Bool[Array, " L"]:
        return jnp.isfinite(nat[:, 0])

    def to_mean(self, nat: Nat) -> Nat:
        return self.cumulant(nat, 1)

    def stats(self, z: Vector) -> Nat:
        return z[:, None]

    @property
    def log_base(self) -> float:
        return 0.0

    def from_unconstrained(self, raw: Float[Array, " R"]) -> Nat:
        """Return `raw` as natural parameters: every real number is valid."""
        return raw[:, None]

    @property
    def has_log_mgf(self) -> bool:
        return True

    def log_mgf(self, nat: Nat, C: Float[Array, "N L"]) -> Float[Array, "N L"]:
        r"""Return the log moment-generating function $A(\lambda + C_{nl}) - A(\lambda)$."""
        return self.cumulant(nat[:, 0] + C, 0) - self.cumulant(nat[:, 0], 0)


def _fold(nat: Float[Array, "L 1"]) -> Vector:
    r"""Return the sign s with $s\lambda = -|\lambda|$; +1 at 0, to keep derivatives right."""
    return jnp.where(nat[:, 0] > 0, -1, 1).astype(nat.dtype)
