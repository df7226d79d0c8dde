"""The Bernoulli family: latent states that are 0 or 1."""

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
    r"""Independent binary states, $q(z) = \exp(\lambda z - A(\lambda))$ for z in {0, 1}.

    $\lambda$ is the log odds, the log-partition is $A(\lambda) = \log(1 + e^\lambda)$, the mean
    is $\sigma(\lambda)$ and the variance $\sigma(\lambda)\sigma(-\lambda)$, with the logistic
    function $\sigma$. `log_prob` and `entropy` are those of the discrete distribution. The mean
    fixes the variance, so the variance correction does not apply. The gradient of samples is the
    gradient of the mean (see `sample`).

    Args:
        dim: Number of latent dimensions.

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
        """Return the values 0 and 1 and their probabilities, which is the distribution itself."""
        up, down = jax.nn.sigmoid(nat[:, 0]), jax.nn.sigmoid(-nat[:, 0])
        return jnp.stack([jnp.zeros_like(up), jnp.ones_like(up)]), jnp.stack([down, up])

    def sample(self, belief: Belief, key: Key, num: int) -> Float[Array, "S L"]:
        """Draw binary samples; their gradient is that of the mean (straight-through gradient).

        The gradient of $E[f(z)]$ from these samples is exact if f is linear, and biased otherwise.
        Expectations by `nodes` have no such bias.
        """
        nat = belief[:, 0]
        noise = jax.random.logistic(key, (num, self.dim), nat.dtype)
        mean = jax.nn.sigmoid(nat)
        return (noise + nat > 0).astype(nat.dtype) + (mean - lax.stop_gradient(mean))
