"""Compare expected counts with observed spikes: scores and checks of models of recordings.

The argument `expected` always means expected counts per bin, not rates per second. The argument
`masks` is True where a count was observed; counts that were not observed are ignored.
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
"""Smallest expected count per bin: smaller expected counts are raised to this floor. A spike where
none was expected then costs 21 nats, not infinity. The Neural Latents Benchmark (NLB) uses the same
floor."""

KERNEL_SD = 0.07
"""Standard deviation in seconds of the Gaussian kernel that smooths spikes for a PSTH (average over
trials of a condition); the Neural Latents Benchmark uses the same value."""

CLEAR, RELEVANT = 3.0, 1.1
"""A unit is over-dispersed if the dispersion is more than `CLEAR` standard errors above 1, and is
larger than `RELEVANT`."""
MANY = 0.1
"""Share of over-dispersed units above which `dispersion_hint` recommends another model."""


class Dispersion(NamedTuple):
    """Dispersion of each unit: observed variance divided by expected variance.

    Attributes:
        value: Dispersion, (units,): about 1 if the model is correct, NaN for a unit that has no
            expected spikes.
        error: Standard error that the dispersion would have if the model were correct, (units,).
    """

    value: Float[np.ndarray, " N"]
    error: Float[np.ndarray, " N"]


def bits_per_spike(
    counts: ArrayLike,
    expected: ArrayLike,
    masks: ArrayLike | None = None,
    reference: ArrayLike | None = None,
) -> float:
    """Return bits per spike: how much better expected counts predict spikes than constant rates do.

    Bits per spike are the Poisson log-likelihood of the expected counts, minus the Poisson
    log-likelihood of the reference, divided by ln 2 and by the number of spikes. Zero means no
    better than the reference, negative means worse. The definition is that of the Neural Latents
    Benchmark. Raise InputError if there are no observed spikes.

    Args:
        counts: Spike counts, (bins, units).
        expected: Expected counts per bin, (bins, units). Values below `FLOOR` are raised to
            `FLOOR`.
        masks: True where observed, (bins, units); all observed when left out.
        reference: Expected counts to compare with, (units,) or (bins, units), such as mean counts
            of other trials. When left out, the mean observed count of each unit in `counts`.

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
    """Return R² of expected counts against smoothed spikes, both averaged over trials (PSTH).

    Spikes are smoothed within trials by a Gaussian kernel; expected counts are not smoothed. Trials
    are aligned at their first bins and averaged over the trials of each condition; a bin that was
    not observed in a trial is left out. R² of a unit is computed over all conditions and bins. The
    result is the mean over units, without units whose averages of smoothed spikes never change.

    Args:
        counts: Spike counts, (bins, units).
        expected: Expected counts per bin, (bins, units).
        lengths: Number of bins of each trial.
        conditions: Condition of each trial.
        bin_width: Bin width in seconds.
        kernel_sd: Standard deviation of the kernel in seconds.
        masks: True where observed, (bins, units); all observed when left out.

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
    """Return values smoothed within trials by a Gaussian kernel; zero where not observed.

    Each smoothed value is a weighted mean of observed values nearby: bins that were not observed
    have no weight, and the remaining weights are rescaled to sum to 1. At the first and last bins
    of a trial, values are mirrored.

    Args:
        values: Values to smooth, such as spike counts, (bins, units).
        lengths: Number of bins of each trial.
        sd_bins: Standard deviation of the kernel in bins.
        masks: True where observed, (bins, units).

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
    """Return the average over the trials of each condition, for each bin since the trial began.

    Args:
        values: Values to average, such as spike counts, (bins, units).
        lengths: Number of bins of each trial.
        conditions: Condition of each trial.
        masks: True where observed, (bins, units); all observed when left out.

    Returns:
        Averages of the conditions, concatenated in sorted order of the conditions. Each condition
        has as many rows as its longest trial has bins. NaN where no trial was observed.

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
    """Return the randomised probability integral transform (PIT) of each count.

    For an observed count y, the PIT is a random number between the predicted probability of fewer
    than y spikes and the predicted probability of at most y spikes. If predictions are calibrated,
    PIT values are uniform in [0, 1]. A histogram that is high at both ends means that predictions
    are too narrow; a histogram that is high in the middle means that predictions are too wide.

    Args:
        counts: Spike counts, (bins, units), whole numbers.
        predictive: Expected counts per bin, (bins, units), or predicted probabilities of 0, 1, 2, …
            spikes, (bins, units, probabilities). If probabilities sum to less than 1, the rest is
            the probability of more spikes.
        masks: True where observed, (bins, units); all observed when left out.
        variance: Predicted variances of the counts, (bins, units); used only if `predictive` are
            expected counts. Predictions are negative binomial where the variance is larger than the
            expected count, and Poisson elsewhere. When left out, all predictions are Poisson.
        seed: Seed of the random numbers.

    Returns:
        PIT values in [0, 1], (bins, units); NaN where not observed.

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
    """Return the Pearson dispersion of each unit: squared residuals divided by expected variances.

    Dispersion is above 1 if counts vary more than the model predicts: either the likelihood is
    wrong (such as Poisson for counts that are not Poisson), or the model misses changes of the
    rate. Squared residuals and expected variances are summed over bins before they are divided,
    because bins that have almost no expected spikes would dominate a mean of ratios. Each bin has
    the weight expected count divided by expected variance (at most 1), because otherwise a few bins
    that have large variances would dominate the sums.

    Args:
        counts: Spike counts, (bins, units).
        expected: Expected counts per bin, (bins, units).
        masks: True where observed, (bins, units); all observed when left out.
        variance: Expected variances, (bins, units). When left out, the expected counts, which are
            the variances of Poisson counts.

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
        # the fourth central moment of a negative binomial count is v + 3v² + 6v²/r, where v is the
        # variance and r the size parameter
        inverse_r = np.maximum(var - mu, 0) / np.maximum(mu, FLOOR) ** 2
        square = var + 2 * var**2 + 6 * var**2 * inverse_r
        error = np.sqrt((weight**2 * square).sum(axis=0, where=seen)) / total
    silent = total <= FLOOR * len(y)
    return Dispersion(np.where(silent, np.nan, value), np.where(silent, np.nan, error))


def over_dispersed(result: Dispersion) -> Bool[np.ndarray, " N"]:
    """Return True for each unit whose counts vary clearly more than the model predicts.

    The dispersion of such a unit is above 1.1 and more than 3 standard errors above 1. Units whose
    dispersion is NaN give False.

    Args:
        result: Result of `dispersion`.

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
    """Return a sentence that says which units vary more or less than the model predicts.

    The sentence also gives advice if more than a tenth of the units do.

    Args:
        result: Result of `dispersion`, for the variances that the model predicts.
        likelihood: Name of the model's distribution of counts: "Poisson" or "negative binomial".
        units: Names of the units; numbered from zero when left out.

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
    """Check and return counts, expected counts and masks; both counts are 0 where not observed."""
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
    """Raise InputError if an observed value is negative or not finite."""
    bad = seen & ~((values >= 0) & np.isfinite(values))
    if bad.any():
        t, n = (int(i) for i in np.argwhere(bad)[0])
        remedy = "pass finite numbers of zero or more, or mask the bin"
        raise InputError(f"{values[t, n]}", f"{where}[{t}, {n}]", remedy)
