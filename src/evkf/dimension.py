"""How many latent dimensions a recording asks for."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from evkf.data import Recording
from evkf.errors import InputError
from evkf.splits import held_out, in_blocks
from evkf.units import LEAST_PASSES, fit_recording, infer, passes_for

CANDIDATES = (2, 4, 8, 12, 16)
PART, FOLD, PATIENCE = 4, 5, 2
"""A candidate takes a quarter of the passes, is scored on a fifth of the trials, and when this many
in a row were worse no more are tried."""


class Suggestion(NamedTuple):
    """The number of latents to take, and the score of each that was tried."""

    latents: int
    """The least that falls short of the best by no more than one standard error."""
    scores: dict[int, float]
    """Bound on the one-step log-likelihood of trials left out, in nats per bin."""


def suggest_latents(
    recording: Recording,
    candidates: Sequence[int] = CANDIDATES,
    likelihood: str = "poisson",
    hidden: int = 64,
    passes: int | None = None,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Suggestion:
    """Try numbers of latent dimensions on trials left out, and take the least that does.

    That is the least whose score is within one standard error of the best, which is that of their
    difference over the trials left out. A recording of one trial is cut into blocks.

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
    best, worse = possible[0], 0
    for latents in possible:
        model = fit_recording(train, latents, likelihood, hidden=hidden, passes=passes, seed=seed)
        elbo = infer(model, test).elbo
        bounds[latents] = np.array([trial.sum() for trial in test.split(elbo)])
        scores[latents] = float(elbo.mean())
        if progress is not None:
            progress(latents, scores[latents])
        if scores[latents] >= scores[best]:
            best, worse = latents, 0
        else:
            worse += 1
        if worse == PATIENCE:
            break
    enough = (latents for latents in bounds if as_good(bounds[latents], bounds[best]))
    return Suggestion(next(enough), scores)


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


def as_good(bounds: Float[np.ndarray, " K"], best: Float[np.ndarray, " K"]) -> bool:
    """Whether the bounds of trials are within a standard error of the best, trial by trial.

    Trials differ more from one another than models do, so that it is the error of the differences.

    Example:
        >>> best = np.array([-10.0, -20.0, -30.0])
        >>> as_good(best - np.array([1.0, -0.5, 0.2]), best), as_good(best - 1, best)
        (True, False)
    """
    short = best - bounds
    error = short.std(ddof=1) / np.sqrt(len(short)) if len(short) > 1 else 0.0
    return bool(short.mean() <= error)
