"""Figures of continuous Bernoulli dynamics: fig:cb_dynamics, fig:supp:cb, and Table 3 as points.

The first two figures show trial 0. The points of Table 3 are those of all trials.
"""

from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from evkf.plotting.style import BAND, ESTIMATE, MUTED, STYLE, TRUTH, log_numbers
from evkf.reproduce.cb.experiment import (
    CB,
    GAUSSIAN,
    GRID,
    LABELS,
    METHODS,
    NAMES,
    ORACLE,
    SHOWN,
)
from evkf.reproduce.tables import ExperimentResult, Row, select, values

COLOURS = {CB: ESTIMATE, GAUSSIAN: "#d55e00"}
BANDS = {CB: BAND, GAUSSIAN: "#f3c9ab"}
MARKS = {CB: "o", GAUSSIAN: "s"}
TITLES = {CB: "B  Continuous Bernoulli states", GAUSSIAN: "C  Gaussian states"}
UNDER: dict = {"loc": "lower left", "ncols": 4, "handlelength": 1.2, "columnspacing": 1}
UNDER |= {"frameon": True, "framealpha": 1, "edgecolor": "none"}
GAP = 0.05
LEGEND = "generated (dots), expected moves (arrows), truth (black), mean and 90 % interval (below)"
SHRUNK = 5
"""Plotted arrows of velocity are shorter than the true velocities by this factor."""


def first_trial(result: ExperimentResult, kind: str, method: str) -> Row | None:
    """Return the series (arrays to plot) of trial 0, or None if the method was not run.

    Args:
        result: Results of Table 3.
        kind: Family of latent states, "cb" or "gaussian".
        method: Name of the method.

    Example:
        >>> row = {"kind": "cb", "method": "evkf", "trial": 0}
        >>> result = ExperimentResult([{"rows": [row], "series": [{"mean": [[0.5, 0.5]]}]}])
        >>> first_trial(result, "cb", "evkf")["mean"]
        array([[0.5, 0.5]])
    """
    rows = select(result.rows_with_series, kind=kind, method=method, trial=0)
    return {name: np.array(value) for name, value in rows[0].items()} if rows else None


def draw_cb(result: ExperimentResult) -> Figure:
    """Plot velocities and natural parameters (A), and beliefs with generated paths (B, C).

    Panel A compares true dynamics with those that eVKF learned. B assumes continuous Bernoulli
    latent states, C Gaussian latent states. Return the figure.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 7.2), layout=ConstrainedLayoutEngine(hspace=GAP, wspace=GAP))
        top, bottom = cast(np.ndarray, figure.subfigures(2, 1, height_ratios=[1, 1.15]))
        planes = top.subplots(1, 4)
        times = bottom.subplots(2, 2, sharex=True, sharey=True)
        for i, (method, colour, who) in enumerate(
            ((ORACLE, TRUTH, "true"), ("evkf", ESTIMATE, "learned"))
        ):
            shown = first_trial(result, CB, method)
            assert shown is not None
            _arrows(planes[i], shown["field"] / SHRUNK, colour)
            planes[i].set_title(f"Expected move, {who}", size=9)
            _arrows(planes[2 + i], 0.0018 * shown["nat"], colour)
            planes[2 + i].set_title(f"Natural parameters, {who}", size=9)
        for ax in planes[1:]:
            ax.set_ylabel("")
            ax.tick_params(labelleft=False)
        for column, kind in enumerate((CB, GAUSSIAN)):
            shown = first_trial(result, kind, "evkf")
            assert shown is not None
            for row in range(2):
                ax = times[row, column]
                bins = np.arange(1, len(shown["mean"]) + 1)
                later = np.arange(len(bins), len(bins) + shown["onward"].shape[1] + 1)
                _filtered(ax, shown, row, kind)
                first = np.broadcast_to(shown["mean"][-1, row], (len(shown["onward"]), 1))
                paths = np.concatenate([first, shown["onward"][:, :, row]], axis=1)
                lines = ax.plot(later, paths.T, color="#b5b5b5", lw=0.5, zorder=0.5)
                lines[0].set_label("generated")
                ax.axvline(SHOWN, color=MUTED, lw=0.7, ls=":")
                ax.set(ylim=(-0.95, 1.6), yticks=(0, 0.5, 1))
            times[0, column].set_title(TITLES[kind])
            times[0, column].legend(**UNDER)
            times[1, column].set_xlabel("bin after learning")
        for row in range(2):
            times[row, 0].set_ylabel(f"$z_{row + 1}$")
        text = f"A  eVKF: arrows of moves at 1/{SHRUNK} of their length, of parameters to one scale"
        top.suptitle(text, x=0.005, ha="left", weight="bold", size=9.5)
    return figure


def draw_methods(result: ExperimentResult) -> Figure:
    """Plot generated states, velocities and inferred states of every method, and return the figure.

    The upper half assumes Gaussian latent states, the lower half continuous Bernoulli latent
    states.
    """
    names = [name for name in METHODS if select(result.rows, method=name)]
    with matplotlib.rc_context(STYLE):
        size = (2.3 * len(names), 8.4)
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(hspace=GAP, wspace=GAP))
        halves = cast(np.ndarray, figure.subfigures(2, 1))
        for half, kind in zip(halves, (GAUSSIAN, CB), strict=True):
            panels = half.subplots(2, len(names), height_ratios=[1.5, 1], squeeze=False)
            text = f"States inferred and learned as {NAMES[kind]}: " + LEGEND
            half.suptitle(text, x=0.005, ha="left", weight="bold", size=9.5)
            for column, name in enumerate(names):
                series, (plane, time) = first_trial(result, kind, name), panels[:, column]
                plane.set_title(LABELS[name], weight="normal", size=9)
                if series is None:
                    plane.axis("off")
                    time.axis("off")
                    text = "not run" if kind in METHODS[name] else "Gaussian only"
                    plane.text(0.5, 0.5, text, ha="center", color=MUTED, transform=plane.transAxes)
                    continue
                plane.plot(*series["dots"].T, ".", color=COLOURS[kind], ms=3.5, alpha=0.5, mew=0)
                _arrows(plane, series["field"] / SHRUNK, TRUTH, 2)
                plane.set(xlim=(-0.6, 1.6), ylim=(-0.6, 1.6))
                _filtered(time, series | {"states": series["states"][:SHOWN]}, 0, kind)
                time.set(
                    ylim=(-0.5, 1.5),
                    yticks=(0, 0.5, 1),
                    xlabel="bin after learning",
                    ylabel="$z_1$",
                )
            for ax in panels[:, 1:].flat:
                ax.set_ylabel("")
    return figure


def draw_table3(result: ExperimentResult) -> Figure:
    """Plot log q, KL and log Chamfer of Table 3 by method, one point for each trial.

    Horizontal bars are means over trials. Return the figure.
    """
    rows = result.rows
    panels = {"log_q": "log q ↑", "kl": "KL (nats) ↓", "log_chamfer": "log Chamfer ↓"}
    names = [name for name in METHODS if select(rows, method=name)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 3.4), layout=ConstrainedLayoutEngine(hspace=GAP, wspace=GAP))
        axes = cast(np.ndarray, figure.subplots(1, len(panels)))
        for ax, (name, title) in zip(axes, panels.items(), strict=True):
            for kind, shift in ((CB, -0.17), (GAUSSIAN, 0.17)):
                for i, method in enumerate(names):
                    points = values(select(rows, kind=kind, method=method), name)
                    points = points[np.isfinite(points)]
                    if not len(points):
                        continue
                    spread = (
                        np.linspace(-0.09, 0.09, len(points)) if len(points) > 1 else np.zeros(1)
                    )
                    style: dict[str, Any] = {
                        "color": COLOURS[kind],
                        "marker": MARKS[kind],
                        "ls": "none",
                    }
                    label = NAMES[kind] if i == 0 else "_"
                    ax.plot(
                        i + shift + spread, points, **style, ms=3.5, alpha=0.6, mew=0, label=label
                    )
                    middle = points.mean()
                    ax.hlines(middle, i + shift - 0.14, i + shift + 0.14, COLOURS[kind], lw=2)
            true = values(select(rows, method=ORACLE), name)
            if len(true) and name != "kl":
                ax.axhline(true.mean(), color=TRUTH, lw=0.8, ls="--", label="true dynamics")
            ax.set_xticks(range(len(names)), [LABELS[method] for method in names])
            for label in ax.get_xticklabels():
                label.set(rotation=25, ha="right", rotation_mode="anchor")
            ax.margins(y=0.1)
            ax.set_title(title)
        log_numbers(axes[1])
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _arrows(ax: Axes, field: np.ndarray, colour: str, every: int = 1) -> None:
    """Plot one arrow at each point of the grid. Lengths are in the units of the axes.

    Args:
        ax: Axes to plot on.
        field: Arrows at the points of the grid.
        colour: Colour of the arrows.
        every: Plot only every so many points of the grid, along both axes.
    """
    x, y = np.moveaxis(GRID, -1, 0)[:, ::every, ::every]
    u, v = np.moveaxis(field.reshape(GRID.shape), -1, 0)[:, ::every, ::every]
    ax.quiver(x, y, u, v, color=colour, angles="xy", scale_units="xy", scale=1, width=0.006)
    ax.set(xlim=(-0.2, 1.2), ylim=(-0.2, 1.2), aspect="equal", xlabel="$z_1$", ylabel="$z_2$")
    ax.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))


def _filtered(ax: Axes, series: Row, row: int, kind: str) -> None:
    """Plot one latent over time: the filtered mean, its 90 % interval and the truth."""
    bins = np.arange(1, len(series["mean"]) + 1)
    truth = series["states"][:, row]
    low, high = series["low"][:, row], series["high"][:, row]
    ax.fill_between(bins, low, high, color=BANDS[kind], lw=0, label="90 % interval")
    ax.plot(bins, series["mean"][:, row], color=COLOURS[kind], lw=1.6, label="mean")
    ax.plot(np.arange(1, len(truth) + 1), truth, color=TRUTH, lw=0.7, label="truth")
