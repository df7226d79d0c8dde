"""Reports, targets and figures of the Van der Pol oscillator (Table 2, Figures 2 and 6)."""

from typing import cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evkf.plotting.colours import OKABE_ITO
from evkf.plotting.style import BAND, ESTIMATE, MUTED, STYLE, TRUTH, Z95, log_numbers
from evkf.reproduce.runner import TOGETHER
from evkf.reproduce.tables import (
    Experiment,
    ExperimentResult,
    Picture,
    Row,
    best,
    leads,
    markdown,
    mean,
    plus_minus,
    select,
    values,
)
from evkf.reproduce.vdp import experiment
from evkf.reproduce.vdp.experiment import (
    BIN,
    GRID,
    JUDGED,
    KINDS,
    LEARNED,
    METHODS,
    MOVING,
    ORACLE,
    QUICK_KINDS,
    QUICK_LEARNED,
)

PAPER = {
    "gaussian": {
        "evkf": (1.15, 6.817, 5.66, 104),
        "ovs": (-0.92, 13.48, 7.76, 6270),
        "vjf": (-3.58, 134.3, 6.61, 30),
        "svmc": (None, 84.83, 5.85, 314),
    },
    "poisson": {
        "evkf": (0.57, 7.131, 2.30, 13),
        "ovs": (-0.21, 9.132, 3.76, 4150),
        "vjf": (-1.24, 325.5, 3.99, 100),
        "svmc": (None, 410.2, 4.06, 730),
    },
}
"""Log q, KL, log Chamfer, and milliseconds per step, as printed in the paper."""
TIMES_FASTER = {"ovs": 20, "vjf": 1, "svmc": 20}
"""Targets: a step of each method must take at least this many times as long as a step of eVKF."""
HIGHER = {"log_q": True, "kl": False, "log_chamfer": False}
"""Numbers that are compared with the paper. True if a higher number is better."""
COLOURS = {**dict(zip(METHODS, OKABE_ITO, strict=False)), ORACLE: MUTED}
SHOWN, EARLY = 300, 60
"""SHOWN: number of bins in a plot of states. EARLY: number of bins in a plot of forecasts; the
early plot begins at bin EARLY / 2."""
SNAPSHOT = 6
"""Number of bins between plotted forecasts."""
SHIFTS = (0.0, -7.0)
"""Vertical offsets at which the two latents are plotted."""


def report(result: ExperimentResult) -> str:
    """Return the page of Table 2 in Markdown: a table for each likelihood, and the times."""
    learned = QUICK_LEARNED if result.quick else LEARNED
    parts = [
        "# Table 2: learning the Van der Pol oscillator",
        f"{learned} bins learned in one pass, then frozen and judged on {JUDGED} more; "
        f"{result.averaged}. The oracle is eVKF's filter given the true dynamics; in its row the "
        "Chamfer distance is the floor, between two sets of true trajectories. Roughness is that "
        "of the inferred path relative to the true one. The paper's numbers are of its own data "
        "and units, and stand in brackets."
        + (" Quick: too few bins to judge anything by." if result.quick else ""),
    ]
    for kind in KINDS:
        rows, timing = (select(some, kind=kind) for some in (result.rows, result.timing))
        if rows:
            parts += [f"## {kind.capitalize()} observations", _table(rows, timing, PAPER[kind])]
    if result.timing:
        empty = float(np.median(values(result.timing, "empty_us")))
        parts.append(
            "Times are of compiled steps that infer and learn, in float32, the methods in turn: "
            f"medians over means of {TOGETHER} steps. An empty compiled call takes {empty:.0f} µs."
        )
    return "\n\n".join(parts) + "\n"


def _table(rows: list[Row], timing: list[Row], paper: dict[str, tuple]) -> str:
    """Return the table for one likelihood in Markdown, with the paper's numbers in brackets."""

    def printed(name: str, index: int) -> str:
        number = paper.get(name, (None,) * 4)[index]
        return "" if number is None else f" ({number:g})"

    names = [name for name in METHODS if select(rows, method=name)]
    each = [select(rows, method=name) for name in names]
    columns = [[METHODS[name].label for name in names]]
    for index, (figure, higher) in enumerate(HIGHER.items()):
        cells = [plus_minus(own, figure) for own in each]
        cells = best(cells, [mean(own, figure) for own in each], least=not higher)
        columns.append(
            [cell + printed(name, index) for cell, name in zip(cells, names, strict=True)]
        )
    columns += [
        [plus_minus(own, figure) for own in each] for figure in ("rmse_judged", "roughness")
    ]
    times = [select(timing, method=name) for name in names]
    cells = [f"{mean(own, 'step_ms'):.3g}" if own else "—" for own in times]
    columns.append([cell + printed(name, 3) for cell, name in zip(cells, names, strict=True)])
    body = [list(line) for line in zip(*columns, strict=True)]
    if oracle := select(rows, method=ORACLE):
        figures = (*HIGHER, "rmse_judged", "roughness")
        body.append([ORACLE, *(plus_minus(oracle, figure) for figure in figures), "—"])
    headings = ["method", "log q ↑", "KL ↓", "log Chamfer ↓", "RMSE", "roughness", "ms per step"]
    return markdown(headings, body)


def report_figure(result: ExperimentResult) -> str:
    """Return the page that describes the figure of the oscillator, in Markdown."""
    kind = (QUICK_KINDS if result.quick else KINDS)[-1]
    return f"""# The Van der Pol oscillator, learned

{kind.capitalize()} observations of the first trial, of {result.effort}.

- **A** States of the last bins: true in black, eVKF's filtering distribution with its 95 % band.
- **B, C** Forecasts of five bins by the dynamics of that moment, while learning began and when it
  ended; crosses where they end.
- **D** True and learned velocities, over the states that were visited.
- **E** Errors of the filtered means, averaged over {MOVING} bins and over trials, with bars of two
  standard errors.
- **F** Velocities that every method learned, and the states it inferred after they were frozen.
"""


def shortfalls(result: ExperimentResult) -> list[str]:
    """Return one message for each target of Table 2 that is missed."""
    missed = []
    for kind in KINDS:
        rows, timing = (select(some, kind=kind) for some in (result.rows, result.timing))
        ours = select(rows, method="evkf")
        for name, times in TIMES_FASTER.items():
            theirs, label = select(rows, method=name), METHODS[name].label
            if not theirs or not ours:
                continue
            for figure, higher in HIGHER.items():
                own, other = mean(ours, figure), mean(theirs, figure)
                if not leads(own, other, higher):
                    missed.append(f"{kind}: {figure} of eVKF {own:.3f}, of {label} {other:.3f}")
            own, other = (mean(select(timing, method=m), "step_ms") for m in ("evkf", name))
            if not other >= times * own:
                words = f"{kind}: a step of eVKF {own:.3g} ms, of {label} {other:.3g} ms"
                missed.append(f"{words}, not {times} times as long" if times > 1 else words)
    return missed


def draw_table2(result: ExperimentResult) -> Figure:
    """Plot the moving average of the error of every method, and return the figure.

    There is one panel for each likelihood. Errors are averaged over trials.
    """
    every = result.rows_with_series
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


def _moving(ax: Axes, rows: list[Row]) -> None:
    """Plot the error of every method over time.

    Bars are two standard errors of the mean over trials.
    """
    for name in (*METHODS, ORACLE):
        own = np.array([each["moving_rmse"] for each in select(rows, method=name)])
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


def draw_vdp(result: ExperimentResult) -> Figure:
    """Plot the figure of the oscillator for trial 0, and return it.

    The upper panels are those of the paper. The lower panels show every method.
    """
    kind = (QUICK_KINDS if result.quick else KINDS)[-1]
    every = select(result.rows_with_series, kind=kind)
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


def _states(ax: Axes, series: Row, bins: slice) -> None:
    """Plot the true latent states in black, and the filtered mean with its 95 % band."""
    times = np.arange(bins.start, bins.stop) * BIN
    mean, std, states = (np.array(series[name])[bins] for name in ("mean", "std", "states"))
    for latent, shift in enumerate(SHIFTS):
        centre, half = mean[:, latent] + shift, Z95 * std[:, latent]
        ax.fill_between(times, centre - half, centre + half, color=BAND, lw=0)
        ax.plot(times, centre, color=ESTIMATE, lw=1.1)
        ax.plot(times, states[:, latent] + shift, color=TRUTH, lw=0.7)
    ax.set(xlabel="time (s)", yticks=SHIFTS, yticklabels=["$z_1$", "$z_2$"])
    ax.set_xlim(times[0], times[-1])


def _snapshots(ax: Axes, series: Row, bins: slice) -> None:
    """Plot filtered means, and forecasts by the dynamics that were learned at that moment.

    Crosses mark the ends of the forecasts.
    """
    times = np.arange(bins.start, bins.stop) * BIN
    mean, states = (np.array(series[name])[bins] for name in ("mean", "states"))
    ahead = np.array(series["ahead"])[bins]
    for latent, shift in enumerate(SHIFTS):
        ax.plot(times, states[:, latent] + shift, color=TRUTH, lw=0.7)
        ax.plot(times, mean[:, latent] + shift, color=ESTIMATE, lw=1.1)
        for bin in range(0, len(times), SNAPSHOT):
            path = np.concatenate([mean[bin, latent, None], ahead[bin, :, latent]]) + shift
            when = times[bin] + BIN * np.arange(len(path))
            ax.plot(when, path, color=OKABE_ITO[5], lw=0.9)
            ax.plot(when[-1], path[-1], "x", color=OKABE_ITO[5], ms=4)
    ax.set(xlabel="time (s)", yticks=SHIFTS, yticklabels=["$z_1$", "$z_2$"])


def _field(ax: Axes, series: Row, num: int, colour: str) -> None:
    """Plot streamlines of the velocity, and the latent states that were visited.

    The visited states are saved as pixels in vector files, because there are many.
    """
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


EXPERIMENTS = {
    "table2": Experiment(
        experiment,
        report,
        {"table2": Picture("Errors while learning", draw_table2)},
        shortfalls,
        timed=True,
    ),
    "vdp": Experiment(
        experiment,
        report_figure,
        {"vdp": Picture("Filtering, forecasts, velocities and errors", draw_vdp)},
        needs=("evkf",),
    ),
}
