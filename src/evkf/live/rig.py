"""A simulated rig: neurons driven by dynamics that nobody observes, for trying things."""

import jax
import numpy as np

from evkf.dynamics import ResidualMLP
from evkf.model import Model, simulate
from evkf.simulation import driven_neurons

TAPE_S, TAPE_CELLS = 120.0, 60_000_000
"""Seconds of spikes that the rig makes, and how many numbers that may be."""


def rig_model(latents: int, channels: int, bin_width: float, seed: int = 0) -> Model:
    """What drives the neurons: a Van der Pol oscillator, or a chaotic network of more latents.

    Example:
        >>> rig_model(2, 30, 0.01).likelihood.num_channels
        30
    """
    return driven_neurons(channels, latents, bin_width, 20, np.random.default_rng(seed))


def start_model(true: Model, seed: int = 0) -> Model:
    """Where a session on the rig starts: it knows the readout, and of the dynamics nothing."""
    dynamics = ResidualMLP(true.family.dim, 0.04, jax.random.key(seed))
    return Model(dynamics, true.likelihood)


def tape_bins(bins: int | None, channels: int, bin_width: float) -> int:
    """Bins that the rig makes, and sends over and over.

    Args:
        bins: That are asked for; None never ends.
        channels: How many.
        bin_width: Seconds.

    Example:
        >>> tape_bins(None, 100, 0.01), tape_bins(500, 100, 0.01), tape_bins(None, 1000, 0.001)
        (12000, 500, 60000)
    """
    most = min(TAPE_S / bin_width, TAPE_CELLS / channels)
    return int(min(np.inf if bins is None else bins, max(most, 1)))


def rig_counts(true: Model, bins: int, seed: int = 0) -> np.ndarray:
    """Spikes of so many bins, in the least type that holds them."""
    counts = np.asarray(simulate(true, jax.random.key(seed), bins)[1])
    return counts.astype(np.uint8 if counts.max(initial=0) < 256 else np.int32)
