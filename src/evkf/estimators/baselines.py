"""What people use today: features and expected counts of bins, from counts of ragged trials.

Everything takes counts (bins, units) of trials laid end to end, with the bins of every trial, and
gives back one row a bin. Expected counts are of a bin, not per second. All but `TrialGPFA` and
`given="all"` are causal: a bin knows only itself and the bins of its trial before it.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import ArrayLike
from scipy.signal import lfilter

from evkf.analysis.decoding import lagged
from evkf.analysis.spike_metrics import smooth_trials
from evkf.errors import InputError
from evkf.estimators.gpfa import GPFA
from evkf.estimators.linear_system import LinearDynamicalSystem
from evkf.numerics.ragged import Lengths, read_counts, slices

__all__ = [
    "LinearDynamicalSystem",
    "TrialGPFA",
    "causal_smoothing",
    "condition_psth",
    "wiener_features",
]

REACH = 5
"""Standard deviations after which a kernel ends."""

PRIOR = 1.0
"""Trials at its mean rate that a unit is credited with in every condition: that a few trials had no
spike must not promise that there will be none."""


def causal_smoothing(
    counts: ArrayLike, lengths: Lengths, sd_bins: float, rescaled: bool = False
) -> Float[np.ndarray, "T N"]:
    """Counts smoothed by the past half of a Gaussian kernel.

    Before a trial begins there are no spikes, so its first bins come out low, and tell a decoder
    when it began; see `lagged`.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        lengths: Bins of every trial.
        sd_bins: Standard deviation of the kernel, in bins.
        rescaled: Whether to divide by the part of the kernel that lies within the trial, which
            makes first bins expected counts like all others.

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
    """Counts of the last bins side by side: with `evkf.analysis.decoding.RidgeDecoder`, a Wiener filter.

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
    """Expected counts of other trials: the average over trials of their condition, and `PRIOR`.

    Trials are aligned at their first bins. A bin later than any of the condition gets what the
    last one had.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        lengths: Bins of every trial.
        conditions: Of every trial.
        test_lengths: Bins of the trials to predict.
        test_conditions: Their conditions.
        sd_bins: Of a Gaussian kernel that smooths trials first, in bins; none for zero.
        masks: True where observed; what is not counts for nothing.

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


class TrialGPFA:
    """`GPFA` in the manner of this module; not causal.

    Args:
        latents: Latent dimensions.
        bin_width: In seconds.
        max_iterations: Of EM, at most.

    Attributes:
        gpfa_: The `GPFA` behind it.

    Example:
        >>> counts = np.random.default_rng(0).poisson(2.0, (40, 6))
        >>> gpfa = TrialGPFA(2, max_iterations=3).fit(counts, (20, 20))
        >>> gpfa.states(counts, (20, 20)).shape, gpfa.rates(counts, (20, 20)).shape
        ((40, 2), (40, 6))
    """

    def __init__(self, latents: int = 12, bin_width: float = 0.02, max_iterations: int = 100):
        self.latents, self.bin_width, self.max_iterations = latents, bin_width, max_iterations

    def fit(self, counts: ArrayLike, lengths: Lengths) -> Self:
        """Learn from the start."""
        gpfa = GPFA(self.latents, self.bin_width, max_iterations=self.max_iterations)
        self.gpfa_ = gpfa.fit(_cut(counts, lengths))
        return self

    def states(self, counts: ArrayLike, lengths: Lengths) -> Float[np.ndarray, "T L"]:
        """Means of the orthonormalised latents, given all of their trial."""
        return np.concatenate(self._fitted.transform(_cut(counts, lengths)))

    def rates(self, counts: ArrayLike, lengths: Lengths) -> Float[np.ndarray, "T N"]:
        """Expected counts, given all of their trial."""
        return np.concatenate(self._fitted.rates(_cut(counts, lengths)))

    @property
    def _fitted(self) -> GPFA:
        # one that was never fitted says so itself
        return getattr(self, "gpfa_", GPFA())


def _cut(counts: ArrayLike, lengths: Lengths) -> list[np.ndarray]:
    y = read_counts(counts)
    return [y[trial] for trial in slices(lengths, len(y))]
