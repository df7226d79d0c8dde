"""Recordings from NWB files: spikes into bins, trials, behaviour, and what was not observed."""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from evkf.data._nwb_file import (
    INVALID,
    MODULE,
    TRIALS,
    Query,
    clock,
    find_series,
    masked,
    open_nwb,
    read_intervals,
    read_series,
    read_table,
    select,
)
from evkf.data._nwb_units import Units
from evkf.data.binning import bin_trials, check_bin_width, resample, whole_bins
from evkf.data.recording import Columns, Recording, Series
from evkf.errors import InputError
from evkf.numerics.trials import bins_of


class NwbWarning(UserWarning):
    """Not all that was asked for is in a file, or its readers should know something of it."""


def warn(message: str) -> None:
    """Warn the caller of this package, whichever of its functions was called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("evkf."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, NwbWarning, stacklevel=level)


def read_nwb(
    path: str | os.PathLike,
    bin_width: float,
    align: str | None = None,
    window: tuple[float, float] | None = None,
    behaviour: Sequence[str] = (),
    units: Query = None,
    min_rate: float = 0.0,
    blank: Float[np.ndarray, "W 2"] | None = None,
    trials: Query = None,
) -> Recording:
    """Read a session, or its trials, from an NWB file.

    Bins outside a unit's `obs_intervals`, before the session or touching the file's `invalid_times`
    are masked. A spike on the edge of two bins belongs to the later one.

    Args:
        path: An NWB 2 file.
        bin_width: In seconds.
        align: A column of the trials table with times that lie within the trials or near them, one
            trial a row; rows without that time are left out, with an `NwbWarning`. None reads the
            session as a single trial: from the first to the last of the units' `obs_intervals`,
            else from 0 to the last spike.
        window: Seconds from `align` to begin and end at, such as (-0.25, 0.45); without one a trial
            goes on to its `stop_time`. As many whole bins as fit are read.
        behaviour: Names or paths of series under processing and acquisition. A bin has the mean of
            its samples, interpolated where it has none; bins that a series does not cover are NaN,
            with an `NwbWarning`.
        units: Which to read: columns of the units table with their value or values, such as
            {"quality": "good"}, or ids; all by default.
        min_rate: Leave out units of fewer observed spikes per second.
        blank: More windows (start, stop) in seconds to mask.
        trials: Which rows of the trials table to read, as for `units`.

    Returns:
        The recording. Its units have the table's columns of one value a unit, "electrode_group" and
        "rate" (the file's own being "rate_in_file"), its trials all columns that are no references.
        A column "unit_name" in which no name is twice gives the ids of the units.

    Example:
        >>> read_nwb("nowhere.nwb", 0.02)
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.nwb): check the name
    """
    source = str(path)
    check_bin_width(bin_width)
    with open_nwb(path) as file:
        table = Units(file, source)
        columns = table.columns(file)
        chosen = select(columns, units, f"{source}: units")
        if align is None:
            if window is not None or trials is not None:
                what, remedy = (
                    "a window or trials, but nothing to align to",
                    "pass --align COLUMN (align in Python), such as start_time",
                )
                raise InputError(what, f"{source}: trials", remedy)
            start, num = table.session(bin_width)
            starts, lengths, rows = np.array([start]), np.array([num]), {}
        else:
            starts, lengths, rows = _read_trials(file, source, bin_width, align, window, trials)
        begins = np.repeat(starts, lengths) + bin_width * bins_of(lengths)
        counts = np.empty((len(begins), len(chosen)), np.int32)
        for column, unit in enumerate(chosen):
            times = table.read(unit, *table.bounds(unit))
            counts[:, column] = bin_trials(times, starts, lengths, bin_width)
        names = (behaviour,) if isinstance(behaviour, str) else behaviour
        series = {
            name.rpartition("/")[2]: _read_behaviour(file, source, name, begins, bin_width)
            for name in names
        }
        recording = Recording(
            counts,
            bin_width,
            lengths=tuple(lengths.tolist()),
            start_times=starts,
            masks=table.masks(chosen, begins, bin_width),
            behaviour={name: values for name, (values, _) in series.items()},
            trials=rows,
            units={name: values[chosen] for name, values in columns.items()},
            source=source,
            series={name: about for name, (_, about) in series.items()},
        )
        recording = masked(recording, file, blank)
    return _with_rates(recording, min_rate)


def read_nlb(
    path: str | os.PathLike,
    bin_width: float = 0.02,
    split: str = "train",
    align: str = "move_onset_time",
    window: tuple[float, float] = (-0.25, 0.45),
) -> Recording:
    """Read trials of a file of the Neural Latents Benchmark 2021, by default as MC_Maze has them.

    Args:
        path: A file from DANDI, such as sub-Jenkins_ses-full_desc-train_behavior+ecephys.nwb.
        bin_width: In seconds.
        split: "train", "val" or what else the trials are called.
        align: As for `read_nwb`.
        window: As for `read_nwb`.

    Returns:
        The recording, with "heldout" among the columns of its units, "split" among those of its
        trials, and the velocity of the hand or finger as behaviour where the file has it.

    Example:
        >>> read_nlb("nowhere.nwb")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.nwb): check the name
    """
    with open_nwb(path) as file:
        there = {name.rpartition("/")[2] for name in find_series(file)}
    velocity = [name for name in ("hand_vel", "finger_vel") if name in there]
    return read_nwb(path, bin_width, align, window, velocity, trials={"split": split})


def list_nwb(path: str | os.PathLike) -> dict[str, Any]:
    """What is in an NWB file, without its spike times being read.

    Args:
        path: As for `read_nwb`.

    Returns:
        Text, numbers, lists and dictionaries: "path", "nwb_version", "session" (its description),
        "units", "unit_columns", "spikes", "start" and "stop" in seconds, "observed" (whether units
        have `obs_intervals`), "trials", "trial_columns", "behaviour" (path to shape, rate in Hz and
        unit), "results" (names of what `write_nwb` wrote) and "invalid_times".

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
            "behaviour": {name: _describe(series) for name, series in find_series(file).items()},
            "results": list(file.get(f"processing/{MODULE}", ())),
            "invalid_times": read_intervals(file, INVALID).tolist(),
        }


def _describe(series: Any) -> dict[str, Any]:
    data, even = series["data"], clock(series)
    rate = None if even is None else even[1]
    if rate is None and len(series["timestamps"]) > 1:
        times = series["timestamps"]
        rate = float((len(times) - 1) / (times[-1] - times[0]))
    return {"shape": list(data.shape), "rate": rate, "unit": str(data.attrs.get("unit", ""))}


def _read_trials(
    file: Any,
    source: str,
    bin_width: float,
    align: str,
    window: tuple[float, float] | None,
    query: Query,
) -> tuple[np.ndarray, np.ndarray, Columns]:
    """Starts, bins and columns of the trials that can be read."""
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
        # of the window itself, so that rounding of the times makes no trial shorter than another
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
    """Whether most of a column is within its trials, or nearly all near them and as far apart."""
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
    # a cue or a reward may be outside its trial, but hardly further than the next one is
    slack = np.maximum(stop - start, np.median(apart) if len(apart) else 0.0)
    near = (values >= start - slack) & (values <= stop + slack)
    # reaction times and the like are near a few trials too, those at the beginning of a session
    return bool(near.mean() >= 0.8 and np.ptp(values[near]) >= 0.5 * np.ptp(start[near]))


def _read_behaviour(
    file: Any, source: str, name: str, begins: np.ndarray, bin_width: float
) -> tuple[np.ndarray, Series]:
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
    return rows, _about(series[found[0]])


def _about(series: Any) -> Series:
    kinds = [str(group.attrs.get("neurodata_type", "")) for group in (series, series.parent)]
    position = kinds[0] == "SpatialSeries" or kinds[1] == "Position"
    return Series(str(series["data"].attrs.get("unit", "")), position)


def _with_rates(recording: Recording, min_rate: float) -> Recording:
    rates = recording.rates()
    if "rate" in recording.units:
        recording.units["rate_in_file"] = recording.units["rate"]
    recording.units["rate"] = rates
    return recording if min_rate <= 0 else recording.pick(rates >= min_rate)
