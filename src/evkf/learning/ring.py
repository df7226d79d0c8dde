"""The ring buffer of the last bins, and windows (consecutive bins) taken from the ring for replay.

The learner stores every bin with the belief about the latent state after the bin, and learns from
windows. Time and memory per bin are constant.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from evkf.model import Model
from evkf.types import Belief, Count, Input, Mask, Observation

GOLDEN = 0x9E3779B9
"""$2^{32}$ divided by the golden ratio. Multiples of this number modulo $2^{32}$ are spread very
evenly."""


class Bins(NamedTuple):
    """A bin and the belief after the bin; with a leading axis on all arrays, several bins."""

    y: Observation
    """Observations, (N,); zero where masked."""
    mask: Mask
    """True where observed, (N,)."""
    u: Input
    """Input, (inputs,)."""
    fresh: Bool[Array, ""]
    """True for the first bin of a trial."""
    belief: Belief
    """Belief about the latent state after the bin."""


class Ring(NamedTuple):
    """The last R bins, and the number of bins ever stored."""

    bins: Bins
    """The stored bins, with a leading axis of length R. Bin i is at position i modulo R."""
    count: Count
    """Number of bins ever stored."""
    oldest: Count
    """Index, among all bins ever stored, of the first bin in use; earlier bins are ignored."""


class Window(NamedTuple):
    """W consecutive bins, and the belief before the first of these bins."""

    start: Belief
    """Belief after the bin before the window."""
    bins: Bins
    """The bins, with a leading axis of length W."""
    slots: Int[Array, " W"]
    """Positions of the bins in the ring."""


def make_ring(model: Model, size: int) -> Ring:
    """Return an empty ring.

    Args:
        model: The model, which gives the numbers of channels and inputs and the form of beliefs.
        size: Number of bins that fit.
    """
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
    """Return the ring with a bin added, which replaces the oldest bin if the ring is full.

    Args:
        ring: The ring before the bin.
        bins: The bin, without a leading axis.
    """
    size = ring.bins.fresh.shape[0]
    slot = ring.count % size
    stored = jax.tree.map(lambda all, one: all.at[slot].set(one), ring.bins, bins)
    count = ring.count + 1
    return Ring(stored, count, jnp.maximum(ring.oldest, count - size))


def refresh(ring: Ring, window: Window, beliefs: Belief) -> Ring:
    """Return the ring with new beliefs for the bins of replayed windows.

    Args:
        ring: The ring from which the windows were taken.
        window: The replayed windows; their `slots` say where the bins are in the ring.
        beliefs: New beliefs about the latent states after these bins, in the order of `slots`.
    """
    renewed = jax.tree.map(
        lambda all, new: all.at[window.slots].set(new), ring.bins.belief, beliefs
    )
    return ring._replace(bins=ring.bins._replace(belief=renewed))


def forget(ring: Ring, keep: Count | int) -> Ring:
    """Return a ring that uses only the last `keep` of the bins stored so far, and bins to come."""
    return ring._replace(oldest=jnp.maximum(ring.oldest, ring.count - keep))


def draw_windows(
    ring: Ring, step: Int[Array, ""], num: int, length: int
) -> tuple[Window, Bool[Array, ""]]:
    """Return windows spread evenly over the bins in use, at an offset that changes with the step.

    The offsets are multiples of the golden ratio. Random numbers are not needed, and all bins are
    visited about equally often.

    Args:
        ring: The ring from which windows are taken.
        step: Number of gradient steps before this one.
        num: Number of windows.
        length: Number of bins in a window.

    Returns:
        Windows with a leading axis of length `num`, and True if the ring holds enough bins for a
        window. If False, the windows must not be used.
    """
    size = ring.bins.fresh.shape[0]
    # A window needs the belief before its first bin. If the oldest bin in use begins a trial, this
    # belief is the prior, and a window can begin with the oldest bin.
    first = ring.oldest - ring.bins.fresh[ring.oldest % size]
    choices = jnp.maximum(ring.count - first - length, 1)
    phase = (step.astype(jnp.uint32) * jnp.uint32(GOLDEN)).astype(jnp.float32) * 2.0**-32
    share = (np.arange(num, dtype=np.float32) + phase) / num
    starts = jnp.minimum((share * choices).astype(jnp.int32), choices - 1)
    index = (first + starts[:, None] + jnp.arange(length + 1, dtype=jnp.int32)) % size
    return _take(ring, index), ring.count - first > length


def newest_window(ring: Ring) -> Window:
    """Return the last bin as a window of one bin, with a leading axis of length 1.

    If no other bin was stored before, the belief before the window is the prior.
    """
    size = ring.bins.fresh.shape[0]
    return _take(ring, (ring.count - jnp.asarray([[2, 1]], jnp.int32)) % size)


def _take(ring: Ring, index: Int[Array, "num W"]) -> Window:
    taken: Bins = jax.tree.map(lambda leaf: leaf[index], ring.bins)
    start = jax.tree.map(lambda leaf: leaf[:, 0], taken.belief)
    bins = jax.tree.map(lambda leaf: leaf[:, 1:], taken)
    return Window(start, bins, index[:, 1:])
