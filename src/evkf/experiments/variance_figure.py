"""The figure of lost variance: how much it is, and what the formula makes of it."""

import matplotlib
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evkf.colours import OKABE_ITO
from evkf.experiments.runner import Result
from evkf.experiments.tables import Row, mean, select
from evkf.experiments.variance import SYSTEMS
from evkf.figures import MUTED, STYLE, TRUTH

HUES = {
    "linear": [TRUTH],
    "vdp": ["#9ccbe8", "#0072b2", "#00344f"],
    "network": ["#f4c27a", "#d55e00", "#7a3500"],
    "gamma": [OKABE_ITO[2]],
}
MARKS = {"linear": "D", "vdp": "o", "network": "s", "gamma": "^"}


def draw(results: list[Result]) -> Figure:
    """A: the share lost. B: the formula beside what is lost. C: Gamma. D: single states."""
    rows = [row for result in results for row in result["rows"]]
    series = [one for result in results for one in result["series"]]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 7.2), layout="constrained")
        (share, ratio), (gamma, single) = figure.subplots(2, 2)
        _share(share, rows)
        _ratio(ratio, rows)
        _gamma(gamma, rows)
        _single(single, series)
    return figure


def _label(name: str, nonlinearity: float) -> str:
    system = SYSTEMS[name]
    return f"{system.label}, {system.knob} {nonlinearity:g}" if system.knob else system.label


def _share(ax: Axes, rows: list[Row]) -> None:
    """Every setting a point, beside what a random walk would lose."""
    for name, system in SYSTEMS.items():
        for hue, nonlinearity in zip(HUES[name], system.nonlinearities, strict=True):
            own = select(rows, system=name, nonlinearity=nonlinearity)
            pairs = sorted({(row["spread"], row["noise"]) for row in own})
            x = [(spread / noise) ** 2 for spread, noise in pairs]
            y = [mean(select(own, spread=s, noise=n), "share") for s, n in pairs]
            ax.plot(x, y, MARKS[name], color=hue, ms=4, label=_label(name, nonlinearity))
    line = np.logspace(-2, 2.5, 100)
    ax.plot(line, line / (1 + line), color=MUTED, lw=0.8, ls=":", label="random walk")
    ax.set(xscale="log", xlabel="variance of the belief / variance of the dynamics' noise")
    ax.set_ylabel("share of the true variance that is lost")
    ax.set_title("A  Lost without correction")
    ax.legend(loc="upper left", fontsize=7.5)


def _ratio(ax: Axes, rows: list[Row]) -> None:
    """By width of belief, at the lowest noise; bands from the 10th to the 90th of 100 states."""
    ax.axhline(1, color=MUTED, lw=0.8, ls=":")
    for name in ("linear", "vdp", "network"):
        for hue, nonlinearity in zip(HUES[name], SYSTEMS[name].nonlinearities, strict=True):
            own = select(rows, system=name, nonlinearity=nonlinearity)
            if not own:
                continue
            own = select(own, noise=min(row["noise"] for row in own))
            spreads = sorted({row["spread"] for row in own})
            found = [select(own, spread=spread) for spread in spreads]
            low, mid, high = (
                [mean(each, part) for each in found]
                for part in ("ratio_low", "ratio", "ratio_high")
            )
            ax.fill_between(spreads, low, high, color=hue, alpha=0.12, lw=0)
            label = _label(name, nonlinearity)
            ax.plot(spreads, mid, f"{MARKS[name]}-", color=hue, ms=4, lw=1.2, label=label)
    ax.set(xscale="log", yscale="log", xlabel="standard deviation of the belief")
    ax.set_ylabel("$M P M^\\top$ / variance lost")
    ax.set_title("B  The formula, Gaussian states")
    _plain(ax, [0.1, 0.2, 0.5, 1, 2, 5])
    ax.legend(loc="upper left", fontsize=7.5)


def _gamma(ax: Axes, rows: list[Row]) -> None:
    """Of the formula and of predictions, by width of belief and b0."""
    own = select(rows, system="gamma")
    noises = sorted({row["noise"] for row in own}, reverse=True)
    hues = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(noises)))
    ax.axhline(1, color=MUTED, lw=0.8, ls=":")
    for noise, hue in zip(noises, hues, strict=True):
        some = select(own, noise=noise)
        spreads = sorted({row["spread"] for row in some})
        lines = {"ratio": "o-", "corrected": "s--"}
        for name, style in lines.items():
            found = [mean(select(some, spread=spread), name) for spread in spreads]
            words = "formula / lost" if name == "ratio" else "corrected / true variance"
            label = f"{words}, $b_0$ = {noise**-2:.0f}"
            mfc = hue if name == "ratio" else "white"
            ax.plot(spreads, found, style, color=hue, ms=4, lw=1.2, mfc=mfc, label=label)
    ax.set(xscale="log", xlabel="standard deviation of the belief", ylabel="ratio of variances")
    ax.set_title("C  The formula, Gamma states")
    _plain(ax, None)
    ax.legend(loc="upper left", fontsize=7.5, ncols=1)


def _single(ax: Axes, series: list[Row]) -> None:
    """States of the network with the highest gain, one by one."""
    top = SYSTEMS["network"].nonlinearities[-1]
    own = select(series, system="network", nonlinearity=top)
    if own:
        own = select(own, noise=min(one["noise"] for one in own))
    hues = matplotlib.colormaps["cividis"](np.linspace(0, 0.9, max(len(own), 1)))
    ends = [np.inf, 0.0]
    for one, hue in zip(own, hues, strict=False):
        lost, formula = np.array(one["lost"]), np.array(one["formula"])
        ax.plot(lost, formula, "o", color=hue, ms=3.5, label=f"belief {one['spread']:g}")
        ends = [min(ends[0], lost.min(), formula.min()), max(ends[1], lost.max(), formula.max())]
    if own:
        ax.plot(ends, ends, color=MUTED, lw=0.8, ls=":")
    ax.set(xscale="log", yscale="log", xlabel="variance lost", ylabel="tr $M P M^\\top$")
    ax.set_title(f"D  Single states of the network, gain {top:g}")
    ax.legend(loc="upper left", fontsize=7.5)


def _plain(ax: Axes, up: list[float] | None) -> None:
    """Ticks as plain numbers."""
    across = [0.05, 0.1, 0.2, 0.4, 0.8]
    ax.set_xticks(across, [f"{x:g}" for x in across])
    ax.tick_params(axis="x", which="minor", bottom=False)
    if up:
        ax.set_yticks(up, [f"{y:g}" for y in up])
        ax.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
