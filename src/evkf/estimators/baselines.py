"""Common features and expected counts of bins, to compare with, from counts of ragged trials.

Every function takes counts (bins, units) of trials laid end to end, with the bins of every trial,
and returns one row a bin. Expected counts are of a bin, not per second. Smoothing and features are
causal: they use a bin and the bins of its trial before it.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import ArrayLike
from scipy.signal import lfilter

from evkf.analysis.decoding import lagged
from evkf.analysis.spike_metrics import smooth_trials
from evkf.errors import InputError
from evkf.numerics.trials import Lengths, read_counts, slices

REACH = 5
"""Length of a kernel in standard deviations."""

PRIOR = 1.0
"""Trials at the mean rate of a unit that are added to every condition, so that a few trials without
a spike do not give an expectation of zero."""


def causal_smoothing(
    counts: ArrayLike, lengths: Lengths, sd_bins: float, rescaled: bool = False
) -> Float[np.ndarray, "T N"]:
    """Smooth counts by the past half of a Gaussian kernel.

    Before a trial there are no spikes, so the first bins are low, which shows a decoder when the
    trial began; see `lagged`.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        lengths: Bins of every trial.
        sd_bins: Standard deviation of the kernel, in bins.
        rescaled: True to divide by the part of the kernel within the trial, so that first bins are
            expected counts too.

    Example:
        >>> causal_smoothing([[0], [1], [0], [0]], (2, 2), 1.0)[:, 0].round(2)
        array([0.  , 0.57, 0.  , 0.  ])
    """
    y = read_counts(counts)
    if not (np.isfinite(sd_bins) and sd_bins > 0):
        raise InputError(f"sd_bins = {sd_bins}", "sd_bins", "pass a number above zero")
    kernel = np.exp(-0.5 * (np.arange(int(REACH * sd_bins) + 1) / sd_bins) ** 2)
    kernel /= kernel.sum()
    smooth = np.empty_like(y)
    for trial in slices(lengths, len(y)):
        num = trial.stop - trial.start
        smooth[trial] = lfilter(kernel, 1, y[trial], axis=0)
        if rescaled:
            part = np.cumsum(kernel[:num])
            smooth[trial] /= part[np.minimum(np.arange(num), len(part) - 1), None]
    return smooth


def wiener_features(counts: ArrayLike, lengths: Lengths, bins: int = 7) -> np.ndarray:
    """Return counts of the last bins side by side; with `RidgeDecoder`, a Wiener filter.

    Example:
        >>> wiener_features([[1], [2], [3]], (3,), bins=2).tolist()
        [[1.0, 0.0], [2.0, 1.0], [3.0, 2.0]]
    """
    return lagged(read_counts(counts), bins, lengths)


def condition_psth(
    counts: ArrayLike,
    lengths: Lengths,
    conditions: Shaped[np.ndarray, " K"] | Sequence,
    test_lengths: Lengths,
    test_conditions: Shaped[np.ndarray, " I"] | Sequence,
    sd_bins: float = 0.0,
    masks: Bool[np.ndarray, "T N"] | None = None,
) -> Float[np.ndarray, "T N"]:
    """Return expected counts of other trials, averaged over the trials of their condition.

    Trials are aligned at their first bins. Bins later than any of the condition get the average of
    its last bin. The average includes `PRIOR` trials at the mean rate.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        lengths: Bins of every trial.
        conditions: Condition of every trial.
        test_lengths: Bins of the trials to predict.
        test_conditions: Their conditions.
        sd_bins: Standard deviation of a Gaussian kernel that smooths trials first, in bins; zero
            for none.
        masks: True where observed; other bins are left out.

    Example:
        >>> counts = [[1], [3], [3], [5], [3]]
        >>> condition_psth(counts, (2, 2, 1), ["up", "up", "down"], (3,), ["up"])[:, 0].round(2)
        array([2.33, 3.67, 3.67])
    """
    y = read_counts(counts)
    trials, labels = slices(lengths, len(y)), np.asarray(conditions)
    wanted = np.asarray(test_conditions)
    given = {"conditions": (labels, trials), "test_conditions": (wanted, test_lengths)}
    for name, (found, own) in given.items():
        if found.shape != (len(own),):
            what = f"{name} of shape {found.shape}"
            raise InputError(what, name, f"pass one for each of the {len(own)} trials")
    seen = np.ones(y.shape, bool) if masks is None else masks
    mean = y.sum(axis=0, where=seen) / np.maximum(seen.sum(axis=0), 1)
    smooth = smooth_trials(y, lengths, sd_bins, seen) if sd_bins > 0 else np.where(seen, y, 0.0)
    averages, longest = {}, max(test_lengths)
    for label in np.unique(labels):
        own = [trials[k] for k in np.flatnonzero(labels == label)]
        num = np.full((max(trial.stop - trial.start for trial in own), y.shape[1]), PRIOR)
        total = num * mean
        for trial in own:
            size = trial.stop - trial.start
            total[:size] += smooth[trial]
            num[:size] += seen[trial]
        averages[label] = np.pad(total / num, ((0, max(longest - len(num), 0)), (0, 0)), "edge")
    unknown = sorted(set(wanted.tolist()) - {label.item() for label in averages})
    if unknown:
        what = f"conditions {unknown}"
        raise InputError(what, "test_conditions", "predict only conditions that have trials")
    pairs = zip(wanted, test_lengths, strict=True)
    return np.concatenate([averages[label][:num] for label, num in pairs])
