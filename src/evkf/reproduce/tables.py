"""What the reports of experiments share: what was found, means over trials, Markdown."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

Row = dict[str, Any]


class Found(NamedTuple):
    """What came of an experiment: all that is told, drawn and held to targets.

    Example:
        >>> found = Found([{"rows": [{"kl": 1.0}]}, {"rows": [{"kl": 2.0}]}], trials=2)
        >>> found.rows
        [{'kl': 1.0}, {'kl': 2.0}]
        >>> found.averaged
        'mean ± standard deviation over 2 trials'
    """

    results: Sequence[dict[str, Any]]
    """Of all tasks, each with rows."""
    timing: Sequence[Row] = ()
    """Times of a step; none where nothing is timed."""
    trials: int = 1
    quick: bool = False

    @property
    def rows(self) -> list[Row]:
        """Of all tasks."""
        return [row for result in self.results for row in result["rows"]]

    @property
    def averaged(self) -> str:
        """What the cells of a table are."""
        if self.trials == 1:
            return "one trial"
        return f"mean ± standard deviation over {self.trials} trials"


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values.

    Example:
        >>> select([{"L": 2, "rmse": 0.1}, {"L": 16, "rmse": 0.2}], L=16)
        [{'L': 16, 'rmse': 0.2}]
    """
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def values(rows: Iterable[Row], name: str) -> np.ndarray:
    """A figure of every row that has it.

    Example:
        >>> values([{"kl": 1.0}, {"kl": 2.0}, {}], "kl")
        array([1., 2.])
    """
    return np.array([row[name] for row in rows if name in row], float)


def mean(rows: Iterable[Row], name: str) -> float:
    """Over the rows that have it; NaN if there is none.

    Example:
        >>> mean([{"kl": 1.0}, {"kl": 2.0}, {}], "kl")
        1.5
    """
    found = values(rows, name)
    return float(found.mean()) if len(found) else float("nan")


def plus_minus(rows: Iterable[Row], name: str, digits: int = 3) -> str:
    """Mean ± standard deviation over rows, or a dash.

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
    """Whether a figure is better than another; one that is not finite is the worst.

    Example:
        >>> leads(0.1, float("nan"), higher=False), leads(float("inf"), 1.0, higher=False)
        (True, False)
    """
    if not np.isfinite(ours) or not np.isfinite(theirs):
        return bool(np.isfinite(ours))
    return ours > theirs if higher else ours < theirs


def rounded(array: Any) -> list:
    """An array as it is stored for figures.

    Example:
        >>> rounded(np.array([1 / 3, 1.0]))
        [0.33333, 1.0]
    """
    return np.round(np.asarray(array, float), 5).tolist()


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table.

    Example:
        >>> print(markdown(["method", "RMSE"], [["eVKF", "0.1"]]))
        | method | RMSE |
        |---|---:|
        | eVKF | 0.1 |
    """
    lines = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def best(cells: Sequence[str], figures: Sequence[float], least: bool = True) -> list[str]:
    """The cells of a column, the best in bold.

    Example:
        >>> best(["0.1", "0.2"], [0.1, 0.2])
        ['**0.1**', '0.2']
    """
    known = [figure for figure in figures if np.isfinite(figure)]
    if not known:
        return list(cells)
    pick: Callable[[list[float]], float] = min if least else max
    top = pick(known)
    return [
        f"**{cell}**" if figure == top else cell
        for cell, figure in zip(cells, figures, strict=True)
    ]
