"""Read recordings from folders that Kilosort wrote and that Phy may have curated."""

import ast
import csv
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np

from evkf.data.files import BROKEN, check_file, unreadable
from evkf.data.recording import Recording
from evkf.errors import InputError
from evkf.numerics.binning import bin_index, check_bin_width, whole_bins

CHUNK = 1 << 20
"""Number of spikes that are in memory at a time."""


def read_kilosort(
    folder: str | os.PathLike,
    bin_width: float,
    groups: Collection[str] = ("good",),
    start: float | None = None,
    stop: float | None = None,
) -> Recording:
    r"""Return a recording of the binned spikes in a Kilosort or Phy folder, as a single trial.

    The folder must have `params.py` (only the value `sample_rate` is read, the file is not run),
    `spike_times.npy` in samples, `spike_clusters.npy`, and a label for each cluster. The labels are
    column `group` of `cluster_group.tsv`; without this file, column `group` of `cluster_info.tsv`;
    without this column, column `KSLabel` of `cluster_info.tsv` or `cluster_KSLabel.tsv`. All
    columns of these files become columns of the units. Clusters without a spike are left out.

    Args:
        folder: Folder that has these files.
        bin_width: In seconds.
        groups: Labels of the clusters to take, such as "good" or "mua".
        start: Begin of the first bin in seconds; 0 by default.
        stop: Time in seconds that no bin goes beyond. By default the last bin is the one with the
            last spike of all clusters, taken or not.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = Path(folder)
        ...     _ = (place / "params.py").write_text("sample_rate = 1000.")
        ...     _ = (place / "cluster_group.tsv").write_text("cluster_id\tgroup\n3\tgood\n")
        ...     np.save(place / "spike_times.npy", np.array([1, 12, 15], np.uint64))
        ...     np.save(place / "spike_clusters.npy", np.array([3, 3, 5], np.int32))
        ...     recording = read_kilosort(folder, bin_width=0.01)
        >>> recording.counts.tolist(), recording.units["id"].tolist()
        ([[1], [1]], [3])
    """
    place = Path(folder)
    if not place.is_dir():
        raise InputError("no such folder", str(folder), "pass the folder that Kilosort wrote")
    check_bin_width(bin_width)
    rate = _sample_rate(place / "params.py")
    samples, clusters = (_map(place / f"{name}.npy") for name in ("spike_times", "spike_clusters"))
    if len(samples) != len(clusters):
        what = f"{len(samples)} spike times for {len(clusters)} spike clusters"
        raise InputError(what, str(folder), "copy both files again; they must be of one sorting")
    if not len(samples):
        raise InputError("no spikes", str(place / "spike_times.npy"), "is the sorting complete?")
    present = _check_spikes(samples, clusters, str(place / "spike_times.npy"))
    labels, table = _labels(place)
    groups = (groups,) if isinstance(groups, str) else tuple(groups)
    ids = np.array([unit for unit in present if labels.get(unit) in groups], np.int64)
    if not len(ids):
        have = ", ".join(sorted({labels.get(unit) or "(none)" for unit in present}))
        what = f"no unit in the groups {', '.join(groups)}, only in {have}"
        raise InputError(what, str(folder), "pass groups that are there, or label units in Phy")
    begin = 0.0 if start is None else float(start)
    if stop is None:
        num_bins = int(bin_index(samples[-1] / rate, begin, bin_width)) + 1
    else:
        num_bins = int(whole_bins(begin, float(stop), bin_width))
    if num_bins < 1:
        what = f"no whole bin of {bin_width} s from {begin} s to {stop or samples[-1] / rate} s"
        raise InputError(what, str(folder), "pass start and stop in seconds, further apart")
    counts = np.zeros((num_bins, len(ids)), np.int32)
    for first in range(0, len(samples), CHUNK):
        rows = slice(first, first + CHUNK)
        bins = bin_index(samples[rows] / rate, begin, bin_width)
        units = np.minimum(np.searchsorted(ids, clusters[rows]), len(ids) - 1)
        taken = (ids[units] == clusters[rows]) & (bins >= 0) & (bins < num_bins)
        np.add.at(counts, (bins[taken], units[taken]), 1)
    columns = {}
    for name, values in table.items():
        cells = [values.get(int(unit), "") for unit in ids]
        try:
            columns[name] = np.array([float(cell) if cell else np.nan for cell in cells])
        except ValueError:
            # some cells hold text
            columns[name] = np.array(cells)
    return Recording(
        counts,
        bin_width,
        start_times=np.array([begin]),
        units={**columns, "id": ids},
        source=str(folder),
    )


def _sample_rate(path: Path) -> float:
    check_file(path)
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise unreadable(path, error) from error
    rate = None
    for line in body:
        if isinstance(line, ast.Assign) and "sample_rate" in map(ast.unparse, line.targets):
            try:
                rate = ast.literal_eval(line.value)
            except (ValueError, TypeError):
                rate = ast.unparse(line.value)
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < np.inf:
        what = "no sample_rate" if rate is None else f"sample_rate = {rate!r}"
        raise InputError(what, str(path), "write sample_rate = and samples per second, as a number")
    return float(rate)


def _map(path: Path) -> np.ndarray:
    check_file(path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except BROKEN as error:
        raise unreadable(path, error) from error
    # (spikes,), or (spikes, 1) as MATLAB writes
    if (
        not isinstance(array, np.ndarray)
        or array.dtype.kind not in "iu"
        or array.size != max(array.shape, default=0)
    ):
        kind = getattr(array, "dtype", type(array).__name__)
        what = f"an array of {kind} and shape {getattr(array, 'shape', ())}"
        raise InputError(what, str(path), "pass one whole number a spike")
    return array.reshape(-1)


def _check_spikes(samples: np.ndarray, clusters: np.ndarray, source: str) -> list[int]:
    """Return the sorted ids of clusters that have spikes; raise InputError for unsorted spikes."""
    present: set[int] = set()
    for begin in range(0, len(samples), CHUNK):
        rows = slice(begin, begin + CHUNK)
        # includes the last spike of the chunk before, to check the order between chunks
        first = max(rows.start - 1, 0)
        piece = np.asarray(samples[first : rows.stop])
        wrong = piece[1:] < piece[:-1]
        if wrong.any():
            index = first + int(np.argmax(wrong)) + 1
            what = f"a spike at sample {samples[index]} after one at {samples[index - 1]}"
            remedy = "sort spike_times.npy and spike_clusters.npy together"
            raise InputError(what, f"{source}, index {index}", remedy)
        present.update(np.unique(clusters[rows]).tolist())
    return sorted(present)


def _labels(folder: Path) -> tuple[dict[int, str], dict[str, dict[int, str]]]:
    """Return the label of every cluster by id, and all columns of the label files.

    The columns are dictionaries by name, each of values by cluster id. Raise InputError if there
    are no labels.
    """
    table: dict[str, dict[int, str]] = {}
    # columns of a later file replace those of an earlier one
    for file_name in ("cluster_KSLabel.tsv", "cluster_info.tsv", "cluster_group.tsv"):
        path = folder / file_name
        if not path.is_file():
            continue
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, delimiter="\t")
                header = next(reader, [])
                key = next((name for name in ("cluster_id", "id") if name in header), None)
                if key is None:
                    what = f"no column cluster_id among {', '.join(header) or '(none)'}"
                    raise InputError(what, f"{path}: line 1", "save the sorting in Phy again")
                columns: dict[str, dict[int, str]] = {name: {} for name in header if name != key}
                for cells in filter(None, reader):
                    row = dict(zip(header, cells, strict=False))
                    if not row.get(key, "").strip().isdigit():
                        what = f"{row.get(key)!r} as the id of a cluster"
                        remedy = "save the sorting in Phy again"
                        raise InputError(what, f"{path}: line {reader.line_num}", remedy)
                    for name in columns:
                        columns[name][int(row[key])] = row.get(name, "").strip()
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise unreadable(path, error) from error
        table |= columns
    for name in ("group", "KSLabel"):
        if name in table:
            return table[name], table
    what = "no labels in cluster_group.tsv, cluster_info.tsv or cluster_KSLabel.tsv"
    raise InputError(what, str(folder), "copy one of these files, or save the sorting in Phy")
