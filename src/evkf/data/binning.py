"""Spike times to counts, and behaviour to the same bins."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from evkf.errors import InputError

SLACK = 8 * np.finfo(float).eps
"""How far a time may be from an edge, relative to the times themselves, to be on it: what rounding
k · bin_width, adding a start and taking it off again cost."""


def bin_spikes(
    times: Sequence[Float[np.ndarray, " S"]], start: float, bin_width: float, num_bins: int
) -> Int[np.ndarray, "T N"]:
    """Spikes in every bin.

    Bin k holds the times from start + k · bin_width up to the next edge, which is not in it; a time
    that is on an edge but for rounding is on it. Spikes before the first and after the last bin are
    not counted.

    Args:
        times: Of every unit, in seconds and in order; `check_spike_times` tells.
        start: Of the first bin.
        bin_width: In seconds.
        num_bins: How many.

    Example:
        >>> bin_spikes([np.array([0.0, 0.15, 0.16]), np.array([0.29, 0.3])], 0.0, 0.05, 6)[2:].T
        array([[0, 2, 0, 0],
               [0, 0, 0, 1]], dtype=int32)
    """
    _check_bins(bin_width, num_bins)
    counts = np.zeros((num_bins, len(times)), np.int32)
    # A bin more on either side: edges are decided by bin_of, not here.
    reach = np.array([start - bin_width, start + (num_bins + 1) * bin_width])
    for unit, spikes in enumerate(times):
        first, last = np.searchsorted(spikes, reach)
        bins = bin_of(spikes[first:last], start, bin_width)
        inside = bins[(bins >= 0) & (bins < num_bins)]
        counts[:, unit] = np.bincount(inside, minlength=num_bins)
    return counts


def bin_of(times: Float[np.ndarray, " S"], start: float, bin_width: float) -> Int[np.ndarray, " S"]:
    """The bin every time falls in, counted from `start`; below zero before it.

    Example:
        >>> int(0.15 // 0.05), bin_of(np.array([0.15, 0.1499, -0.01]), 0.0, 0.05)
        (2, array([ 3,  2, -1]))
    """
    times = np.asarray(times, float)
    place = (times - start) / bin_width
    near = np.rint(place)
    on_edge = np.abs(place - near) <= SLACK * (np.abs(times) + abs(start)) / bin_width
    return np.where(on_edge, near, np.floor(place)).astype(np.int64)


def whole_bins(start: float, stop: float, bin_width: float) -> int:
    """Bins that lie between two times; an end that is on an edge but for rounding is on it.

    Example:
        >>> whole_bins(0.1, 0.3, 0.1), whole_bins(0.1, 0.39, 0.1)
        (2, 2)
    """
    return int(bin_of(np.array([stop]), start, bin_width)[0])


def check_spike_times(
    times: Float[np.ndarray, " S"],
    unit: Any,
    source: str,
    bounds: tuple[float, float] | None = None,
) -> None:
    """Refuse spike times that are not finite, not in order, or outside the session.

    Args:
        times: Of one unit, in seconds.
        unit: Its id, for the message.
        source: The file it is from, for the message.
        bounds: When the session begins and ends, if that is known.

    Raises:
        InputError: Naming the first spike that is wrong.

    Example:
        >>> check_spike_times(np.array([0.1, 0.3, 0.2]), 7, "file.nwb")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: a spike at 0.2 s after one at 0.3 s (in file.nwb: spike times \
of unit 7, index 2): sort the spike times of every unit
    """
    where = f"{source}: spike times of unit {unit}"
    times = np.asarray(times)
    if times.ndim != 1 or times.dtype.kind not in "iuf":
        what = f"spike times of {times.dtype} and shape {times.shape}"
        raise InputError(what, where, "pass seconds, one a spike")
    wrong = ~np.isfinite(times)
    if wrong.any():
        first = int(np.argmax(wrong))
        what = f"{wrong.sum()} spike times that are not finite, the first {times[first]}"
        raise InputError(what, f"{where}, index {first}", "leave these spikes out")
    wrong = times[1:] < times[:-1]
    if wrong.any():
        first = int(np.argmax(wrong)) + 1
        what = f"a spike at {times[first]} s after one at {times[first - 1]} s"
        raise InputError(what, f"{where}, index {first}", "sort the spike times of every unit")
    if bounds is not None and len(times):
        begin, end = bounds
        slack = SLACK * max(abs(begin), abs(end))
        wrong = (times < begin - slack) | (times > end + slack)
        if wrong.any():
            first = int(np.argmax(wrong))
            what = f"{wrong.sum()} spikes outside the session of {begin} to {end} s, "
            raise InputError(
                f"{what}the first at {times[first]} s",
                f"{where}, index {first}",
                "check that spike times and session are in seconds of the same clock",
            )


def resample(
    times: Float[np.ndarray, " S"],
    values: Shaped[np.ndarray, "S ..."],
    starts: Float[np.ndarray, " T"],
    bin_width: float,
    source: str = "behaviour",
) -> Float[np.ndarray, "T ..."]:
    """Behaviour in bins: the mean of the samples in each.

    A bin without samples gets what a line between the samples around it gives at its centre; one
    up to a bin away from the first or last sample gets that sample.

    Args:
        times: Of the samples, in seconds and in order.
        values: One row a sample; finite.
        starts: When every bin begins; gaps are fine.
        bin_width: In seconds.
        source: File and column, for messages.

    Example:
        >>> resample(np.array([0.0, 0.1, 0.5]), np.array([1.0, 3.0, 6.0]), np.array([0, 0.2]), 0.2)
        array([2. , 4.5])
    """
    times, starts = np.asarray(times, float), np.asarray(starts, float)
    values = np.asarray(values)
    _check_bins(bin_width, len(starts))
    _check_samples(times, values, source)
    away = np.maximum(times[0] - (starts + bin_width), starts - times[-1])
    edge = SLACK * max(abs(times[0]), abs(times[-1]), abs(starts[0]), abs(starts[-1]))
    if away.max() > bin_width + edge:
        worst = int(np.argmax(away))
        what = f"a bin at {starts[worst]} s for samples from {times[0]} to {times[-1]} s"
        raise InputError(what, source, "leave out the bins that were not sampled, or the column")
    shape = values.shape[1:]
    values = values.astype(float).reshape(len(times), -1)
    # Reduced over pairs (first, past the last); a row more lets the last pair end there.
    pairs = np.searchsorted(times, np.stack([starts, starts + bin_width], axis=1) - edge)
    held = pairs[:, 1] - pairs[:, 0]
    padded = np.concatenate([values, np.zeros_like(values[:1])])
    sums = np.add.reduceat(padded, pairs.ravel(), axis=0)[::2]
    means = sums / np.maximum(held, 1)[:, None]
    empty = held == 0
    if empty.any():
        centres = starts[empty] + bin_width / 2
        for column in range(values.shape[1]):
            means[empty, column] = np.interp(centres, times, values[:, column])
    return means.reshape(len(starts), *shape)


def _check_bins(bin_width: float, num_bins: int) -> None:
    if not (np.isfinite(bin_width) and bin_width > 0):
        raise InputError(f"bin_width = {bin_width}", "bin_width", "pass seconds above zero")
    if num_bins < 1:
        raise InputError(f"{num_bins} bins", "num_bins", "ask for one or more")


def _check_samples(times: np.ndarray, values: np.ndarray, source: str) -> None:
    if times.ndim != 1 or not len(times) or values.shape[:1] != times.shape:
        what = f"{times.shape} times for values of shape {values.shape}"
        raise InputError(what, source, "pass one time for every row, and one row or more")
    if values.dtype.kind not in "biuf":
        raise InputError(f"values of {values.dtype}", source, "pass numbers, or leave it out")
    if not np.isfinite(times).all() or np.any(times[1:] < times[:-1]):
        what = "sample times that are not finite or not in order"
        raise InputError(what, source, "sort the samples by time, and leave out those without")
    rows = ~np.isfinite(values.reshape(len(times), -1)).all(axis=1)
    if rows.any():
        first = int(np.argmax(rows))
        what = f"{rows.sum()} of {len(times)} samples with NaN or inf, "
        what += f"the first at index {first}, {times[first]} s"
        raise InputError(what, source, "clean or interpolate them, or leave out the column")
