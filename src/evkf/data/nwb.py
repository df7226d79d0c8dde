"""Read recordings from NWB files: binned spikes, trials, behaviour and masks."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from evkf.data.nwb_file import (
    INVALID,
    MODULE,
    TRIALS,
    Units,
    clock,
    find_series,
    open_nwb,
    read_intervals,
    read_series,
    read_table,
    select,
    warn,
)
from evkf.data.recording import Columns, Query, Reading, Recording, Series
from evkf.errors import InputError
from evkf.numerics.binning import bin_index, bin_trials, check_bin_width, resample, whole_bins
from evkf.numerics.trials import bins_of

BUFFER, LEAST = 1 << 24, 4096
"""Bytes that `stream_nwb` holds for spikes of all units, and the fewest spikes for each unit."""


def read_nwb(
    path: str | os.PathLike,
    bin_width: float | None = None,
    align: str | None = None,
    window: tuple[float, float] | None = None,
    **settings: Any,
) -> Recording:
    """Return the recording of a session, or of its trials, from an NWB file.

    A bin of a unit is masked if the bin is not inside the `obs_intervals` of the unit. In a file
    without `obs_intervals`, bins before second 0 are masked. Bins that touch the `invalid_times` of
    the file are masked for all units. A spike on the edge of two bins belongs to the later bin.

    Args:
        path: An NWB 2 file.
        bin_width: In seconds; 0.02 by default.
        align: Column of the trials table with the times that trials are aligned to, such as
            "go_cue_time". Rows without a time are left out, with an `NwbWarning`. None reads the
            session as a single trial, from the begin of the first to the end of the last of all
            `obs_intervals`; in a file without `obs_intervals`, from 0 to the last spike.
        window: Begin and end of a trial in seconds from `align`, such as (-0.25, 0.45). By default
            a trial begins at `align` and ends at its `stop_time`. A trial has as many whole bins as
            fit.
        settings: Other fields of `Reading`: `behaviour`, `units`, `trials`, `min_rate` and `blank`.
            `behaviour` names time series in the groups "processing" and "acquisition", by name or
            path. A bin gets the mean of the samples in the bin, or an interpolated value if the bin
            has no samples. Bins that a series does not cover are NaN, with an `NwbWarning`.

    Returns:
        The recording. The units have the columns of the units table that hold one value for each
        unit, "electrode_group" if the file has it, and "rate", observed spikes per second; a column
        "rate" in the file becomes "rate_in_file". The trials have the columns of the trials table,
        without references to time series. If the units table has a column "unit_name" and no two
        names are equal, the names are the ids of the units.

    Example:
        >>> read_nwb("nowhere.nwb", 0.02)
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.nwb): check the name
    """
    reading = Reading(bin_width, align, window, **settings)
    source, width = str(path), reading.width
    check_bin_width(width)
    with open_nwb(path) as file:
        table = Units(file, source)
        columns = table.columns(file)
        chosen = select(columns, reading.units, f"{source}: units")
        if align is None:
            if window is not None or reading.trials is not None:
                what = "a window or trials, but nothing to align to"
                remedy = "pass --align COLUMN (align in Python), such as start_time"
                raise InputError(what, f"{source}: trials", remedy)
            start, num = table.session(width)
            starts, lengths, rows = np.array([start]), np.array([num]), {}
        else:
            starts, lengths, rows = _read_trials(file, source, width, align, window, reading.trials)
        begins = np.repeat(starts, lengths) + width * bins_of(lengths)
        counts = np.empty((len(begins), len(chosen)), np.int32)
        for column, unit in enumerate(chosen):
            times = table.read(unit, *table.bounds(unit))
            counts[:, column] = bin_trials(times, starts, lengths, width)
        series = {
            name.rpartition("/")[2]: _read_behaviour(file, source, name, begins, width)
            for name in reading.behaviour
        }
        recording = Recording(
            counts,
            width,
            lengths=tuple(lengths.tolist()),
            start_times=starts,
            masks=table.masks(chosen, begins, width),
            behaviour={name: values for name, (values, _) in series.items()},
            trials=rows,
            units={name: values[chosen] for name, values in columns.items()},
            source=source,
            series={name: about for name, (_, about) in series.items()},
        ).blanked(read_intervals(file, INVALID))
    if reading.blank is not None:
        recording = recording.blanked(reading.blank)
    rates = recording.rates()
    if "rate" in recording.units:
        recording.units["rate_in_file"] = recording.units["rate"]
    recording.units["rate"] = rates
    return recording.pick(rates >= reading.min_rate) if reading.min_rate > 0 else recording


def read_nlb(
    path: str | os.PathLike,
    bin_width: float = 0.02,
    split: str = "train",
    align: str = "move_onset_time",
    window: tuple[float, float] = (-0.25, 0.45),
) -> Recording:
    """Return a recording of trials from a file of the Neural Latents Benchmark 2021.

    By default trials are cut around the onset of movement, as for the data set MC_Maze.

    Args:
        path: A file from DANDI, such as sub-Jenkins_ses-full_desc-train_behavior+ecephys.nwb.
        bin_width: In seconds.
        split: Value of the trial column "split" that chooses the trials, such as "train" or "val".
        align: Column of the trials table with the times that trials are aligned to.
        window: Begin and end of a trial in seconds from `align`.

    Returns:
        The recording. The units have the column "heldout", the trials the column "split". Behaviour
        is the velocity "hand_vel" or "finger_vel", if the file has one.

    Example:
        >>> read_nlb("nowhere.nwb")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.nwb): check the name
    """
    with open_nwb(path) as file:
        there = {name.rpartition("/")[2] for name in find_series(file)}
    velocity = [name for name in ("hand_vel", "finger_vel") if name in there]
    return read_nwb(path, bin_width, align, window, behaviour=velocity, trials={"split": split})


def stream_nwb(
    path: str | os.PathLike,
    bin_width: float,
    chunk_bins: int = 10_000,
    units: Query = None,
    blank: Float[np.ndarray, "W 2"] | None = None,
) -> Iterator[Recording]:
    """Yield consecutive chunks of a session in an NWB file; memory does not grow with the session.

    Concatenated, the chunks equal the recording that `read_nwb` returns without `align`, except for
    the unit column "rate": chunks keep that of the file, `read_nwb` computes one.

    Args:
        path: An NWB 2 file.
        bin_width: In seconds.
        chunk_bins: Number of bins in a chunk; the last chunk may have fewer.
        units: Units to take: columns with the wanted value or values, or ids. None takes all.
        blank: Time windows (start, stop) in seconds whose bins are masked as well.

    Yields:
        Recordings of one trial each.

    Example:
        >>> next(stream_nwb("nowhere.nwb", 0.02))
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.nwb): check the name
    """
    source = str(path)
    check_bin_width(bin_width)
    if chunk_bins < 1:
        raise InputError(f"chunk_bins = {chunk_bins}", "chunk_bins", "pass 1 or more")
    with open_nwb(path) as file:
        table = Units(file, source)
        columns = table.columns(file)
        chosen = select(columns, units, f"{source}: units")
        columns = {name: values[chosen] for name, values in columns.items()}
        start, num = table.session(bin_width)
        block = max(LEAST, BUFFER // (4 * len(chosen)))
        readers = [_UnitReader(table, unit, start, bin_width, num, block) for unit in chosen]
        for first in range(0, num, chunk_bins):
            length = min(chunk_bins, num - first)
            begins = start + bin_width * np.arange(first, first + length)
            counts = np.empty((length, len(chosen)), np.int32)
            for column, reader in enumerate(readers):
                counts[:, column] = reader.count(first, length)
            chunk = Recording(
                counts,
                bin_width,
                start_times=begins[:1],
                masks=table.masks(chosen, begins, bin_width),
                units=columns,
                source=source,
            )
            chunk = chunk.blanked(read_intervals(file, INVALID))
            yield chunk if blank is None else chunk.blanked(blank)
        for reader in readers:
            reader.finish()


def list_nwb(path: str | os.PathLike) -> dict[str, Any]:
    """Return a summary of the contents of an NWB file, without reading all spike times.

    Args:
        path: An NWB 2 file.

    Returns:
        Text, numbers, lists and dictionaries: "path", "nwb_version", "session" (description of the
        session), "units" (number), "unit_columns", "spikes" (number), "start" and "stop" of the
        session in seconds, "observed" (True if units have `obs_intervals`), "trials" (number),
        "trial_columns", "behaviour" (shape, rate in Hz and unit of each series by path), "results"
        (names of the series that `write_nwb` wrote) and "invalid_times" (starts and stops).

    Example:
        >>> list_nwb("nowhere.nwb")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.nwb): check the name
    """
    source = str(path)
    with open_nwb(path) as file:
        table = Units(file, source)
        start, stop, open_end = table.span()
        trials = file.get(TRIALS)
        description = file.get("session_description")
        behaviour = {}
        for name, series in find_series(file).items():
            data, even = series["data"], clock(series)
            rate = None if even is None else even[1]
            if rate is None and len(series["timestamps"]) > 1:
                times = series["timestamps"]
                rate = float((len(times) - 1) / (times[-1] - times[0]))
            unit = str(data.attrs.get("unit", ""))
            behaviour[name] = {"shape": list(data.shape), "rate": rate, "unit": unit}
        return {
            "path": source,
            "nwb_version": str(file.attrs["nwb_version"]),
            "session": "" if description is None else description.asstr()[()],
            "units": table.num,
            "unit_columns": list(table.columns(file)),
            "spikes": int(table.ends[-1]),
            "start": start,
            "stop": stop,
            "observed": not open_end,
            "trials": 0 if trials is None else len(trials["id"]),
            "trial_columns": [] if trials is None else [str(x) for x in trials.attrs["colnames"]],
            "behaviour": behaviour,
            "results": list(file.get(f"processing/{MODULE}", ())),
            "invalid_times": read_intervals(file, INVALID).tolist(),
        }


def _read_trials(
    file: Any,
    source: str,
    bin_width: float,
    align: str,
    window: tuple[float, float] | None,
    query: Query,
) -> tuple[np.ndarray, np.ndarray, Columns]:
    """Return start times in seconds, numbers of bins and columns of the trials to read.

    Rows without a time are left out, with an `NwbWarning`. Raise InputError if `align` is not a
    column of times, if no trial is left, or if a trial is shorter than a bin.
    """
    where = f"{source}: trials"
    if TRIALS not in file or not len(file[TRIALS]["id"]):
        raise InputError("no trials", where, "leave out align to read the session as one")
    table = read_table(file[TRIALS])
    times = [name for name in table if _holds_times(table, name)]
    if align not in times:
        numbers = align in table and table[align].dtype.kind in "iuf"
        what = f"no times {align!r}"
        what += ", but numbers that lie outside the trials" if numbers else ""
        raise InputError(what, where, f"choose among {', '.join(times)}")
    rows = select(table, query, where)
    table = {name: values[rows] for name, values in table.items()}
    onset = table[align].astype(float)
    if window is None:
        starts, spans = onset, table["stop_time"] - onset
    else:
        begin, end = window
        if not (np.isfinite([begin, end]).all() and begin < end):
            raise InputError(f"window {window}", "window", "pass FROM before TO, such as -0.3 0.7")
        # the length of the window itself: differences of times could round to one bin fewer
        starts, spans = onset + begin, np.full(len(onset), end - begin)
    known = np.isfinite(starts + spans)
    if not known.all():
        more = " or stop_time" if window is None else ""
        what = f"{np.sum(~known)} of {len(known)} rows of the trials have no {align}{more}"
        if not known.any():
            raise InputError(what, where, "align to another column")
        warn(f"{source}: {what} and are left out")
    lengths = whole_bins(0.0, spans[known], bin_width)
    if lengths.min() < 1:
        worst = int(np.argmin(lengths))
        what = f"no bin of {bin_width} s in trial {table['id'][known][worst]}"
        remedy = (
            "pass smaller bins, a wider window, or choose trials, by --trials id=... or another"
        )
        raise InputError(f"{what}, of {spans[known][worst]:g} s", where, remedy)
    return starts[known], lengths, {name: values[known] for name, values in table.items()}


def _holds_times(table: Columns, name: str) -> bool:
    """Return True if a column of the trials table holds times of the session.

    A column holds times if more than half of its values lie between `start_time` and `stop_time` of
    their trials. It also holds times if 80% of the values lie near their trials, and the earliest
    and the latest of these values are at least half as far apart as the first and the last start of
    their trials. Near means at most the length of the trial away, or the median time between the
    starts of trials if that is longer. A column without values holds times if its name ends in
    "_time".
    """
    values, start, stop = table[name], table["start_time"], table["stop_time"]
    if name == "id" or values.dtype.kind not in "iuf" or values.ndim != 1:
        return False
    apart = np.diff(np.sort(start[np.isfinite(start)]))
    known = np.isfinite(values) & np.isfinite(stop - start)
    if not known.any():
        return name.endswith("_time")
    values, start, stop = values[known], start[known], stop[known]
    if ((values >= start) & (values <= stop)).mean() > 0.5:
        return True
    # a cue or a reward may be outside its trial, but hardly beyond the next trial
    slack = np.maximum(stop - start, np.median(apart) if len(apart) else 0.0)
    near = (values >= start - slack) & (values <= stop + slack)
    # durations, such as reaction times, are near 0: close to the first trials only
    return bool(near.mean() >= 0.8 and np.ptp(values[near]) >= 0.5 * np.ptp(start[near]))


def _read_behaviour(
    file: Any, source: str, name: str, begins: np.ndarray, bin_width: float
) -> tuple[np.ndarray, Series]:
    """Return a behavioural series as one row for each bin, with its unit and kind.

    The series is given by its path or the end of its path. Raise InputError if that fits no series
    or more than one, or if samples are NaN. Bins that the series does not cover are NaN.
    """
    series = find_series(file)
    wanted = name.strip("/")
    found = [path for path in series if path == wanted or path.endswith(f"/{wanted}")]
    if len(found) != 1:
        there = ", ".join(found or series) or "none"
        what = f"{'more than one' if found else 'no'} series {name!r}"
        raise InputError(what, f"{source}: behaviour", f"name one by its path; there are {there}")
    where = f"{source}: {found[0]}"
    times, values = read_series(series[found[0]], where)
    rows = resample(times, values, begins, bin_width)
    wrong = ~np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
    outside = np.isnan(resample(times, np.zeros(len(times)), begins, bin_width))
    holes = np.flatnonzero(wrong & ~outside)
    if len(holes):
        what = f"NaN at {begins[holes[0]]:g} s and in {len(holes) - 1} bins more"
        raise InputError(what, where, "mend the file, choose other trials, or leave the series out")
    if outside.any():
        what = f"covers {times[0]:g} to {times[-1]:g} s; {outside.sum()} bins outside are NaN"
        warn(f"{where} {what}")
    chosen = series[found[0]]
    kinds = [str(group.attrs.get("neurodata_type", "")) for group in (chosen, chosen.parent)]
    position = kinds[0] == "SpatialSeries" or kinds[1] == "Position"
    return rows, Series(str(chosen["data"].attrs.get("unit", "")), position)


class _UnitReader:
    """Count the spikes of one unit in consecutive bins, with few spike times in memory.

    Args:
        table: The units table.
        unit: Row of the unit in the table.
        start: Begin of the first bin in seconds.
        bin_width: In seconds.
        num: Number of bins of the session.
        block: Number of spikes that are read at a time.
    """

    def __init__(
        self, table: Units, unit: int, start: float, bin_width: float, num: int, block: int
    ):
        self.table, self.unit, self.start, self.bin_width = table, unit, start, bin_width
        self.num, self.dtype = num, np.int32 if num < 2**31 else np.int64
        self.at, self.end = table.bounds(unit)
        self.block, self.after = block, -np.inf
        self.held = np.zeros(0, self.dtype)

    def _load(self) -> None:
        end = min(self.at + self.block, self.end)
        times = self.table.read(self.unit, self.at, end, self.after)
        self.at, self.after = end, times[-1]
        index = bin_index(times, self.start, self.bin_width)
        self.held = np.clip(index, -1, self.num).astype(self.dtype)

    def count(self, first: int, length: int) -> Int[np.ndarray, " T"]:
        """Return the number of spikes in each of `length` bins, beginning with bin `first`.

        Bins must be asked for in order: spikes before bin `first` are dropped.
        """
        counts = np.zeros(length, np.int64)
        while True:
            low, high = np.searchsorted(self.held, [first, first + length])
            counts += np.bincount(self.held[low:high] - first, minlength=length)
            self.held = self.held[high:]
            if len(self.held) or self.at == self.end:
                return counts
            self._load()

    def finish(self) -> None:
        """Read the remaining spikes, and raise InputError if they are not in order of time."""
        while self.at < self.end:
            self._load()
