"""Means over trials and Markdown tables: what the reports of all experiments share."""

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:  # tasks draw nothing
    from matplotlib.figure import Figure

Row = dict[str, Any]


class ExperimentResult(NamedTuple):
    """Everything that a report and a figure are made of, and that targets are compared with.

    Example:
        >>> result = ExperimentResult([{"rows": [{"kl": 1.0}]}, {"rows": [{"kl": 2.0}]}], trials=2)
        >>> result.rows
        [{'kl': 1.0}, {'kl': 2.0}]
        >>> result.averaged
        'mean ± standard deviation over 2 trials'
    """

    results: Sequence[dict[str, Any]]
    """Results of all tasks, each with rows."""
    timing: Sequence[Row] = ()
    """Times of a step; empty where nothing is timed."""
    trials: int = 1
    quick: bool = False

    @property
    def rows(self) -> list[Row]:
        """Rows of all tasks."""
        return [row for result in self.results for row in result["rows"]]

    @property
    def series(self) -> list[Row]:
        """Series of all tasks, which figures show."""
        return [one for result in self.results for one in result["series"]]

    @property
    def rows_with_series(self) -> list[Row]:
        """Rows of all tasks, each with its series; where every row has one."""
        pairs = (zip(result["rows"], result["series"], strict=True) for result in self.results)
        return [row | series for each in pairs for row, series in each]

    @property
    def averaged(self) -> str:
        """Words for the cells of a table."""
        if self.trials == 1:
            return "one trial"
        return f"mean ± standard deviation over {self.trials} trials"

    @property
    def effort(self) -> str:
        """Words for the size of the run."""
        trials = f"{self.trials} trials" if self.trials > 1 else "one trial"
        return f"{'a quick run' if self.quick else 'the full protocol'}, {trials}"


class Picture(NamedTuple):
    """A figure of an experiment."""

    caption: str
    draw: Callable[[ExperimentResult], "Figure"]


class Experiment(NamedTuple):
    """A table or figure of the paper: how it is computed, described and drawn."""

    module: ModuleType
    """Has METHODS, TRIALS, QUICK_TRIALS, tasks and run; if timed, also TIMED, QUICK_TIMED, timings
    and ready."""
    report: Callable[[ExperimentResult], str]
    """Makes the page, in Markdown; pictures are added below."""
    pictures: dict[str, Picture]
    """Figures by the names of their files."""
    shortfalls: Callable[[ExperimentResult], list[str]] | None = None
    """Names the targets that are missed; None if there are no targets."""
    timed: bool = False
    needs: tuple[str, ...] = ()
    """Methods that the page or a figure cannot do without."""


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Return the rows that have these values.

    Example:
        >>> select([{"L": 2, "rmse": 0.1}, {"L": 16, "rmse": 0.2}], L=16)
        [{'L': 16, 'rmse': 0.2}]
    """
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def values(rows: Iterable[Row], name: str) -> np.ndarray:
    """Return a figure of every row that has it.

    Example:
        >>> values([{"kl": 1.0}, {"kl": 2.0}, {}], "kl")
        array([1., 2.])
    """
    return np.array([row[name] for row in rows if name in row], float)


def mean(rows: Iterable[Row], name: str) -> float:
    """Return the mean of a figure over the rows that have it; NaN if there is none.

    Example:
        >>> mean([{"kl": 1.0}, {"kl": 2.0}, {}], "kl")
        1.5
    """
    found = values(rows, name)
    return float(found.mean()) if len(found) else float("nan")


def plus_minus(rows: Iterable[Row], name: str, digits: int = 3) -> str:
    """Return mean ± standard deviation of a figure over rows, or a dash.

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
    """True if a figure is better than another; a figure that is not finite is the worst.

    Example:
        >>> leads(0.1, float("nan"), higher=False), leads(float("inf"), 1.0, higher=False)
        (True, False)
    """
    if not np.isfinite(ours) or not np.isfinite(theirs):
        return bool(np.isfinite(ours))
    return ours > theirs if higher else ours < theirs


def rounded(array: Any) -> list:
    """Round an array to the digits that are stored for figures.

    Example:
        >>> rounded(np.array([1 / 3, 1.0]))
        [0.33333, 1.0]
    """
    return np.round(np.asarray(array, float), 5).tolist()


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    Example:
        >>> print(markdown(["method", "RMSE"], [["eVKF", "0.1"]]))
        | method | RMSE |
        |---|---:|
        | eVKF | 0.1 |
    """
    lines = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def best(cells: Sequence[str], figures: Sequence[float], least: bool = True) -> list[str]:
    """Return the cells of a column, the best in bold.

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
