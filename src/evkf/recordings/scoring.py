"""Score a model on a recording and compare with baselines, for `evkf score`.

Each method is one function that returns one `Score`, a row of the table of scores. Baselines are
fitted to the training half of the trials, and all methods are scored on the test half. For a
method that does not predict counts, ridge regression maps the latents or features of the method to
expected counts. A score that does not apply to a method is None.
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
"""`SMOOTHING` is the standard deviation of the kernel of causal smoothing in seconds, `LAGS` the
number of bins that the Wiener filter uses, and `EM_STEPS` the number of iterations of GPFA and of
the linear dynamical system."""
WALK = 0.04
"""Initial variance of one step of the random walk, in each latent dimension."""
STRETCH = 50
"""Largest number of bins of a piece of a trial for GPFA, whose computing time grows with the third
power of this number."""


class Score(NamedTuple):
    """Scores of one method: a row of the tables of `evkf score` and `evkf reproduce reaching`.

    Attributes:
        method: Name of the method.
        one_step: Bits per spike of one-step predictions (from the bins before).
        co_smoothing: Bits per spike of held-out units, predicted from the remaining units. GPFA
            uses the whole trial for this; all other methods use bins up to the present bin.
        psth: R² of expected counts averaged over the trials of a condition.
        rates_r2: R² of behaviour decoded from rates; for causal smoothing and the Wiener filter,
            from their features.
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
    """Return the scores of a model, followed by the scores of the baselines.

    Raise InputError for a model of continuous signals.

    Args:
        model: The model to score, of spike counts. It is not fitted again.
        recording: A recording of the model's units. A recording of one trial is cut into blocks,
            which count as trials.
        condition: Name of the trial column that holds the condition of each trial; leave out to
            compute no averages over trials of a condition.
        behaviour: Name of the behaviour to decode; leave out to decode nothing.
        seed: Seed of the random choice of held-out units.
        progress: Function called after each method; its arguments are the number of methods scored
            so far and the number of all methods.
    """
    if model.signals:
        what = "a model of continuous signals"
        raise InputError(what, "model", "score models of spikes: bits per spike are of counts")
    recording, held = halved(recording)
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    halves = halve(recording, train, test, condition, behaviour, seed)
    return make_rows([lambda: evkf(halves, model), *baselines(halves, model)], progress)


def make_rows(makers: Sequence[Callable[[], Score]], progress: Progress | None) -> list[Score]:
    """Call each function, report progress after each call, and return the list of scores.

    Args:
        makers: Functions without arguments that return one `Score` each.
        progress: Function called after each score, with the number of scores so far and of all
            scores; or None.
    """
    rows = []
    for make in makers:
        rows.append(make())
        if progress is not None:
            progress(len(rows), len(makers))
    return rows


def baselines(
    halves: Halves, model: UnitModel, passes: int | None = None, em_steps: int = EM_STEPS
) -> list[Callable[[], Score]]:
    """Return one function for each baseline; calling the function fits and scores the baseline.

    The baselines are, in this order: random walk, Gaussian process factor analysis (GPFA), linear
    dynamical system, causal smoothing, Wiener filter, and, only if `halves` has conditions, the
    average of the condition.

    Args:
        halves: The recording, split into a training half and a test half.
        model: The model to compare with. GPFA and the linear dynamical system have as many latents
            as the model; the random walk has as many latents and begins with the model's readout.
        passes: Number of passes over the training half to fit the random walk; when left out, the
            default of `fit_recording`.
        em_steps: Number of iterations to fit GPFA and the linear dynamical system.
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
    """Return the scores of a fitted model; the model is not fitted again.

    Args:
        halves: The recording, split into a training half and a test half.
        model: The model to score.
        method: Name of the method in the table.
    """
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
    """Return the scores of the same filter, but with a random walk instead of learned dynamics.

    Readout, noise and initial belief are learned from the training half. Learning begins with the
    model's readout.

    Args:
        halves: The recording, split into a training half and a test half.
        model: The model, which gives the number of latents and the first readout.
        passes: Number of passes over the training half; None for the default of `fit_recording`.
    """
    latents = model.model.dynamics.dim
    still = Linear(np.eye(latents), noise=np.full(latents, WALK))
    parts = ("noise", "readout", "prior")
    readout = model.model.likelihood
    walk = fit_recording(halves.train, latents, readout, still, parts=parts, passes=passes)
    return evkf(halves, walk, "random walk")


def gpfa(halves: Halves, latents: int, iterations: int) -> Score:
    """Return the scores of Gaussian process factor analysis, which also uses later bins of a trial.

    Args:
        halves: The recording, split into a training half and a test half.
        latents: Number of latent dimensions.
        iterations: Number of iterations of the fit.
    """

    def fit(units: np.ndarray) -> Fitted:
        return fit_gpfa(halves, latents, iterations, units)

    return _latent_score("GPFA (not causal)", halves, fit)


def fit_gpfa(
    halves: Halves, latents: int, iterations: int, units: np.ndarray | None = None
) -> "Fitted":
    """Return Gaussian process factor analysis fitted to the training half.

    Trials are cut into pieces of at most `STRETCH` bins.

    Args:
        halves: The recording, split into a training half and a test half.
        latents: Number of latent dimensions; at most the number of fitted units is used.
        iterations: Number of iterations of the fit.
        units: Indices of the units to fit; all when left out. Units whose counts never change in
            the training half are left out.
    """
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
    """Return the scores of a linear dynamical system; latents use bins up to the present bin.

    Args:
        halves: The recording, split into a training half and a test half.
        latents: Number of latent dimensions; at most the number of fitted units is used.
        iterations: Number of iterations of the fit.
    """

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
    """Return the scores of counts smoothed by the past half of a Gaussian kernel."""
    sd = SMOOTHING / halves.train.bin_width
    smooth = halves.both(lambda counts, lengths: causal_smoothing(counts, lengths, sd))
    seen = Pair(smooth.train[:, ~halves.hide], smooth.test[:, ~halves.hide])
    whole = causal_smoothing(halves.filled(halves.test), halves.test.lengths, sd, rescaled=True)
    row = _linear_score("causal smoothing", halves, smooth, seen)
    return row._replace(psth=halves.psth(whole))


def wiener(halves: Halves) -> Score:
    """Return the scores of a Wiener filter, whose features are the counts of the last 7 bins."""
    features = halves.both(lambda counts, lengths: wiener_features(counts, lengths, LAGS))
    shown = np.tile(~halves.hide, LAGS)
    seen = Pair(features.train[:, shown], features.test[:, shown])
    return _linear_score("Wiener filter", halves, features, seen)


def condition_average(halves: Halves) -> Score:
    """Return the scores of averages over the trials of each condition in the training half.

    For a condition that the training half does not contain, the mean count of each unit is used.
    """
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
    """Return the number of bins of each piece, after trials are cut into nearly equal pieces.

    Args:
        lengths: Number of bins of each trial.
        longest: Largest number of bins of a piece.

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
    """A fitted baseline that has latents.

    The functions below have two arguments: counts of the fitted units, (bins, units), and the
    number of bins of each trial.

    Attributes:
        units: Indices of the fitted units, whose counts change in the training half.
        states: Function that returns latent states, (bins, latents).
        rates: Function that returns expected counts per bin, (bins, units).
        ahead: Function that returns one-step predictions of latent states, (bins, latents); None
            if the method has no such predictions.
    """

    units: np.ndarray
    states: Made
    rates: Made
    ahead: Made | None = None

    def latents(self, halves: Halves, make: Made | None = None) -> Pair:
        """Return latents of the training half and of the test half.

        Args:
            halves: The recording, split into a training half and a test half.
            make: Function that computes the latents; `states` when left out.
        """
        make = make or self.states
        return halves.both(lambda counts, lengths: make(counts[:, self.units], lengths))

    def expected(self, halves: Halves) -> Pair:
        """Return expected counts per bin of all units, for the training half and the test half.

        A unit that was not fitted gets its mean count in the training half. Expected counts below
        0.05 times the mean count (`LEAST`) are raised to this floor.
        """

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
    # features of the bin before; zero in the first bin of a trial
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
    """Return those of the given unit indices whose counts change in the training half."""
    moving = units[halves.moving[units]]
    if not len(moving):
        where = f"{halves.train.source}: units"
        raise InputError("no unit with spikes in the first half", where, "pass more trials")
    return moving
