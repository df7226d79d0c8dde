"""Simulated recordings with trials, conditions and behaviour, for `evkf simulate`."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from evkf.data import Recording
from evkf.dynamics import ChaoticRNN, VanDerPol
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate

CONDITIONS, SPEED, NOISE = 4, 100.0, 0.1**2
"""Number of conditions, hand speed in mm/s for a latent of one, and variance of the dynamics."""


def simulate_recording(
    neurons: int = 60,
    latents: int = 2,
    trials: int = 40,
    bins: int = 100,
    bin_width: float = 0.02,
    seed: int = 0,
) -> Recording:
    """Simulate Poisson neurons driven by a Van der Pol oscillator, or by a chaotic network.

    Trials follow one another, and begin near one of four states, their "condition". The velocity of
    a hand, "hand_vel", is a linear map of the latents.

    Args:
        neurons: Number of neurons.
        latents: Latent dimensions: 2 for the oscillator, more for the network.
        trials: Number of trials.
        bins: Bins of a trial.
        bin_width: In seconds; one step of the dynamics.
        seed: Seed of all randomness.

    Example:
        >>> recording = simulate_recording(neurons=5, trials=3, bins=20)
        >>> recording.counts.shape, recording.behaviour["hand_vel"].shape
        ((60, 5), (60, 2))
    """
    rng = np.random.default_rng(seed)
    model = driven_neurons(neurons, latents, bin_width, 10, rng)
    starts = rng.normal(size=(CONDITIONS, latents))
    starts *= math.sqrt(2) / np.linalg.norm(starts, axis=1, keepdims=True)
    conditions = np.arange(trials) % CONDITIONS
    keys = jax.random.split(jax.random.key(seed), trials)
    dtype = jnp.asarray(0.0).dtype
    drawn = [
        simulate(model, key, bins, z0=jnp.asarray(starts[condition], dtype))
        for key, condition in zip(keys, conditions, strict=True)
    ]
    states = np.concatenate([np.asarray(zs) for zs, _ in drawn])
    hand = states @ rng.normal(size=(latents, 2)) * SPEED / math.sqrt(latents)
    return Recording(
        np.concatenate([np.asarray(ys) for _, ys in drawn]).astype(np.int64),
        bin_width,
        (bins,) * trials,
        behaviour={"hand_vel": hand},
        trials={"condition": conditions},
        source="simulation",
    )


def driven_neurons(
    neurons: int, latents: int, bin_width: float, bins: float, rng: np.random.Generator
) -> Model:
    """Return a model of Poisson neurons driven by an oscillator, or by a chaotic network.

    Args:
        neurons: Number of neurons.
        latents: Latent dimensions, 2 or more.
        bin_width: In seconds.
        bins: Time constant of the dynamics in bins.
        rng: Randomness of readout and network.

    Example:
        >>> model = driven_neurons(30, 2, 0.01, 10, np.random.default_rng(0))
        >>> model.likelihood.num_channels
        30
    """
    C = rng.normal(size=(neurons, latents))
    C /= math.sqrt(3) * np.linalg.norm(C, axis=1, keepdims=True)
    b = np.log(10 + 20 * rng.random(neurons))
    tau = bins * bin_width
    if latents == 2:
        dynamics = VanDerPol(gamma=1.5, tau=(tau, tau), dt=bin_width, noise=NOISE)
    else:
        weight = rng.normal(size=(latents, latents)) / math.sqrt(latents)
        dynamics = ChaoticRNN(weight, tau=tau, dt=bin_width, noise=NOISE)
    return Model(dynamics, Poisson(C, b, bin_width=bin_width))
