"""A simulated rig: neurons driven by dynamics that nobody observes, for trying things."""

import jax
import numpy as np

from evkf.dynamics import ResidualMLP
from evkf.model import Model, simulate
from evkf.simulation import driven_neurons


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


def rig_counts(true: Model, bins: int, seed: int = 0) -> np.ndarray:
    """Spikes of so many bins, in the least type that holds them."""
    counts = np.asarray(simulate(true, jax.random.key(seed), bins)[1])
    return counts.astype(np.uint8 if counts.max(initial=0) < 256 else np.int32)
