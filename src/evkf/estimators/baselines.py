"""Baselines for comparison: smoothed counts, decoder features and PSTHs from spike counts.

Every function takes counts (bins, units) of trials concatenated in time, and the number of bins of
every trial, which may differ. Every function returns one row per bin. Expected counts are per bin,
not per second. `causal_smoothing` and `wiener_features` are causal: the row of a bin depends only
on this bin and on earlier bins of the same trial.
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
"""Length of a smoothing kernel in standard deviations."""

PRIOR = 1.0
"""Number of imagined trials at the unit's mean rate that are added to every condition. Without
them, a few trials without a spike would give expected counts of zero."""


def causal_smoothing(
    counts: ArrayLike, lengths: Lengths, sd_bins: float, rescaled: bool = False
) -> Float[np.ndarray, "T N"]:
    """Return counts smoothed by the past half of a Gaussian kernel, (bins, units).

    Counts before a trial are taken as zero, so values in the first bins of a trial are too low
    unless `rescaled` is True. A decoder can tell from low values when the trial began; see
    `evkf.analysis.decoding.lagged`.

    Args:
        counts: Spike counts, (bins, units).
        lengths: Number of bins of every trial.
        sd_bins: Standard deviation of the kernel, in bins.
        rescaled: True to divide each value by the sum of the kernel's weights that lie within the
            trial, so that the first bins are not too low.

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
    """Return features for a Wiener filter, (bins, units times `bins`), to use with `RidgeDecoder`.

    The row of a bin holds the counts of this bin, then those of the bin before, and so on. Before
    the first bin of a trial, counts are zero.

    Args:
        counts: Spike counts, (bins, units).
        lengths: Number of bins of every trial.
        bins: Number of bins in a row, including the present bin.

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
    """Return expected counts of test trials from the PSTH of each condition, (test bins, units).

    The PSTH is the average over the given trials of a condition, aligned at their first bins. One
    imagined trial at the unit's mean rate is included (`PRIOR`). If a test trial is longer than the
    PSTH of its condition, the last bin of the PSTH is repeated. Raise `InputError` for a test
    condition without trials.

    Args:
        counts: Spike counts of the given trials, (bins, units).
        lengths: Number of bins of every given trial.
        conditions: Condition of every given trial.
        test_lengths: Number of bins of every test trial.
        test_conditions: Condition of every test trial.
        sd_bins: Standard deviation of a Gaussian kernel, in bins, which smooths the given trials
            before averaging (not causal); zero for no smoothing.
        masks: True where observed, (bins, units); other entries are left out. All observed when
            left out.

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
