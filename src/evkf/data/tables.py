"""CSV files of counts: one row a bin, one column a unit."""

import csv
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from evkf.data.files import check_file, unreadable
from evkf.data.layout import check_counts, find_width
from evkf.data.recording import Recording
from evkf.errors import InputError
from evkf.numerics.trials import bins_of

OWN = ("time", "trial")


def read_csv(
    path: Path, bin_width: float | None, signals: bool = False, leave_out: Collection[str] = ()
) -> Recording:
    """Read a recording from a CSV file, as `evkf.data.read_arrays` describes it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = Path(folder) / "a.csv"
        ...     _ = place.write_text("trial,u1,u2\\n1,0,3\\n1,2,0\\n2,0,1\\n")
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

    def place(row: int, unit: int) -> str:
        return f"line {lines[row]}, column {header[units[unit]]!r}"

    counts = np.empty((len(rows), len(units)))
    for row, cells in enumerate(rows):
        counts[row] = _numbers(
            [cells[k] for k in units], [header[k] for k in units], source, lines[row]
        )
    if not signals:
        check_counts(counts, np.ones(counts.shape, bool), source, place)
        counts = counts.astype(np.int64)
    split = "trial" in header and "trial" not in leave_out
    labels = [cells[header.index("trial")].strip() if split else "" for cells in rows]
    firsts = [k for k, label in enumerate(labels) if k == 0 or label != labels[k - 1]]
    _check_together([labels[k] for k in firsts], [lines[k] for k in firsts], source)
    lengths = np.diff([*firsts, len(rows)])
    given = {}
    if "time" in header and "time" not in leave_out:
        column = header.index("time")
        times = [
            _numbers([cells[column]], ["time"], source, line)[0]
            for cells, line in zip(rows, lines, strict=True)
        ]
        given["start_times"] = _start_times(np.array(times), lengths, width, source, lines)
    return Recording(
        counts,
        width,
        tuple(lengths.tolist()),
        **given,
        trials={"trial": _labels([labels[k] for k in firsts])} if split else {},
        units={"id": _labels([header[k] for k in units])},
        source=source,
    )


def write_csv(path: Path, recording: Recording) -> None:
    """Write a recording that is no more than counts, times and trials.

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
    """Header, rows, and the line each row ends at."""
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


def _numbers(cells: Sequence[str], names: Sequence[str], source: str, line: int) -> np.ndarray:
    try:
        return np.array(cells, float)
    except ValueError:
        for cell, name in zip(cells, names, strict=True):
            try:
                float(cell)
            except ValueError as error:
                what = f"{cell!r}, which is not a number" if cell.strip() else "an empty cell"
                where = f"{source}: line {line}, column {name!r}"
                remedy = "pass a number, or leave out the column"
                raise InputError(what, where, remedy) from error
        raise


def _labels(texts: list[str]) -> np.ndarray:
    """Whole numbers where all texts are such, written the one way there is."""
    try:
        numbers = [int(text) for text in texts]
    except ValueError:
        return np.array(texts)
    return np.array(numbers if [str(n) for n in numbers] == texts else texts)


def _check_together(labels: list[str], lines: list[int], source: str) -> None:
    seen: set[str] = set()
    for label, line in zip(labels, lines, strict=True):
        if label in seen:
            what = f"trial {label!r} again, after another"
            where = f"{source}: line {line}, column 'trial'"
            raise InputError(what, where, "keep the rows of a trial together, one name a trial")
        seen.add(label)


def _start_times(
    times: np.ndarray, lengths: np.ndarray, width: float, source: str, lines: list[int]
) -> np.ndarray:
    starts = times[np.cumsum(lengths) - lengths]
    bins = bins_of(lengths)
    # Half a bin lets rounded times pass, and no missing row.
    wrong = ~(np.abs(times - np.repeat(starts, lengths) - width * bins) < width / 2)
    if wrong.any():
        row = int(np.argmax(wrong))
        what = (
            f"time {times[row]}, which is not {bins[row]} bins of {width} s after its trial began"
        )
        where = f"{source}: line {lines[row]}, column 'time'"
        raise InputError(what, where, "pass the right bin_width, and every bin of a trial")
    return starts
