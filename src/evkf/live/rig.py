"""A simulated rig: neurons driven by dynamics that nobody observes, for trying things."""

import math

import jax
import numpy as np

from evkf.dynamics import ChaoticRNN, ResidualMLP, VanDerPol
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate

NOISE = 0.1**2
"""Variance of the dynamics in a bin."""


def rig_model(latents: int, channels: int, bin_width: float, seed: int = 0) -> Model:
    """What drives the neurons: a Van der Pol oscillator, or a chaotic network of more latents.

    Example:
        >>> rig_model(2, 30, 0.01).likelihood.num_channels
        30
    """
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(channels, latents))
    C /= math.sqrt(3) * np.linalg.norm(C, axis=1, keepdims=True)
    b = np.log(10 + 20 * rng.random(channels))
    tau = 20 * bin_width
    if latents == 2:
        dynamics = VanDerPol(gamma=1.5, tau=(tau, tau), dt=bin_width, noise=NOISE)
    else:
        weight = rng.normal(size=(latents, latents)) / math.sqrt(latents)
        dynamics = ChaoticRNN(weight, tau=tau, dt=bin_width, noise=NOISE)
    return Model(dynamics, Poisson(C, b, bin_width=bin_width))


def start_model(true: Model, seed: int = 0) -> Model:
    """Where a session on the rig starts: it knows the readout, and of the dynamics nothing."""
    dynamics = ResidualMLP(true.family.dim, 0.04, jax.random.key(seed))
    return Model(dynamics, true.likelihood)


def rig_counts(true: Model, bins: int, seed: int = 0) -> np.ndarray:
    """Spikes of so many bins, in the least type that holds them."""
    counts = np.asarray(simulate(true, jax.random.key(seed), bins)[1])
    return counts.astype(np.uint8 if counts.max(initial=0) < 256 else np.int32)
