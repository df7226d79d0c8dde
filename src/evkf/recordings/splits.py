"""Trials apart, to learn from some and score others."""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from evkf.data import Recording
from evkf.errors import InputError

BLOCKS = 10
"""That a single trial is cut into."""


def in_blocks(recording: Recording) -> Recording:
    """The recording, a single trial cut into blocks of its own; each begins anew.

    Example:
        >>> in_blocks(Recording(np.ones((25, 2), int), 0.02)).lengths
        (2, 3, 3, 2, 2, 3, 3, 2, 2, 3)
    """
    if recording.num_trials > 1:
        return recording
    if recording.num_bins < 2 * BLOCKS:
        what = f"one trial of {recording.num_bins} bins"
        raise InputError(what, recording.source, f"pass {2 * BLOCKS} bins or more, or trials")
    edges = np.linspace(0, recording.num_bins, BLOCKS + 1).round().astype(int)
    starts = recording.start_times[0] + recording.bin_width * edges[:-1]
    return replace(recording, lengths=tuple(np.diff(edges)), start_times=starts, trials={})


def held_out(num_trials: int, nth: int) -> np.ndarray:
    """True for one of `nth` trials, drawn at random but always the same.

    At random, because experiments often go through their conditions in turn.

    Example:
        >>> int(held_out(10, 5).sum()), int(held_out(2, 5).sum())
        (2, 1)
    """
    order = np.random.default_rng(0).permutation(num_trials)
    return order % nth == min(nth, num_trials) - 1


def halved(recording: Recording) -> tuple[Recording, Bool[np.ndarray, " K"]]:
    """The recording, in blocks if it is one trial, and True for the trials that are judged.

    Example:
        >>> blocks, judged = halved(Recording(np.ones((40, 2), int), 0.02))
        >>> blocks.num_trials, int(judged.sum())
        (10, 5)
    """
    recording = in_blocks(recording)
    if recording.num_trials < 3:
        what = f"{recording.num_trials} trials"
        raise InputError(what, f"{recording.source}: trials", "pass three or more, or one long one")
    return recording, held_out(recording.num_trials, 2)
