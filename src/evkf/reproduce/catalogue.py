"""Every table and figure of the paper by name."""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from matplotlib.figure import Figure

from evkf.reproduce.cb import experiment as cb
from evkf.reproduce.cb import figure as cb_figure
from evkf.reproduce.cb import report as cb_report
from evkf.reproduce.chaotic import experiment as chaotic
from evkf.reproduce.chaotic import report as chaotic_report
from evkf.reproduce.gamma import experiment as gamma
from evkf.reproduce.gamma import figure as gamma_figure
from evkf.reproduce.gamma import report as gamma_report
from evkf.reproduce.gaps import experiment as gaps
from evkf.reproduce.gaps import figure as gaps_figure
from evkf.reproduce.gaps import report as gaps_report
from evkf.reproduce.tables import Found
from evkf.reproduce.variance import experiment as variance
from evkf.reproduce.variance import figure as variance_figure
from evkf.reproduce.variance import report as variance_report
from evkf.reproduce.vdp import experiment as vdp
from evkf.reproduce.vdp import figure as vdp_figure
from evkf.reproduce.vdp import report as vdp_report


class Picture(NamedTuple):
    """A figure, and what a report says of it."""

    caption: str
    draw: Callable[[Found], Figure]


class Experiment(NamedTuple):
    """How a name of the paper is computed, told and drawn."""

    title: str
    module: ModuleType
    """METHODS, TRIALS, QUICK_TRIALS, tasks and run; if timed TIMED, QUICK_TIMED, timings, ready."""
    report: Callable[[Found], str]
    """Markdown; pictures are shown below it."""
    pictures: dict[str, Picture]
    """By the names of their files."""
    shortfalls: Callable[[Found], list[str]] | None = None
    """Targets that are missed; without, there are none."""
    timed: bool = False
    needs: tuple[str, ...] = ()
    """Methods without which there is no figure or report."""


EXPERIMENTS = {
    "table1": Experiment(
        "Filter a chaotic network (Table 1).",
        chaotic,
        chaotic_report.report,
        {"table1": Picture("Errors against latents", chaotic_report.draw)},
        chaotic_report.shortfalls,
        timed=True,
    ),
    "table2": Experiment(
        "Learn the Van der Pol oscillator (Table 2).",
        vdp,
        vdp_report.report,
        {"table2": Picture("Errors while learning", vdp_figure.draw_table2)},
        vdp_report.shortfalls,
        timed=True,
    ),
    "vdp": Experiment(
        "Draw what was learned of the Van der Pol oscillator (Figures 2 and 6).",
        vdp,
        vdp_report.report_figure,
        {"vdp": Picture("Filtering, forecasts, velocities and errors", vdp_figure.draw_vdp)},
        needs=("evkf",),
    ),
    "table3": Experiment(
        "Learn continuous Bernoulli states (Table 3).",
        cb,
        cb_report.report,
        {"table3": Picture("Figures of every trial", cb_figure.draw_table3)},
        timed=True,
        needs=("evkf",),
    ),
    "cb": Experiment(
        "Draw what was learned of continuous Bernoulli states (Figures 3 and 7).",
        cb,
        cb_report.report_figure,
        {
            "cb": Picture("Velocities, beliefs and trajectories", cb_figure.draw_cb),
            "cb_methods": Picture("Phase portraits and states by method", cb_figure.draw_methods),
        },
        needs=("evkf",),
    ),
    "gamma": Experiment(
        "Filter Gamma states with and without the correction of variances (appendix).",
        gamma,
        gamma_report.report,
        {"gamma": Picture("Latents, and log density by b0", gamma_figure.draw)},
        gamma_report.shortfalls,
    ),
    "gaps": Experiment(
        "Measure the gaps between bounds and evidence (appendix).",
        gaps,
        gaps_report.report,
        {"gaps": Picture("Bounds, evidence and slacks", gaps_figure.draw)},
        gaps_report.shortfalls,
        needs=("uncorrected",),
    ),
    "variance": Experiment(
        "Measure the variance that an uncorrected prediction loses (section 3.6).",
        variance,
        variance_report.report,
        {"variance": Picture("Variance lost and the formula", variance_figure.draw)},
        variance_report.shortfalls,
    ),
}
