"""The figure of Gamma dynamics (fig:gamma_dynamics), and log density by noise."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evkf.plotting.colours import OKABE_ITO
from evkf.plotting.style import MUTED, STYLE, TRUTH
from evkf.reproduce.gamma.experiment import GRID, METHODS
from evkf.reproduce.gamma.report import LABELS, NEAR, behind
from evkf.reproduce.tables import Found, Row, select, values

DRAWN = 80
"""b0 of the trial that is drawn; the highest there is, if it is not among them."""
SHOWN = 100
"""Bins that are drawn."""
COLOURS = {"corrected": OKABE_ITO[0], "uncorrected": OKABE_ITO[5], "matching": OKABE_ITO[2]}
COLOURS |= {"mean_log": TRUTH, "moments": MUTED}
MARKS = {"corrected": "o", "uncorrected": "s", "matching": "^", "mean_log": "D", "moments": "v"}


def draw(found: Found) -> Figure:
    """A, B: filtered states with and without correction. C: log density. D to F: intervals."""
    rows = found.rows
    series = [one for result in found.results for one in result["series"]]
    every = sorted({row["b0"] for row in rows})
    b0 = DRAWN if DRAWN in every else every[-1]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.6), layout="constrained")
        axes = figure.subplots(2, 3)
        for column, name in enumerate(("corrected", "uncorrected")):
            shown = select(series, b0=b0, method=name)
            if not shown:
                continue
            _portrait(axes[0, column], shown[0], COLOURS[name])
            _interval(axes[1, column], shown[0], COLOURS[name])
            how = "with" if name == "corrected" else "without"
            axes[0, column].set_title(f"{'AB'[column]}  States {how} correction, $b_0$ = {b0}")
            axes[1, column].set_title(f"{'DE'[column]}  First latent {how} correction")
        axes[1, 1].sharey(axes[1, 0])
        filters = [row for row in behind(rows) if row["method"] in METHODS and "behind" in row]
        _by_noise(axes[0, 2], filters, "behind")
        axes[0, 2].axhline(NEAR, color=MUTED, lw=0.8, ls=":", zorder=0)
        axes[0, 2].set_yscale("log")
        axes[0, 2].set_ylabel("nats per bin behind the particles")
        axes[0, 2].set_title("C  Log density of the true state")
        _by_noise(axes[1, 2], rows, "coverage_90")
        named = axes[1, 2].get_legend_handles_labels()
        figure.legend(*named, title="C, F", loc="outside lower right", ncols=len(named[1]))
        axes[1, 2].axhline(0.9, color=MUTED, lw=0.8, ls=":", zorder=0)
        axes[1, 2].set_ylabel("share of true states inside")
        axes[1, 2].set_title("F  Coverage of 90 % intervals")
    return figure


def _portrait(ax: Axes, shown: dict[str, Any], colour: str) -> None:
    field = np.array(shown["field"]).reshape(GRID.shape)
    x, y = GRID[0, :, 0], GRID[:, 0, 1]
    flow = np.moveaxis(field, -1, 0)
    ax.streamplot(x, y, *flow, color="#cfcfcf", linewidth=0.6, arrowsize=0.6, density=1.1)
    ax.plot(*np.array(shown["states"])[:SHOWN].T, color=TRUTH, lw=0.8, label="truth")
    ax.plot(*np.array(shown["mean"])[:SHOWN].T, color=colour, lw=1.4, label="filtered mean")
    ax.set(xlim=(0, 3.5), ylim=(0, 3.5), aspect="equal", xlabel="$z_1$", ylabel="$z_2$")
    legend = ax.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
    legend.get_frame().set_linewidth(0)


def _interval(ax: Axes, shown: dict[str, Any], colour: str) -> None:
    states, mean, std = (np.array(shown[name])[:SHOWN, 0] for name in ("states", "mean", "std"))
    bins = 1 + np.arange(len(mean))
    low, high = mean - 1.96 * std, mean + 1.96 * std
    ax.fill_between(bins, low, high, color=colour, alpha=0.25, lw=0, label="± 1.96 sd")
    ax.plot(bins, mean, color=colour, lw=1.2, label="filtered mean")
    ax.plot(bins, states, color=TRUTH, lw=0.7, label="truth")
    ax.set(xlabel="bin", ylabel="$z_1$", xlim=(1, len(bins)))
    ax.set_ylim(0, 3.6)
    ax.legend(loc="upper right", ncols=3, columnspacing=1)


def _by_noise(ax: Axes, rows: list[Row], name: str) -> None:
    for method, label in LABELS.items():
        own = select(rows, method=method)
        every = sorted({row["b0"] for row in own})
        if not every:
            continue
        found = [values(select(own, b0=b0), name) for b0 in every]
        centre, spread = [each.mean() for each in found], [each.std() for each in found]
        ax.errorbar(
            every,
            centre,
            spread,
            color=COLOURS[method],
            marker=MARKS[method],
            mfc="white" if method in ("moments", "matching") else COLOURS[method],
            ls="--" if method == "moments" else "-",
            ms=4,
            lw=1.2,
            label=label,
        )
    every = sorted({row["b0"] for row in rows})
    ax.set_xscale("log")
    ax.set_xticks(every, [str(b0) for b0 in every])
    ax.minorticks_off()
    ax.set_xlabel("$b_0$ (the noise of the dynamics is $1/\\sqrt{b_0}$)")
