"""How many latent dimensions a recording asks for."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from evkf.data import Recording
from evkf.errors import InputError
from evkf.splits import held_out, in_blocks
from evkf.units import LEAST_PASSES, fit_recording, infer, passes_for

CANDIDATES = (2, 4, 8, 12, 16)
PART, FOLD, PATIENCE = 4, 5, 2
"""A candidate takes a quarter of the passes, is scored on a fifth of the trials, and when this many
in a row were worse no more are tried."""


class Suggestion(NamedTuple):
    """The best of the candidates, and the score of each that was tried."""

    latents: int
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
    """Try numbers of latent dimensions on trials left out.

    A recording of one trial is cut into blocks.

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
    possible = [latents for latents in candidates if 1 <= latents < whole.num_units]
    if not possible:
        what = f"candidates {tuple(candidates)} for {whole.num_units} units"
        raise InputError(what, "latents", "say how many latents")
    if passes is None:
        passes = max(passes_for(train) // PART, LEAST_PASSES)
    scores: dict[int, float] = {}
    best, worse = possible[0], 0
    for latents in possible:
        model = fit_recording(train, latents, likelihood, hidden=hidden, passes=passes, seed=seed)
        scores[latents] = float(infer(model, test).elbo.mean())
        if progress is not None:
            progress(latents, scores[latents])
        if scores[latents] >= scores[best]:
            best, worse = latents, 0
        else:
            worse += 1
        if worse == PATIENCE:
            break
    return Suggestion(best, scores)
