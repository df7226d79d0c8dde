"""Convert objects of pynapple and Neo to recordings, and values of bins to such objects."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Shaped

from evkf.data.recording import Recording
from evkf.errors import InputError
from evkf.numerics.binning import (
    bin_spikes,
    check_bin_width,
    check_samples,
    check_spike_times,
    resample,
    whole_bins,
)

TOUCH = 1e-6
"""Seconds by which pynapple shortens an epoch that ends where the next one begins."""


def from_pynapple(
    tsgroup: Any, bin_width: float, epochs: Any = None, behaviour: Mapping[str, Any] | None = None
) -> Recording:
    """Return a recording of the binned spikes of a TsGroup.

    Every epoch becomes a trial that has as many whole bins as fit into the epoch. Spikes after the
    last whole bin are not counted. Bins that are not wholly inside the time support of the group
    are masked.

    Args:
        tsgroup: A `pynapple.TsGroup`. The metadata, except "rate", become columns of the units.
        bin_width: In seconds.
        epochs: A `pynapple.IntervalSet`, whose metadata become columns of the trials. By default
            the time support of the group.
        behaviour: Tsd, TsdFrame or TsdTensor objects by name. A bin gets the mean of the samples
            in the bin, or an interpolated value if the bin has no samples. Raise InputError if the
            samples do not cover all bins.

    Example:
        >>> import pynapple as nap
        >>> epochs = nap.IntervalSet([0.0, 2.0], [1.0, 2.5])
        >>> spikes = {7: nap.Ts(np.array([0.1, 0.6, 2.2]))}
        >>> recording = from_pynapple(nap.TsGroup(spikes, time_support=epochs), bin_width=0.5)
        >>> recording.counts.T.tolist(), recording.lengths, recording.units["id"].tolist()
        ([[1, 1, 1]], (2, 1), [7])
    """
    nap = _import("pynapple")
    source = "TsGroup"
    _check_type(tsgroup, nap.TsGroup, "tsgroup")
    epochs = tsgroup.time_support if epochs is None else epochs
    _check_type(epochs, nap.IntervalSet, "epochs")
    trains = [np.asarray(tsgroup[unit].times()) for unit in tsgroup.index]
    for unit, spikes in zip(tsgroup.index, trains, strict=True):
        check_spike_times(spikes, f"{source}: spike times of unit {unit}")
    spans = [(float(begin), float(end) + TOUCH) for begin, end in np.asarray(epochs.values)]
    counts, lengths = _bin_spans([trains] * len(spans), spans, bin_width, "epochs")
    trials, units = {}, {}
    for owner, columns in ((epochs, trials), (tsgroup, units)):
        for name in owner.metadata_columns:
            column = np.asarray(owner.get_info(name))
            # text as NumPy keeps it, not as objects
            columns[name] = column.astype(str) if column.dtype.kind == "O" else column
    units.pop("rate", None)
    recording = Recording(
        counts,
        bin_width,
        lengths,
        np.array([begin for begin, _ in spans]),
        trials=trials,
        units={**units, "id": np.asarray(tsgroup.index)},
        source=source,
    )
    bins, given = recording.times, {}
    for name, values in (behaviour or {}).items():
        where = f"behaviour[{name!r}]"
        _check_type(values, (nap.Tsd, nap.TsdFrame, nap.TsdTensor), where)
        times, samples = np.asarray(values.times()), np.asarray(values.values)
        check_samples(times, samples, where)
        given[name] = rows = resample(times, samples, bins, bin_width)
        missing = np.isnan(rows).reshape(len(rows), -1).any(axis=1)
        if missing.any():
            first = bins[np.argmax(missing)]
            what = f"a bin at {first:g} s for samples from {times[0]:g} to {times[-1]:g} s"
            raise InputError(what, where, "leave out the bins that were not sampled, or the series")
    seen = np.zeros(len(bins), bool)
    for begin, end in np.asarray(tsgroup.time_support.values):
        seen |= (bins >= begin - TOUCH) & (bins + bin_width <= end + 2 * TOUCH)
    return replace(recording, behaviour=given, masks=recording.masks & seen[:, None])


def to_pynapple(recording: Recording, values: Shaped[np.ndarray, "T ..."]) -> Any:
    """Return values of every bin as a Tsd, TsdFrame or TsdTensor, at the centres of the bins.

    The trials become the time support of the returned object. Raise InputError if trials overlap in
    time.

    Args:
        recording: Recording that gives the times of the bins.
        values: One row for each bin: (bins,), (bins, columns) or more axes.

    Example:
        >>> recording = Recording(np.zeros((3, 2), int), 0.5, (2, 1), np.array([0.0, 4.0]))
        >>> frame = to_pynapple(recording, np.arange(6.0).reshape(3, 2))
        >>> frame.times(), frame.time_support.values.tolist()
        (array([0.25, 0.75, 4.25]), [[0.0, 1.0], [4.0, 4.5]])
    """
    nap = _import("pynapple")
    values = _check_values(recording, values)
    order = np.argsort(recording.start_times, kind="stable")
    begins = recording.start_times[order]
    ends = begins + recording.bin_width * np.asarray(recording.lengths)[order]
    if np.any(ends[:-1] > begins[1:] + TOUCH):
        what = "trials that overlap in time, which a time support cannot hold"
        raise InputError(what, "recording.start_times", "convert one trial at a time, with take")
    ends[:-1] = np.minimum(ends[:-1], begins[1:] - TOUCH)
    kinds = {1: nap.Tsd, 2: nap.TsdFrame}
    rows = np.argsort(recording.times, kind="stable")
    return kinds.get(values.ndim, nap.TsdTensor)(
        t=recording.times[rows] + recording.bin_width / 2,
        d=values[rows],
        time_support=nap.IntervalSet(begins, ends),
    )


def from_neo(block_or_segment: Any, bin_width: float) -> Recording:
    """Return a recording of the binned spike trains of a Neo block or segment.

    Every segment becomes a trial that has as many whole bins as fit between the latest `t_start`
    and the earliest `t_stop` of the spike trains in the segment. The first spike trains of all
    segments are one unit, the second ones another unit, and so on; spike trains of one unit must
    have the same name. If all units have names and the names differ, the names become the ids.
    Annotations that all segments have as single values become columns of the trials. Annotations
    that all spike trains of the first segment have as single values become columns of the units.
    Analog signals are not read.

    Args:
        block_or_segment: A `neo.Block` or a `neo.Segment`.
        bin_width: In seconds.

    Example:
        >>> import neo
        >>> segment = neo.Segment()
        >>> segment.spiketrains.append(neo.SpikeTrain([100, 600, 700], units="ms", t_stop=1000))
        >>> from_neo(segment, bin_width=0.5).counts.tolist()
        [[1], [2]]
    """
    neo = _import("neo")
    _check_type(block_or_segment, (neo.Block, neo.Segment), "block_or_segment")
    segments = getattr(block_or_segment, "segments", [block_or_segment])
    spikes, spans, names = [], [], None
    for number, segment in enumerate(segments):
        where = f"segment {number}"
        trains = list(segment.spiketrains)
        labels = [train.name for train in trains]
        if not trains or (names is not None and labels != names):
            what = f"spike trains {labels}, after {names} before" if names else "no spike trains"
            raise InputError(what, where, "give every segment the same spike trains in one order")
        names = labels
        bounds = [(_seconds(train.t_start), _seconds(train.t_stop)) for train in trains]
        times = [_seconds(train.times) for train in trains]
        for unit, (train, span) in enumerate(zip(times, bounds, strict=True)):
            place = f"{where}: spike times of unit {labels[unit] or unit}"
            check_spike_times(train, place, (float(span[0]), float(span[1])))
        spikes.append(times)
        spans.append((float(max(b for b, _ in bounds)), float(min(e for _, e in bounds))))
    if names is None:
        raise InputError("no segments", "block_or_segment", "pass one with spike trains")
    counts, lengths = _bin_spans(spikes, spans, bin_width, "segment")
    units = _shared([train.annotations for train in segments[0].spiketrains])
    if len({*names, None}) == len(names) + 1:
        units["id"] = np.array(names)
    return Recording(
        counts,
        bin_width,
        lengths,
        np.array([begin for begin, _ in spans]),
        trials=_shared([segment.annotations for segment in segments]),
        units=units,
        source=type(block_or_segment).__name__,
    )


def to_neo(
    recording: Recording, values: Shaped[np.ndarray, "T ..."], units: str = "dimensionless"
) -> list[Any]:
    """Return a list of Neo AnalogSignals, one for each trial, sampled at the centres of the bins.

    Args:
        recording: Recording that gives the times of the bins and the trials.
        values: One row for each bin: (bins,) or (bins, channels).
        units: Physical unit of the values, such as "mm/s".

    Example:
        >>> recording = Recording(np.zeros((3, 2), int), 0.5, lengths=(2, 1))
        >>> signals = to_neo(recording, np.arange(3.0), "mm/s")
        >>> [signal.shape for signal in signals], signals[0].times
        ([(2, 1), (1, 1)], array([0.25, 0.75]) * s)
    """
    neo = _import("neo")
    import quantities as pq

    values = _check_values(recording, values)
    if values.ndim > 2:
        raise InputError(f"values of shape {values.shape}", "values", "pass (bins, channels)")
    try:
        unit = pq.unit_registry[units]
    except LookupError as error:
        raise InputError(f"units {units!r}", "units", "pass such as 'mm/s' or 'Hz'") from error
    half = recording.bin_width / 2
    return [
        neo.AnalogSignal(
            trial,
            units=unit,
            t_start=(start + half) * pq.s,
            sampling_period=recording.bin_width * pq.s,
        )
        for start, trial in zip(recording.start_times, recording.split(values), strict=True)
    ]


def _import(name: str) -> Any:
    try:
        return __import__(name)
    except ModuleNotFoundError as error:
        what = f"this conversion needs {name}"
        raise InputError(what, "this installation", f"pip install {name}") from error


def _check_type(given: Any, kinds: Any, where: str) -> None:
    if not isinstance(given, kinds):
        names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
        raise InputError(f"a {type(given).__name__}", where, f"pass a {' or '.join(names)}")


def _check_values(recording: Recording, values: Any) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim < 1 or len(values) != recording.num_bins:
        what = f"values of shape {values.shape}"
        raise InputError(what, "values", f"pass one row for each of the {recording.num_bins} bins")
    return values


def _bin_spans(
    spikes: Sequence[list[np.ndarray]],
    spans: list[tuple[float, float]],
    bin_width: float,
    where: str,
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the counts of all trials, concatenated, (bins, units), and the bins of each trial.

    Raise InputError if a trial holds no whole bin.

    Args:
        spikes: For each trial, the spike times of every unit in seconds.
        spans: Begin and end of each trial in seconds.
        bin_width: In seconds.
        where: What a trial is called in messages, such as "segment".
    """
    check_bin_width(bin_width)
    counts = []
    for number, (times, (begin, end)) in enumerate(zip(spikes, spans, strict=True)):
        num = int(whole_bins(begin, end, bin_width))
        if num < 1:
            what = f"{begin} to {end} s, which holds no bin of {bin_width} s"
            raise InputError(what, f"{where} {number}", "leave it out, or pass narrower bins")
        counts.append(bin_spikes(times, begin, bin_width, num))
    return np.concatenate(counts), tuple(map(len, counts))


def _shared(annotations: list[dict]) -> dict[str, np.ndarray]:
    """Return a column for each name under which all annotations have a single value."""
    single = (str, bool, int, float, np.generic)
    first, *rest = annotations
    names = [name for name in first if all(name in other for other in rest)]
    rows = {name: [each[name] for each in annotations] for name in names}
    return {
        name: np.array(row) for name, row in rows.items() if all(isinstance(x, single) for x in row)
    }


def _seconds(quantity: Any) -> np.ndarray:
    return np.asarray(quantity.rescale("s").magnitude, float)
