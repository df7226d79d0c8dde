"""Read tables, units and time series of NWB files, for `evkf.data.nwb` and `evkf.data.nwb_write`.

The functions read NWB files with h5py, not with pynwb, because h5py can read spike times in parts,
and opens files that use NWB extensions or an older schema of NWB 2.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool, Float

from evkf.data.files import need
from evkf.data.recording import Columns, Query, Recording
from evkf.errors import InputError
from evkf.numerics.binning import check_spike_times, inside, merged, whole_bins
from evkf.numerics.checks import check_known

TRIALS, INVALID = "intervals/trials", "intervals/invalid_times"
MODULE = "evkf"
"""Name of the NWB processing module (a group in the file) that holds the estimates of evkf."""


class NwbWarning(UserWarning):
    """Warning that an NWB file lacks something asked for, or has something that needs attention."""


def warn(message: str) -> None:
    """Give an `NwbWarning` that shows the line outside evkf from which evkf was called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("evkf."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, NwbWarning, stacklevel=level)


def nwb_module(name: str) -> Any:
    """Import and return a module that only NWB files need, such as "h5py" or "pynwb.file".

    Raise InputError that says how to install the package if it is missing.
    """
    need("an NWB file", "nwb", name.partition(".")[0])
    return importlib.import_module(name)


@contextmanager
def open_nwb(path: str | os.PathLike) -> Iterator[Any]:
    """Open an NWB 2 file for reading and yield it as an h5py file.

    Raise InputError, with a message of one line, if the file cannot be opened or read.
    """
    h5py = nwb_module("h5py")
    place = Path(path)
    if not place.is_file():
        raise InputError("no such file", str(path), "check the name")
    with place.open("rb") as raw:
        signed = raw.read(8) == b"\x89HDF\r\n\x1a\n"
    if not (signed or h5py.is_hdf5(place)):
        raise InputError("not an NWB file", str(path), "pass an NWB 2 file (HDF5)")
    try:
        with h5py.File(place, "r") as file:
            version = str(file.attrs.get("nwb_version", ""))
            if not version.startswith("2"):
                what = f"NWB {version}" if version else "HDF5, but not an NWB file"
                raise InputError(what, str(path), "pass an NWB 2 file; pynwb converts NWB 1")
            yield file
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"cannot be opened or read ({' '.join(str(error).split())})",
            str(path),
            "is it complete? copy or download it again",
        ) from error


def read_table(group: Any, leave_out: Sequence[str] = (), ragged: bool = True) -> Columns:
    """Return the columns of an NWB table (DynamicTable) by name, "id" first.

    A reference becomes the name of the object that it points to. A ragged column (one list for each
    row) becomes an array of arrays, or one array if all lists are equally long. Compound columns
    (several fields in a value) and columns of lists of lists are left out.

    Args:
        group: The table.
        leave_out: Names of columns that are not read.
        ragged: False to leave out all ragged columns.
    """
    names = [str(name) for name in group.attrs["colnames"] if name not in leave_out]
    table: Columns = {"id": np.asarray(group["id"][...])}
    for name in names:
        if f"{name}_index" in group and (not ragged or f"{name}_index_index" in group):
            continue
        values = read_values(group[name])
        if values is not None and f"{name}_index" in group:
            rows = np.split(values, group[f"{name}_index"][...].astype(np.int64)[:-1])
            if len({len(row) for row in rows}) == 1:
                values = np.stack(rows)
            else:
                values = np.empty(len(rows), object)
                values[:] = rows
        if values is not None:
            table[name] = values
    return table


def read_values(dataset: Any) -> np.ndarray | None:
    """Return the values of a column as an array, with names of objects in place of references.

    Return None for a compound column, which has several fields in a value.
    """
    h5py = nwb_module("h5py")
    if h5py.check_string_dtype(dataset.dtype):
        return np.asarray(dataset.asstr()[...]).astype(str)
    if h5py.check_ref_dtype(dataset.dtype):
        return np.array([dataset.file[ref].name.rpartition("/")[2] for ref in dataset[...]], str)
    return None if dataset.dtype.names else np.asarray(dataset[...])


def select(table: Columns, query: Query, where: str) -> np.ndarray:
    """Return the row numbers of a table that a query asks for.

    Raise InputError if an id, a column or a value is not in the table, or if no row is left.

    Args:
        table: Columns of the table by name, with "id".
        query: Columns with the wanted value or values, or ids; None for all rows. Values given as
            text also match numbers and booleans, such as "3" or "True".
        where: Name of the table, for messages.
    """
    ids = table["id"]
    if query is None:
        return np.arange(len(ids))

    def choose_among(values: np.ndarray) -> str:
        names = [str(value) for value in np.unique(values)]
        return f"choose among {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"

    if not isinstance(query, dict):
        places = {name: row for row, name in enumerate(ids.tolist())}
        wanted = np.asarray(query).ravel().tolist()
        missing = [name for name in wanted if name not in places]
        if missing:
            raise InputError(f"no id {missing[0]}", where, choose_among(ids))
        rows = np.array([places[name] for name in wanted], int)
    else:
        kept = np.ones(len(ids), bool)
        for name, value in query.items():
            check_known("column", name, table, where)
            column = table[name]
            if column.ndim != 1 or column.dtype == object:
                what, remedy = f"column {name!r} of lists", "choose by one of single values"
                raise InputError(what, where, remedy)
            wanted = np.atleast_1d(value)
            found = np.isin(column.astype(str) if wanted.dtype.kind == "U" else column, wanted)
            if not found.any():
                what = f"no row with {name} = {value!r}"
                raise InputError(what, where, choose_among(column))
            kept &= found
        rows = np.flatnonzero(kept)
    if not len(rows):
        raise InputError(f"nothing is left by {query}", where, "ask for less")
    return rows


def read_intervals(file: Any, name: str) -> Float[np.ndarray, "W 2"]:
    """Return starts and stops in seconds of a table of intervals; no rows without such a table."""
    if name not in file:
        return np.zeros((0, 2))
    return np.stack([file[name][key][...].astype(float) for key in ("start_time", "stop_time")], 1)


def find_trials(file: Any, recording: Recording) -> np.ndarray | None:
    """Return ids from the trials table of a file for the trials of a recording.

    A trial gets the id of the first row whose start differs by less than half a bin and whose stop
    differs by less than a bin; a stop that is missing fits. The columns `start_time` and
    `stop_time` of the recording are compared first, then the begin and end of its trials. Return
    None if a trial has no such row, or the file has no trials table.
    """
    if TRIALS not in file:
        return None
    ids, spans, width = file[TRIALS]["id"][...], read_intervals(file, TRIALS), recording.bin_width
    columns, begin = recording.trials, recording.start_times
    end = begin + width * np.asarray(recording.lengths)
    # a window around an event does not begin and end where the trial does
    for starts, stops in ((columns.get("start_time"), columns.get("stop_time")), (begin, end)):
        if starts is None or stops is None or (starts.dtype.kind + stops.dtype.kind).strip("iuf"):
            continue
        found = []
        for start, stop in zip(starts, stops, strict=True):
            same = np.abs(spans[:, 0] - start) < width / 2
            same &= ~(np.abs(spans[:, 1] - stop) >= width)  # NaN, a missing stop, fits
            found.append(np.flatnonzero(same))
        if all(len(rows) for rows in found):
            return ids[[rows[0] for rows in found]]
    return None


def find_series(file: Any) -> dict[str, Any]:
    """Return the time series in the groups "processing" and "acquisition" by path.

    The series that evkf wrote are not among them.
    """
    found: dict[str, Any] = {}

    def look(name: str, item: Any) -> None:
        clock = hasattr(item, "keys") and ("timestamps" in item or "starting_time" in item)
        path = item.name.lstrip("/")
        if clock and "data" in item and not path.startswith(f"processing/{MODULE}/"):
            found[path] = item

    for top in ("processing", "acquisition"):
        if top in file:
            file[top].visititems(look)
    return found


def clock(series: Any) -> tuple[float, float] | None:
    """Return start in seconds and rate in Hz of an evenly sampled series; None if not evenly."""
    if "starting_time" not in series:
        return None
    start = series["starting_time"]
    return float(start[()]), float(start.attrs["rate"])


def read_series(series: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the times of samples in seconds, and the samples in the unit of the series.

    Raise InputError if the series does not hold numbers, or if its times do not increase.
    """
    data = series["data"]
    if data.dtype.kind not in "iufb" or data.ndim < 1 or not len(data):
        raise InputError(f"{data.dtype} of shape {data.shape}", where, "name a series of numbers")
    values = data[...] * float(data.attrs.get("conversion", 1.0))
    values = values + float(data.attrs.get("offset", 0.0))
    even = clock(series)
    times = series["timestamps"][...] if even is None else even[0] + np.arange(len(data)) / even[1]
    if len(times) != len(data):
        raise InputError(f"{len(times)} times of {len(data)} samples", where, "mend the file")
    wrong = np.flatnonzero(~(np.diff(times) > 0))
    if len(wrong):
        what = f"timestamps that do not increase at sample {wrong[0] + 1}"
        raise InputError(what, where, "sort the samples and leave out doubles")
    return times, values


class Units:
    """The units table of an open NWB file. Spike times are read for one unit at a time.

    Args:
        file: File that `open_nwb` yields.
        source: Name of the file, for messages.
    """

    def __init__(self, file: Any, source: str):
        self.source = source
        if "units" not in file:
            self.refuse("no units table", "units", "pass a file with sorted or thresholded spikes")
        self.table = file["units"]
        if "spike_times" not in self.table or "spike_times_index" not in self.table:
            self.refuse("no spike times", "units", "pass a file whose units have spike_times")
        self.spikes = self.table["spike_times"]
        self.ends = self.table["spike_times_index"][...].astype(np.int64)
        self.num = len(self.ends)
        if not self.num:
            self.refuse("no units", "units", "pass a file with one or more")
        whole = np.all(np.diff(self.ends, prepend=0) >= 0) and self.ends[-1] <= len(self.spikes)
        if not whole or len(self.table["id"]) != self.num:
            what = "an index that does not fit the spike times"
            self.refuse(what, "units/spike_times_index", "mend the file")
        self._observed: list[np.ndarray] | None = None
        if "obs_intervals" in self.table and len(self.table["obs_intervals"]):
            pairs = self.table["obs_intervals"][...].astype(float)
            ends = self.table["obs_intervals_index"][...].astype(np.int64)
            if not np.all(pairs[:, 1] >= pairs[:, 0]):
                what = "intervals that end before they begin, or NaN"
                self.refuse(what, "units/obs_intervals", "mend the file")
            self._observed = [merged(part) for part in np.split(pairs, ends[:-1])]

    def columns(self, file: Any) -> Columns:
        """Return the columns that hold one value for each unit, by name.

        The column "electrode_group" is added if the file gives the electrodes of the units. If
        there is a column "unit_name" of text, and no two names are equal, the names are the ids.
        """
        table = read_table(self.table, ("spike_times", "obs_intervals", "waveforms"), ragged=False)
        names = table.get("unit_name", np.zeros(0))
        if names.dtype.kind == "U" and len(np.unique(names)) == self.num:
            table["id"] = names
        electrodes = file.get("general/extracellular_ephys/electrodes")
        if "electrode_group" in table or electrodes is None or "group_name" not in electrodes:
            return table
        if "electrodes" not in self.table or "electrodes_index" not in self.table:
            return table
        names, first = read_values(electrodes["group_name"]), self.table["electrodes"][...]
        begin = np.concatenate([[0], self.table["electrodes_index"][...].astype(np.int64)])
        if names is not None and np.all(np.diff(begin) > 0):
            table["electrode_group"] = names[first[begin[:-1]]]
        return table

    def bounds(self, unit: int) -> tuple[int, int]:
        """Return begin and end of a unit's part of the array of all spike times, as positions."""
        return int(self.ends[unit - 1]) if unit else 0, int(self.ends[unit])

    def read(self, unit: int, begin: int, end: int, after: float = -np.inf) -> np.ndarray:
        """Return the spike times at positions `begin` to `end` of the file, in seconds.

        Raise InputError if they are negative, not finite, not in order or earlier than `after`.
        """
        times = self.spikes[begin:end].astype(float)
        where = f"{self.source}: units/spike_times of unit {self.table['id'][unit]}"
        check_spike_times(times, where, (0.0, np.inf), begin - self.bounds(unit)[0], after)
        return times

    def masks(
        self, units: np.ndarray, begins: Float[np.ndarray, " T"], bin_width: float
    ) -> Bool[np.ndarray, "T N"]:
        """Return masks, (bins, units), True where a bin is inside the `obs_intervals` of the unit.

        In a file without `obs_intervals`, bins from second 0 on are True.
        """
        session, masks = np.array([[0.0, np.inf]]), np.empty((len(begins), len(units)), bool)
        pairs = [session if self._observed is None else self._observed[unit] for unit in units]
        # most units of a file are observed in the same intervals
        alike: dict[bytes, list[int]] = {}
        for column, intervals in enumerate(pairs):
            alike.setdefault(intervals.tobytes(), []).append(column)
        for columns in alike.values():
            masks[:, columns] = inside(begins, bin_width, pairs[columns[0]])[:, None]
        return masks

    def span(self) -> tuple[float, float, bool]:
        """Return begin and end of the session in seconds, and True if the end is the last spike.

        The end is the last spike in a file without `obs_intervals`.
        """
        if self._observed is not None:
            pairs = np.concatenate(self._observed)
            return float(pairs[:, 0].min()), float(pairs[:, 1].max()), False
        last = [float(self.spikes[end - 1]) for end in np.unique(self.ends) if end]
        if not last:
            self.refuse("no spikes", "units/spike_times", "pass a file with some")
        if not np.isfinite(last).all():
            self.refuse("spike times that are not finite", "units/spike_times", "leave them out")
        return 0.0, max(last), True

    def seconds(self) -> Float[np.ndarray, " N"]:
        """Return for how many seconds each unit was observed: `obs_intervals`, or the session."""
        if self._observed is None:
            start, stop, _ = self.span()
            return np.full(self.num, stop - start)
        return np.array([np.diff(pairs, axis=1).sum() for pairs in self._observed])

    def session(self, bin_width: float) -> tuple[float, int]:
        """Return the begin of the session in seconds and its number of bins, 1 or more.

        Raise InputError if the session is shorter than a bin.
        """
        start, stop, open_end = self.span()
        # a session that ends at the last spike has one more bin, which holds that spike
        num = int(whole_bins(start, stop, bin_width)) + open_end
        if num < 1:
            what = f"no bin of {bin_width} s in a session of {stop - start:g} s"
            self.refuse(what, "units", "pass a smaller bin width")
        return start, num

    def refuse(self, what: str, where: str, remedy: str) -> NoReturn:
        """Raise InputError that names the file."""
        raise InputError(what, f"{self.source}: {where}", remedy)
