"""The figure of lost variance: how much it is, and what the formula makes of it."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evkf.plotting.colours import OKABE_ITO
from evkf.plotting.style import MUTED, STYLE, TRUTH, log_numbers
from evkf.reproduce.tables import Found, Row, mean, select
from evkf.reproduce.variance.experiment import SYSTEMS

HUES = {
    "linear": [TRUTH],
    "vdp": ["#9ccbe8", "#0072b2", "#00344f"],
    "network": ["#f4c27a", "#d55e00", "#7a3500"],
    "gamma": [OKABE_ITO[2]],
}
MARKS = {"linear": "D", "vdp": "o", "network": "s", "gamma": "^"}


def draw(found: Found) -> Figure:
    """A: the share lost. B: the formula beside what is lost. C: Gamma. D: single states."""
    rows = found.rows
    series = [one for result in found.results for one in result["series"]]
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
            ax.plot(x, y, MARKS[name], color=hue, ms=4.5, label=_label(name, nonlinearity))
    line = np.logspace(-2, 2.5, 100)
    ax.plot(line, line / (1 + line), color=MUTED, lw=0.8, ls=":", label="random walk")
    ax.set(xscale="log", xlabel="variance of the belief / variance of the dynamics' noise")
    ax.set_ylabel("share of the true variance that is lost")
    ax.set_title("A  What is lost without correction")
    ax.legend(loc="upper left")


def _ratio(ax: Axes, rows: list[Row]) -> None:
    """By width of belief, at the lowest noise; bands hold 80 of 100 states."""
    ax.axhline(1, color=MUTED, lw=0.8, ls=":")
    for name in ("vdp", "network", "linear"):
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
            ax.plot(spreads, mid, f"{MARKS[name]}-", color=hue, ms=4.5, lw=1.2)
    ax.set_ylabel("$M P M^{\\mathsf{T}}$ / variance lost")
    ax.set_title("B  The formula for Gaussian states (colours as in A)")
    _widths(ax)
    _ratios(ax)


def _gamma(ax: Axes, rows: list[Row]) -> None:
    """Of the formula and of the corrected prediction, by width of belief and b0."""
    own = select(rows, system="gamma")
    noises = sorted({row["noise"] for row in own}, reverse=True)
    hues = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(noises)))
    ax.axhline(1, color=MUTED, lw=0.8, ls=":")
    for noise, hue in zip(noises, hues, strict=True):
        some = select(own, noise=noise)
        spreads = sorted({row["spread"] for row in some})
        for name, style in (("ratio", "^-"), ("corrected", "s--")):
            found = [mean(select(some, spread=spread), name) for spread in spreads]
            fill, label = (hue, f"$b_0$ = {noise**-2:.0f}") if name == "ratio" else ("white", None)
            ax.plot(spreads, found, style, color=hue, ms=4.5, lw=1.2, mfc=fill, label=label)
    ax.plot([], [], "^-", color=MUTED, ms=4.5, lw=1.2, label="formula / variance lost")
    ax.plot([], [], "s--", color=MUTED, ms=4.5, mfc="white", label="corrected / true variance")
    ax.set_ylabel("ratio of variances")
    ax.set_title("C  Gamma states")
    _widths(ax)
    _ratios(ax)
    ax.legend(loc="best")


def _single(ax: Axes, series: list[Row]) -> None:
    """States of the network with the highest gain, one by one."""
    top = SYSTEMS["network"].nonlinearities[-1]
    own = select(series, system="network", nonlinearity=top)
    if own:
        own = select(own, noise=min(one["noise"] for one in own))
    hues = matplotlib.colormaps["cividis"](np.linspace(0, 0.9, max(len(own), 1)))
    ax.axhline(1, color=MUTED, lw=0.8, ls=":")
    for one, hue in zip(own, hues, strict=False):
        lost, formula = np.array(one["lost"]), np.array(one["formula"])
        label = f"belief of sd {one['spread']:g}"
        ax.plot(lost, formula / lost, "s", color=hue, ms=3.5, label=label)
    ax.set(xscale="log", xlabel="variance lost")
    ax.set_ylabel("$M P M^{\\mathsf{T}}$ / variance lost")
    ax.set_title(f"D  Single states of the network, gain {top:g}")
    _ratios(ax)
    ax.legend(loc="best")


def _widths(ax: Axes) -> None:
    """Widths of beliefs across."""
    across = [0.05, 0.1, 0.2, 0.4, 0.8]
    ax.set(xscale="log", xlabel="standard deviation of the belief")
    ax.set_xticks(across, [f"{x:g}" for x in across])
    ax.set_xticks([], minor=True)


def _ratios(ax: Axes) -> None:
    """Ratios up, as plain numbers; as far as there are any, but from a half to two at least."""
    log_numbers(ax)
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, 0.5), max(high, 2))
