"""How many latent dimensions a recording asks for."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from evkf.data import Recording
from evkf.errors import InputError
from evkf.recordings.splits import held_out, in_blocks
from evkf.recordings.units import LEAST_PASSES, fit_recording, infer, passes_for

CANDIDATES = (2, 4, 8, 12, 16)
PART, FOLD, PATIENCE = 4, 5, 2
"""A candidate takes a quarter of the passes, is scored on a fifth of the trials, and when this many
in a row were worse no more are tried."""
PIECES, FEWEST, LEAST_BINS = 10, 5, 10
"""Held-out trials that are fewer than so many are cut into about as many pieces, of so many bins or
more each; with fewer than five pieces there is no telling an error."""


class Difference(NamedTuple):
    """How much a score falls short of another, in nats per bin."""

    mean: float
    error: float
    """Standard error; zero where there are too few pieces to tell."""


class Suggestion(NamedTuple):
    """The number of latents to take, and the score of each that was tried."""

    latents: int
    """The least that falls short of the best by no more than one standard error."""
    scores: dict[int, float]
    """Mean bound $L_t$ of held-out trials, in nats per bin; minus infinity
    where it is not finite."""
    behind: dict[int, Difference]
    """How far each whose score is finite falls short of the best, which does by nothing."""


def suggest_latents(
    recording: Recording,
    candidates: Sequence[int] = CANDIDATES,
    likelihood: str = "poisson",
    hidden: int = 64,
    passes: int | None = None,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Suggestion:
    """Try numbers of latent dimensions on held-out trials, and take the least that does.

    That is the least whose score is within one standard error of the best, which is that of their
    difference over the held-out trials, or over pieces of these where they are fewer than ten. The
    best itself is taken where there are fewer than five pieces, of ten bins or more. A recording of
    one trial is cut into blocks. A score that is not finite is worse than any other.

    Args:
        recording: The recording.
        candidates: Numbers to try, ascending; those that the units cannot tell are passed over.
        likelihood: As for `fit_recording`.
        hidden: As for `fit_recording`.
        passes: Of every candidate; a quarter of those of a fit when left out.
        seed: As for `fit_recording`.
        progress: Told the score of every candidate.

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
    enough = (latents for latents in bounds if as_good(bounds[latents], bounds[best]))
    per_bin = len(bounds[best]) / test.num_bins
    behind = {
        latents: Difference(*(per_bin * x for x in _short(pieces, bounds[best])))
        for latents, pieces in bounds.items()
    }
    return Suggestion(next(enough), scores, behind)


def possible_latents(recording: Recording, candidates: Sequence[int] = CANDIDATES) -> list[int]:
    """Those of the candidates that the units can tell.

    Example:
        >>> possible_latents(Recording(np.ones((100, 5), int), bin_width=0.02))
        [2, 4]
    """
    possible = [latents for latents in candidates if 1 <= latents < recording.num_units]
    if not possible:
        what = f"candidates {tuple(candidates)} for {recording.num_units} units"
        raise InputError(what, "latents", "say how many latents")
    return possible


def in_pieces(trials: Sequence[Float[np.ndarray, " T"]]) -> Float[np.ndarray, " K"]:
    """Sums over trials, or over pieces of them where they are few.

    Example:
        >>> in_pieces([np.ones(60), np.ones(25)]).tolist()
        [12.0, 12.0, 12.0, 12.0, 12.0, 13.0, 12.0]
    """
    each = -(-PIECES // len(trials))
    cut = [np.array_split(trial, np.clip(len(trial) // LEAST_BINS, 1, each)) for trial in trials]
    return np.array([piece.sum() for pieces in cut for piece in pieces])


def as_good(bounds: Float[np.ndarray, " K"], best: Float[np.ndarray, " K"]) -> bool:
    """Whether the bounds of pieces are within a standard error of the best, piece by piece.

    Pieces differ more from one another than models do, so that it is the error of the differences.
    Of fewer than five pieces it is taken to be zero.

    Example:
        >>> best = np.array([-10.0, -20.0, -30.0, -20.0, -10.0])
        >>> as_good(best - np.array([1.0, -0.5, 0.2, 0.4, -0.3]), best), as_good(best - 1, best)
        (True, False)
    """
    short, error = _short(bounds, best)
    return short <= error


def _short(bounds: Float[np.ndarray, " K"], best: Float[np.ndarray, " K"]) -> tuple[float, float]:
    """Mean of what pieces fall short of the best, and its standard error."""
    short = best - bounds
    error = short.std(ddof=1) / np.sqrt(len(short)) if len(short) >= FEWEST else 0.0
    return float(short.mean()), float(error)
