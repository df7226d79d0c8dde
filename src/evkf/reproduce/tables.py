"""Results of an experiment, statistics over trials, and Markdown tables, used by all reports.

A row is a dictionary of numbers, usually those of one method on one trial. A series is a dictionary
of arrays that figures plot, such as the filtered means in every bin.
"""

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:  # tasks do not need matplotlib
    from matplotlib.figure import Figure

Row = dict[str, Any]


class ExperimentResult(NamedTuple):
    """Results of all tasks of an experiment: the input of its report, figures and targets.

    Example:
        >>> result = ExperimentResult([{"rows": [{"kl": 1.0}]}, {"rows": [{"kl": 2.0}]}], trials=2)
        >>> result.rows
        [{'kl': 1.0}, {'kl': 2.0}]
        >>> result.averaged
        'mean ± standard deviation over 2 trials'
    """

    results: Sequence[dict[str, Any]]
    """Results of the tasks, as returned by the function `run` of the experiment. Each has a list
    "rows", and for some experiments a list "series"."""
    timing: Sequence[Row] = ()
    """Times of a step, one row for each method and setting. Empty if nothing was timed."""
    trials: int = 1
    quick: bool = False

    @property
    def rows(self) -> list[Row]:
        """Rows (dictionaries of numbers) of all tasks, as one list."""
        return [row for result in self.results for row in result["rows"]]

    @property
    def series(self) -> list[Row]:
        """Series (dictionaries of arrays that figures plot) of all tasks, as one list."""
        return [one for result in self.results for one in result["series"]]

    @property
    def rows_with_series(self) -> list[Row]:
        """Rows of all tasks, each merged with its series.

        Raise ValueError if a task has not exactly one series for each row.
        """
        pairs = (zip(result["rows"], result["series"], strict=True) for result in self.results)
        return [row | series for each in pairs for row, series in each]

    @property
    def averaged(self) -> str:
        """Text on what the cells of a table show: mean ± standard deviation, or one trial."""
        if self.trials == 1:
            return "one trial"
        return f"mean ± standard deviation over {self.trials} trials"

    @property
    def effort(self) -> str:
        """Text that says whether the run was quick or full, and how many trials it had."""
        trials = f"{self.trials} trials" if self.trials > 1 else "one trial"
        return f"{'a quick run' if self.quick else 'the full protocol'}, {trials}"


class Picture(NamedTuple):
    """A figure of an experiment: its caption and the function that draws it."""

    caption: str
    draw: Callable[[ExperimentResult], "Figure"]


class Experiment(NamedTuple):
    """A table or figure of the paper: the functions that run, describe and draw it."""

    module: ModuleType
    """Module that defines METHODS, TRIALS, QUICK_TRIALS, tasks and run. If steps are timed, the
    module also defines TIMED, QUICK_TIMED, timings and ready."""
    report: Callable[[ExperimentResult], str]
    """Function that returns the report page in Markdown. The figures are added below its text."""
    pictures: dict[str, Picture]
    """Figures, by file name without suffix."""
    shortfalls: Callable[[ExperimentResult], list[str]] | None = None
    """Function that returns one message for each target that is missed. None if the experiment has
    no targets."""
    timed: bool = False
    needs: tuple[str, ...] = ()
    """Names of methods without which the page or a figure cannot be made."""


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Return the rows that have all the given values.

    Example:
        >>> select([{"L": 2, "rmse": 0.1}, {"L": 16, "rmse": 0.2}], L=16)
        [{'L': 16, 'rmse': 0.2}]
    """
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def values(rows: Iterable[Row], name: str) -> np.ndarray:
    """Return the value called `name` from every row that has it, as an array.

    Example:
        >>> values([{"kl": 1.0}, {"kl": 2.0}, {}], "kl")
        array([1., 2.])
    """
    return np.array([row[name] for row in rows if name in row], float)


def mean(rows: Iterable[Row], name: str) -> float:
    """Return the mean of the value called `name` over the rows that have it.

    Return NaN if no row has the value.

    Example:
        >>> mean([{"kl": 1.0}, {"kl": 2.0}, {}], "kl")
        1.5
    """
    found = values(rows, name)
    return float(found.mean()) if len(found) else float("nan")


def plus_minus(rows: Iterable[Row], name: str, digits: int = 3) -> str:
    """Return "mean ± standard deviation" of a value over rows, as text.

    The text has no standard deviation if only one row has the value. It is a dash if no row has the
    value, and "diverges" if a value is infinite or NaN.

    Example:
        >>> plus_minus([{"kl": 1.0}, {"kl": 2.0}], "kl", 1)
        '1.5 ± 0.5'
    """
    found = values(rows, name)
    if not len(found):
        return "—"
    if not np.all(np.isfinite(found)):
        return "diverges"
    spread = f" ± {found.std():.{digits}f}" if len(found) > 1 else ""
    return f"{found.mean():.{digits}f}{spread}"


def leads(ours: float, theirs: float, higher: bool) -> bool:
    """Return True if `ours` is better than `theirs`. Any finite number is better than inf or NaN.

    Args:
        ours: Value of one method.
        theirs: Value of the method to compare with.
        higher: Whether the larger value is the better one. If False, the smaller value is better.

    Example:
        >>> leads(0.1, float("nan"), higher=False), leads(float("inf"), 1.0, higher=False)
        (True, False)
    """
    if not np.isfinite(ours) or not np.isfinite(theirs):
        return bool(np.isfinite(ours))
    return ours > theirs if higher else ours < theirs


def rounded(array: Any) -> list:
    """Return an array as a nested list of numbers rounded to 5 decimals, for storage as JSON.

    Example:
        >>> rounded(np.array([1 / 3, 1.0]))
        [0.33333, 1.0]
    """
    return np.round(np.asarray(array, float), 5).tolist()


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. The first column is aligned left, all others right.

    Example:
        >>> print(markdown(["method", "RMSE"], [["eVKF", "0.1"]]))
        | method | RMSE |
        |---|---:|
        | eVKF | 0.1 |
    """
    lines = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def best(cells: Sequence[str], figures: Sequence[float], least: bool = True) -> list[str]:
    """Return the cells of a table column, with the best cell in bold.

    Args:
        cells: Text of each cell.
        figures: Number of each cell. A number that is inf or NaN is never the best.
        least: Whether the smallest number is the best. If False, the largest is the best.

    Example:
        >>> best(["0.1", "0.2"], [0.1, 0.2])
        ['**0.1**', '0.2']
    """
    finite = [figure for figure in figures if np.isfinite(figure)]
    if not finite:
        return list(cells)
    top = min(finite) if least else max(finite)
    return [
        f"**{cell}**" if figure == top else cell
        for cell, figure in zip(cells, figures, strict=True)
    ]
