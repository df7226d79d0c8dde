"""How well expected counts agree with spikes, when the truth is not known.

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
"""Of the true rates behind a PSTH, in seconds; that of the Neural Latents Benchmark."""

CLEAR, MATTERS, MANY = 3.0, 1.1, 0.1
"""A unit is over-dispersed when it is so many standard errors above 1 and above so much; a
population, when this share of its units is."""


class Dispersion(NamedTuple):
    """Of every unit, variance over expected variance.

    Attributes:
        value: One for a right model; NaN for a unit without expected spikes.
        error: Standard error of it if the model is right.
    """

    value: Float[np.ndarray, " N"]
    error: Float[np.ndarray, " N"]


def bits_per_spike(
    counts: ArrayLike,
    expected: ArrayLike,
    masks: ArrayLike | None = None,
    reference: ArrayLike | None = None,
) -> float:
    """Information about spikes beyond a constant rate of every unit, as in the NLB.

    Log-likelihood above that of the reference, over ln 2 and the number of spikes. Zero says that
    nothing but mean rates was predicted; it has no lower bound.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        expected: Their expectations; those under `FLOOR` are raised to it.
        masks: True where observed.
        reference: Expectations to be compared with, (units,) or (bins, units), such as the mean
            counts of other trials; the mean of these very counts when left out.

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
    gain = _log_lik(y, mu)[seen].sum() - _log_lik(y, null)[seen].sum()
    return float(gain / np.log(2) / spikes)


def psth_r2(
    counts: ArrayLike,
    expected: ArrayLike,
    lengths: Lengths,
    conditions: Shaped[np.ndarray, " K"] | Sequence[Any],
    bin_width: float,
    kernel_sd: float = KERNEL_SD,
    masks: ArrayLike | None = None,
) -> float:
    """R² of condition averages of expected counts, against those of smoothed spikes.

    Spikes are smoothed within trials by a Gaussian kernel, expectations taken as they are.
    Trials are aligned at their first bins, and a bin is averaged over the trials that observed it.
    R² is of one unit over all conditions and bins; units whose average never changes are left out
    of the mean over units.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        expected: Their expectations.
        lengths: Bins of every trial.
        conditions: Of every trial.
        bin_width: In seconds.
        kernel_sd: Of the kernel, in seconds.
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
    """Observed values smoothed within trials by a Gaussian kernel; zero elsewhere.

    Where part of the kernel lies on what was not observed, the rest counts for it.

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
    """Means of the bins of the same condition and as long after the start; NaN if none was seen.

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
    """Randomised probability integral transform: uniform on [0, 1] if predictions are calibrated.

    A draw between the predicted probability of fewer spikes and that of no more. A histogram that
    is high at both ends says that predictions are too sure, one high in the middle that they are
    not sure enough.

    Args:
        counts: Spikes of every bin and unit, (bins, units), whole numbers.
        predictive: Expectations of Poisson counts, (bins, units), or probabilities of 0, 1, 2, …
            spikes, (bins, units, numbers); what these lack to 1 belongs to more spikes.
        masks: True where observed.
        variance: Beside expectations, the variances of the counts: where they are larger, counts
            are taken as negative binomial with these moments, not as Poisson.
        seed: Of the draws.

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
        below, within = _cdf(y - 1, mu, var), _cdf(y, mu, var)
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
    """Pearson dispersion of every unit: squared residuals over the variance expected of them.

    A ratio of sums, because in a mean of ratios the bins without expected spikes would count most.
    In the sums a bin counts by its expected spikes, or the few of large variance would drown all.
    It is above 1 for counts that vary more than the model says, be it that they are not Poisson or
    that the model misses changes of the rate.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        expected: Their expectations.
        masks: True where observed.
        variance: Their variances; the expectations, as of Poisson counts, when left out.

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


def over_dispersed(found: Dispersion) -> Bool[np.ndarray, " N"]:
    """Units that vary more than expected, clearly and by enough to matter.

    Example:
        >>> over_dispersed(Dispersion(np.array([1.0, 2.0]), np.array([0.1, 0.1]))).tolist()
        [False, True]
    """
    with np.errstate(invalid="ignore"):
        return (found.value > MATTERS) & (found.value > 1 + CLEAR * found.error)


def dispersion_hint(
    found: Dispersion,
    likelihood: str = "Poisson",
    units: Sequence[Any] | np.ndarray | None = None,
) -> str:
    """What to make of the dispersion of residuals from a model, in a sentence.

    Args:
        found: The dispersion, over the variances that the model predicts.
        likelihood: What the model takes counts for, such as "Poisson" or "negative binomial".
        units: Their names; numbers from zero when left out.

    Example:
        >>> found = Dispersion(np.array([2.0, 1.8, 1.0]), np.full(3, 0.1))
        >>> hint = dispersion_hint(found, units="abc")
        >>> hint.startswith("2 of 3 units (a, b) vary more"), hint[-25:]
        (True, 'try the negative binomial')
    """
    known = np.isfinite(found.value)
    if not known.any():
        return "no unit has expected spikes"
    over, total = over_dispersed(found), int(known.sum())
    with np.errstate(invalid="ignore"):
        under = (found.value < 1 / MATTERS) & (found.value < 1 - CLEAR * found.error)
    ids = np.arange(len(known)) if units is None else np.array(list(units))

    def share(which: np.ndarray, how: str) -> str:
        number = int(which.sum())
        vary = f"({first_of(ids[which])}) {'varies' if number == 1 else 'vary'}"
        return f"{number} of {total} units {vary} {how} than the {likelihood} model"

    told = []
    if over.any():
        other = "the negative binomial" if likelihood == "Poisson" else "more latents or passes"
        advice = f": try {other}" if over.sum() > MANY * total else ""
        median = np.median(found.value[over])
        told.append(f"{share(over, 'more')} (median {median:.1f}){advice}")
    if under.any():
        advice = ": intervals are too wide" if under.sum() > MANY * total else ""
        told.append(f"{share(under, 'less')}{advice}")
    if told:
        return "; ".join(told)
    return f"{total} of {total} units vary no more than the {likelihood} model: it fits"


def _cdf(y: np.ndarray, mu: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Of Poisson counts, or of negative binomial ones where the variance is above the mean."""
    wide = (var > mu * (1 + 1e-6)) & (mu > FLOOR)
    safe, more = np.where(wide, mu, 1.0), np.where(wide, var, 2.0)
    return np.where(wide, nbinom.cdf(y, safe**2 / (more - safe), safe / more), poisson.cdf(y, mu))


def _read(
    counts: ArrayLike, expected: ArrayLike, masks: ArrayLike | None, where: str = "expected"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, expectations and masks; both are zero where nothing was observed."""
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
    bad = seen & ~((values >= 0) & np.isfinite(values))
    if bad.any():
        t, n = (int(i) for i in np.argwhere(bad)[0])
        remedy = "pass finite numbers of zero or more, or mask the bin"
        raise InputError(f"{values[t, n]}", f"{where}[{t}, {n}]", remedy)


def _log_lik(y: np.ndarray, mu: np.ndarray) -> np.ndarray:
    mu = np.maximum(mu, FLOOR)
    return y * np.log(mu) - mu - gammaln(y + 1)
