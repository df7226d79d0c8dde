"""Every table and figure of the paper by name."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from evkf.experiments import (
    cb,
    cb_figure,
    cb_report,
    chaotic,
    chaotic_report,
    gamma,
    gamma_figure,
    gamma_report,
    gaps,
    gaps_figure,
    gaps_report,
    variance,
    variance_figure,
    variance_report,
    vdp,
    vdp_figure,
    vdp_report,
)
from evkf.experiments.tables import Row


class Experiment(NamedTuple):
    """How a name of the paper is computed, told and drawn."""

    title: str
    module: ModuleType
    """Of the tasks: METHODS, TRIALS, QUICK_TRIALS, tasks, run, timings and time_one."""
    report: Callable[[list[Row], list[Row], int, bool], str]
    """Markdown, of rows, times, the number of trials and whether quick."""
    draw: Callable[[list[dict[str, Any]]], Figure]
    """The figure, of the results of all tasks."""
    shortfalls: Callable[[list[Row], list[Row]], list[str]]
    """Targets that rows and times miss."""
    timed: bool = True
    needs: tuple[str, ...] = ()
    """Methods without which there is no figure."""


def none_missed(rows: list[Row], timing: list[Row]) -> list[str]:
    """Where there are no targets: what comes out is told."""
    del rows, timing
    return []


EXPERIMENTS = {
    "table1": Experiment(
        "Filter a chaotic network (Table 1).",
        chaotic,
        chaotic_report.report,
        chaotic_report.draw,
        chaotic_report.shortfalls,
    ),
    "table2": Experiment(
        "Learn the Van der Pol oscillator (Table 2).",
        vdp,
        vdp_report.report,
        vdp_figure.draw_table2,
        vdp_report.shortfalls,
    ),
    "vdp": Experiment(
        "Draw what was learned of the Van der Pol oscillator (Figures 2 and 6).",
        vdp,
        vdp_report.report_figure,
        vdp_figure.draw_vdp,
        none_missed,
        timed=False,
        needs=("evkf",),
    ),
    "table3": Experiment(
        "Learn continuous Bernoulli states (Table 3).",
        cb,
        cb_report.report,
        cb_figure.draw_table3,
        none_missed,
    ),
    "cb": Experiment(
        "Draw what was learned of continuous Bernoulli states (Figures 3 and 7).",
        cb,
        cb_report.report,
        cb_figure.draw_cb,
        none_missed,
        timed=False,
        needs=("evkf",),
    ),
    "gamma": Experiment(
        "Filter Gamma states with and without the correction of variances (appendix).",
        gamma,
        gamma_report.report,
        gamma_figure.draw,
        gamma_report.shortfalls,
        timed=False,
    ),
    "gaps": Experiment(
        "Measure the gaps between bounds and evidence (appendix).",
        gaps,
        gaps_report.report,
        gaps_figure.draw,
        gaps_report.shortfalls,
        timed=False,
    ),
    "variance": Experiment(
        "Measure the variance that an uncorrected prediction loses (section 3.6).",
        variance,
        variance_report.report,
        variance_figure.draw,
        variance_report.shortfalls,
        timed=False,
    ),
}
