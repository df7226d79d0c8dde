"""Choose the number of latent dimensions by held-out trials, for `evkf fit`.

Each candidate number of latents is fitted to training trials and scored by the mean bound of
held-out trials: a lower bound on the log-probability of the counts, in nats per bin.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from evkf.data import Recording
from evkf.errors import InputError
from evkf.recordings.halves import held_out, in_blocks
from evkf.recordings.units import LEAST_PASSES, fit_recording, infer, passes_for

CANDIDATES = (2, 4, 8, 12, 16)
PART, FOLD, PATIENCE = 4, 5, 2
"""A candidate takes 1/`PART` of the passes of a fit and is scored on 1/`FOLD` of the trials. The
search stops after `PATIENCE` candidates in a row that are worse than the best."""
PIECES, FEWEST, LEAST_BINS = 10, 5, 10
"""Fewer than `PIECES` held-out trials are cut into about `PIECES` pieces of `LEAST_BINS` bins or
more. A standard error needs `FEWEST` pieces or more."""


class Difference(NamedTuple):
    """Difference between the best score and the score of a candidate.

    `compare` returns nats per piece, `Suggestion.behind` holds nats per bin.

    Attributes:
        mean: The best score minus the score of this candidate.
        error: Standard error of this difference; zero if there are fewer than five pieces.
    """

    mean: float
    error: float


class Suggestion(NamedTuple):
    """The suggested number of latents, and the scores of the candidates.

    Attributes:
        latents: The smallest candidate whose score is within one standard error of the best score.
        scores: Score of each candidate that was tried: the mean bound $L_t$ of the bins of held-out
            trials, in nats per bin; minus infinity if the mean bound is not finite.
        behind: For each candidate that has a finite score, the best score minus this score, in
            nats per bin.
    """

    latents: int
    scores: dict[int, float]
    behind: dict[int, Difference]


def suggest_latents(
    recording: Recording,
    candidates: Sequence[int] = CANDIDATES,
    likelihood: str = "poisson",
    hidden: int = 64,
    passes: int | None = None,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Suggestion:
    """Score numbers of latent dimensions on held-out trials, and return the smallest good number.

    Each candidate is fitted to four fifths of the trials and scored on the remaining fifth (held
    out). The smallest candidate whose score is within one standard error of the best score is
    suggested. The standard error is that of the difference between two scores over held-out trials;
    if there are fewer than ten held-out trials, these are cut into pieces of ten bins or more. If
    there are fewer than five pieces, the candidate that has the best score is suggested. A
    recording of one trial is cut into blocks, which count as trials. After two candidates in a row
    that are worse than the best, the search stops.

    Args:
        recording: The recording, of trials or of one long trial.
        candidates: Numbers of latents to try, in ascending order. Numbers that are not below the
            number of units are skipped.
        likelihood: Likelihood, as for `fit_recording`.
        hidden: Number of hidden units of the network that learns the dynamics.
        passes: Number of passes over the training trials for each candidate; when left out, a
            quarter of the default of `fit_recording`, but 3 or more.
        seed: Seed of all random numbers.
        progress: Function called after each candidate; its arguments are the candidate and the
            score.

    Example:
        >>> counts = np.random.default_rng(0).poisson(1.0, (100, 5))
        >>> recording = Recording(counts, bin_width=0.02)
        >>> suggest_latents(recording, candidates=(1,), hidden=4, passes=1).latents
        1
    """
    whole = in_blocks(recording)
    held = held_out(whole.num_trials, FOLD)
    train, test = (whole.take(np.flatnonzero(part)) for part in (~held, held))
    possible = possible_latents(whole, candidates)
    if passes is None:
        passes = max(passes_for(train) // PART, LEAST_PASSES)
    bounds: dict[int, np.ndarray] = {}
    scores: dict[int, float] = {}
    best: int | None = None
    worse = 0
    for latents in possible:
        model = fit_recording(train, latents, likelihood, hidden=hidden, passes=passes, seed=seed)
        elbo = infer(model, test).elbo
        score = float(elbo.mean())
        scores[latents] = score if np.isfinite(score) else -np.inf
        if progress is not None:
            progress(latents, scores[latents])
        if np.isfinite(score):
            bounds[latents] = in_pieces(test.split(elbo))
        if latents in bounds and (best is None or score >= scores[best]):
            best, worse = latents, 0
        elif best is not None:
            worse += 1
        if worse == PATIENCE:
            break
    if best is None:
        what = f"no finite score of {', '.join(map(str, scores))} latents"
        raise InputError(what, recording.source, "leave out bins or units with extreme values")
    behind = {latents: compare(pieces, bounds[best]) for latents, pieces in bounds.items()}
    enough = next(latents for latents, (short, error) in behind.items() if short <= error)
    per_bin = len(bounds[best]) / test.num_bins
    behind = {latents: Difference(*(per_bin * x for x in pair)) for latents, pair in behind.items()}
    return Suggestion(enough, scores, behind)


def possible_latents(recording: Recording, candidates: Sequence[int] = CANDIDATES) -> list[int]:
    """Return the candidates that are below the number of units, and 1 or more.

    Raise InputError if there are none.

    Args:
        recording: The recording, which gives the number of units.
        candidates: Numbers of latents.

    Example:
        >>> possible_latents(Recording(np.ones((100, 5), int), bin_width=0.02))
        [2, 4]
    """
    possible = [latents for latents in candidates if 1 <= latents < recording.num_units]
    if not possible:
        what = f"candidates {tuple(candidates)} for {recording.num_units} units"
        raise InputError(what, "latents", "give the number of latents")
    return possible


def in_pieces(trials: Sequence[Float[np.ndarray, " T"]]) -> Float[np.ndarray, " K"]:
    """Return the sum of each trial, or of each piece if fewer than ten trials are cut into pieces.

    Pieces have ten bins or more, unless a whole trial is shorter.

    Args:
        trials: One array of values for each trial, such as the bound of each bin.

    Example:
        >>> in_pieces([np.ones(60), np.ones(25)]).tolist()
        [12.0, 12.0, 12.0, 12.0, 12.0, 13.0, 12.0]
    """
    each = -(-PIECES // len(trials))
    cut = [np.array_split(trial, np.clip(len(trial) // LEAST_BINS, 1, each)) for trial in trials]
    return np.array([piece.sum() for pieces in cut for piece in pieces])


def compare(bounds: Float[np.ndarray, " K"], best: Float[np.ndarray, " K"]) -> Difference:
    """Return the mean difference between the best candidate and another, and the standard error.

    The standard error is that of differences between candidates in the same piece, because pieces
    differ more from each other than candidates do. The standard error is zero if there are fewer
    than five pieces.

    Args:
        bounds: Summed bound of each piece for this candidate, in nats.
        best: Summed bound of each piece for the best candidate, in nats.

    Example:
        >>> best = np.array([-10.0, -20.0, -30.0, -20.0, -10.0])
        >>> short, error = compare(best - np.array([1.0, -0.5, 0.2, 0.4, -0.3]), best)
        >>> short <= error, compare(best - 1, best)
        (True, Difference(mean=1.0, error=0.0))
    """
    short = best - bounds
    error = short.std(ddof=1) / np.sqrt(len(short)) if len(short) >= FEWEST else 0.0
    return Difference(float(short.mean()), float(error))
