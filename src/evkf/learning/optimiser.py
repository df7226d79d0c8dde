"""The optimiser that learning uses when it is not told otherwise."""

from functools import cache

import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from evkf.numerics.checks import check_positive

RISE = 30
"""Steps in which the rate of a stream rises: it begins with few bins to learn from."""


@cache
def adam(
    rate: float = 1e-2,
    decay: int = 3500,
    floor: float = 0.3,
    clip: float = 1.0,
    warm_up: int = 0,
) -> optax.GradientTransformation:
    """Adam with clipped gradients and a rate that may rise, falls as a cosine, then stays.

    Args:
        rate: The largest learning rate.
        decay: Steps until the last one is reached.
        floor: The last rate as a share of the largest.
        clip: Largest norm of a gradient.
        warm_up: Steps in which the rate rises first.

    Example:
        >>> from evkf.learning import Learner
        >>> learner = Learner(optimiser=adam(rate=3e-3, decay=10_000))
    """
    check_positive(rate=rate, decay=decay, clip=clip)
    fall = optax.cosine_decay_schedule(rate, decay, floor)

    def schedule(step: ArrayLike) -> Array:
        return jnp.asarray(fall(step)) * jnp.minimum(1, (jnp.asarray(step) + 1) / max(warm_up, 1))

    return optax.chain(optax.clip_by_global_norm(clip), optax.adam(schedule))
