"""Figures of continuous Bernoulli dynamics: fig:cb_dynamics, fig:supp:cb, and the table as points.

All but the points are of the first trial.
"""

from collections.abc import Sequence
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from evkf.plotting.style import BAND, ESTIMATE, MUTED, STYLE, TRUTH, log_numbers
from evkf.reproduce.cb.experiment import CB, GAUSSIAN, METHODS, NAMES, ORACLE
from evkf.reproduce.cb.shown import GRID, SHOWN
from evkf.reproduce.runner import Result
from evkf.reproduce.tables import Found, select, values

COLOURS = {CB: ESTIMATE, GAUSSIAN: "#d55e00"}
BANDS = {CB: BAND, GAUSSIAN: "#f3c9ab"}
MARKS = {CB: "o", GAUSSIAN: "s"}
TITLES = {CB: "B  Continuous Bernoulli states", GAUSSIAN: "C  Gaussian states"}
UNDER: dict = {"loc": "lower left", "ncols": 4, "handlelength": 1.2, "columnspacing": 1}
UNDER |= {"frameon": True, "framealpha": 1, "edgecolor": "none"}
GAP = 0.05
TOLD = "generated (dots), expected moves (arrows), truth (black), mean and 90 % interval (below)"
SHRUNK = 5
"""How many times shorter arrows of velocity are drawn than they are."""


def series(results: Sequence[Result], kind: str, method: str) -> Result | None:
    """What was stored of the first trial, as arrays; none if it was not run.

    Example:
        >>> row = {"kind": "cb", "method": "evkf", "trial": 0}
        >>> series([{"rows": [row], "series": [{"mean": [[0.5, 0.5]]}]}], "cb", "evkf")
        {'mean': array([[0.5, 0.5]])}
    """
    wanted = {"kind": kind, "method": method, "trial": 0}
    for result in results:
        for row, stored in zip(result["rows"], result["series"], strict=True):
            if wanted.items() <= row.items():
                return {name: np.array(value) for name, value in stored.items()}
    return None


def draw_cb(found: Found) -> Figure:
    """A: velocities of states and parameters, true and learned. B: beliefs, and where they lead."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 7.2), layout=ConstrainedLayoutEngine(hspace=GAP, wspace=GAP))
        top, bottom = cast(np.ndarray, figure.subfigures(2, 1, height_ratios=[1, 1.15]))
        planes = top.subplots(1, 4)
        times = bottom.subplots(2, 2, sharex=True, sharey=True)
        for i, (method, colour, who) in enumerate(
            ((ORACLE, TRUTH, "true"), ("evkf", ESTIMATE, "learned"))
        ):
            shown = series(found.results, CB, method)
            assert shown is not None
            _arrows(planes[i], shown["field"] / SHRUNK, colour)
            planes[i].set_title(f"Expected move, {who}", size=9)
            _arrows(planes[2 + i], 0.0018 * shown["nat"], colour)
            planes[2 + i].set_title(f"Natural parameters, {who}", size=9)
        for ax in planes[1:]:
            ax.set_ylabel("")
            ax.tick_params(labelleft=False)
        for column, kind in enumerate((CB, GAUSSIAN)):
            shown = series(found.results, kind, "evkf")
            assert shown is not None
            for row in range(2):
                _course(times[row, column], shown, row, kind)
            times[0, column].set_title(TITLES[kind])
            times[0, column].legend(**UNDER)
            times[1, column].set_xlabel("bin after learning")
        for row in range(2):
            times[row, 0].set_ylabel(f"$z_{row + 1}$")
        text = f"A  eVKF: arrows of moves at 1/{SHRUNK} of their length, of parameters to one scale"
        top.suptitle(text, x=0.005, ha="left", weight="bold", size=9.5)
    return figure


def draw_methods(found: Found) -> Figure:
    """Phase portraits and inferred states of every method: Gaussian above, CB below."""
    names = [name for name in METHODS if select(found.rows, method=name)]
    with matplotlib.rc_context(STYLE):
        size = (2.3 * len(names), 8.4)
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(hspace=GAP, wspace=GAP))
        halves = cast(np.ndarray, figure.subfigures(2, 1))
        for half, kind in zip(halves, (GAUSSIAN, CB), strict=True):
            panels = half.subplots(2, len(names), height_ratios=[1.5, 1], squeeze=False)
            text = f"States inferred and learned as {NAMES[kind]}: " + TOLD
            half.suptitle(text, x=0.005, ha="left", weight="bold", size=9.5)
            for column, name in enumerate(names):
                _portrait(panels[:, column], series(found.results, kind, name), name, kind)
            for ax in panels[:, 1:].flat:
                ax.set_ylabel("")
    return figure


def draw_table3(found: Found) -> Figure:
    """Every trial a point, the mean a line: log q, KL and log Chamfer by method."""
    rows = found.rows
    panels = {"log_q": "log q ↑", "kl": "KL (nats) ↓", "log_chamfer": "log Chamfer ↓"}
    names = [name for name in METHODS if select(rows, method=name)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 3.4), layout=ConstrainedLayoutEngine(hspace=GAP, wspace=GAP))
        axes = cast(np.ndarray, figure.subplots(1, len(panels)))
        for ax, (name, title) in zip(axes, panels.items(), strict=True):
            _points(ax, rows, names, name)
            ax.set_title(title)
        log_numbers(axes[1])
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _points(ax: Axes, rows: list, names: list[str], figure: str) -> None:
    for kind, shift in ((CB, -0.17), (GAUSSIAN, 0.17)):
        for i, name in enumerate(names):
            found = values(select(rows, kind=kind, method=name), figure)
            found = found[np.isfinite(found)]
            if not len(found):
                continue
            spread = np.linspace(-0.09, 0.09, len(found)) if len(found) > 1 else np.zeros(1)
            style: dict[str, Any] = {"color": COLOURS[kind], "marker": MARKS[kind], "ls": "none"}
            label = NAMES[kind] if i == 0 else "_"
            ax.plot(i + shift + spread, found, **style, ms=3.5, alpha=0.6, mew=0, label=label)
            middle = found.mean()
            ax.hlines(middle, i + shift - 0.14, i + shift + 0.14, COLOURS[kind], lw=2)
    true = values(select(rows, method=ORACLE), figure)
    if len(true) and figure != "kl":
        ax.axhline(true.mean(), color=TRUTH, lw=0.8, ls="--", label="true dynamics")
    ax.set_xticks(range(len(names)), [METHODS[name].label for name in names])
    for label in ax.get_xticklabels():
        label.set(rotation=25, ha="right", rotation_mode="anchor")
    ax.margins(y=0.1)


def _arrows(ax: Axes, field: np.ndarray, colour: str, every: int = 1) -> None:
    """From points of the grid, in units of the axes."""
    x, y = np.moveaxis(GRID, -1, 0)[:, ::every, ::every]
    u, v = np.moveaxis(field.reshape(GRID.shape), -1, 0)[:, ::every, ::every]
    ax.quiver(x, y, u, v, color=colour, angles="xy", scale_units="xy", scale=1, width=0.006)
    ax.set(xlim=(-0.2, 1.2), ylim=(-0.2, 1.2), aspect="equal", xlabel="$z_1$", ylabel="$z_2$")
    ax.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))


def _course(ax: Axes, found: Result, row: int, kind: str) -> None:
    """A coordinate over time: filtered, then generated."""
    bins = np.arange(1, len(found["mean"]) + 1)
    later = np.arange(len(bins), len(bins) + found["onward"].shape[1] + 1)
    _filtered(ax, found, row, kind)
    first = np.broadcast_to(found["mean"][-1, row], (len(found["onward"]), 1))
    paths = np.concatenate([first, found["onward"][:, :, row]], axis=1)
    lines = ax.plot(later, paths.T, color="#b5b5b5", lw=0.5, zorder=0.5)
    lines[0].set_label("generated")
    ax.axvline(SHOWN, color=MUTED, lw=0.7, ls=":")
    ax.set(ylim=(-0.95, 1.6), yticks=(0, 0.5, 1))


def _filtered(ax: Axes, found: Result, row: int, kind: str) -> None:
    bins = np.arange(1, len(found["mean"]) + 1)
    truth = found["states"][:, row]
    low, high = found["low"][:, row], found["high"][:, row]
    ax.fill_between(bins, low, high, color=BANDS[kind], lw=0, label="90 % interval")
    ax.plot(bins, found["mean"][:, row], color=COLOURS[kind], lw=1.6, label="mean")
    ax.plot(np.arange(1, len(truth) + 1), truth, color=TRUTH, lw=0.7, label="truth")


def _portrait(panels: np.ndarray, found: Result | None, name: str, kind: str) -> None:
    """The plane of states, and below it the first coordinate over time."""
    plane, time = panels
    plane.set_title(METHODS[name].label, weight="normal", size=9)
    if found is None:
        for ax in panels:
            ax.axis("off")
        text = "not run" if kind in METHODS[name].kinds else "Gaussian only"
        plane.text(0.5, 0.5, text, ha="center", color=MUTED, transform=plane.transAxes)
        return
    plane.plot(*found["dots"].T, ".", color=COLOURS[kind], ms=3.5, alpha=0.5, mew=0)
    _arrows(plane, found["field"] / SHRUNK, TRUTH, 2)
    plane.set(xlim=(-0.6, 1.6), ylim=(-0.6, 1.6))
    _filtered(time, found | {"states": found["states"][:SHOWN]}, 0, kind)
    time.set(ylim=(-0.5, 1.5), yticks=(0, 0.5, 1), xlabel="bin after learning", ylabel="$z_1$")
