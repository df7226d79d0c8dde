"""Arrays in which the bins of all trials are concatenated: checks, and the bins of each trial."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.numerics.checks import real_numbers

Lengths = Sequence[int] | np.ndarray
"""Number of bins of each trial."""


def read_bins(value: ArrayLike, where: str) -> Float[np.ndarray, "T N"]:
    """Return an array of one row per bin as float64.

    Raise InputError if the array is not (bins, columns), is empty, or has values that are not
    finite. `where` is the name of the array in the error.

    Example:
        >>> read_bins([[1, 0], [2, 1]], "counts").dtype
        dtype('float64')
    """
    array = real_numbers(value, where).astype(float)
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{where} of shape {array.shape}", where, "pass (bins, columns)")
    if not np.isfinite(array).all():
        t, n = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InputError(f"{array[t, n]}", f"{where}[{t}, {n}]", "leave out the column or the bins")
    return array


def read_counts(value: ArrayLike, where: str = "counts") -> Float[np.ndarray, "T N"]:
    """Return counts as `read_bins` does; also raise InputError if any count is negative.

    Example:
        >>> read_counts([[1, 0]]).tolist()
        [[1.0, 0.0]]
    """
    array = read_bins(value, where)
    if np.any(array < 0):
        t, n = (int(i) for i in np.argwhere(array < 0)[0])
        raise InputError(f"count {array[t, n]}", f"{where}[{t}, {n}]", "pass counts")
    return array


def slices(lengths: Lengths, bins: int) -> list[slice]:
    """Return, for each trial, the slice of its bins in the concatenated arrays.

    Args:
        lengths: Number of bins of each trial, one or more.
        bins: Number of bins of all trials; InputError is raised if `lengths` have another sum.

    Example:
        >>> slices((2, 3), 5)
        [slice(0, 2, None), slice(2, 5, None)]
    """
    sizes = [int(n) for n in lengths]
    if not sizes or min(sizes) < 1 or sum(sizes) != bins:
        what = f"trials of {sum(sizes)} bins in all, for {bins} bins"
        raise InputError(what, "lengths", "pass the number of bins of every trial, one or more")
    ends = np.cumsum(sizes)
    return [slice(int(end - n), int(end)) for n, end in zip(sizes, ends, strict=True)]


def bins_of(lengths: Lengths) -> np.ndarray:
    """Return, for each bin, its index within the trial, from 0 on.

    Example:
        >>> bins_of((2, 3)).tolist()
        [0, 1, 0, 1, 2]
    """
    return np.concatenate([np.arange(n) for n in lengths])


def aligned(
    values: np.ndarray, trials: Sequence[slice], shifts: np.ndarray
) -> tuple[int, Float[np.ndarray, "K B"]]:
    """Align trials to an event, and return one row for each trial.

    Args:
        values: One value for each bin, the bins of all trials concatenated.
        trials: Slice of the bins of each trial, as `slices` returns.
        shifts: Index of the bin of the event within each trial.

    Returns:
        The bin of the first column, counted from the event (usually negative), and the array
        (trials, columns), NaN where a trial has no bin.

    Example:
        >>> first, rows = aligned(np.arange(5.0), slices((2, 3), 5), np.array([0, 1]))
        >>> first, rows.tolist()
        (-1, [[nan, 0.0, 1.0], [2.0, 3.0, 4.0]])
    """
    ends = [trial.stop - trial.start for trial in trials]
    first = int(-shifts.max())
    last = max(n - shift for n, shift in zip(ends, shifts, strict=True))
    grid = np.full((len(trials), last - first), np.nan)
    for row, trial, shift in zip(grid, trials, shifts, strict=True):
        row[-first - shift :][: trial.stop - trial.start] = values[trial]
    return first, grid
