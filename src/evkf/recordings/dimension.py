"""The choice of the number of latent dimensions, for `evkf fit`."""

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
"""Divisor of the passes, number of folds, and worse candidates in a row after which to stop."""
PIECES, FEWEST, LEAST_BINS = 10, 5, 10
"""Pieces that fewer held-out trials are cut into, fewest pieces for a standard error, and fewest
bins of a piece."""


class Difference(NamedTuple):
    """Difference of a score to the best one, in nats per bin.

    Attributes:
        mean: The best score minus this one.
        error: Standard error; zero if there are too few pieces.
    """

    mean: float
    error: float


class Suggestion(NamedTuple):
    """The suggested number of latents, and the score of every candidate.

    Attributes:
        latents: The smallest number whose score is within one standard error of the best.
        scores: Mean bound $L_t$ of held-out trials, in nats per bin; minus infinity where not
            finite.
        behind: Difference to the best score of every candidate with a finite score.
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
    """Score numbers of latent dimensions on held-out trials, and suggest the smallest good one.

    A candidate takes a quarter of the passes of a fit and is scored on a fifth of the trials. The
    smallest candidate within one standard error of the best is suggested; the error is that of the
    difference over the held-out trials, or over pieces of fewer than ten trials. With fewer than
    five pieces of ten bins or more the best is suggested. A recording of one trial is cut into
    blocks. A score that is not finite is worse than any other.

    Args:
        recording: The recording.
        candidates: Numbers to try, ascending; those not below the number of units are skipped.
        likelihood: Likelihood of `fit_recording`.
        hidden: Hidden units of `fit_recording`.
        passes: Passes of every candidate; a quarter of those of a fit by default.
        seed: Seed of all randomness.
        progress: Called with every candidate and its score.

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
    """Return the candidates below the number of units.

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
    """Return sums over trials, or over pieces of few trials.

    Example:
        >>> in_pieces([np.ones(60), np.ones(25)]).tolist()
        [12.0, 12.0, 12.0, 12.0, 12.0, 13.0, 12.0]
    """
    each = -(-PIECES // len(trials))
    cut = [np.array_split(trial, np.clip(len(trial) // LEAST_BINS, 1, each)) for trial in trials]
    return np.array([piece.sum() for pieces in cut for piece in pieces])


def compare(bounds: Float[np.ndarray, " K"], best: Float[np.ndarray, " K"]) -> Difference:
    """Return the mean difference of pieces to the best, and its standard error.

    The error is that of the differences, for pieces differ more from one another than models do. It
    is zero with fewer than five pieces.

    Example:
        >>> best = np.array([-10.0, -20.0, -30.0, -20.0, -10.0])
        >>> short, error = compare(best - np.array([1.0, -0.5, 0.2, 0.4, -0.3]), best)
        >>> short <= error, compare(best - 1, best)
        (True, Difference(mean=1.0, error=0.0))
    """
    short = best - bounds
    error = short.std(ddof=1) / np.sqrt(len(short)) if len(short) >= FEWEST else 0.0
    return Difference(float(short.mean()), float(error))
