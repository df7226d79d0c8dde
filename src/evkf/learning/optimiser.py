"""The optimiser that learning uses when it is not told otherwise."""

from functools import cache

import optax


@cache
def adam(
    rate: float = 1e-2, decay: int = 3500, floor: float = 0.3, clip: float = 1.0
) -> optax.GradientTransformation:
    """Adam with clipped gradients and a rate that falls as a cosine, then stays.

    Args:
        rate: The first learning rate.
        decay: Steps until the last one is reached.
        floor: The last rate as a share of the first.
        clip: Largest norm of a gradient.

    Example:
        >>> from evkf.learning import Learner
        >>> learner = Learner(optimiser=adam(rate=3e-3, decay=10_000))
    """
    schedule = optax.cosine_decay_schedule(rate, decay, floor)
    return optax.chain(optax.clip_by_global_norm(clip), optax.adam(schedule))
