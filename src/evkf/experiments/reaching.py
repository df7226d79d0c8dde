"""Reaching (fig:mc_maze): states and rates of motor cortex filtered, hand velocity decoded.

Half of the trials train a model, on states found by GPFA as in the paper and by our own bound. The
disjoint half is then filtered causally, with the model frozen and with learning going on, seen once
and in order. Velocity is decoded from inferred rates by ridge regression fitted to the first half,
its penalty chosen by cross-validation inside that half. What people use today stands beside it,
computed on the same trials.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evkf.baselines import (
    LinearDynamicalSystem,
    TrialGPFA,
    causal_smoothing,
    condition_psth,
    wiener_features,
)
from evkf.data import Recording
from evkf.decoding import decode, r2
from evkf.dynamics import Linear, ResidualMLP
from evkf.errors import InputError
from evkf.forecasting import expected_observation
from evkf.learning import Learner, LearnerState, fit_states, warm_up
from evkf.model import Model
from evkf.spike_metrics import bits_per_spike
from evkf.units import UnitModel, fit_recording, infer, names

LATENTS, HIDDEN, MIN_RATE, BIN_WIDTH = 12, 64, 0.5, 0.02
"""As in the prototype; units under half a spike per second are left out."""

HELD_OUT = 40
"""Neurons that the filter is not shown, out of 146."""

SMOOTHING, WIENER, KERNEL = 4.0, 7, 3.5
"""Widths in bins: half-Gaussian of 80 ms, lags of the Wiener filter, Gaussian of 70 ms."""


class Half(NamedTuple):
    """Features of every bin of the two halves."""

    train: Float[np.ndarray, "T F"]
    test: Float[np.ndarray, "S F"]


class Split(NamedTuple):
    """The trials of one seed."""

    train: Recording
    test: Recording
    velocity: str
    conditions: str | None
    hide: np.ndarray
    seed: int

    def decoded(self, half: Half) -> Float[np.ndarray, "S 2"]:
        """Velocity of the second half."""
        train = self.train
        groups = np.repeat(np.arange(train.num_trials), train.lengths)
        return decode(half.train, train.behaviour[self.velocity], groups, half.test)

    def velocity_r2(self, half: Half) -> float:
        return r2(self.test.behaviour[self.velocity], self.decoded(half))

    def bits(self, rates: Float[np.ndarray, "S M"]) -> float:
        """Of neurons that were held out, given their rates per second."""
        return bits_per_spike(self.test.counts[:, self.hide], BIN_WIDTH * rates)


def prepare(recording: Recording) -> Recording:
    """Bins of 20 ms, and units that fire."""
    factor = BIN_WIDTH / recording.bin_width
    if abs(factor - round(factor)) > 1e-6:
        raise InputError(
            f"bins of {1e3 * recording.bin_width:g} ms",
            f"{recording.source}: bin_width",
            "read it in bins of which 20 ms are a multiple, such as 5 ms",
        )
    wide = recording.rebinned(round(factor))
    return wide.pick(wide.rates() >= MIN_RATE)


def split(recording: Recording, velocity: str, conditions: str | None, seed: int) -> Split:
    """Half of the trials, the other half, and which neurons are held out of it."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(recording.num_trials)
    middle = recording.num_trials // 2
    hide = np.zeros(recording.num_units, bool)
    share = round(HELD_OUT * recording.num_units / 146)
    hide[np.random.default_rng(seed).permutation(recording.num_units)[:share]] = True
    halves = recording.take(order[:middle]), recording.take(order[middle:])
    return Split(*halves, velocity, conditions, hide, seed)


def judge(parts: Split, model: UnitModel) -> dict[str, float]:
    """A model of ours, frozen."""
    train, test = infer(model, parts.train), infer(model, parts.test)
    seen = infer(model, parts.test, parts.hide)
    return {
        "rates_r2": parts.velocity_r2(Half(train.rates, test.rates)),
        "latents_r2": parts.velocity_r2(Half(train.mean, test.mean)),
        "held_out_bits": parts.bits(seen.rates[:, parts.hide]),
        "forward_bits": bits_per_spike(parts.test.counts, test.predicted),
        "nats": float(test.elbo.mean()),
        "most_hz": float(test.rates.max()),
    }


def evkf(parts: Split, passes: int | None) -> tuple[UnitModel, dict[str, float]]:
    model = fit_recording(parts.train, LATENTS, hidden=HIDDEN, passes=passes, seed=parts.seed)
    return model, judge(parts, model)


def learning_on(parts: Split, model: UnitModel) -> dict[str, float]:
    """The held-out half seen once, in order, while learning goes on."""
    assert model.estimator is not None
    test, train = parts.test, infer(model, parts.train)
    state = model.estimator.state_._replace(fresh=jnp.asarray(True))
    none = jnp.zeros((test.num_bins, 0))
    dtype = state.ring.bins.y.dtype
    bins = (jnp.asarray(test.counts, dtype), jnp.asarray(test.masks), none, jnp.asarray(test.fresh))
    means, counts, elbo = _stream(model.estimator.learner_, state, bins)
    rates = np.asarray(counts) / test.bin_width
    return {
        "rates_r2": parts.velocity_r2(Half(train.rates, rates)),
        "latents_r2": parts.velocity_r2(Half(train.mean, np.asarray(means))),
        "nats": float(np.mean(elbo)),
    }


@jax.jit
def _stream(learner: Learner, state: LearnerState, bins: tuple) -> tuple[Array, Array, Array]:
    def body(state: LearnerState, bin: tuple) -> tuple[LearnerState, tuple]:
        state, info = learner.observe(state, *bin)
        model, belief = state.model, state.filter.belief
        said = model.family.mean(belief), expected_observation(model, belief), info.elbo
        return learner.learn(state)[0], said

    return jax.lax.scan(body, state, bins)[1]


def on_gpfa_states(parts: Split, gpfa: TrialGPFA, filter: Any) -> dict[str, float]:
    """The paper's way: dynamics and readout fitted to states that GPFA found."""
    train = parts.train
    states = gpfa.states(train.counts, train.lengths)
    scale = states.std(axis=0)
    readout = warm_up(train.counts, LATENTS, "poisson", BIN_WIDTH, fresh=train.fresh)
    start = Model(ResidualMLP(LATENTS, 0.04, jax.random.key(parts.seed), HIDDEN), readout)
    fitted = fit_states(start, states / scale, train.counts, fresh=train.fresh, steps=3000)
    return judge(parts, UnitModel(fitted, filter, names(train), BIN_WIDTH))


def random_walk(parts: Split, passes: int | None) -> dict[str, float]:
    """The same filter, whose dynamics say that nothing moves."""
    still = Linear(np.eye(LATENTS), noise=np.full(LATENTS, 0.04))
    learn = ("noise", "readout", "prior")
    model = fit_recording(
        parts.train, LATENTS, dynamics=still, learn=learn, passes=passes, seed=parts.seed
    )
    return judge(parts, model)


def todays(parts: Split, gpfa: TrialGPFA) -> Iterator[tuple[str, dict[str, float]]]:
    """What people use today."""

    def both(features: Callable[[np.ndarray, Any], np.ndarray]) -> Half:
        return Half(*(features(half.counts, half.lengths) for half in (parts.train, parts.test)))

    yield (
        "GPFA, 12 latents (not causal)",
        {
            "rates_r2": parts.velocity_r2(both(gpfa.rates)),
            "latents_r2": parts.velocity_r2(both(gpfa.states)),
        },
    )
    lds = LinearDynamicalSystem(LATENTS).fit(parts.train.counts, parts.train.lengths)
    yield (
        "LDS filter, 12 latents",
        {
            "rates_r2": parts.velocity_r2(both(lds.rates)),
            "latents_r2": parts.velocity_r2(both(lds.states)),
            "forward_bits": bits_per_spike(
                parts.test.counts, lds.rates(parts.test.counts, parts.test.lengths, "past")
            ),
        },
    )
    smooth = both(lambda counts, lengths: causal_smoothing(counts, lengths, SMOOTHING))
    yield "causal smoothing, 80 ms", {"rates_r2": parts.velocity_r2(smooth)}
    wiener = both(lambda counts, lengths: wiener_features(counts, lengths, WIENER))
    yield "Wiener filter, 7 bins", {"rates_r2": parts.velocity_r2(wiener)}
    if parts.conditions is not None:
        kinds = (half.trials[parts.conditions] for half in (parts.train, parts.test))
        first, second = kinds
        expected = condition_psth(
            parts.train.counts[:, parts.hide],
            parts.train.lengths,
            first,
            parts.test.lengths,
            second,
            sd_bins=KERNEL,
        )
        yield "average of the condition", {"held_out_bits": parts.bits(expected / BIN_WIDTH)}


def one_seed(
    recording: Recording, velocity: str, conditions: str | None, seed: int, passes: int | None
) -> tuple[list[dict[str, Any]], UnitModel]:
    """All rows of a seed, and the model."""
    parts = split(recording, velocity, conditions, seed)
    model, ours = evkf(parts, passes)
    gpfa = TrialGPFA(LATENTS, BIN_WIDTH, 30 if passes else 100)
    gpfa.fit(parts.train.counts, parts.train.lengths)
    rows = [
        ("eVKF", ours),
        ("eVKF, learning on", learning_on(parts, model)),
        ("eVKF on GPFA states", on_gpfa_states(parts, gpfa, model.filter)),
        ("random walk", random_walk(parts, passes)),
        *todays(parts, gpfa),
    ]
    return [{"method": method, "seed": seed, **row} for method, row in rows], model
