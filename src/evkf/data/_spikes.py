"""Times become bins: spikes counted, samples averaged, intervals marked."""

import numpy as np
from jaxtyping import Bool, Float, Int

EDGE = 1e-6
"""What a time may fall short of the edge of a bin and still be on it, in bins. Rounding of a time
of days costs some 1e-8 of a bin of 1 ms; a rig's clock ticks every 1e-2."""


def bin_index(
    times: Float[np.ndarray, " S"], start: float | Float[np.ndarray, " S"], bin_width: float
) -> Int[np.ndarray, " S"]:
    """The bin every time falls into; below zero before `start`.

    Example:
        >>> int(0.3 // 0.1), bin_index(np.array([0.3]), 0.0, 0.1).item()
        (2, 3)
    """
    return np.floor((times - start) / bin_width + EDGE).astype(np.int64)


def whole_bins(duration: Float[np.ndarray, " K"], bin_width: float) -> Int[np.ndarray, " K"]:
    """How many bins fit into a duration.

    Example:
        >>> whole_bins(np.array([0.3, 0.35]), 0.1).tolist()
        [3, 3]
    """
    return bin_index(duration, 0.0, bin_width)


def bin_spikes(
    times: Float[np.ndarray, " S"], start: float, bin_width: float, num_bins: int
) -> Int[np.ndarray, " T"]:
    """Spikes of every bin from `start` on.

    Args:
        times: In seconds, in order.
        start: When the first bin begins; a spike on an edge belongs to the bin that begins there.
        bin_width: In seconds.
        num_bins: Bins; spikes outside them are not counted.

    Example:
        >>> bin_spikes(np.array([0.1, 0.2, 0.25, 0.3]), 0.1, 0.1, 2).tolist()
        [1, 2]
    """
    return bin_trials(times, np.array([start]), np.array([num_bins]), bin_width)


def bin_trials(
    times: Float[np.ndarray, " S"],
    starts: Float[np.ndarray, " K"],
    lengths: Int[np.ndarray, " K"],
    bin_width: float,
) -> Int[np.ndarray, " T"]:
    """Spikes of every bin of trials laid end to end; trials may overlap in time.

    Example:
        >>> times = np.array([0.1, 0.2, 0.25, 0.3])
        >>> bin_trials(times, np.array([0.0, 0.2]), np.array([2, 1]), 0.1).tolist()
        [0, 1, 2]
    """
    # a bin more on either side: what does not belong is left out by its index
    first = np.searchsorted(times, starts - bin_width)
    last = np.searchsorted(times, starts + (lengths + 1) * bin_width)
    found = last - first
    trial = np.repeat(np.arange(len(starts)), found)
    spike = np.arange(len(trial)) + np.repeat(first - (np.cumsum(found) - found), found)
    index = bin_index(times[spike], starts[trial], bin_width)
    within = (index >= 0) & (index < lengths[trial])
    offset = np.cumsum(lengths) - lengths
    return np.bincount((offset[trial] + index)[within], minlength=int(lengths.sum()))


def resample(
    times: Float[np.ndarray, " S"],
    values: Float[np.ndarray, "S ..."],
    starts: Float[np.ndarray, " T"],
    bin_width: float,
) -> Float[np.ndarray, "T ..."]:
    """Samples as one row a bin: the mean of those within it, else interpolated at its middle.

    A bin without samples before the first or after the last is NaN, unless that is less than a bin
    width away.

    Args:
        times: Of the samples, increasing.
        values: One row a sample.
        starts: When every bin begins, in any order.
        bin_width: In seconds.

    Example:
        >>> times, values = np.array([0.0, 0.05, 0.25]), np.array([1.0, 3.0, 6.0])
        >>> resample(times, values, np.array([0.0, 0.1, 0.2, 0.6]), 0.1)
        array([2. , 4.5, 6. , nan])
    """
    first = np.searchsorted(times, starts - EDGE * bin_width)
    last = np.searchsorted(times, starts + (1 - EDGE) * bin_width)
    flat = np.asarray(values, float).reshape(len(times), -1)
    # a row more, because the end of the last bin may be the end of the samples
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


def merged(intervals: Float[np.ndarray, "W 2"]) -> Float[np.ndarray, "V 2"]:
    """Intervals in order, those that touch or overlap made one.

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
    """Whether a bin lies within one of the `merged` intervals.

    Example:
        >>> inside(np.array([0.0, 0.1, 0.2]), 0.1, np.array([[0.1, 0.3]])).tolist()
        [False, True, True]
    """
    if not len(intervals):
        return np.zeros(len(starts), bool)
    slack = EDGE * bin_width
    place = np.searchsorted(intervals[:, 0], starts + slack, side="right") - 1
    return (place >= 0) & (starts + bin_width <= intervals[place, 1] + slack)
