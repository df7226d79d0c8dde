"""Binning: spike times to counts, samples to means, intervals to masks, and checks of these."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import ArrayLike

from evkf.errors import InputError

EDGE = 1e-6
"""Tolerance of times at the edge of a bin, in bins. Rounding of a time of days costs some 1e-8 of a
bin of 1 ms; the clock of a rig ticks every 1e-2."""
ROUNDING = 8 * np.finfo(float).eps
"""The tolerance relative to the times, for clocks that began long ago."""


def check_bin_width(bin_width: float) -> None:
    """Raise an error if a bin width is not a finite number above zero."""
    if not (np.isfinite(bin_width) and bin_width > 0):
        raise InputError(f"bin_width = {bin_width}", "bin_width", "pass seconds above zero")


def bin_index(times: ArrayLike, start: ArrayLike, bin_width: float) -> Int[np.ndarray, "..."]:
    """Return the bin of every time, counted from `start`; negative before it.

    Bin k holds the times from start + k · bin_width up to the next edge, which is not in it; a time
    within rounding of an edge counts as on the edge.

    Example:
        >>> int(0.3 // 0.1), bin_index(np.array([0.3, 0.2999, -0.01]), 0.0, 0.1)
        (2, array([ 3,  2, -1]))
    """
    times, start = np.asarray(times, float), np.asarray(start, float)
    slack = np.maximum(EDGE, ROUNDING * (np.abs(times) + np.abs(start)) / bin_width)
    return np.floor((times - start) / bin_width + slack).astype(np.int64)


def whole_bins(start: ArrayLike, stop: ArrayLike, bin_width: float) -> Int[np.ndarray, "..."]:
    """Return the number of whole bins between two times.

    Example:
        >>> whole_bins(0.1, np.array([0.3, 0.39]), 0.1).tolist()
        [2, 2]
    """
    return bin_index(stop, start, bin_width)


def bin_spikes(
    times: Sequence[Float[np.ndarray, " S"]], start: float, bin_width: float, num_bins: int
) -> Int[np.ndarray, "T N"]:
    """Count the spikes of every unit in every bin from `start` on.

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
    """Count the spikes of one unit in every bin of trials laid end to end.

    Trials may overlap in time.

    Args:
        times: In seconds and in order, as `check_spike_times` checks.
        starts: Begin of the first bin of every trial.
        lengths: Bins of every trial.
        bin_width: In seconds.

    Example:
        >>> times = np.array([0.1, 0.2, 0.25, 0.3])
        >>> bin_trials(times, np.array([0.0, 0.2]), np.array([2, 1]), 0.1).tolist()
        [0, 1, 2]
    """
    # one more bin on either side: spikes outside are left out by their index
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
    """Raise an error if spike times are not finite, not in order, or outside the session.

    Args:
        times: Of one unit, in seconds.
        where: File and unit, for the message.
        session: Begin and end.
        first: Index of the first of these spikes, if they are a part of all.
        after: Time of the spike before.

    Raises:
        InputError: With the first wrong spike.

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
    """Return samples as one row a bin: the mean within it, else interpolated at its middle.

    A bin without samples that lies more than a bin width before the first or after the last sample
    is NaN.

    Args:
        times: Of the samples, in order.
        values: One row a sample.
        starts: Begin of every bin, in any order.
        bin_width: In seconds.

    Example:
        >>> times, values = np.array([0.0, 0.05, 0.25]), np.array([1.0, 3.0, 6.0])
        >>> resample(times, values, np.array([0.0, 0.1, 0.2, 0.6]), 0.1)
        array([2. , 4.5, 6. , nan])
    """
    first = np.searchsorted(times, starts - EDGE * bin_width)
    last = np.searchsorted(times, starts + (1 - EDGE) * bin_width)
    flat = np.asarray(values, float).reshape(len(times), -1)
    # one more row, because the end of the last bin may be the end of the samples
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
    """Raise an error if samples are not numbers, not finite or not in order.

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
    """Return intervals in order, those that touch or overlap joined.

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
    """Return True for bins within one of the `merged` intervals.

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
    """Return the width of a bin in seconds; file and argument must agree.

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
    """Raise an error if observed counts are negative or not whole; it names the first place.

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
