"""The continuous Bernoulli family: states from 0 to 1, with density highest at 0 or at 1."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evkf.families.symmetric import Symmetric
from evkf.numerics.special import Real, log_uniform
from evkf.types import Belief, Key


class ContinuousBernoulliFamily(Symmetric):
    r"""Independent states z with density $q(z) = \exp(\lambda z - A(\lambda))$ on [0, 1].

    The log-partition is $A(\lambda) = \log((e^\lambda - 1)/\lambda)$ and the mean
    $1/(1 - e^{-\lambda}) - 1/\lambda$. At $\lambda = 0$ the density is uniform. The mean fixes
    the variance. So a belief is narrow only near 0 or near 1, and the variance correction does not
    apply.

    Args:
        dim: Number of latent dimensions.

    Example:
        >>> import jax.numpy as jnp
        >>> family = ContinuousBernoulliFamily(2)
        >>> [round(float(x), 4) for x in family.mean(jnp.array([[0.0], [50.0]]))]
        [0.5, 0.98]
    """

    dim: int = eqx.field(static=True)
    reach: ClassVar[float] = 1 / 3

    @staticmethod
    def cumulant(nat: Real, order: int) -> Real:
        return log_uniform(nat, order)

    def each_to_nat(self, mean_params: Float[Array, "L K"]) -> Float[Array, "L K"]:
        r"""Return the natural parameters of given means, by Newton's method.

        Means are first clipped to at least one rounding unit from 0 and 1, so $|\lambda|$ is at
        most about one divided by the rounding unit.
        """
        unit = float(jnp.finfo(mean_params.dtype).epsneg)
        inner = jnp.clip(mean_params, unit, 1 - unit)
        edge = jnp.minimum(inner, 1 - inner)  # the mean at -x, x >= 0
        offset = 0.5 - edge
        # Cohen's rational inverse of coth(y) - 1/y has an error of at most 5 %.
        y = 2 * offset
        x = y * (3 - y**2) / (2 * edge * (1 - edge))
        for _ in range(5):
            # The first form of the residual is accurate at small x, the second at large x.
            residual = jnp.where(
                x < 2, offset - (log_uniform(x, 1) - 0.5), log_uniform(-x, 1) - edge
            )
            x = jnp.maximum(x + residual / log_uniform(x, 2), 0)
        return jnp.where(inner > 0.5, x, -x)

    def sample(self, belief: Belief, key: Key, num: int) -> Float[Array, "S L"]:
        """Draw samples: the inverse distribution function at uniform random numbers."""
        uniform = jax.random.uniform(key, (num, self.dim), belief.dtype)
        return _quantile(jnp.broadcast_to(belief[:, 0], uniform.shape), uniform)


@jax.custom_jvp
def _quantile(nat: Float[Array, "S L"], uniform: Float[Array, "S L"]) -> Float[Array, "S L"]:
    edge = _edge(nat, uniform)
    return jnp.where(nat > 0, 1 - edge, edge)


def _edge(nat: Float[Array, "S L"], uniform: Float[Array, "S L"]) -> Float[Array, "S L"]:
    """Return the distance of the quantile from the end of [0, 1] where the density is highest."""
    size, mass = jnp.abs(nat), jnp.where(nat > 0, 1 - uniform, uniform)
    safe = jnp.where(size == 0, 1, size)
    bent = -jnp.log1p(mass * jnp.expm1(-safe)) / safe
    return jnp.where(size == 0, mass, jnp.minimum(bent, 1))


@_quantile.defjvp
def _(primals, tangents):
    nat, uniform = primals
    edge, size = _edge(nat, uniform), jnp.abs(nat)
    rest = 1 - edge
    # With x = |lambda| and z = `rest`, the slope is ((1 - e^(-x z)) / (1 - e^(-x)) - z) / x. Below
    # 2 it is written as z expm1(A(-x z) - A(-x)) / x, the linear parts of A taken together.
    small = jnp.where(size < 2, size, 0)
    safe = jnp.where(small == 0, 1, small)
    even = [log_uniform(v, 0) - 0.5 * v for v in (small * rest, small)]
    exponent = 0.5 * small * edge + even[0] - even[1]
    near = rest * jnp.where(small == 0, 0.5 * edge, jnp.expm1(exponent) / safe)
    large = jnp.where(size < 2, 2, size)
    far = edge - (jnp.exp(-large * rest) - jnp.exp(-large)) / -jnp.expm1(-large)
    slope = jnp.where(size < 2, near, far / large)
    density = jnp.exp(-size * edge - log_uniform(-size, 0))
    return jnp.where(nat > 0, rest, edge), slope * tangents[0] + tangents[1] / density
