"""Agreement of expected counts with spikes, for recordings where the truth is not known.

`expected` is always the expected count of a bin, not a rate per second.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter1d
from scipy.special import gammaln
from scipy.stats import nbinom, poisson

from evkf.errors import InputError
from evkf.numerics.checks import first_of, real_numbers
from evkf.numerics.trials import Lengths, bins_of, read_counts, slices

FLOOR = 1e-9
"""Least expected count of a bin, that of the Neural Latents Benchmark: a spike where none was
expected costs 21 nats, not infinity."""

KERNEL_SD = 0.07
"""Standard deviation of the kernel of a PSTH in seconds, that of the Neural Latents Benchmark."""

CLEAR, RELEVANT = 3.0, 1.1
"""Number of standard errors above 1, and value, above which a unit counts as over-dispersed."""
MANY = 0.1
"""Share of over-dispersed units from which on another model is recommended."""


class Dispersion(NamedTuple):
    """Ratio of variance to expected variance of every unit.

    Attributes:
        value: The ratio, 1 for a correct model; NaN for a unit without expected spikes.
        error: Standard error of the ratio of a correct model.
    """

    value: Float[np.ndarray, " N"]
    error: Float[np.ndarray, " N"]


def bits_per_spike(
    counts: ArrayLike,
    expected: ArrayLike,
    masks: ArrayLike | None = None,
    reference: ArrayLike | None = None,
) -> float:
    """Return the information about spikes beyond constant rates, as in the NLB.

    This is the log-likelihood minus that of the reference, over ln 2 and the number of spikes: zero
    if only mean rates were predicted, without a lower bound.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        expected: Expected counts, raised to `FLOOR` where below it.
        masks: True where observed.
        reference: Expected counts to compare with, (units,) or (bins, units), such as the mean
            counts of other trials; the mean of the given counts when left out.

    Example:
        >>> counts = [[0], [2], [0], [2]]
        >>> round(bits_per_spike(counts, [[0.001], [1.999], [0.001], [1.999]]), 3)
        0.999
        >>> bits_per_spike(counts, [[1.0], [1.0], [1.0], [1.0]])
        0.0
    """
    y, mu, seen = _read(counts, expected, masks)
    spikes = y[seen].sum()
    if spikes == 0:
        raise InputError("no spikes", "counts", "pass bins that have some")
    if reference is None:
        null = y.sum(axis=0, where=seen) / np.maximum(seen.sum(axis=0), 1)
    else:
        null = real_numbers(reference, "reference").astype(float)
        if null.shape not in (y.shape[1:], y.shape):
            what = f"reference of shape {null.shape}"
            raise InputError(what, "reference", f"pass shape {y.shape[1:]} or {y.shape}")
    null = np.broadcast_to(null, y.shape)
    _refuse_bad(null, seen, "reference")
    log_lik, log_lik_null = (
        (y * np.log(rate) - rate - gammaln(y + 1))[seen].sum()
        for rate in (np.maximum(mu, FLOOR), np.maximum(null, FLOOR))
    )
    return float((log_lik - log_lik_null) / np.log(2) / spikes)


def psth_r2(
    counts: ArrayLike,
    expected: ArrayLike,
    lengths: Lengths,
    conditions: Shaped[np.ndarray, " K"] | Sequence[Any],
    bin_width: float,
    kernel_sd: float = KERNEL_SD,
    masks: ArrayLike | None = None,
) -> float:
    """Return R² of condition averages of expected counts, against those of smoothed spikes.

    Spikes are smoothed within trials by a Gaussian kernel, expected counts are not. Trials are
    aligned at their first bins, and a bin is averaged over the trials that observed it. R² is of
    one unit over all conditions and bins; the result is the mean over units whose average changes.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        expected: Expected counts.
        lengths: Bins of every trial.
        conditions: Condition of every trial.
        bin_width: In seconds.
        kernel_sd: Standard deviation of the kernel, in seconds.
        masks: True where observed.

    Example:
        >>> wave = np.exp(np.sin(np.arange(50) / 8))[:, None]
        >>> counts = np.random.default_rng(0).poisson(np.tile(wave, (200, 1)))
        >>> round(psth_r2(counts, np.tile(wave, (200, 1)), [50] * 200, [0] * 200, 0.02), 2)
        0.97
    """
    y, mu, seen = _read(counts, expected, masks)
    trials = slices(lengths, len(y))
    labels = np.asarray(conditions)
    if labels.shape != (len(trials),):
        what = f"conditions of shape {labels.shape}"
        raise InputError(what, "conditions", f"pass one for each of the {len(trials)} trials")
    if not (bin_width > 0 and kernel_sd > 0):
        what = f"bin_width = {bin_width}, kernel_sd = {kernel_sd}"
        raise InputError(what, "bin_width", "pass seconds above zero")
    known = seen.any(axis=0)
    y, mu, seen = y[:, known], mu[:, known], seen[:, known]
    smooth = smooth_trials(y, lengths, kernel_sd / bin_width, seen)
    truth, model = (condition_averages(x, lengths, labels, seen) for x in (smooth, mu))
    total = np.nansum((truth - np.nanmean(truth, axis=0)) ** 2, axis=0)
    varies = total > 0
    if not varies.any():
        raise InputError("no unit's average changes", "counts", "pass units that have spikes")
    return float(np.mean(1 - np.nansum((truth - model) ** 2, axis=0)[varies] / total[varies]))


def smooth_trials(
    values: Float[np.ndarray, "T N"],
    lengths: Lengths,
    sd_bins: float,
    masks: Bool[np.ndarray, "T N"],
) -> Float[np.ndarray, "T N"]:
    """Smooth observed values within trials by a Gaussian kernel; the result is zero elsewhere.

    The kernel is rescaled where part of it lies on bins that were not observed.

    Example:
        >>> masks = np.array([[True], [True], [False]])
        >>> smooth_trials(np.array([[2.0], [2.0], [9.0]]), (3,), 1.0, masks)[:, 0].tolist()
        [2.0, 2.0, 0.0]
    """
    smooth = np.zeros(values.shape)
    for trial in slices(lengths, len(values)):
        seen = masks[trial]
        total, held = (
            gaussian_filter1d(array, sd_bins, axis=0)
            for array in (np.where(seen, values[trial], 0.0), seen.astype(float))
        )
        np.divide(total, held, out=smooth[trial], where=seen)
    return smooth


def condition_averages(
    values: Float[np.ndarray, "T N"],
    lengths: Lengths,
    conditions: Shaped[np.ndarray, " K"],
    masks: Bool[np.ndarray, "T N"] | None = None,
) -> Float[np.ndarray, "B N"]:
    """Return means over trials of each condition and bin since the start; NaN if none was observed.

    Example:
        >>> condition_averages(np.array([[1.0], [5.0], [3.0]]), (2, 1), np.zeros(2)).tolist()
        [[2.0], [5.0]]
    """
    seen = np.ones(values.shape, bool) if masks is None else masks
    _, which = np.unique(conditions, return_inverse=True)
    keys = np.repeat(which, lengths) * max(lengths) + bins_of(lengths)
    names, cell = np.unique(keys, return_inverse=True)
    total, num = np.zeros((2, len(names), values.shape[1]))
    np.add.at(total, cell, np.where(seen, values, 0.0))
    np.add.at(num, cell, seen)
    return np.where(num > 0, total / np.maximum(num, 1), np.nan)


def pit(
    counts: ArrayLike,
    predictive: ArrayLike,
    masks: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    seed: int = 0,
) -> Float[np.ndarray, "T N"]:
    """Return the randomised probability integral transform, uniform for calibrated predictions.

    It is a draw between the predicted probability of fewer spikes and that of no more. A histogram
    that is high at both ends means too narrow predictions, one high in the middle too wide ones.

    Args:
        counts: Spikes of every bin and unit, (bins, units), whole numbers.
        predictive: Expected Poisson counts, (bins, units), or probabilities of 0, 1, 2, … spikes,
            (bins, units, numbers); the remainder to 1 is the probability of more spikes.
        masks: True where observed.
        variance: Variances of the counts, with expected counts only: where they are larger, counts
            are taken as negative binomial with these moments, not as Poisson.
        seed: Seed of the draws.

    Returns:
        Numbers in [0, 1], NaN where nothing was observed.

    Example:
        >>> counts = np.random.default_rng(0).poisson(2.0, (10_000, 1))
        >>> np.histogram(pit(counts, np.full((10_000, 1), 2.0)), 5, (0, 1))[0].round(-3)
        array([2000, 2000, 2000, 2000, 2000])
    """
    table = real_numbers(predictive, "predictive").astype(float)
    mean = table.sum(axis=-1) if table.ndim == 3 else table
    y, mu, seen = _read(counts, mean, masks, "predictive")
    if np.any(y[seen] != np.round(y[seen])):
        raise InputError("counts that are not whole", "counts", "pass numbers of spikes")
    if table.ndim == 2:
        var = mu if variance is None else _read(counts, variance, masks, "variance")[1]
        # Poisson, or negative binomial where the variance is above the mean.
        wide = (var > mu * (1 + 1e-6)) & (mu > FLOOR)
        safe, more = np.where(wide, mu, 1.0), np.where(wide, var, 2.0)
        size, chance = safe**2 / (more - safe), safe / more
        below, within = (
            np.where(wide, nbinom.cdf(count, size, chance), poisson.cdf(count, mu))
            for count in (y - 1, y)
        )
    else:
        if np.any(table[seen] < 0) or np.any(mu[seen] > 1 + 1e-6):
            remedy = "pass probabilities that sum to 1 or less"
            raise InputError("negative or too large probabilities", "predictive", remedy)
        upto = np.concatenate([np.zeros((*y.shape, 1)), np.cumsum(table, axis=-1)], axis=-1)
        last = table.shape[-1]
        index = np.minimum(y, last).astype(int)[..., None]
        below = np.take_along_axis(upto, index, axis=-1)[..., 0]
        within = np.take_along_axis(upto, np.minimum(index + 1, last), axis=-1)[..., 0]
        within = np.where(y >= last, 1.0, within)
    draws = np.random.default_rng(seed).uniform(size=y.shape)
    return np.where(seen, np.clip(below + draws * (within - below), 0, 1), np.nan)


def dispersion(
    counts: ArrayLike,
    expected: ArrayLike,
    masks: ArrayLike | None = None,
    variance: ArrayLike | None = None,
) -> Dispersion:
    """Return the Pearson dispersion of every unit: squared residuals over their expected variance.

    It is a ratio of sums, as bins without expected spikes would dominate a mean of ratios. In the
    sums bins are weighted by their expected spikes, or the few of large variance would dominate. It
    is above 1 for counts that vary more than the model predicts: they are not Poisson, or the model
    misses changes of the rate.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        expected: Expected counts.
        masks: True where observed.
        variance: Expected variances; the expected counts, as for Poisson counts, when left out.

    Example:
        >>> counts = np.random.default_rng(0).negative_binomial(2, 0.5, (20_000, 1))
        >>> dispersion(counts, np.full(counts.shape, 2.0)).value.round(1)
        array([2.])
    """
    y, mu, seen = _read(counts, expected, masks)
    var = mu if variance is None else _read(counts, variance, masks, "variance")[1]
    weight = np.minimum(mu / np.maximum(var, FLOOR), 1)
    total = (weight * var).sum(axis=0, where=seen)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = (weight * (y - mu) ** 2).sum(axis=0, where=seen) / total
        # the fourth central moment of a negative binomial count is v + 3v² + 6v²/r
        inverse_r = np.maximum(var - mu, 0) / np.maximum(mu, FLOOR) ** 2
        square = var + 2 * var**2 + 6 * var**2 * inverse_r
        error = np.sqrt((weight**2 * square).sum(axis=0, where=seen)) / total
    silent = total <= FLOOR * len(y)
    return Dispersion(np.where(silent, np.nan, value), np.where(silent, np.nan, error))


def over_dispersed(result: Dispersion) -> Bool[np.ndarray, " N"]:
    """True for units that vary more than expected, significantly and by a relevant amount.

    Example:
        >>> over_dispersed(Dispersion(np.array([1.0, 2.0]), np.array([0.1, 0.1]))).tolist()
        [False, True]
    """
    with np.errstate(invalid="ignore"):
        return (result.value > RELEVANT) & (result.value > 1 + CLEAR * result.error)


def dispersion_hint(
    result: Dispersion,
    likelihood: str = "Poisson",
    units: Sequence[Any] | np.ndarray | None = None,
) -> str:
    """Return a sentence on the dispersion of residuals from a model, with advice.

    Args:
        result: The dispersion, over the variances that the model predicts.
        likelihood: Name of the model's distribution of counts: "Poisson" or "negative binomial".
        units: Names of the units; numbers from zero when left out.

    Example:
        >>> result = Dispersion(np.array([2.0, 1.8, 1.0]), np.full(3, 0.1))
        >>> hint = dispersion_hint(result, units="abc")
        >>> hint.startswith("2 of 3 units (a, b) vary more"), hint[-25:]
        (True, 'try the negative binomial')
    """
    active = np.isfinite(result.value)
    if not active.any():
        return "no unit has expected spikes"
    over, total = over_dispersed(result), int(active.sum())
    with np.errstate(invalid="ignore"):
        under = (result.value < 1 / RELEVANT) & (result.value < 1 - CLEAR * result.error)
    ids = np.arange(len(active)) if units is None else np.array(list(units))
    other = "try the negative binomial" if likelihood == "Poisson" else "try more latents or passes"
    cases = (("more", over, other), ("less", under, "intervals are too wide"))
    parts = []
    for how, units_of_case, advice in cases:
        number = int(units_of_case.sum())
        if not number:
            continue
        vary = f"({first_of(ids[units_of_case])}) {'varies' if number == 1 else 'vary'}"
        part = f"{number} of {total} units {vary} {how} than the {likelihood} model"
        if how == "more":
            part += f" (median {np.median(result.value[over]):.1f})"
        parts.append(f"{part}: {advice}" if number > MANY * total else part)
    if parts:
        return "; ".join(parts)
    return f"{total} of {total} units vary no more than the {likelihood} model: it fits"


def _read(
    counts: ArrayLike, expected: ArrayLike, masks: ArrayLike | None, where: str = "expected"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return counts, expected counts and masks; counts are zero where nothing was observed."""
    y = real_numbers(counts, "counts").astype(float)
    mu = real_numbers(expected, where).astype(float)
    seen = np.ones(y.shape, bool) if masks is None else np.asarray(masks)
    for name, array in ((where, mu), ("masks", seen)):
        if array.shape != y.shape:
            what = f"{name} of shape {array.shape}"
            raise InputError(what, name, f"pass the shape of the counts, {y.shape}")
    if seen.dtype != bool:
        raise InputError(f"masks of {seen.dtype}", "masks", "pass True where observed")
    y, mu = read_counts(np.where(seen, y, 0.0)), np.where(seen, mu, 0.0)
    _refuse_bad(mu, seen, where)
    return y, mu, seen


def _refuse_bad(values: np.ndarray, seen: np.ndarray, where: str) -> None:
    """Refuse observed values that are negative or not finite."""
    bad = seen & ~((values >= 0) & np.isfinite(values))
    if bad.any():
        t, n = (int(i) for i in np.argwhere(bad)[0])
        remedy = "pass finite numbers of zero or more, or mask the bin"
        raise InputError(f"{values[t, n]}", f"{where}[{t}, {n}]", remedy)
