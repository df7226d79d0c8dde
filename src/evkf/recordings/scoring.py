"""How a model does on a recording, beside what people use today.

Every method is one function, which makes its row of the table from the halves of a recording: all
learn from the one and are judged on the other. Methods that are not of counts predict them by a
ridge regression on their latents or features. Where a column does not apply to a method there is
None.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from evkf.analysis.spike_metrics import KERNEL_SD
from evkf.data import Recording
from evkf.dynamics import Linear
from evkf.errors import InputError
from evkf.estimators.baselines import causal_smoothing, condition_psth, wiener_features
from evkf.estimators.gpfa import GPFA
from evkf.estimators.linear_system import LinearDynamicalSystem
from evkf.numerics.trials import slices
from evkf.recordings.halves import LEAST, Halves, Pair, halve, spikes
from evkf.recordings.splits import halved
from evkf.recordings.units import UnitModel, fit_recording, infer

SMOOTHING, LAGS, EM_STEPS = 0.08, 7, 30
"""Of the causal kernel in seconds, of the Wiener filter in bins, of GPFA and the linear system."""
WALK = 0.04
"""Variance of a step to start from."""
STRETCH = 50
"""Bins that GPFA is given at a time: its cost grows with their third power."""


class Score(NamedTuple):
    """One row of the table."""

    method: str
    one_step: float | None = None
    """Bits per spike of counts predicted one bin ahead."""
    co_smoothing: float | None = None
    """Bits per spike of units left out, from the others up to the present bin."""
    psth: float | None = None
    """R² of condition averages."""
    rates_r2: float | None = None
    """R² of behaviour decoded from rates."""
    latents_r2: float | None = None
    """R² of behaviour decoded from latents."""


Progress = Callable[[int, int], None]


def score_recording(
    model: UnitModel,
    recording: Recording,
    condition: str | None = None,
    behaviour: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Score]:
    """The model's row, then those of its baselines.

    Args:
        model: The model.
        recording: A recording of its units; one of a single trial is cut into blocks.
        condition: Column of the trials to average over.
        behaviour: What to decode.
        seed: Of the units left out.
        progress: Told after every row how many of how many are done.
    """
    if model.signals:
        what = "a model of continuous signals"
        raise InputError(what, "model", "score models of spikes: bits per spike are of counts")
    recording, held = halved(recording)
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    halves = halve(recording, train, test, condition, behaviour, seed)
    return make_rows([lambda: evkf(halves, model), *baselines(halves, model)], progress)


def make_rows(makers: Sequence[Callable[[], Score]], progress: Progress | None) -> list[Score]:
    """Rows made one after another."""
    rows = []
    for make in makers:
        rows.append(make())
        if progress is not None:
            progress(len(rows), len(makers))
    return rows


def baselines(
    halves: Halves, model: UnitModel, passes: int | None = None, em_steps: int = EM_STEPS
) -> list[Callable[[], Score]]:
    """What stands beside a model: functions that make the rows.

    Args:
        halves: The recording.
        model: What they stand beside; the random walk begins with its readout, and latents are as
            many.
        passes: Of the random walk over the training half; those of a fit when left out.
        em_steps: Of GPFA and the linear system.
    """
    latents = model.model.dynamics.dim
    makers = [
        lambda: random_walk(halves, model, passes),
        lambda: gpfa(halves, latents, em_steps),
        lambda: linear_system(halves, latents, em_steps),
        lambda: smoothing(halves),
        lambda: wiener(halves),
    ]
    return makers + [lambda: condition_average(halves)] * (halves.condition is not None)


def evkf(halves: Halves, model: UnitModel, method: str = "eVKF") -> Score:
    """A model of ours, which learns nothing on the way."""
    train, test = infer(model, halves.train), infer(model, halves.test)
    seen, width = infer(model, halves.test, halves.hide), model.bin_width
    return Score(
        method,
        halves.one_step(test.predicted),
        halves.co_smoothing(width * seen.rates[:, halves.hide]),
        halves.psth(width * test.rates),
        halves.behaviour_r2(Pair(train.rates, test.rates)),
        halves.behaviour_r2(Pair(train.mean, test.mean)),
    )


def random_walk(halves: Halves, model: UnitModel, passes: int | None) -> Score:
    """The same filter, whose dynamics say that nothing moves.

    Its readout begins as the model's; readout, noise and initial state learn from the training
    half.
    """
    latents = model.model.dynamics.dim
    still = Linear(np.eye(latents), noise=np.full(latents, WALK))
    learn = ("noise", "readout", "prior")
    readout = model.model.likelihood
    walk = fit_recording(halves.train, latents, readout, still, learn=learn, passes=passes)
    return evkf(halves, walk, "random walk")


def gpfa(halves: Halves, latents: int, iterations: int) -> Score:
    """Gaussian process factor analysis, which knows what comes later in a trial."""

    def fit(units: np.ndarray) -> Fitted:
        return fit_gpfa(halves, latents, iterations, units)

    return _latent_score("GPFA (not causal)", halves, fit)


def fit_gpfa(
    halves: Halves, latents: int, iterations: int, units: np.ndarray | None = None
) -> "Fitted":
    """GPFA of units, all when left out, in stretches of at most `STRETCH` bins."""
    moving = _moving(halves, halves.everyone if units is None else units)
    train, latents = halves.train, min(latents, len(moving))
    gpfa = GPFA(latents, train.bin_width, max_iterations=iterations)
    gpfa.fit(_cut(halves.filled(train)[:, moving], stretches(train.lengths)))
    return Fitted(
        moving,
        lambda counts, lengths: np.concatenate(gpfa.transform(_cut(counts, stretches(lengths)))),
        lambda counts, lengths: np.concatenate(gpfa.rates(_cut(counts, stretches(lengths)))),
    )


def linear_system(halves: Halves, latents: int, iterations: int) -> Score:
    """A linear dynamical system, filtered."""

    def fit(units: np.ndarray) -> Fitted:
        moving = _moving(halves, units)
        lds = LinearDynamicalSystem(min(latents, len(moving)), iterations=iterations)
        lds.fit(_cut(halves.filled(halves.train)[:, moving], halves.train.lengths))
        return Fitted(
            moving,
            lambda counts, lengths: np.concatenate(lds.transform(_cut(counts, lengths))),
            lambda counts, lengths: np.concatenate(lds.rates(_cut(counts, lengths))),
            lambda counts, lengths: np.concatenate(lds.transform(_cut(counts, lengths), "past")),
        )

    return _latent_score("linear dynamical system", halves, fit)


def smoothing(halves: Halves) -> Score:
    """Counts smoothed by the past half of a Gaussian."""
    sd = SMOOTHING / halves.train.bin_width
    smooth = halves.both(lambda counts, lengths: causal_smoothing(counts, lengths, sd))
    known = Pair(smooth.train[:, ~halves.hide], smooth.test[:, ~halves.hide])
    whole = causal_smoothing(halves.filled(halves.test), halves.test.lengths, sd, rescaled=True)
    row = _linear_score("causal smoothing", halves, smooth, known)
    return row._replace(psth=halves.psth(whole))


def wiener(halves: Halves) -> Score:
    """Counts of the last bins side by side."""
    features = halves.both(lambda counts, lengths: wiener_features(counts, lengths, LAGS))
    shown = np.tile(~halves.hide, LAGS)
    known = Pair(features.train[:, shown], features.test[:, shown])
    return _linear_score("Wiener filter", halves, features, known)


def condition_average(halves: Halves) -> Score:
    """What trials of the same condition did in the training half; of unknown ones, the mean."""
    assert halves.condition is not None
    train, test = halves.train, halves.test
    labels, wanted = train.trials[halves.condition], test.trials[halves.condition]
    known = np.isin(wanted, labels)
    expected = np.tile(halves.mean, (test.num_bins, 1))
    if known.any():
        expected[np.repeat(known, test.lengths)] = condition_psth(
            spikes(train),
            train.lengths,
            labels,
            np.asarray(test.lengths)[known],
            wanted[known],
            sd_bins=KERNEL_SD / train.bin_width,
            masks=train.masks,
        )
    expected = np.maximum(expected, LEAST * halves.mean)
    return Score(
        "average of the condition",
        halves.one_step(expected),
        halves.co_smoothing(expected[:, halves.hide]),
        halves.psth(expected),
    )


def stretches(lengths: Iterable[int], longest: int = STRETCH) -> list[int]:
    """Trials cut into even parts that are not too long.

    Example:
        >>> stretches((30, 101), 50)
        [30, 33, 34, 34]
    """
    parts = [np.linspace(0, num, -(-num // longest) + 1).astype(int) for num in lengths]
    return np.concatenate([np.diff(edges) for edges in parts]).tolist()


def _cut(counts: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    return [counts[trial] for trial in slices(lengths, len(counts))]


Made = Callable[[np.ndarray, Sequence[int]], np.ndarray]


class Fitted(NamedTuple):
    """A baseline with latents, fitted to units that change in the training half."""

    units: np.ndarray
    states: Made
    rates: Made
    """Expected counts of a bin."""
    ahead: Made | None = None
    """States, before the bin was seen."""

    def latents(self, halves: Halves, make: Made | None = None) -> Pair:
        """By `states` when left out."""
        make = make or self.states
        return halves.both(lambda counts, lengths: make(counts[:, self.units], lengths))

    def expected(self, halves: Halves) -> Pair:
        """Counts of all units; those that never change keep their mean."""

        def whole(counts: np.ndarray, lengths: Sequence[int]) -> Float[np.ndarray, "T N"]:
            rates = np.tile(halves.mean, (len(counts), 1))
            rates[:, self.units] = self.rates(counts[:, self.units], lengths)
            return np.maximum(rates, LEAST * halves.mean)

        return halves.both(whole)


def _latent_score(method: str, halves: Halves, fit: Callable[[np.ndarray], Fitted]) -> Score:
    every, some = fit(halves.everyone), fit(np.flatnonzero(~halves.hide))
    latents, hidden = every.latents(halves), np.flatnonzero(halves.hide)
    ahead = None if every.ahead is None else every.latents(halves, every.ahead)
    return Score(
        method,
        None if ahead is None else halves.one_step(halves.mapped(ahead, halves.everyone)),
        halves.co_smoothing(halves.mapped(some.latents(halves), hidden)),
        halves.psth(halves.mapped(latents, halves.everyone)),
        halves.behaviour_r2(every.expected(halves)),
        halves.behaviour_r2(latents),
    )


def _linear_score(method: str, halves: Halves, features: Pair, known: Pair) -> Score:
    hidden, everyone = np.flatnonzero(halves.hide), halves.everyone
    before = Pair(*(_before(half, x) for half, x in zip(halves[:2], features, strict=True)))
    return Score(
        method,
        halves.one_step(halves.mapped(before, everyone)),
        halves.co_smoothing(halves.mapped(known, hidden)),
        rates_r2=halves.behaviour_r2(features),
    )


def _before(recording: Recording, features: np.ndarray) -> np.ndarray:
    """Features of the bin before; zero where there is none in the trial."""
    return np.where(recording.fresh[:, None], 0.0, np.roll(features, 1, axis=0))


def _moving(halves: Halves, units: np.ndarray) -> np.ndarray:
    """Those of the units that change in the training half."""
    moving = units[halves.moving[units]]
    if not len(moving):
        where = f"{halves.train.source}: units"
        raise InputError("no unit with spikes in the first half", where, "pass more trials")
    return moving
