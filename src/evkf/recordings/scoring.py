"""Scores of a model on a recording, beside baselines, for `evkf score`.

Every method is one function that makes its row of the table: it learns from the training half and
is scored on the held-out half. Methods that do not predict counts predict them by ridge regression
on their latents or features. A column that does not apply to a method is None.
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
from evkf.recordings.halves import LEAST, Halves, Pair, halve, halved, spikes
from evkf.recordings.units import UnitModel, fit_recording, infer

SMOOTHING, LAGS, EM_STEPS = 0.08, 7, 30
"""Standard deviation of the causal kernel in seconds, bins of the Wiener filter, and iterations of
GPFA and of the linear system."""
WALK = 0.04
"""Initial variance of a step of the random walk."""
STRETCH = 50
"""Most bins of a trial for GPFA, whose cost grows with their third power."""


class Score(NamedTuple):
    """Scores of one method: a row of the table, here and in `evkf reproduce reaching`.

    Attributes:
        method: Name of the method.
        one_step: Bits per spike of one-step predictions.
        co_smoothing: Bits per spike of held-out units, from the others up to the present bin.
        psth: R² of condition averages.
        rates_r2: R² of behaviour decoded from rates.
        latents_r2: R² of behaviour decoded from latents.
    """

    method: str
    one_step: float | None = None
    co_smoothing: float | None = None
    psth: float | None = None
    rates_r2: float | None = None
    latents_r2: float | None = None


Progress = Callable[[int, int], None]


def score_recording(
    model: UnitModel,
    recording: Recording,
    condition: str | None = None,
    behaviour: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Score]:
    """Return the row of the model, then those of its baselines.

    Args:
        model: The model.
        recording: A recording of its units; one of a single trial is cut into blocks.
        condition: Column of the trials to average over.
        behaviour: Behavioural series to decode.
        seed: Seed of the held-out units.
        progress: Called after every row with the numbers of rows done and of all rows.
    """
    if model.signals:
        what = "a model of continuous signals"
        raise InputError(what, "model", "score models of spikes: bits per spike are of counts")
    recording, held = halved(recording)
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    halves = halve(recording, train, test, condition, behaviour, seed)
    return make_rows([lambda: evkf(halves, model), *baselines(halves, model)], progress)


def make_rows(makers: Sequence[Callable[[], Score]], progress: Progress | None) -> list[Score]:
    """Make rows one after another."""
    rows = []
    for make in makers:
        rows.append(make())
        if progress is not None:
            progress(len(rows), len(makers))
    return rows


def baselines(
    halves: Halves, model: UnitModel, passes: int | None = None, em_steps: int = EM_STEPS
) -> list[Callable[[], Score]]:
    """Return functions that make the rows of the baselines.

    Args:
        halves: The recording.
        model: The model, which gives the number of latents, and the readout that the random walk
            begins with.
        passes: Passes of the random walk over the training half; those of a fit by default.
        em_steps: Iterations of GPFA and of the linear system.
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
    """Score a model, which learns nothing meanwhile."""
    train, test = infer(model, halves.train), infer(model, halves.test)
    hidden, width = infer(model, halves.test, halves.hide), model.bin_width
    assert train.rates is not None
    assert test.rates is not None
    assert test.predicted is not None
    assert hidden.rates is not None
    return Score(
        method,
        halves.one_step(test.predicted),
        halves.co_smoothing(width * hidden.rates[:, halves.hide]),
        halves.psth(width * test.rates),
        halves.behaviour_r2(Pair(train.rates, test.rates)),
        halves.behaviour_r2(Pair(train.mean, test.mean)),
    )


def random_walk(halves: Halves, model: UnitModel, passes: int | None) -> Score:
    """Score the same filter with a random walk for dynamics.

    Its readout begins as that of the model; readout, noise and initial state are learned from the
    training half.
    """
    latents = model.model.dynamics.dim
    still = Linear(np.eye(latents), noise=np.full(latents, WALK))
    parts = ("noise", "readout", "prior")
    readout = model.model.likelihood
    walk = fit_recording(halves.train, latents, readout, still, parts=parts, passes=passes)
    return evkf(halves, walk, "random walk")


def gpfa(halves: Halves, latents: int, iterations: int) -> Score:
    """Score Gaussian process factor analysis, which sees the whole trial."""

    def fit(units: np.ndarray) -> Fitted:
        return fit_gpfa(halves, latents, iterations, units)

    return _latent_score("GPFA (not causal)", halves, fit)


def fit_gpfa(
    halves: Halves, latents: int, iterations: int, units: np.ndarray | None = None
) -> "Fitted":
    """Fit GPFA to units (all by default) in stretches of at most `STRETCH` bins."""
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
    """Score a linear dynamical system, filtered."""

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
    """Score counts smoothed by the past half of a Gaussian kernel."""
    sd = SMOOTHING / halves.train.bin_width
    smooth = halves.both(lambda counts, lengths: causal_smoothing(counts, lengths, sd))
    seen = Pair(smooth.train[:, ~halves.hide], smooth.test[:, ~halves.hide])
    whole = causal_smoothing(halves.filled(halves.test), halves.test.lengths, sd, rescaled=True)
    row = _linear_score("causal smoothing", halves, smooth, seen)
    return row._replace(psth=halves.psth(whole))


def wiener(halves: Halves) -> Score:
    """Score a Wiener filter: counts of the last bins as features."""
    features = halves.both(lambda counts, lengths: wiener_features(counts, lengths, LAGS))
    shown = np.tile(~halves.hide, LAGS)
    seen = Pair(features.train[:, shown], features.test[:, shown])
    return _linear_score("Wiener filter", halves, features, seen)


def condition_average(halves: Halves) -> Score:
    """Score averages of conditions in the training half; for an unknown condition the mean."""
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
    """Return lengths of trials cut into even parts of a maximal length.

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
    """A baseline with latents, fitted to units whose counts change in the training half.

    Attributes:
        units: The units.
        states: Function of counts and lengths that returns states.
        rates: Function that returns expected counts of a bin.
        ahead: Function that returns one-step predictions of the states.
    """

    units: np.ndarray
    states: Made
    rates: Made
    ahead: Made | None = None

    def latents(self, halves: Halves, make: Made | None = None) -> Pair:
        """Return latents of both halves, by `states` or another function."""
        make = make or self.states
        return halves.both(lambda counts, lengths: make(counts[:, self.units], lengths))

    def expected(self, halves: Halves) -> Pair:
        """Return expected counts of all units; those that never change keep their mean."""

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


def _linear_score(method: str, halves: Halves, features: Pair, seen: Pair) -> Score:
    hidden, everyone = np.flatnonzero(halves.hide), halves.everyone
    # features of the bin before; zero where there is none in the trial
    before = Pair(
        *(
            np.where(half.fresh[:, None], 0.0, np.roll(x, 1, axis=0))
            for half, x in zip(halves[:2], features, strict=True)
        )
    )
    return Score(
        method,
        halves.one_step(halves.mapped(before, everyone)),
        halves.co_smoothing(halves.mapped(seen, hidden)),
        rates_r2=halves.behaviour_r2(features),
    )


def _moving(halves: Halves, units: np.ndarray) -> np.ndarray:
    """Return the units whose counts change in the training half."""
    moving = units[halves.moving[units]]
    if not len(moving):
        where = f"{halves.train.source}: units"
        raise InputError("no unit with spikes in the first half", where, "pass more trials")
    return moving
