"""The Bernoulli family: binary states."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from evkf.families.symmetric import Symmetric
from evkf.numerics.special import Real, softplus
from evkf.types import Belief, Key


class BernoulliFamily(Symmetric):
    r"""Independent Bernoulli states, $q(z) = \exp(\lambda z - A(\lambda))$ for z in {0, 1}.

    $A(\lambda) = \log(1 + e^\lambda)$, mean $\sigma(\lambda)$, variance
    $\sigma(\lambda)\sigma(-\lambda)$. Log-probability and entropy are those of the discrete
    distribution. The mean fixes the variance, so the variance correction does not apply. Samples
    carry the straight-through gradient, which is exact for expectations of linear functions only.

    Example:
        >>> import jax.numpy as jnp
        >>> family = BernoulliFamily(2)
        >>> belief = family.from_moments(jnp.array([0.5, 0.9]), jnp.eye(2))
        >>> [round(float(x), 4) for x in family.var(belief)]
        [0.25, 0.09]
    """

    dim: int = eqx.field(static=True)
    reach: ClassVar[float] = 0.0

    @staticmethod
    def cumulant(nat: Real, order: int) -> Real:
        return softplus(nat, order)

    def each_to_nat(self, mean_params: Float[Array, "L K"]) -> Float[Array, "L K"]:
        inner = self.inside(mean_params)
        return jnp.log(inner / (1 - inner))

    def each_rule(
        self, nat: Float[Array, "L K"]
    ) -> tuple[Float[Array, "2 L"], Float[Array, "2 L"]]:
        """The distribution itself; its skewness overflows where a logit saturates."""
        up, down = jax.nn.sigmoid(nat[:, 0]), jax.nn.sigmoid(-nat[:, 0])
        return jnp.stack([jnp.zeros_like(up), jnp.ones_like(up)]), jnp.stack([down, up])

    def sample(self, belief: Belief, key: Key, num: int) -> Float[Array, "S L"]:
        """Exact binary samples with the straight-through gradient, that of the mean.

        The gradient of $E[f(z)]$ is then exact for linear f and biased for any other: expectations
        under `nodes` have no such bias.
        """
        nat = belief[:, 0]
        noise = jax.random.logistic(key, (num, self.dim), nat.dtype)
        mean = jax.nn.sigmoid(nat)
        return (noise + nat > 0).astype(nat.dtype) + (mean - lax.stop_gradient(mean))
