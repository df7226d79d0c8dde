"""Named arrays to a `Recording` and back."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from evkf.data.files import KINDS, how_to_leave_out
from evkf.data.recording import Recording
from evkf.errors import InputError

TABLES = ("behaviour", "trials", "units")
OWN = ("counts", "bin_width", "bin_ms", "lengths", "trial_lengths", "masks", "start_times")


def to_arrays(recording: Recording) -> dict[str, np.ndarray]:
    """All of a recording under names from which `from_arrays` makes it again.

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
    """A recording from named arrays, sorted by the rules of `evkf.data.read_arrays`.

    Example:
        >>> arrays = {"counts": np.ones((2, 4, 3), int), "hand": np.zeros((2, 4, 2))}
        >>> recording = from_arrays(arrays, "day1.npz", bin_width=0.02)
        >>> recording.lengths, recording.behaviour["hand"].shape
        ((4, 4), (8, 2))
    """
    counts = find_counts(arrays, source)
    lengths = find_lengths(arrays, counts.shape, source)
    keep = np.arange(counts.shape[1]) < np.array(lengths)[:, None] if counts.ndim == 3 else None

    def flat(array: np.ndarray, name: str) -> np.ndarray:
        if keep is None:
            return array
        if array.shape[:2] != keep.shape:
            remedy = f"pass (trials, bins, ...), which are {keep.shape}"
            raise InputError(f"{name} of shape {array.shape}", f"{source}: {name}", remedy)
        return array.reshape(-1, *array.shape[2:]) if keep.all() else array[keep]

    tables: dict[str, dict[str, np.ndarray]] = {table: {} for table in TABLES}
    for name, (table, column) in place_columns(arrays, counts.shape, len(lengths), source).items():
        array = arrays[name]
        tables[table][column] = flat(array, name) if table == "behaviour" else array
    given: Any = {name: arrays[name] for name in ("start_times",) if name in arrays}
    if "masks" in arrays:
        given["masks"] = flat(arrays["masks"], "masks")
    recording = Recording(
        flat(counts, "counts"),
        find_width(arrays, source, bin_width),
        lengths,
        **given | tables,
        source=source,
    )
    if not signals:
        check_counts(recording.counts, recording.masks, source, _namer(recording))
    return recording


def find_counts(arrays: Mapping[str, Any], source: str) -> Any:
    """The array or dataset of counts.

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
    """Bins of every trial.

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


def find_width(arrays: Mapping[str, np.ndarray], source: str, given: float | None) -> float:
    """The width of a bin in seconds, if those who know it agree.

    Example:
        >>> find_width({"bin_ms": np.array(5)}, "day1.npz", None)
        0.005
        >>> find_width({}, "day1.npz", None)
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: the width of a bin is not known (in day1.npz): pass it in seconds, \
as bin_width or --bin-width
    """
    known = {} if given is None else {"bin_width as passed": float(given)}
    for name, unit in (("bin_width", 1), ("bin_ms", 1000)):
        if name not in arrays:
            continue
        array = np.asarray(arrays[name])
        if array.size != 1 or array.dtype.kind not in "iuf":
            what = f"{name} of {array.dtype} and shape {array.shape}"
            raise InputError(what, f"{source}: {name}", "pass one number")
        known[f"{name} of the file"] = float(array.item()) / unit
    if not known:
        remedy = "pass it in seconds, as bin_width or --bin-width"
        raise InputError("the width of a bin is not known", source, remedy)
    first, *others = known.values()
    if any(abs(other - first) > 1e-6 * abs(first) for other in others):
        what = ", but ".join(f"{name} is {value} s" for name, value in known.items())
        raise InputError(what, source, "pass the right one alone; rebin with Recording.rebinned")
    return first if given is None else float(given)


def place_columns(
    arrays: Mapping[str, Any], shape: tuple[int, ...], num_trials: int, source: str
) -> dict[str, tuple[str, str]]:
    """Table and column for the name of every array (or dataset) that is not one of our own.

    Example:
        >>> arrays = {"pos": np.zeros((9, 2)), "target": np.zeros(3), "units/area": np.zeros(4)}
        >>> place_columns(arrays, (9, 4), 3, "day1.npz")["target"]
        ('trials', 'target')
    """
    places: dict[str, tuple[str, str]] = {}
    for name, array in arrays.items():
        if name in OWN:
            continue
        table, _, column = name.partition("/")
        if name == "unit_id":
            place = ("units", "id")
        elif table in TABLES and column:
            place = (table, column)
        elif array.shape == ():
            continue
        else:
            place = (_match(array.shape, shape, num_trials, name, source), name)
        if array.dtype.kind not in KINDS + "O":
            what = f"an array of {array.dtype}"
            raise InputError(what, f"{source}: {name}", how_to_leave_out(name))
        if place in places.values():
            what = f"{place[0]} {place[1]!r} twice"
            raise InputError(what, f"{source}: {name}", how_to_leave_out(name))
        places[name] = place
    return places


def _match(
    shape: tuple[int, ...], counts: tuple[int, ...], num_trials: int, name: str, source: str
) -> str:
    if shape[: len(counts) - 1] == counts[:-1]:
        return "behaviour"
    if shape[0] == num_trials:
        return "trials"
    if shape[0] == counts[-1]:
        return "units"
    axes = f"{' x '.join(map(str, counts[:-1]))} bins, {num_trials} trials or {counts[-1]} units"
    what = f"an array of shape {shape}, which fits neither {axes}"
    raise InputError(what, f"{source}: {name}", how_to_leave_out(name))


def check_counts(
    counts: np.ndarray, masks: np.ndarray, source: str, place: Callable[[int, int], str]
) -> None:
    """Refuse observed counts that are negative or not whole, naming the place of the first.

    Example:
        >>> check_counts(np.array([[0.5]]), np.ones((1, 1), bool), "day1.npz", "[{}, {}]".format)
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: a count of 0.5 (in day1.npz: [0, 0]): pass whole counts from \
zero on, or signals=True for continuous signals
    """
    if counts.dtype.kind == "u":
        return
    right = counts >= 0
    if counts.dtype.kind == "f":
        right &= np.isfinite(counts) & (np.floor(counts) == counts)
    wrong = ~right & masks
    if wrong.any():
        row, unit = map(int, np.unravel_index(np.argmax(wrong), wrong.shape))
        remedy = "pass whole counts from zero on, or signals=True for continuous signals"
        raise InputError(f"a count of {counts[row, unit]}", f"{source}: {place(row, unit)}", remedy)


def _namer(recording: Recording) -> Callable[[int, int], str]:
    def place(row: int, unit: int) -> str:
        if recording.num_trials == 1:
            return f"counts[{row}, {unit}]"
        ends = np.cumsum(recording.lengths)
        trial = int(np.searchsorted(ends, row, side="right"))
        first = ends[trial] - recording.lengths[trial]
        return f"counts, trial {trial}, bin {row - first}, unit {unit}"

    return place
