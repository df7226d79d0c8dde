"""Every table and figure of the paper by name."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from evkf.experiments import chaotic, chaotic_report, vdp, vdp_figure, vdp_report
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
        lambda rows, timing: [],
        timed=False,
        needs=("evkf",),
    ),
}
