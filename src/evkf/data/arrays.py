"""Read and write recordings as named arrays in npz and HDF5 files, whole or in chunks of bins.

`from_arrays` and `to_arrays` define the layout of the arrays; `read_arrays` lists its rules.
`read_arrays` and `write_arrays` also take CSV files, by the functions of `evkf.data.csv_files`.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evkf.data.csv_files import read_csv, write_csv
from evkf.data.files import (
    HDF5,
    KINDS,
    how_to_leave_out,
    load,
    open_hdf5,
    read_npz,
    replacing,
    write_arrays_as,
)
from evkf.data.recording import Recording, cut_trials
from evkf.errors import InputError
from evkf.numerics.binning import check_counts, find_width

TABLES = ("behaviour", "trials", "units")
ENDINGS = "end it in .npz, .h5, .hdf5 or .csv"
OWN = ("counts", "bin_width", "bin_ms", "lengths", "trial_lengths", "masks", "start_times")


def read_arrays(
    path: str | os.PathLike,
    bin_width: float | None = None,
    *,
    signals: bool = False,
    leave_out: Collection[str] = (),
) -> Recording:
    """Return the recording in an npz, HDF5 or CSV file.

    An npz or HDF5 file holds `counts`, (bins, units) or (trials, bins, units), and may hold

    - `bin_width` in seconds, or `bin_ms` in milliseconds;
    - `lengths` or `trial_lengths`: the number of bins of every trial. In counts (bins, units) the
      trials are concatenated. In counts (trials, bins, units) bins after the end of a trial are
      dropped;
    - `masks`: True where observed, in the shape of the counts;
    - `start_times`: the begin of every trial, in seconds;
    - `unit_id`: the ids of the units;
    - other arrays. An array named `behaviour/x`, `trials/x` or `units/x` is column x of that table.
      An array without such a prefix is assigned to a table by its shape, in this order: behaviour,
      if it has one row for each bin (for counts by trial: axes of trials and bins); trials, if it
      has one row for each trial; units, if it has one row for each unit. An array that fits no
      table raises InputError. Single values are ignored.

    A CSV file has a header of unit names and one row for each bin. An optional column `trial` names
    the trial of each bin, and an optional column `time` gives the begin of each bin in seconds.

    Args:
        path: Ends in .npz, .h5, .hdf5 or .csv.
        bin_width: In seconds, if the file does not give the bin width.
        signals: True for continuous signals. By default the file holds counts, which must be whole
            and not negative.
        leave_out: Names of arrays, or of columns of a CSV file, that are not read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", counts=np.ones((6, 2), int), lengths=[2, 4], bin_ms=20)
        ...     recording = read_arrays(f"{folder}/a.npz")
        >>> recording.lengths, recording.bin_width
        ((2, 4), 0.02)
    """
    place = Path(path)
    leave_out = (leave_out,) if isinstance(leave_out, str) else leave_out
    if place.suffix == ".csv":
        return read_csv(place, bin_width, signals, leave_out)
    return from_arrays(load_arrays(place, leave_out), str(path), bin_width, signals)


def load_arrays(path: Path, leave_out: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Return the arrays of an npz or HDF5 file by name, without those named in `leave_out`."""
    if path.suffix == ".npz":
        return read_npz(path, leave_out)
    if path.suffix not in HDF5:
        raise InputError(f"a file named {path.name!r}", str(path), ENDINGS)
    with open_hdf5(path, leave_out) as datasets:
        return {name: load(dataset) for name, dataset in datasets.items()}


def write_arrays(path: str | os.PathLike, recording: Recording, *, overwrite: bool = False) -> None:
    """Write a recording to an npz, HDF5 or CSV file.

    `read_arrays` returns an equal recording from an npz or HDF5 file, except for `source` and
    `series`. A CSV file holds only counts, times and trials, without the bin width. Raise
    InputError if a CSV file cannot hold all that the recording has. The file appears under its name
    only when it is complete.

    Args:
        path: Ends in .npz, .h5, .hdf5 or .csv.
        recording: The recording; trials may differ in length.
        overwrite: True to replace an existing file.

    Example:
        >>> import tempfile
        >>> recording = Recording(np.array([[1, 0], [0, 2]]), bin_width=0.02)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_arrays(f"{folder}/a.npz", recording)
        ...     read_arrays(f"{folder}/a.npz").counts.tolist()
        [[1, 0], [0, 2]]
    """
    place = Path(path)
    if place.suffix not in (".npz", ".csv", *HDF5):
        raise InputError(f"a file named {place.name!r}", str(place), ENDINGS)
    with replacing(place, overwrite) as part:
        if place.suffix == ".csv":
            write_csv(part, recording)
        else:
            write_arrays_as(part, to_arrays(recording))


def stream_arrays(
    path: str | os.PathLike,
    chunk_bins: int,
    bin_width: float | None = None,
    *,
    signals: bool = False,
    leave_out: Collection[str] = (),
) -> Iterator[Recording]:
    """Return an iterator over consecutive chunks of the recording in an HDF5 file.

    Memory holds the bins of one chunk, and the whole tables of trials and units. A trial that does
    not end in a chunk continues in the next chunk. The start time of the continued part is the
    begin of its first bin. The trial column "trial" of the chunks has the number of each trial in
    the file, from 0, unless the file has a trial column of this name.

    Args:
        path: Ends in .h5 or .hdf5. Counts must be (bins, units); all else is as for `read_arrays`.
        chunk_bins: Number of bins in a chunk; the last chunk may have fewer.
        bin_width: In seconds, if the file does not give the bin width.
        signals: True for continuous signals, False for counts.
        leave_out: Names of arrays that are not read.

    Example:
        >>> import tempfile
        >>> recording = Recording(np.arange(10).reshape(5, 2), bin_width=0.02, lengths=(3, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_arrays(f"{folder}/a.h5", recording)
        ...     chunks = list(stream_arrays(f"{folder}/a.h5", chunk_bins=2))
        >>> [(chunk.lengths, chunk.trials["trial"].tolist()) for chunk in chunks]
        [((2,), [0]), ((1, 1), [0, 1]), ((1,), [1])]
    """
    place = Path(path)
    if place.suffix not in HDF5:
        raise InputError(f"a file named {place.name!r}", str(path), "stream .h5 or .hdf5")
    if chunk_bins < 1:
        raise InputError(f"chunk_bins = {chunk_bins}", "chunk_bins", "pass one or more")
    leave_out = (leave_out,) if isinstance(leave_out, str) else leave_out
    return _stream(place, chunk_bins, bin_width, signals, leave_out)


def _stream(
    path: Path, chunk_bins: int, bin_width: float | None, signals: bool, leave_out: Collection[str]
) -> Iterator[Recording]:
    """Yield the chunks for `stream_arrays`, which has checked the arguments."""
    source = str(path)
    with open_hdf5(path, leave_out) as datasets:
        counts = find_counts(datasets, source)
        if len(counts.shape) != 2:
            what = f"counts of shape {counts.shape}"
            remedy = "stream (bins, units) with lengths; write_arrays makes such a file"
            raise InputError(what, f"{source}: counts", remedy)
        small = ("lengths", "trial_lengths", "bin_width", "bin_ms", "start_times")
        head = {name: load(datasets[name]) for name in small if name in datasets}
        lengths = find_lengths(head, counts.shape, source)
        width = find_width(head, source, bin_width)
        columns: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
        places = place_columns(datasets, counts.shape, len(lengths), source)
        for name, (table, column) in places.items():
            data = datasets[name]
            columns[table][column] = data if table == "behaviour" else load(data)
        columns["trials"].setdefault("trial", np.arange(len(lengths)))
        # arrays are cut to the size of a chunk, so wrong sizes show only here, in the whole file
        rows = {f"behaviour {k!r}": (x, len(counts)) for k, x in columns["behaviour"].items()}
        rows |= {f"trials {k!r}": (x, len(lengths)) for k, x in columns["trials"].items()}
        rows |= {"masks": (datasets["masks"], len(counts))} if "masks" in datasets else {}
        rows |= (
            {"start_times": (head["start_times"], len(lengths))} if "start_times" in head else {}
        )
        for name, (array, num) in rows.items():
            if array.shape[:1] != (num,):
                what = f"{name} of shape {array.shape}"
                raise InputError(what, f"{source}: {name}", f"pass {num} rows")
        if min(lengths) < 1 or sum(lengths) != len(counts):
            what = f"trials of {sum(lengths)} bins, the shortest {min(lengths)}, "
            what += f"for {len(counts)} bins"
            raise InputError(what, f"{source}: lengths", "pass the bins of every trial, 1 or more")
        starts = np.asarray(head.get("start_times", width * (np.cumsum(lengths) - lengths)))
        for begin in range(0, len(counts), chunk_bins):
            bins = slice(begin, min(begin + chunk_bins, len(counts)))
            trials, parts, begins = cut_trials(lengths, starts, width, bins)
            masked = "masks" in datasets
            chunk = Recording(
                load(counts, bins),
                width,
                parts,
                begins,
                masks=load(datasets["masks"], bins) if masked else np.zeros((0, 0), bool),
                behaviour={name: load(data, bins) for name, data in columns["behaviour"].items()},
                trials={name: values[trials] for name, values in columns["trials"].items()},
                units=columns["units"],
                source=source,
            )
            if not signals:
                check_counts(
                    chunk.counts,
                    chunk.masks,
                    source,
                    lambda row, unit, begin=begin: f"counts[{begin + row}, {unit}]",
                )
            yield chunk


def to_arrays(recording: Recording) -> dict[str, np.ndarray]:
    """Return the arrays of a recording by name, in the layout that `from_arrays` reads.

    Raise InputError if an array holds anything but numbers, booleans or text.

    Example:
        >>> recording = Recording(np.ones((3, 2), int), 0.02, trials={"target": [4]})
        >>> sorted(to_arrays(recording))[:4]
        ['bin_width', 'counts', 'lengths', 'masks']
        >>> sorted(to_arrays(recording))[4:]
        ['start_times', 'trials/target', 'units/id']
    """
    arrays = {
        "counts": recording.counts,
        "bin_width": np.asarray(recording.bin_width),
        "lengths": np.asarray(recording.lengths),
        "start_times": recording.start_times,
        "masks": recording.masks,
    }
    for table in TABLES:
        columns = getattr(recording, table)
        arrays |= {f"{table}/{name}": values for name, values in columns.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in KINDS:
            remedy = "keep numbers, booleans or text in it"
            raise InputError(f"{name} of {array.dtype}", recording.source, remedy)
    return arrays


def from_arrays(
    arrays: Mapping[str, np.ndarray],
    source: str,
    bin_width: float | None = None,
    signals: bool = False,
) -> Recording:
    """Return a recording made from named arrays, by the rules of `evkf.data.read_arrays`.

    Args:
        arrays: Arrays by name; `counts` is required.
        source: Name of the file, for messages.
        bin_width: In seconds, if the arrays do not give the bin width.
        signals: True for continuous signals, False for counts.

    Example:
        >>> arrays = {"counts": np.ones((2, 4, 3), int), "hand": np.zeros((2, 4, 2))}
        >>> recording = from_arrays(arrays, "day1.npz", bin_width=0.02)
        >>> recording.lengths, recording.behaviour["hand"].shape
        ((4, 4), (8, 2))
    """
    counts = find_counts(arrays, source)
    lengths = find_lengths(arrays, counts.shape, source)
    keep = np.arange(counts.shape[1]) < np.array(lengths)[:, None] if counts.ndim == 3 else None

    def flatten(array: np.ndarray, name: str) -> np.ndarray:
        if keep is None:
            return array
        if array.shape[:2] != keep.shape:
            remedy = f"pass (trials, bins, ...), which are {keep.shape}"
            raise InputError(f"{name} of shape {array.shape}", f"{source}: {name}", remedy)
        return array.reshape(-1, *array.shape[2:]) if keep.all() else array[keep]

    tables: dict[str, dict[str, np.ndarray]] = {table: {} for table in TABLES}
    for name, (table, column) in place_columns(arrays, counts.shape, len(lengths), source).items():
        array = arrays[name]
        tables[table][column] = flatten(array, name) if table == "behaviour" else array
    given: Any = {name: arrays[name] for name in ("start_times",) if name in arrays}
    if "masks" in arrays:
        given["masks"] = flatten(arrays["masks"], "masks")
    recording = Recording(
        flatten(counts, "counts"),
        find_width(arrays, source, bin_width),
        lengths,
        **given | tables,
        source=source,
    )

    def name_place(row: int, unit: int) -> str:
        if recording.num_trials == 1:
            return f"counts[{row}, {unit}]"
        trial = int(recording.trial_of_bin[row])
        first = sum(recording.lengths[:trial])
        return f"counts, trial {trial}, bin {row - first}, unit {unit}"

    if not signals:
        check_counts(recording.counts, recording.masks, source, name_place)
    return recording


def find_counts(arrays: Mapping[str, Any], source: str) -> Any:
    """Return the array or HDF5 dataset named "counts".

    Raise InputError if there is none, if it does not hold numbers, or if it does not have 2 or 3
    axes.

    Example:
        >>> find_counts({"spikes": np.zeros((3, 2))}, "day1.npz")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no counts among the arrays spikes (in day1.npz): name them 'counts'
    """
    if "counts" not in arrays:
        names = ", ".join(sorted(arrays)) or "(none)"
        raise InputError(f"no counts among the arrays {names}", source, "name them 'counts'")
    counts = arrays["counts"]
    if len(counts.shape) not in (2, 3) or counts.dtype.kind not in "iuf":
        what = f"counts of {counts.dtype} and shape {counts.shape}"
        remedy = "pass numbers of shape (bins, units) or (trials, bins, units)"
        raise InputError(what, f"{source}: counts", remedy)
    return counts


def find_lengths(
    arrays: Mapping[str, np.ndarray], shape: tuple[int, ...], source: str
) -> tuple[int, ...]:
    """Return the number of bins of every trial, from `lengths` or `trial_lengths`.

    Without these arrays, counts (trials, bins, units) have trials of equal length, and counts
    (bins, units) are a single trial.

    Args:
        arrays: Arrays by name.
        shape: Shape of the counts.
        source: Name of the file, for messages.

    Example:
        >>> find_lengths({}, (2, 5, 3), "day1.npz"), find_lengths({}, (10, 3), "day1.npz")
        ((5, 5), (10,))
    """
    names = [name for name in ("lengths", "trial_lengths") if name in arrays]
    if not names:
        return (shape[1],) * shape[0] if len(shape) == 3 else (shape[0],)
    given = np.asarray(arrays[names[0]])
    where = f"{source}: {names[0]}"
    if len(names) > 1 and not np.array_equal(given, arrays[names[1]]):
        raise InputError("lengths and trial_lengths that differ", source, "leave one of them out")
    whole = given.ndim == 1 and given.dtype.kind in "iuf" and np.array_equal(given, given // 1)
    if not whole or not len(given):
        what = f"lengths of {given.dtype} and shape {given.shape}"
        raise InputError(what, where, "pass a whole number of bins for every trial")
    if len(shape) == 3 and (len(given) != shape[0] or given.min() < 1 or given.max() > shape[1]):
        what = f"{len(given)} lengths from {given.min()} to {given.max()}"
        remedy = f"pass one of 1 to {shape[1]} bins for each of the {shape[0]} trials"
        raise InputError(what, where, remedy)
    return tuple(int(n) for n in given)


def place_columns(
    arrays: Mapping[str, Any], shape: tuple[int, ...], num_trials: int, source: str
) -> dict[str, tuple[str, str]]:
    """Return the names of table and column for every array that is a column of a table.

    Arrays with a meaning of their own, such as `counts`, and single values are skipped. Raise
    InputError for an array that fits no table, or a column that is given twice.

    Args:
        arrays: Arrays or HDF5 datasets by name.
        shape: Shape of the counts.
        num_trials: Number of trials.
        source: Name of the file, for messages.

    Example:
        >>> arrays = {"pos": np.zeros((9, 2)), "target": np.zeros(3), "units/area": np.zeros(4)}
        >>> place_columns(arrays, (9, 4), 3, "day1.npz")["target"]
        ('trials', 'target')
    """
    places: dict[str, tuple[str, str]] = {}
    for name, array in arrays.items():
        table, _, column = name.partition("/")
        if name in OWN:
            continue
        if name == "unit_id":
            place = ("units", "id")
        elif table in TABLES and column:
            place = (table, column)
        elif array.shape == ():
            continue
        elif array.shape[: len(shape) - 1] == shape[:-1]:
            place = ("behaviour", name)
        elif array.shape[0] == num_trials:
            place = ("trials", name)
        elif array.shape[0] == shape[-1]:
            place = ("units", name)
        else:
            axes = f"{' x '.join(map(str, shape[:-1]))} bins, {num_trials} trials or {shape[-1]}"
            what = f"an array of shape {array.shape}, which fits neither {axes} units"
            raise InputError(what, f"{source}: {name}", how_to_leave_out(name))
        if array.dtype.kind not in KINDS + "O":
            what = f"an array of {array.dtype}"
            raise InputError(what, f"{source}: {name}", how_to_leave_out(name))
        if place in places.values():
            what = f"{place[0]} {place[1]!r} twice"
            raise InputError(what, f"{source}: {name}", how_to_leave_out(name))
        places[name] = place
    return places
