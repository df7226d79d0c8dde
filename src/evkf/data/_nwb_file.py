"""NWB files as HDF5: tables, units, series.

Read with h5py alone: the layout of NWB 2 is stable, spike times can be read in parts, and files
with extensions or of an older schema open like any other.
"""

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from evkf.data.installed import need
from evkf.data.recording import Columns, Recording
from evkf.errors import InputError
from evkf.numerics.checks import check_known

TRIALS, INVALID = "intervals/trials", "intervals/invalid_times"
MODULE = "evkf"
"""The processing module that results are written to."""

Query = Mapping[str, Any] | Sequence[Any] | np.ndarray | None


def nwb_module(name: str) -> Any:
    """A module that only NWB files need."""
    need("an NWB file", "nwb", name.partition(".")[0])
    return importlib.import_module(name)


@contextmanager
def open_nwb(path: str | os.PathLike) -> Iterator[Any]:
    """The file, open for reading; what is wrong with it said in one line."""
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
    """A DynamicTable's columns, "id" first. What refers to other objects becomes their names;
    columns of columns of unequal length, and compound ones, are left out.
    """
    names = [str(name) for name in group.attrs["colnames"] if name not in leave_out]
    table: Columns = {"id": np.asarray(group["id"][...])}
    for name in names:
        if f"{name}_index" in group and (not ragged or f"{name}_index_index" in group):
            continue
        values = read_values(group[name])
        if values is not None and f"{name}_index" in group:
            values = _rows(values, group[f"{name}_index"][...].astype(np.int64))
        if values is not None:
            table[name] = values
    return table


def read_values(dataset: Any) -> np.ndarray | None:
    """All of a column; None of a compound one."""
    h5py = nwb_module("h5py")
    if h5py.check_string_dtype(dataset.dtype):
        return np.asarray(dataset.asstr()[...]).astype(str)
    if h5py.check_ref_dtype(dataset.dtype):
        return np.array([dataset.file[ref].name.rpartition("/")[2] for ref in dataset[...]], str)
    return None if dataset.dtype.names else np.asarray(dataset[...])


def _rows(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    rows = np.split(values, ends[:-1])
    if len({len(row) for row in rows}) == 1:
        return np.stack(rows)
    out = np.empty(len(rows), object)
    out[:] = rows
    return out


def select(table: Columns, query: Query, where: str) -> np.ndarray:
    """Rows of a table by a query: columns with their value or values, or ids; None takes all.

    Text stands for numbers and booleans too, as Python writes them.
    """
    if query is None:
        return np.arange(len(table["id"]))
    rows = _find(table, query, where)
    if not len(rows):
        raise InputError(f"nothing is left by {query}", where, "ask for less")
    return rows


def _find(table: Columns, query: Query, where: str) -> np.ndarray:
    if not isinstance(query, dict):
        place = {name: row for row, name in enumerate(table["id"].tolist())}
        wanted = np.asarray(query).ravel().tolist()
        missing = [name for name in wanted if name not in place]
        if missing:
            raise InputError(f"no id {missing[0]}", where, f"choose among {_some(table['id'])}")
        return np.array([place[name] for name in wanted], int)
    kept = np.ones(len(table["id"]), bool)
    for name, value in query.items():
        check_known("column", name, table, where)
        column = table[name]
        if column.ndim != 1 or column.dtype == object:
            raise InputError(f"column {name!r} of lists", where, "choose by one of single values")
        wanted = np.atleast_1d(value)
        found = np.isin(column.astype(str) if wanted.dtype.kind == "U" else column, wanted)
        if not found.any():
            remedy = f"choose among {_some(column)}"
            raise InputError(f"no row with {name} = {value!r}", where, remedy)
        kept &= found
    return np.flatnonzero(kept)


def _some(values: np.ndarray) -> str:
    names = [str(value) for value in np.unique(values)]
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def read_intervals(file: Any, name: str) -> Float[np.ndarray, "W 2"]:
    """Starts and stops of a table of intervals; none where there is no such table."""
    if name not in file:
        return np.zeros((0, 2))
    return np.stack([file[name][key][...].astype(float) for key in ("start_time", "stop_time")], 1)


def find_trials(file: Any, recording: Recording) -> np.ndarray | None:
    """Ids of the rows of the trials table that begin and end as the trials do, if all have one."""
    if TRIALS not in file:
        return None
    ids, spans, width = file[TRIALS]["id"][...], read_intervals(file, TRIALS), recording.bin_width
    columns, begin = recording.trials, recording.start_times
    end = begin + width * np.asarray(recording.lengths)
    # as their table had them, for windows begin and end elsewhere; else as they are
    for starts, stops in ((columns.get("start_time"), columns.get("stop_time")), (begin, end)):
        if starts is None or stops is None or (starts.dtype.kind + stops.dtype.kind).strip("iuf"):
            continue
        found = []
        for start, stop in zip(starts, stops, strict=True):
            same = np.abs(spans[:, 0] - start) < width / 2
            same &= ~(np.abs(spans[:, 1] - stop) >= width)  # one that is missing agrees with all
            found.append(np.flatnonzero(same))
        if all(len(rows) for rows in found):
            return ids[[rows[0] for rows in found]]
    return None


def find_series(file: Any) -> dict[str, Any]:
    """Every series over time under processing and acquisition, by its path; none of our own."""
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
    """Start and rate of a series that is sampled evenly."""
    if "starting_time" not in series:
        return None
    start = series["starting_time"]
    return float(start[()]), float(start.attrs["rate"])


def read_series(series: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Times and values, in the unit of the series."""
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


def masked(recording: Recording, file: Any, blank: Any) -> Recording:
    """Without what the file and the caller want masked."""
    recording = recording.blanked(read_intervals(file, INVALID))
    return recording if blank is None else recording.blanked(blank)
