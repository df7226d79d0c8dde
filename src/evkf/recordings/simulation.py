"""Simulate recordings that have trials, conditions and behaviour, for `evkf simulate`."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from evkf.data import Recording
from evkf.dynamics import ChaoticRNN, VanDerPol
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate

CONDITIONS, SPEED, NOISE = 4, 100.0, 0.1**2
"""`CONDITIONS` is the number of conditions, `SPEED` the scale of hand velocity in mm/s, and `NOISE`
the variance of the noise of the dynamics in each latent dimension."""


def simulate_recording(
    neurons: int = 60,
    latents: int = 2,
    trials: int = 40,
    bins: int = 100,
    bin_width: float = 0.02,
    seed: int = 0,
) -> Recording:
    """Return a simulated recording of Poisson neurons driven by an oscillator or a chaotic network.

    Each trial begins near one of four latent states, which is the "condition" of the trial. Trials
    follow each other without pause. The behaviour "hand_vel", the velocity of a hand in mm/s, is a
    linear map of the latent state.

    Args:
        neurons: Number of neurons.
        latents: Number of latent dimensions: 2 for a Van der Pol oscillator, 3 or more for a
            chaotic network.
        trials: Number of trials.
        bins: Number of bins in each trial.
        bin_width: Bin width in seconds; also the time step of the dynamics.
        seed: Seed of all random numbers.

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
    """Return a model of Poisson neurons driven by an oscillator or a chaotic network.

    Args:
        neurons: Number of neurons.
        latents: Number of latent dimensions: 2 for a Van der Pol oscillator, 3 or more for a
            chaotic network.
        bin_width: Bin width in seconds.
        bins: Time constant of the dynamics in bins.
        rng: NumPy random generator, which draws the readout and the weights of the network.

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
