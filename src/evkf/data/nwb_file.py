"""NWB files as HDF5: tables, units and series, for `evkf.data.nwb` and `evkf.data.nwb_write`.

Read with h5py alone: the layout of NWB 2 is stable, spike times can be read in parts, and files
with extensions or of an older schema open like any other.
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
"""Processing module with estimates of this package."""


class NwbWarning(UserWarning):
    """Something asked for is not in an NWB file, or a reader of the file should look at it."""


def warn(message: str) -> None:
    """Warn the caller of this package, through all its own functions in between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("evkf."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, NwbWarning, stacklevel=level)


def nwb_module(name: str) -> Any:
    """Return a module that only NWB files need."""
    need("an NWB file", "nwb", name.partition(".")[0])
    return importlib.import_module(name)


@contextmanager
def open_nwb(path: str | os.PathLike) -> Iterator[Any]:
    """Open an NWB file for reading; errors are one line."""
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
    """Return the columns of a DynamicTable, "id" first.

    References become names of objects; compound columns and doubly ragged ones are left out.
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
    """Return a column; None for a compound one."""
    h5py = nwb_module("h5py")
    if h5py.check_string_dtype(dataset.dtype):
        return np.asarray(dataset.asstr()[...]).astype(str)
    if h5py.check_ref_dtype(dataset.dtype):
        return np.array([dataset.file[ref].name.rpartition("/")[2] for ref in dataset[...]], str)
    return None if dataset.dtype.names else np.asarray(dataset[...])


def select(table: Columns, query: Query, where: str) -> np.ndarray:
    """Return the rows of a table that a query asks for.

    Args:
        table: Columns of the table.
        query: Columns with their value or values, or ids; None for all rows. Text stands for
            numbers and booleans too, as Python writes them.
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
    """Return starts and stops of a table of intervals; none without such a table."""
    if name not in file:
        return np.zeros((0, 2))
    return np.stack([file[name][key][...].astype(float) for key in ("start_time", "stop_time")], 1)


def find_trials(file: Any, recording: Recording) -> np.ndarray | None:
    """Return the rows of the trials table that begin and end as the trials do; None if not all."""
    if TRIALS not in file:
        return None
    ids, spans, width = file[TRIALS]["id"][...], read_intervals(file, TRIALS), recording.bin_width
    columns, begin = recording.trials, recording.start_times
    end = begin + width * np.asarray(recording.lengths)
    # by the times of their own table first: windows begin and end elsewhere
    for starts, stops in ((columns.get("start_time"), columns.get("stop_time")), (begin, end)):
        if starts is None or stops is None or (starts.dtype.kind + stops.dtype.kind).strip("iuf"):
            continue
        found = []
        for start, stop in zip(starts, stops, strict=True):
            same = np.abs(spans[:, 0] - start) < width / 2
            same &= ~(np.abs(spans[:, 1] - stop) >= width)  # a missing time agrees with all
            found.append(np.flatnonzero(same))
        if all(len(rows) for rows in found):
            return ids[[rows[0] for rows in found]]
    return None


def find_series(file: Any) -> dict[str, Any]:
    """Return the time series under processing and acquisition by path, except our own."""
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
    """Return start and rate of an evenly sampled series; None for another."""
    if "starting_time" not in series:
        return None
    start = series["starting_time"]
    return float(start[()]), float(start.attrs["rate"])


def read_series(series: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times and values, in the unit of the series."""
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
    """The units table of an open file; spike times are read unit by unit, or in parts.

    Args:
        file: File from `open_nwb`.
        source: Its name, for messages.
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
        """Return columns of one value a unit, with the name of the electrode group.

        A column "unit_name", as `recording_to_nwb` writes it, gives the ids if unique.
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
        """Return where the spike times of a unit begin and end in the file."""
        return int(self.ends[unit - 1]) if unit else 0, int(self.ends[unit])

    def read(self, unit: int, begin: int, end: int, after: float = -np.inf) -> np.ndarray:
        """Return spike times `begin` to `end` of the file, in order and not before `after`."""
        times = self.spikes[begin:end].astype(float)
        where = f"{self.source}: units/spike_times of unit {self.table['id'][unit]}"
        check_spike_times(times, where, (0.0, np.inf), begin - self.bounds(unit)[0], after)
        return times

    def masks(
        self, units: np.ndarray, begins: Float[np.ndarray, " T"], bin_width: float
    ) -> Bool[np.ndarray, "T N"]:
        """Return True where observed: within `obs_intervals`, or from 0 on without these."""
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
        """Return begin and end of the session, and True if the last spike gives the end."""
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
        """Return the observed seconds of every unit: its `obs_intervals`, or the whole session."""
        if self._observed is None:
            start, stop, _ = self.span()
            return np.full(self.num, stop - start)
        return np.array([np.diff(pairs, axis=1).sum() for pairs in self._observed])

    def session(self, bin_width: float) -> tuple[float, int]:
        """Return begin and number of bins of the session."""
        start, stop, open_end = self.span()
        # one more bin for the spike that ends an open session
        num = int(whole_bins(start, stop, bin_width)) + open_end
        if num < 1:
            what = f"no bin of {bin_width} s in a session of {stop - start:g} s"
            self.refuse(what, "units", "pass a smaller bin width")
        return start, num

    def refuse(self, what: str, where: str, remedy: str) -> NoReturn:
        """Raise an error that names the file."""
        raise InputError(what, f"{self.source}: {where}", remedy)
