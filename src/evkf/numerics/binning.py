"""Binning: turn spike times into counts, samples into means, and intervals into masks."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import ArrayLike

from evkf.errors import InputError

EDGE = 1e-6
"""Tolerance of a time at the edge of a bin, as a fraction of the bin width. For comparison: in bins
of 1 ms, a time of some days is rounded by about 1e-8 of a bin, and the clock of a rig has ticks of
about 1e-2 of a bin."""
ROUNDING = 8 * np.finfo(float).eps
"""Tolerance of a time as a fraction of the time itself, for clocks that began long ago."""


def check_bin_width(bin_width: float) -> None:
    """Raise InputError if a bin width in seconds is not a finite number above zero."""
    if not (np.isfinite(bin_width) and bin_width > 0):
        raise InputError(f"bin_width = {bin_width}", "bin_width", "pass seconds above zero")


def bin_index(times: ArrayLike, start: ArrayLike, bin_width: float) -> Int[np.ndarray, "..."]:
    """Return the index of the bin that each time falls in; negative for times before `start`.

    Bin k holds times from start + k · bin_width (included) to start + (k + 1) · bin_width (not
    included). A time that differs from an edge only by rounding counts as on the edge. All times
    and `bin_width` are in seconds.

    Example:
        >>> int(0.3 // 0.1), bin_index(np.array([0.3, 0.2999, -0.01]), 0.0, 0.1)
        (2, array([ 3,  2, -1]))
    """
    times, start = np.asarray(times, float), np.asarray(start, float)
    slack = np.maximum(EDGE, ROUNDING * (np.abs(times) + np.abs(start)) / bin_width)
    return np.floor((times - start) / bin_width + slack).astype(np.int64)


def whole_bins(start: ArrayLike, stop: ArrayLike, bin_width: float) -> Int[np.ndarray, "..."]:
    """Return the number of whole bins between two times; times and `bin_width` are in seconds.

    Example:
        >>> whole_bins(0.1, np.array([0.3, 0.39]), 0.1).tolist()
        [2, 2]
    """
    return bin_index(stop, start, bin_width)


def bin_spikes(
    times: Sequence[Float[np.ndarray, " S"]], start: float, bin_width: float, num_bins: int
) -> Int[np.ndarray, "T N"]:
    """Count the spikes of each unit in each bin, and return an array (bins, units).

    Args:
        times: Spike times in seconds and in order, one array for each unit.
        start: Time of the start of the first bin, in seconds.
        bin_width: In seconds.
        num_bins: Number of bins; spikes outside these bins are left out.

    Example:
        >>> bin_spikes([np.array([0.0, 0.15, 0.16]), np.array([0.29, 0.3])], 0.0, 0.05, 6)[2:].T
        array([[0, 2, 0, 0],
               [0, 0, 0, 1]], dtype=int32)
    """
    counts = np.zeros((num_bins, len(times)), np.int32)
    for unit, spikes in enumerate(times):
        counts[:, unit] = bin_trials(spikes, np.array([start]), np.array([num_bins]), bin_width)
    return counts


def bin_trials(
    times: Float[np.ndarray, " S"],
    starts: Float[np.ndarray, " K"],
    lengths: Int[np.ndarray, " K"],
    bin_width: float,
) -> Int[np.ndarray, " T"]:
    """Count the spikes of one unit in each bin of all trials.

    Return one count for each bin, the bins of all trials concatenated. Trials may overlap in time;
    spikes outside all trials are left out.

    Args:
        times: Spike times in seconds and in order (see `check_spike_times`).
        starts: Time of the start of each trial, in seconds.
        lengths: Number of bins of each trial.
        bin_width: In seconds.

    Example:
        >>> times = np.array([0.1, 0.2, 0.25, 0.3])
        >>> bin_trials(times, np.array([0.0, 0.2]), np.array([2, 1]), 0.1).tolist()
        [0, 1, 2]
    """
    # Take spikes of one more bin on each side; those outside are left out by their index.
    first = np.searchsorted(times, starts - bin_width)
    last = np.searchsorted(times, starts + (lengths + 1) * bin_width)
    found = last - first
    trial = np.repeat(np.arange(len(starts)), found)
    spike = np.arange(len(trial)) + np.repeat(first - (np.cumsum(found) - found), found)
    index = bin_index(times[spike], starts[trial], bin_width)
    within = (index >= 0) & (index < lengths[trial])
    offset = np.cumsum(lengths) - lengths
    return np.bincount((offset[trial] + index)[within], minlength=int(lengths.sum()))


def check_spike_times(
    times: Float[np.ndarray, " S"],
    where: str,
    session: tuple[float, float] = (-np.inf, np.inf),
    first: int = 0,
    after: float = -np.inf,
) -> None:
    """Raise InputError if spike times are not finite, not in order, or outside the session.

    Args:
        times: Spike times of one unit, in seconds.
        where: Name of file and unit in the error.
        session: Start and end of the session in seconds; no limits by default.
        first: Index of `times[0]` among all spikes of the unit, if `times` are only a part.
        after: Time of the spike before `times[0]`, if `times` are only a part.

    Raises:
        InputError: The error names the first wrong spike.

    Example:
        >>> check_spike_times(np.array([0.1, 0.3, 0.2]), "file.nwb: spike times of unit 7")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: a spike at 0.2 s after one at 0.3 s (in file.nwb: spike times \
of unit 7, index 2): sort them
    """
    times = np.asarray(times)
    if times.ndim != 1 or times.dtype.kind not in "iuf":
        what = f"spike times of {times.dtype} and shape {times.shape}"
        raise InputError(what, where, "pass seconds, one a spike")
    wrong = ~np.isfinite(times)
    if wrong.any():
        k = int(np.argmax(wrong))
        what = f"{wrong.sum()} spike times that are not finite, the first {times[k]}"
        raise InputError(what, f"{where}, index {first + k}", "leave these spikes out")
    before = np.concatenate([[after], times[:-1]])
    wrong = times < before[: len(times)]
    if wrong.any():
        k = int(np.argmax(wrong))
        what = f"a spike at {times[k]:g} s after one at {before[k]:g} s"
        raise InputError(what, f"{where}, index {first + k}", "sort them")
    begin, end = session
    slack = ROUNDING * np.abs(times)
    wrong = (times < begin - slack) | (times > end + slack)
    if wrong.any():
        k = int(np.argmax(wrong))
        what = f"{wrong.sum()} spikes outside the session of {begin:g} to {end:g} s"
        what += f", the first at {times[k]:g} s"
        remedy = "shift them to the clock of the session, or leave out the unit"
        raise InputError(what, f"{where}, index {first + k}", remedy)


def resample(
    times: Float[np.ndarray, " S"],
    values: Shaped[np.ndarray, "S ..."],
    starts: Float[np.ndarray, " T"],
    bin_width: float,
) -> Float[np.ndarray, "T ..."]:
    """Return the value of a sampled signal in each bin, one row for each bin.

    The value is the mean of the samples in the bin. If the bin has no sample, the value is
    interpolated linearly at the middle of the bin. The value is NaN if that middle is more than a
    bin width before the first or after the last sample.

    Args:
        times: Times of the samples in seconds, in order.
        values: One row (or one number) for each sample.
        starts: Time of the start of each bin in seconds, in any order.
        bin_width: In seconds.

    Example:
        >>> times, values = np.array([0.0, 0.05, 0.25]), np.array([1.0, 3.0, 6.0])
        >>> resample(times, values, np.array([0.0, 0.1, 0.2, 0.6]), 0.1)
        array([2. , 4.5, 6. , nan])
    """
    first = np.searchsorted(times, starts - EDGE * bin_width)
    last = np.searchsorted(times, starts + (1 - EDGE) * bin_width)
    flat = np.asarray(values, float).reshape(len(times), -1)
    # Add a row, because the end of the last bin may be the end of the samples.
    padded = np.concatenate([flat, np.zeros((1, flat.shape[1]))])
    sums = np.add.reduceat(padded, np.stack([first, last], axis=1).ravel(), axis=0)[::2]
    found = last - first
    out = sums / np.maximum(found, 1)[:, None]
    none = found == 0
    middle = starts[none] + bin_width / 2
    far = (middle < times[0] - bin_width) | (middle > times[-1] + bin_width)
    for column, series in zip(out.T, flat.T, strict=True):
        column[none] = np.where(far, np.nan, np.interp(middle, times, series))
    return out.reshape(len(starts), *np.shape(values)[1:])


def check_samples(times: np.ndarray, values: np.ndarray, where: str) -> None:
    """Raise InputError if samples of a signal are not finite numbers or their times not in order.

    Args:
        times: Times of the samples in seconds, one or more.
        values: One row (or one number) for each sample.
        where: Name of the signal in the error.

    Example:
        >>> check_samples(np.array([0.0, 1.0]), np.array([2.0, 3.0]), "hand")
    """
    if times.ndim != 1 or not len(times) or values.shape[:1] != times.shape:
        what = f"{times.shape} times for values of shape {values.shape}"
        raise InputError(what, where, "pass one time for every row, and one row or more")
    if values.dtype.kind not in "biuf":
        raise InputError(f"values of {values.dtype}", where, "pass numbers, or leave it out")
    if not np.isfinite(times).all() or np.any(times[1:] < times[:-1]):
        what = "sample times that are not finite or not in order"
        raise InputError(what, where, "sort the samples by time, and leave out those without")
    rows = ~np.isfinite(values.reshape(len(times), -1)).all(axis=1)
    if rows.any():
        first = int(np.argmax(rows))
        what = f"{rows.sum()} of {len(times)} samples with NaN or inf, "
        what += f"the first at index {first}, {times[first]} s"
        raise InputError(what, where, "clean or interpolate them, or leave out the column")


def merged(intervals: Float[np.ndarray, "W 2"]) -> Float[np.ndarray, "V 2"]:
    """Return intervals sorted by start, where intervals that touch or overlap are joined.

    Each row is the start and the end of an interval, in seconds.

    Example:
        >>> merged(np.array([[2.0, 3.0], [0.0, 1.0], [1.0, 1.5]])).tolist()
        [[0.0, 1.5], [2.0, 3.0]]
    """
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    if not len(ordered):
        return ordered
    ends = np.maximum.accumulate(ordered[:, 1])
    fresh = np.concatenate([[True], ordered[1:, 0] > ends[:-1] + 1e-9])
    final = np.concatenate([np.flatnonzero(fresh)[1:] - 1, [len(ordered) - 1]])
    return np.stack([ordered[fresh, 0], ends[final]], axis=1)


def inside(
    starts: Float[np.ndarray, " T"], bin_width: float, intervals: Float[np.ndarray, "V 2"]
) -> Bool[np.ndarray, " T"]:
    """Return, for each bin, True if the whole bin lies within one interval.

    Args:
        starts: Time of the start of each bin, in seconds.
        bin_width: In seconds.
        intervals: Start and end of each interval in seconds, as `merged` returns.

    Example:
        >>> inside(np.array([0.0, 0.1, 0.2]), 0.1, np.array([[0.1, 0.3]])).tolist()
        [False, True, True]
    """
    if not len(intervals):
        return np.zeros(len(starts), bool)
    slack = EDGE * bin_width
    place = np.searchsorted(intervals[:, 0], starts + slack, side="right") - 1
    return (place >= 0) & (starts + bin_width <= intervals[place, 1] + slack)


def find_width(arrays: Mapping[str, np.ndarray], source: str, given: float | None) -> float:
    """Return the bin width in seconds, from the argument `given` or from a file.

    Raise InputError if the bin width is not known, or if file and argument differ.

    Args:
        arrays: Arrays of the file; `bin_width` (seconds) and `bin_ms` (milliseconds) are read.
        source: Name of the file in the error.
        given: Bin width in seconds that the user passed; None if the user passed none.

    Example:
        >>> find_width({"bin_ms": np.array(5)}, "day1.npz", None)
        0.005
        >>> find_width({}, "day1.npz", None)
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: the width of a bin is not known (in day1.npz): pass it in seconds, \
as bin_width or --bin-width
    """
    known = {} if given is None else {"bin_width as passed": float(given)}
    for name, unit in (("bin_width", 1), ("bin_ms", 1000)):
        if name not in arrays:
            continue
        array = np.asarray(arrays[name])
        if array.size != 1 or array.dtype.kind not in "iuf":
            what = f"{name} of {array.dtype} and shape {array.shape}"
            raise InputError(what, f"{source}: {name}", "pass one number")
        known[f"{name} of the file"] = float(array.item()) / unit
    if not known:
        remedy = "pass it in seconds, as bin_width or --bin-width"
        raise InputError("the width of a bin is not known", source, remedy)
    first, *others = known.values()
    if any(abs(other - first) > 1e-6 * abs(first) for other in others):
        what = ", but ".join(f"{name} is {value} s" for name, value in known.items())
        raise InputError(what, source, "pass the right one alone; rebin with Recording.rebinned")
    return first if given is None else float(given)


def check_counts(
    counts: np.ndarray, masks: np.ndarray, source: str, place: Callable[[int, int], str]
) -> None:
    """Raise InputError if an observed count is negative or not a whole number.

    The error names the first such count.

    Args:
        counts: Counts, (bins, units).
        masks: True where observed, (bins, units). Other entries are not checked.
        source: Name of the file in the error.
        place: Function that returns the name of an entry in the error, given bin and unit index.

    Example:
        >>> check_counts(np.array([[0.5]]), np.ones((1, 1), bool), "day1.npz", "[{}, {}]".format)
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: a count of 0.5 (in day1.npz: [0, 0]): pass whole counts from \
zero on, or signals=True for continuous signals
    """
    if counts.dtype.kind == "u":
        return
    right = counts >= 0
    if counts.dtype.kind == "f":
        right &= np.isfinite(counts) & (np.floor(counts) == counts)
    wrong = ~right & masks
    if wrong.any():
        row, unit = map(int, np.unravel_index(np.argmax(wrong), wrong.shape))
        remedy = "pass whole counts from zero on, or signals=True for continuous signals"
        raise InputError(f"a count of {counts[row, unit]}", f"{source}: {place(row, unit)}", remedy)
