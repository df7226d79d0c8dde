"""Figures of the Van der Pol oscillator: errors while learning, and what was learned."""

from collections.abc import Sequence
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evkf.plotting.colours import OKABE_ITO
from evkf.plotting.style import BAND, ESTIMATE, MUTED, STYLE, TRUTH, Z95, log_numbers
from evkf.reproduce.tables import Found, select
from evkf.reproduce.vdp.experiment import BIN, GRID, JUDGED, KINDS, METHODS, MOVING, ORACLE, drawn

COLOURS = {**dict(zip(METHODS, OKABE_ITO, strict=False)), ORACLE: MUTED}
SHOWN, EARLY = 300, 60
"""Bins in a view of states, and of snapshots; the early view ends after so many more."""
SNAPSHOT = 6
"""Bins between forecasts that are drawn."""
Series = dict[str, Any]


def _collect(results: Sequence[dict[str, Any]]) -> list[Series]:
    """Rows with their series."""
    pairs = (zip(result["rows"], result["series"], strict=True) for result in results)
    return [row | series for each in pairs for row, series in each]


def draw_table2(found: Found) -> Figure:
    """Moving averages of the error, over trials, for every likelihood."""
    every = _collect(found.results)
    kinds = [kind for kind in KINDS if select(every, kind=kind)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 3.6 * len(kinds), 3.5), layout="constrained")
        axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        for ax, kind in zip(axes, kinds, strict=True):
            _moving(ax, select(every, kind=kind))
            ax.set_title(f"{kind.capitalize()} observations")
            ax.label_outer()
        named = axes[0].get_legend_handles_labels()
        figure.legend(*named, loc="outside lower center", ncols=3 * len(kinds))
    return figure


def _moving(ax: Axes, found: list[Series]) -> None:
    """Error over time by every method, with bars of two standard errors over trials."""
    for name in (*METHODS, ORACLE):
        own = np.array([each["moving_rmse"] for each in select(found, method=name)])
        if not len(own):
            continue
        label = METHODS[name].label if name in METHODS else ORACLE
        times = (np.arange(own.shape[1]) + 0.5) * MOVING * BIN
        middle = own.mean(axis=0)
        width = {"lw": 2.0 if name == "evkf" else 1.2, "color": COLOURS[name]}
        ax.plot(times, middle, ls="--" if name == ORACLE else "-", label=label, **width)
        if len(own) > 1:
            error = 2 * own.std(axis=0, ddof=1) / np.sqrt(len(own))
            some = slice(2, None, max(own.shape[1] // 12, 1))
            ax.errorbar(
                times[some], middle[some], error[some], fmt="none", lw=1, ecolor=COLOURS[name]
            )
    end = (own.shape[1] * MOVING - JUDGED) * BIN
    ax.axvline(end, color=MUTED, lw=0.7, ls=":")
    ax.annotate(
        "frozen",
        (end, 1),
        xycoords=("data", "axes fraction"),
        size=7.5,
        color=MUTED,
        xytext=(3, -2),
        textcoords="offset points",
        va="top",
    )
    ax.set(xlabel="time (s)", ylabel="RMSE of the filtered mean")
    log_numbers(ax)


def draw_vdp(found: Found) -> Figure:
    """The paper's figure; below, every method."""
    every = select(_collect(found.results), kind=drawn(found.quick))
    by_name = {each["method"]: each for each in select(every, trial=0)}
    ours, true = by_name["evkf"], by_name[ORACLE]
    num = len(ours["mean"]) - JUDGED
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.6, 9.9), layout="constrained")
        top, middle, bottom = cast(np.ndarray, figure.subfigures(3, 1, height_ratios=[1, 1.2, 1.9]))
        whole, early, late = top.subplots(1, 3, width_ratios=[1.4, 1, 1])
        fields = middle.subplots(1, 3, width_ratios=[1, 1, 1.25])
        names = [name for name in METHODS if name in by_name]
        panels = bottom.subplots(2, len(names), squeeze=False, height_ratios=[1.25, 1])
        _states(whole, ours, slice(num + JUDGED - SHOWN, num + JUDGED))
        whole.set_title("A  Filtering distribution, 95 %")
        _snapshots(early, ours, slice(EARLY // 2, EARLY // 2 + EARLY))
        early.set_title("B  Forecasts of 5 bins, early")
        _snapshots(late, ours, slice(num - EARLY, num))
        late.set_title("C  Forecasts of 5 bins, late")
        for ax, each, colour in zip(fields, (true, ours), (TRUTH, ESTIMATE), strict=False):
            _field(ax, each, num, colour)
        fields[0].set_title("D  Velocity, true")
        fields[1].set_title("Velocity, learned")
        _moving(fields[2], every)
        fields[2].set_title("E  Error while learning")
        named = fields[2].get_legend_handles_labels()
        middle.legend(*named, loc="outside lower right", ncols=len(named[1]), fontsize=8)
        for column, name in enumerate(names):
            each = by_name[name]
            _field(panels[0, column], each, num, ESTIMATE)
            panels[0, column].set_title(METHODS[name].label, weight="normal", size=9)
            _states(panels[1, column], each, slice(num + JUDGED - SHOWN // 2, num + JUDGED))
            if column:
                panels[0, column].set_ylabel("")
                panels[1, column].set_ylabel("")
        text = "F  Velocities that every method learned, and states inferred with them"
        bottom.suptitle(text, x=0.005, ha="left", weight="bold", size=9.5)
    return figure


def _states(ax: Axes, series: Series, bins: slice) -> None:
    """True states in black, and the filtering distribution."""
    times = np.arange(bins.start, bins.stop) * BIN
    mean, std, states = (np.array(series[name])[bins] for name in ("mean", "std", "states"))
    for latent, shift in enumerate((0.0, -7.0)):
        centre, half = mean[:, latent] + shift, Z95 * std[:, latent]
        ax.fill_between(times, centre - half, centre + half, color=BAND, lw=0)
        ax.plot(times, centre, color=ESTIMATE, lw=1.1)
        ax.plot(times, states[:, latent] + shift, color=TRUTH, lw=0.7)
    ax.set(xlabel="time (s)", yticks=[0, -7], yticklabels=["$z_1$", "$z_2$"])
    ax.set_xlim(times[0], times[-1])


def _snapshots(ax: Axes, series: Series, bins: slice) -> None:
    """Filtered means, and forecasts by the dynamics of that moment; crosses where they end."""
    times = np.arange(bins.start, bins.stop) * BIN
    mean, states = (np.array(series[name])[bins] for name in ("mean", "states"))
    ahead = np.array(series["ahead"])[bins]
    for latent, shift in enumerate((0.0, -7.0)):
        ax.plot(times, states[:, latent] + shift, color=TRUTH, lw=0.7)
        ax.plot(times, mean[:, latent] + shift, color=ESTIMATE, lw=1.1)
        for bin in range(0, len(times), SNAPSHOT):
            path = np.concatenate([mean[bin, latent, None], ahead[bin, :, latent]]) + shift
            when = times[bin] + BIN * np.arange(len(path))
            ax.plot(when, path, color=OKABE_ITO[5], lw=0.9)
            ax.plot(when[-1], path[-1], "x", color=OKABE_ITO[5], ms=4)
    ax.set(xlabel="time (s)", yticks=[0, -7], yticklabels=["$z_1$", "$z_2$"])


def _field(ax: Axes, series: Series, num: int, colour: str) -> None:
    """Streamlines over the states that were visited; these as pixels, for they are many."""
    velocity = np.array(series["field"]).reshape(*GRID.shape)
    states = np.array(series["states"])[:num:2]
    ax.plot(*states.T, ".", color=MUTED, ms=0.8, alpha=0.35, rasterized=True)
    ax.streamplot(
        GRID[0, :, 0],
        GRID[:, 0, 1],
        velocity[..., 0],
        velocity[..., 1],
        color=colour,
        linewidth=0.7,
        arrowsize=0.7,
        density=0.9,
    )
    limits = GRID[0, 0], GRID[-1, -1]
    ax.set(xlim=(limits[0][0], limits[1][0]), ylim=(limits[0][1], limits[1][1]))
    ax.set(xlabel="$z_1$", ylabel="$z_2$")
