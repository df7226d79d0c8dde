"""The figures as tables, and the cost against size as a picture."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from rich import box
from rich.table import Table

from evkf.plotting.style import ESTIMATE, MUTED, STYLE, TRUTH, styled
from speed.core import Figure
from speed.low_rank import RANK
from speed.sizes import AT_CHANNELS, AT_LATENTS, series

COLOURS = {"low rank": ESTIMATE, "full covariance": TRUTH}
BELOW = 0.4
"""End of the line of slope 1, relative to low rank."""
HEADINGS = ("figure", "value", "target", "met")
Where = dict[str, Any]


def mark(figure: Figure) -> str:
    """Return a mark for a target that is met or missed; nothing where there is no target.

    Example:
        >>> mark(Figure("a", 2, "", 3, False, "step")), mark(Figure("a", 2, "", 3, True, "step"))
        ('✓', '✗')
    """
    if figure.target is None:
        return ""
    return "✓" if figure.met else "✗"


def table(figures: Sequence[Figure]) -> Table:
    """For the terminal."""
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        found.add_column(heading, justify="left" if heading == "figure" else "right")
    for figure in figures:
        style = None if figure.met else "bold"
        found.add_row(figure.name, figure.found, figure.wanted, mark(figure), style=style)
    return found


def markdown(figures: Sequence[Figure], where: Where, date: str, quick: bool, drawn: bool) -> str:
    """The table as a page, with the machine and the day.

    Example:
        >>> figure = Figure("a step", 2.5, "ms", 3, False, "step")
        >>> where = {"platform": "cpu", "name": "8086", "cores": 1}
        >>> print(markdown([figure], where, "1978-06-08", quick=False, drawn=False))
        # Speed
        <BLANKLINE>
        8086, 1 core, 1978-06-08.
        <BLANKLINE>
        | figure | value | target | met |
        |---|---:|---:|:---:|
        | a step | 2.5 ms | ≤ 3 | ✓ |
        <BLANKLINE>
    """
    cores = f"{where['cores']} core{'' if where['cores'] == 1 else 's'}"
    machine = f"{where['name']}, {cores}, {date}."
    few = " Quick: few calls; what was measured at smaller sizes has no target." if quick else ""
    lines = ["# Speed", "", machine + few, "", f"| {' | '.join(HEADINGS)} |"]
    lines.append("|---|---:|---:|:---:|")
    for figure in figures:
        lines.append(f"| {figure.name} | {figure.found} | {figure.wanted} | {mark(figure)} |")
    if drawn:
        lines += ["", "![Cost of a step against its size](bench.png)"]
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[dict[str, Any]]) -> Picture:
    """Cost against latents, and against channels: what the part `sizes` found."""
    with matplotlib.rc_context(STYLE):
        picture = Picture(figsize=(7.6, 3.4), layout="constrained")
        left, right = picture.subplots(1, 2, sharey=True)
    _panel(left, rows, "L", "latents")
    _panel(right, rows, "N", "units")
    left.set_ylabel("one step (ms)")
    with matplotlib.rc_context(STYLE):
        left.set_title(f"Cost against latents, {AT_CHANNELS} units")
        right.set_title(f"Cost against units, {AT_LATENTS} latents")
    return picture


@styled
def _panel(ax: Axes, rows: Sequence[dict[str, Any]], against: str, label: str) -> Axes:
    """Both kinds, each named at its end, and a line of slope 1 below low rank."""
    ax.set(xscale="log", yscale="log", xlabel=label)
    ticks: list[float] = []
    for kind, colour in COLOURS.items():
        sizes, times = series(rows, against, kind)
        if not sizes:
            continue
        ticks = sorted({*ticks, *sizes})
        ax.plot(sizes, times, "o-", color=colour, lw=1.4, ms=3.5, label=kind)
        name = f"rank {RANK}" if kind == "low rank" else kind
        _name(ax, sizes[-1], times[-1], name, colour)
    sizes, times = series(rows, against, "low rank")
    ends = np.array([sizes[0], sizes[-1]])
    line = BELOW * times[-1] * ends / ends[-1]
    ax.plot(ends, line, ":", color=MUTED, lw=1, label="slope 1")
    _name(ax, ends[-1], line[-1], "slope 1", MUTED)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter("{x:g}")
    return ax


def _name(ax: Axes, x: float, y: float, text: str, colour: str) -> None:
    """Words at the end of a line."""
    offset = {"xytext": (6, 0), "textcoords": "offset points", "ha": "left", "va": "center"}
    ax.annotate(text, (x, y), color=colour, size=8.5, **offset)
