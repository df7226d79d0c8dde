"""How a model does on a recording, beside what people use today.

Everything is scored on half of the trials; baselines and decoders learn from the others. Where a
column does not apply to a method there is None.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from evkf.baselines import LinearDynamicalSystem, causal_smoothing, wiener_features
from evkf.data import Recording
from evkf.decoding import Ridge, decode, r2
from evkf.errors import InputError
from evkf.spike_metrics import bits_per_spike, psth_r2
from evkf.splits import held_out, in_blocks
from evkf.units import UnitModel, infer

KERNEL_SD, LAGS, EM_STEPS = 0.05, 7, 30
"""Of the causal kernel in seconds, of the Wiener filter in bins, of the linear system."""
ALPHAS = tuple(np.logspace(0, 5, 6))
LEAST = 0.05
"""Of a unit's mean count: what linear maps predict may not be less, for it may be negative."""
HIDDEN = 0.25
"""Share of the units left out for co-smoothing."""


class Score(NamedTuple):
    """One row of the table."""

    method: str
    one_step: float | None
    """Bits per spike of counts predicted one bin ahead."""
    co_smoothing: float | None
    """Bits per spike of units left out, from the others up to the present bin."""
    psth: float | None
    """R² of condition averages."""
    behaviour: float | None
    """R² of decoded behaviour."""


class _Halves(NamedTuple):
    """A recording, and what is asked of it."""

    recording: Recording
    counts: np.ndarray
    """Zero where nothing was observed."""
    test: Bool[np.ndarray, " T"]
    groups: np.ndarray
    hide: Bool[np.ndarray, " N"]
    condition: str | None
    behaviour: np.ndarray | None

    @property
    def mean(self) -> np.ndarray:
        return np.maximum(self.counts[~self.test].mean(axis=0), 1e-6)

    def bits(self, expected: np.ndarray, units: np.ndarray) -> float:
        """Of some units in the test half."""
        rows = self.test
        seen = self.recording.masks[rows][:, units]
        return bits_per_spike(self.counts[rows][:, units], expected[rows], seen)

    def psth(self, expected: np.ndarray) -> float | None:
        if self.condition is None:
            return None
        tested = self.recording.take(np.flatnonzero(held_out(self.recording.num_trials, 2)))
        labels = tested.trials[self.condition]
        return psth_r2(
            self.counts[self.test],
            expected[self.test],
            tested.lengths,
            labels,
            self.recording.bin_width,
        )

    def decoded(self, features: np.ndarray) -> float | None:
        if self.behaviour is None:
            return None
        train, test = ~self.test, self.test
        found = decode(features[train], self.behaviour[train], self.groups[train], features[test])
        return r2(self.behaviour[test], found)

    def mapped(self, features: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Expected counts of some units, by ridge regression."""
        train = ~self.test
        ridge = Ridge(ALPHAS).fit(features[train], self.counts[train][:, units], self.groups[train])
        return np.maximum(ridge.predict(features), LEAST * self.mean[units])

    def before(self, features: np.ndarray) -> np.ndarray:
        """Features of the bin before; zero where there is none in the trial."""
        return np.where(self.recording.fresh[:, None], 0.0, np.roll(features, 1, axis=0))


def score_recording(
    model: UnitModel,
    recording: Recording,
    condition: str | None = None,
    behaviour: str | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Score]:
    """The model's row, then those of causal smoothing, a Wiener filter and a linear system.

    Args:
        model: The model.
        recording: A recording of its units; one of a single trial is cut into blocks.
        condition: Column of the trials to average over.
        behaviour: What to decode.
        seed: Of the units left out.
        progress: Told after every row how many of how many are done.
    """
    asked = _read(in_blocks(recording), condition, behaviour, seed)
    everyone = np.arange(recording.num_units)
    found, width = infer(model, asked.recording), recording.bin_width

    def own() -> Score:
        co = infer(model, asked.recording, asked.hide).rates[:, asked.hide] * width
        return Score(
            "evkf",
            asked.bits(found.predicted, everyone),
            asked.bits(co, np.flatnonzero(asked.hide)),
            asked.psth(width * found.rates),
            asked.decoded(found.mean),
        )

    latents = found.mean.shape[1]
    makers = (
        own,
        lambda: _smoothing(asked),
        lambda: _wiener(asked),
        lambda: _linear(asked, latents),
    )
    rows = []
    for make in makers:
        rows.append(make())
        if progress is not None:
            progress(len(rows), len(makers))
    return rows


def _read(recording: Recording, condition: str | None, behaviour: str | None, seed: int) -> _Halves:
    if condition is not None and condition not in recording.trials:
        there = ", ".join(recording.trials) or "none"
        what = f"no column {condition!r}"
        raise InputError(what, f"{recording.source}: trials", f"there are {there}")
    values = None
    if behaviour is not None:
        name = behaviour.rpartition("/")[2]
        values = np.asarray(recording.behaviour[name], float).reshape(recording.num_bins, -1)
        if not np.isfinite(values).all():
            remedy = "align to trials that it covers"
            raise InputError("NaN", f"{recording.source}: behaviour {name!r}", remedy)
    if recording.num_units < 2:
        raise InputError("one unit", f"{recording.source}: units", "score two or more")
    if recording.num_trials < 3:
        what = f"{recording.num_trials} trials"
        raise InputError(what, f"{recording.source}: trials", "pass three or more, or one long one")
    held = held_out(recording.num_trials, 2)
    hide = np.zeros(recording.num_units, bool)
    num = min(max(1, round(HIDDEN * len(hide))), len(hide) - 1)
    hide[np.random.default_rng(seed).permutation(len(hide))[:num]] = True
    return _Halves(
        recording,
        np.where(recording.masks, recording.counts, 0).astype(float),
        np.repeat(held, recording.lengths),
        np.repeat(np.arange(recording.num_trials), recording.lengths),
        hide,
        condition,
        values,
    )


def _smoothing(asked: _Halves) -> Score:
    lengths, sd = asked.recording.lengths, KERNEL_SD / asked.recording.bin_width
    smooth = causal_smoothing(asked.counts, lengths, sd)
    rescaled = causal_smoothing(asked.counts, lengths, sd, rescaled=True)
    return _linear_score("causal smoothing", asked, smooth, smooth[:, ~asked.hide], rescaled)


def _wiener(asked: _Halves) -> Score:
    lengths = asked.recording.lengths
    features = wiener_features(asked.counts, lengths, LAGS)
    known = wiener_features(asked.counts[:, ~asked.hide], lengths, LAGS)
    return _linear_score("Wiener filter", asked, features, known, None)


def _linear_score(
    name: str,
    asked: _Halves,
    features: np.ndarray,
    known: np.ndarray,
    expected: np.ndarray | None,
) -> Score:
    everyone, hidden = np.arange(len(asked.hide)), np.flatnonzero(asked.hide)
    return Score(
        name,
        asked.bits(asked.mapped(asked.before(features), everyone), everyone),
        asked.bits(asked.mapped(known, hidden), hidden),
        None if expected is None else asked.psth(expected),
        asked.decoded(features),
    )


def _linear(asked: _Halves, latents: int) -> Score:
    everyone, hidden = np.arange(len(asked.hide)), np.flatnonzero(asked.hide)
    lengths = asked.recording.lengths
    lds, moving = _fit_linear(asked, everyone, latents)

    def whole(given: str) -> np.ndarray:
        rates = np.tile(asked.mean, (len(asked.counts), 1))
        rates[:, moving] = lds.rates(asked.counts[:, moving], lengths, given)  # type: ignore[arg-type]
        return np.maximum(rates, LEAST * asked.mean)

    some, known = _fit_linear(asked, np.flatnonzero(~asked.hide), latents)
    states = some.states(asked.counts[:, known], lengths)
    return Score(
        "linear dynamical system",
        asked.bits(whole("past"), everyone),
        asked.bits(asked.mapped(states, hidden), hidden),
        asked.psth(whole("now")),
        asked.decoded(lds.states(asked.counts[:, moving], lengths)),
    )


def _fit_linear(
    asked: _Halves, units: np.ndarray, latents: int
) -> tuple[LinearDynamicalSystem, np.ndarray]:
    """Fitted to the units that change in the training half, and which these are."""
    train = asked.counts[~asked.test]
    moving = units[np.ptp(train[:, units], axis=0) > 0]
    if not len(moving):
        where = f"{asked.recording.source}: units"
        raise InputError("no unit with spikes in the first half", where, "pass more trials")
    taught = asked.recording.take(np.flatnonzero(~held_out(asked.recording.num_trials, 2)))
    lds = LinearDynamicalSystem(min(latents, len(moving)), iterations=EM_STEPS)
    return lds.fit(train[:, moving], taught.lengths), moving
