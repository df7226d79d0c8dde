"""The ring buffer of the last bins, and the windows drawn from it for replay.

The learner pushes every bin, with the belief after it, and learns from windows of consecutive bins.
Time and memory per bin are constant.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from evkf.model import Model
from evkf.types import Belief, Count, Input, Mask, Observation

GOLDEN = 0x9E3779B9
"""$2^{32}$ over the golden ratio: its multiples fill a circle as evenly as any sequence can."""


class Bins(NamedTuple):
    """A bin with the belief after it; several with a leading axis."""

    y: Observation
    mask: Mask
    u: Input
    fresh: Bool[Array, ""]
    """True for the first bin of a trial."""
    belief: Belief


class Ring(NamedTuple):
    """The last R bins, and the number of bins ever pushed."""

    bins: Bins
    """With a leading axis of length R."""
    count: Count
    oldest: Count
    """Index of the first bin in use; bins before it are forgotten."""


class Window(NamedTuple):
    """Consecutive bins, and the belief before them."""

    start: Belief
    bins: Bins
    slots: Int[Array, " W"]
    """Positions of the bins in the ring."""


def make_ring(model: Model, size: int) -> Ring:
    """Return a ring without bins."""
    dtype = jax.tree.leaves(model.prior)[0].dtype
    channels, inputs = model.likelihood.num_channels, model.dynamics.num_inputs
    one = Bins(
        jnp.zeros(channels, dtype),
        jnp.zeros(channels, bool),
        jnp.zeros(inputs, dtype),
        jnp.asarray(True),
        model.prior,
    )
    stacked = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], size, axis=0), one)
    return Ring(stacked, jnp.asarray(0, jnp.int32), jnp.asarray(0, jnp.int32))


def push(ring: Ring, bins: Bins) -> Ring:
    """Add a bin in place of the oldest."""
    size = ring.bins.fresh.shape[0]
    slot = ring.count % size
    stored = jax.tree.map(lambda all, one: all.at[slot].set(one), ring.bins, bins)
    count = ring.count + 1
    return Ring(stored, count, jnp.maximum(ring.oldest, count - size))


def refresh(ring: Ring, window: Window, beliefs: Belief) -> Ring:
    """Replace the beliefs of replayed bins."""
    renewed = jax.tree.map(
        lambda all, new: all.at[window.slots].set(new), ring.bins.belief, beliefs
    )
    return ring._replace(bins=ring.bins._replace(belief=renewed))


def forget(ring: Ring, keep: Count | int) -> Ring:
    """Use only the last `keep` bins from now on."""
    return ring._replace(oldest=jnp.maximum(ring.oldest, ring.count - keep))


def draw_windows(
    ring: Ring, step: Int[Array, ""], num: int, length: int
) -> tuple[Window, Bool[Array, ""]]:
    """Return windows spread evenly over the ring, with an offset that moves from step to step.

    The offsets are multiples of the golden ratio: no random numbers are needed, and all bins are
    visited about equally often.

    Args:
        ring: The ring.
        step: How many times windows were drawn before.
        num: Number of windows.
        length: Bins in a window.

    Returns:
        Windows with a leading axis of `num`, and True if the ring holds enough bins for one.
    """
    size = ring.bins.fresh.shape[0]
    # The belief before a trial is the prior: if the oldest bin is the first of a trial, a window
    # can begin with it.
    first = ring.oldest - ring.bins.fresh[ring.oldest % size]
    choices = jnp.maximum(ring.count - first - length, 1)
    phase = (step.astype(jnp.uint32) * jnp.uint32(GOLDEN)).astype(jnp.float32) * 2.0**-32
    share = (np.arange(num, dtype=np.float32) + phase) / num
    starts = jnp.minimum((share * choices).astype(jnp.int32), choices - 1)
    index = (first + starts[:, None] + jnp.arange(length + 1, dtype=jnp.int32)) % size
    return _take(ring, index), ring.count - first > length


def newest_window(ring: Ring) -> Window:
    """Return the last bin as a window; the belief before the first bin ever is the prior."""
    size = ring.bins.fresh.shape[0]
    return _take(ring, (ring.count - jnp.asarray([[2, 1]], jnp.int32)) % size)


def _take(ring: Ring, index: Int[Array, "num W"]) -> Window:
    taken: Bins = jax.tree.map(lambda leaf: leaf[index], ring.bins)
    start = jax.tree.map(lambda leaf: leaf[:, 0], taken.belief)
    bins = jax.tree.map(lambda leaf: leaf[:, 1:], taken)
    return Window(start, bins, index[:, 1:])
