"""The figure of gaps (fig:supp:gaps): bounds beside the evidence, and their slacks."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evkf.plotting.colours import OKABE_ITO
from evkf.plotting.style import MUTED, STYLE, TRUTH
from evkf.reproduce.gaps.experiment import SKIP, SYSTEMS
from evkf.reproduce.tables import Found, Row, select

BLUE, ORANGE = OKABE_ITO[:2]


def draw(found: Found) -> Figure:
    """Without correction, a column a system. Above: bounds less the evidence. Below: slacks."""
    series = [one for result in found.results for one in result["series"]]
    names = [name for name in SYSTEMS if select(series, system=name, method="uncorrected")]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 5.8), layout="constrained")
        axes = figure.subplots(2, len(names), sharex="col", squeeze=False)
        for column, name in enumerate(names):
            own = select(series, system=name, method="uncorrected")[0]
            _bounds(axes[0, column], own)
            _slacks(axes[1, column], own)
            title = SYSTEMS[name][0].upper() + SYSTEMS[name][1:]
            axes[0, column].set_title(f"{'ABC'[column]}  {title}")
            axes[1, column].set_xlabel("bin")
        axes[0, 0].set_ylabel("nats above $\\log p(y_t | y_{<t})$")
        axes[1, 0].set_ylabel("slack (nats)")
        above, below = (ax.get_legend_handles_labels() for ax in axes[:, 0])
        figure.legend(*above, loc="outside upper center", ncols=len(above[1]))
        figure.legend(*below, loc="outside lower center", ncols=len(below[1]))
    return figure


def _bounds(ax: Axes, own: Row) -> None:
    bins, evidence = SKIP + 1 + np.arange(len(own["L"])), np.array(own["evidence"])
    ax.axhline(0, color=TRUTH, lw=0.8, label="$\\log p(y_t | y_{<t})$")
    lines = (
        ("pushed", "evidence under the push-forward", MUTED, 0.9, ":"),
        ("M", "$M_t$", ORANGE, 1.1, "-"),
        ("L", "$L_t$", BLUE, 1.1, "-"),
    )
    for name, label, colour, width, style in lines:
        ax.plot(bins, np.array(own[name]) - evidence, style, color=colour, lw=width, label=label)
    ax.set_xlim(bins[0], bins[-1])


def _slacks(ax: Axes, own: Row) -> None:
    bins = SKIP + 1 + np.arange(len(own["E"]))
    slack = np.array(own["F"])
    ax.axhline(0, color=TRUTH, lw=0.8)
    ax.plot(bins, own["E"], color=ORANGE, lw=1.1, label="$\\mathcal{E}_t$, of $M_t$")
    ax.plot(bins, slack, color=BLUE, lw=1.1, label="$\\mathcal{F}_t$, of $L_t$")
    below = np.minimum(slack, 0)
    ax.fill_between(bins, below, 0, color=BLUE, alpha=0.25, lw=0, label="$\\mathcal{F}_t < 0$")
