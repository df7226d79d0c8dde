"""Plain files of counts: npz, HDF5 and CSV."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evkf.data.files import load, open_hdf5, read_npz, replacing, write_hdf5, write_npz
from evkf.data.layout import (
    check_counts,
    find_counts,
    find_lengths,
    find_width,
    from_arrays,
    place_columns,
    to_arrays,
)
from evkf.data.recording import Recording, cut_trials
from evkf.data.tables import read_csv, write_csv
from evkf.errors import InputError

HDF5 = (".h5", ".hdf5")


def read_arrays(
    path: str | os.PathLike,
    bin_width: float | None = None,
    *,
    signals: bool = False,
    leave_out: Collection[str] = (),
) -> Recording:
    """Read a recording from an npz, HDF5 or CSV file.

    An npz or HDF5 file holds `counts`, (bins, units) or (trials, bins, units), and may hold

    - `bin_width` in seconds or `bin_ms`;
    - `lengths` or `trial_lengths`: bins of every trial, of trials laid end to end, or of trials
      that were filled up to the same number of bins in (trials, bins, units);
    - `masks`: True where observed, of the shape of the counts;
    - `start_times` of the trials, in seconds; `unit_id`;
    - other arrays. `behaviour/x`, `trials/x` and `units/x` are columns x of these tables. Without
      such a prefix, an array whose first axis (axes, for counts by trial) is that of the bins is
      behaviour; else, if it has a row for every trial, a column of the trials; else, if it has a
      row for every unit, a column of the units. One that fits nowhere is refused. Single values
      say nothing of bins, trials or units and are passed over.

    A CSV file has a header of unit names and one row a bin. A column `trial` tells trials apart, a
    column `time` says when every bin begins.

    Args:
        path: Ends in .npz, .h5, .hdf5 or .csv.
        bin_width: In seconds, if the file does not say.
        signals: Whether these are continuous signals; counts must be whole and not negative.
        leave_out: Names of arrays, or of columns of a CSV file, not to read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", counts=np.ones((6, 2), int), lengths=[2, 4], bin_ms=20)
        ...     recording = read_arrays(f"{folder}/a.npz")
        >>> recording.lengths, recording.bin_width
        ((2, 4), 0.02)
    """
    place = Path(path)
    leave_out = _names(leave_out)
    if place.suffix == ".csv":
        return read_csv(place, bin_width, signals, leave_out)
    return from_arrays(load_arrays(place, leave_out), str(path), bin_width, signals)


def load_arrays(path: Path, leave_out: Collection[str] = ()) -> dict[str, np.ndarray]:
    """What an npz or HDF5 file holds, but for some names."""
    if path.suffix == ".npz":
        return read_npz(path, leave_out)
    if path.suffix not in HDF5:
        raise _unknown(path)
    with open_hdf5(path, leave_out) as datasets:
        return {name: load(dataset) for name, dataset in datasets.items()}


def write_arrays(path: str | os.PathLike, recording: Recording, *, overwrite: bool = False) -> None:
    """Write a recording to an npz, HDF5 or CSV file.

    From npz and HDF5 files `read_arrays` gives back the same, but for `source`. A CSV file holds
    counts, times and trials only, and not the width of a bin; a recording of more is refused. A
    file is complete or not there: it is written beside its place and moved when it is on disk.

    Args:
        path: Ends in .npz, .h5, .hdf5 or .csv.
        recording: What to write.
        overwrite: Whether to write in place of a file that is there.

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
        raise _unknown(place)
    with replacing(place, overwrite) as part:
        if place.suffix == ".csv":
            write_csv(part, recording)
        elif place.suffix == ".npz":
            write_npz(part, to_arrays(recording))
        else:
            write_hdf5(part, to_arrays(recording))


def stream_arrays(
    path: str | os.PathLike,
    chunk_bins: int,
    bin_width: float | None = None,
    *,
    signals: bool = False,
    leave_out: Collection[str] = (),
) -> Iterator[Recording]:
    """Read a recording from an HDF5 file some bins at a time.

    Only the bins of one chunk are in memory, with the tables of trials and units. A trial that does
    not end in a chunk goes on in the next, where its start time is that of its first bin there; the
    column "trial", added where the file has none of this name, says which trial of the file it is.

    Args:
        path: Ends in .h5 or .hdf5, with counts of (bins, units); the rest as for `read_arrays`.
        chunk_bins: Bins of a chunk; the last may have fewer.
        bin_width: In seconds, if the file does not say.
        signals: Whether these are continuous signals.
        leave_out: Names of arrays not to read.

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
    return _stream(place, chunk_bins, bin_width, signals, _names(leave_out))


def _stream(
    path: Path, chunk_bins: int, bin_width: float | None, signals: bool, leave_out: Collection[str]
) -> Iterator[Recording]:
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
        columns: dict[str, dict[str, Any]] = {"behaviour": {}, "trials": {}, "units": {}}
        places = place_columns(datasets, counts.shape, len(lengths), source)
        for name, (table, column) in places.items():
            data = datasets[name]
            columns[table][column] = data if table == "behaviour" else load(data)
        columns["trials"].setdefault("trial", np.arange(len(lengths)))
        _check_whole(counts, lengths, head, columns, datasets, source)
        starts = np.asarray(head.get("start_times", width * (np.cumsum(lengths) - lengths)))
        for begin in range(0, len(counts), chunk_bins):
            rows = slice(begin, min(begin + chunk_bins, len(counts)))
            held, parts, begins = cut_trials(lengths, starts, width, rows)
            masked = "masks" in datasets
            chunk = Recording(
                load(counts, rows),
                width,
                parts,
                begins,
                masks=load(datasets["masks"], rows) if masked else np.zeros((0, 0), bool),
                behaviour={name: load(data, rows) for name, data in columns["behaviour"].items()},
                trials={name: values[held] for name, values in columns["trials"].items()},
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


def _check_whole(
    counts: Any, lengths: tuple[int, ...], head: dict, columns: dict, datasets: dict, source: str
) -> None:
    """What a chunk cannot see of the whole: it would be cut to the chunk, and fit."""
    wanted = {f"behaviour {name!r}": (x, len(counts)) for name, x in columns["behaviour"].items()}
    wanted |= {f"trials {name!r}": (x, len(lengths)) for name, x in columns["trials"].items()}
    wanted |= {"masks": (datasets["masks"], len(counts))} if "masks" in datasets else {}
    wanted |= {"start_times": (head["start_times"], len(lengths))} if "start_times" in head else {}
    for name, (array, rows) in wanted.items():
        if array.shape[:1] != (rows,):
            what = f"{name} of shape {array.shape}"
            raise InputError(what, f"{source}: {name}", f"pass {rows} rows")
    if min(lengths) < 1 or sum(lengths) != len(counts):
        what = f"trials of {sum(lengths)} bins, the shortest {min(lengths)}, for {len(counts)} bins"
        raise InputError(what, f"{source}: lengths", "pass the bins of every trial, one or more")


def _names(leave_out: Collection[str]) -> Collection[str]:
    return (leave_out,) if isinstance(leave_out, str) else leave_out


def _unknown(path: Path) -> InputError:
    what, remedy = f"a file named {path.name!r}", "end it in .npz, .h5, .hdf5 or .csv"
    return InputError(what, str(path), remedy)
