"""Read and write recordings as CSV files: one row for each bin, one column for each unit."""

import csv
from collections.abc import Collection
from pathlib import Path

import numpy as np

from evkf.data.files import check_file, unreadable
from evkf.data.recording import Recording
from evkf.errors import InputError
from evkf.numerics.binning import check_counts, find_width
from evkf.numerics.trials import bins_of

OWN = ("time", "trial")


def read_csv(
    path: Path, bin_width: float | None, signals: bool = False, leave_out: Collection[str] = ()
) -> Recording:
    r"""Return the recording in a CSV file, whose layout `evkf.data.read_arrays` describes.

    Args:
        path: The file.
        bin_width: In seconds; required, because the file does not give the bin width.
        signals: True for continuous signals, False for counts.
        leave_out: Names of columns that are not read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = Path(folder) / "a.csv"
        ...     _ = place.write_text("trial,u1,u2\n1,0,3\n1,2,0\n2,0,1\n")
        ...     recording = read_csv(place, 0.02)
        >>> recording.lengths, recording.units["id"].tolist(), recording.trials["trial"].tolist()
        ((2, 1), ['u1', 'u2'], [1, 2])
    """
    source = str(path)
    width = find_width({}, source, bin_width)
    header, rows, lines = _read_rows(path)
    units = [k for k, name in enumerate(header) if name not in (*OWN, *leave_out)]
    if not units or not rows:
        what = f"{len(units)} columns of units and {len(rows)} rows"
        raise InputError(what, source, "pass a header of unit names, and one row a bin")
    counts = _numbers(rows, units, header, source, lines)
    if not signals:
        seen = np.ones(counts.shape, bool)
        check_counts(
            counts, seen, source, lambda row, k: f"line {lines[row]}, column {header[units[k]]!r}"
        )
        counts = counts.astype(np.int64)
    split = "trial" in header and "trial" not in leave_out
    labels = [cells[header.index("trial")].strip() if split else "" for cells in rows]
    firsts = [k for k, label in enumerate(labels) if k == 0 or label != labels[k - 1]]
    names: dict[str, None] = {}
    for k in firsts:
        if labels[k] in names:
            what = f"trial {labels[k]!r} again, after another"
            where = f"{source}: line {lines[k]}, column 'trial'"
            raise InputError(what, where, "keep the rows of a trial together, one name a trial")
        names[labels[k]] = None
    lengths = np.diff([*firsts, len(rows)])
    given = {}
    if "time" in header and "time" not in leave_out:
        times = _numbers(rows, [header.index("time")], header, source, lines)[:, 0]
        starts = times[firsts]
        bins = bins_of(lengths)
        # a tolerance of half a bin accepts rounded times, but no missing row
        wrong = ~(np.abs(times - np.repeat(starts, lengths) - width * bins) < width / 2)
        if wrong.any():
            row = int(np.argmax(wrong))
            what = f"time {times[row]}, which is not {bins[row]} bins of {width} s after the "
            what += "begin of its trial"
            where = f"{source}: line {lines[row]}, column 'time'"
            raise InputError(what, where, "pass the right bin_width, and every bin of a trial")
        given["start_times"] = starts
    return Recording(
        counts,
        width,
        tuple(lengths.tolist()),
        **given,
        trials={"trial": _labels(list(names))} if split else {},
        units={"id": _labels([header[k] for k in units])},
        source=source,
    )


def write_csv(path: Path, recording: Recording) -> None:
    """Write counts, times and trials of a recording to a new CSV file.

    Raise InputError if the recording has more, which the file would lose: behaviour, masked bins,
    columns of the trials other than "trial", or columns of the units other than "id".

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_csv(Path(folder) / "a.csv", Recording(np.array([[1, 0], [0, 2]]), 0.5))
        ...     (Path(folder) / "a.csv").read_text().split()
        ['time,trial,0,1', '0.0,0,1,0', '0.5,0,0,2']
    """
    lost = [f"behaviour {name!r}" for name in recording.behaviour]
    lost += [f"trials {name!r}" for name in recording.trials if name != "trial"]
    lost += [f"units {name!r}" for name in recording.units if name != "id"]
    lost += [] if recording.masks.all() else ["masks"]
    if lost:
        remedy = "write .npz or .h5, which hold all"
        raise InputError(f"{', '.join(lost)} would be lost", recording.source, remedy)
    labels = np.asarray(recording.trials.get("trial", np.arange(recording.num_trials)))
    table = zip(
        recording.times.tolist(),
        np.repeat(labels, recording.lengths).tolist(),
        recording.counts.tolist(),
        strict=True,
    )
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*OWN, *recording.units["id"].tolist()])
        writer.writerows([time, trial, *counts] for time, trial, counts in table)


def _read_rows(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the header, the rows below it, and the number of the line where each row ends."""
    check_file(path)
    rows, lines = [], []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    what = f"{len(cells)} cells for {len(header)} columns"
                    where = f"{path}: line {reader.line_num}"
                    raise InputError(what, where, "is the file complete? fill or remove the line")
                rows.append(cells)
                lines.append(reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error) from error
    twice = {name for name in header if header.count(name) > 1}
    if twice:
        what = f"columns named {', '.join(map(repr, sorted(twice)))} more than once"
        raise InputError(what, f"{path}: line 1", "begin with a header that names every unit once")
    return header, rows, lines


def _numbers(
    rows: list[list[str]], columns: list[int], header: list[str], source: str, lines: list[int]
) -> np.ndarray:
    """Return columns as numbers, (rows, columns); raise InputError at a cell without a number."""
    values = np.empty((len(rows), len(columns)))
    for row, cells in enumerate(rows):
        try:
            values[row] = np.array([cells[k] for k in columns], float)
        except ValueError:
            for k in columns:
                try:
                    float(cells[k])
                except ValueError as error:
                    cell = cells[k]
                    what = f"{cell!r}, which is not a number" if cell.strip() else "an empty cell"
                    where = f"{source}: line {lines[row]}, column {header[k]!r}"
                    remedy = "pass a number, or leave out the column"
                    raise InputError(what, where, remedy) from error
            raise
    return values


def _labels(texts: list[str]) -> np.ndarray:
    """Return integers if all texts are integers such as "12" (not "012"), else the texts."""
    try:
        numbers = [int(text) for text in texts]
    except ValueError:
        return np.array(texts)
    return np.array(numbers if [str(n) for n in numbers] == texts else texts)
