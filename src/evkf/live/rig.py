"""A simulated rig: neurons driven by dynamics that nobody observes, for trying things."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from evkf.dynamics import Driven, GaussianDynamics, ResidualMLP
from evkf.live.limits import Limits
from evkf.model import Model, simulate
from evkf.recordings.simulation import driven_neurons

TAPE_S, TAPE_CELLS = 120.0, 60_000_000
"""Seconds of spikes that the rig makes, and how many numbers that may be."""

PUSH = 0.3
"""How far a unit of stimulation moves the state of the rig in a bin."""


def rig_model(
    latents: int, channels: int, bin_width: float, seed: int = 0, stimulated: bool = False
) -> Model:
    """What drives the neurons: a Van der Pol oscillator, or a chaotic network of more latents.

    Args:
        latents: Latent dimensions, 2 or more.
        channels: Neurons.
        bin_width: Seconds.
        seed: Of everything random.
        stimulated: Whether there are inputs, as many as latents, each of which moves the state
            along a direction of its own.

    Example:
        >>> rig_model(2, 30, 0.01).likelihood.num_channels
        30
        >>> rig_model(2, 30, 0.01, stimulated=True).dynamics.num_inputs
        2
    """
    rng = np.random.default_rng(seed)
    model = driven_neurons(channels, latents, bin_width, 20, rng)
    if not stimulated:
        return model
    weight = PUSH * np.linalg.qr(rng.normal(size=(latents, latents)))[0]
    return eqx.tree_at(lambda m: m.dynamics.input_weight, model, jnp.asarray(weight))


def rig_limits(inputs: int) -> Limits:
    """What the rig's stimulation may not exceed: enough to hold its state anywhere.

    Example:
        >>> rig_limits(2).amplitude
        (1.0, 1.0)
    """
    return Limits((1.0,) * inputs, (50.0,) * inputs, (0.8,) * inputs, window=1.0)


def start_model(true: Model, seed: int = 0) -> Model:
    """Where a session on the rig starts: it knows the readout and what stimulation does, and else
    of the dynamics nothing.
    """
    dynamics = ResidualMLP(true.family.dim, 0.04, jax.random.key(seed))
    if true.dynamics.num_inputs:
        assert isinstance(true.dynamics, GaussianDynamics)
        nowhere = jnp.zeros(true.family.dim)
        push = jax.jacobian(true.dynamics.mean, argnums=1)
        dynamics = Driven(dynamics, push(nowhere, jnp.zeros(true.dynamics.num_inputs)))
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
    return _least(counts)


def _least(counts: np.ndarray) -> np.ndarray:
    return counts.astype(np.uint8 if counts.max(initial=0) < 256 else np.int32)


class Subject:
    """A rig that responds: its neurons and what drives them, a bin at a time.

    Args:
        true: What drives the neurons, with inputs.
        seed: Of everything random.

    Attributes:
        z: The state.

    Example:
        >>> subject = Subject(rig_model(2, 30, 0.01, stimulated=True))
        >>> subject.step(np.zeros(2)).shape, subject.z.shape
        ((30,), (2,))
    """

    def __init__(self, true: Model, seed: int = 0):
        self._key, self._bins = jax.random.key(seed), 0
        self.z = np.array(true.family.sample(true.prior, self._key, 1)[0])

        def step(key: jax.Array, z: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
            keys = jax.random.split(key)
            state = true.dynamics.transition(z, u)
            z = true.dynamics.family.sample(state, keys[0], 1)[0]
            return z, true.likelihood.sample(z, keys[1])

        self._step = jax.jit(step)

    def step(self, u: np.ndarray) -> np.ndarray:
        """The spikes of the next bin, in which this was on."""
        key = jax.random.fold_in(self._key, self._bins)
        z, y = self._step(key, self.z, np.asarray(u, self.z.dtype))
        self.z, self._bins = np.array(z), self._bins + 1
        return _least(np.asarray(y))
