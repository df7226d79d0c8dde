"""List the reproduced tables and figures by name, and import an experiment when it is needed.

Each experiment is a package of two modules: `experiment` runs the computations, `report` makes the
page and the figures.
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evkf.reproduce.tables import Experiment

TITLES = {
    "table1": "Filter a chaotic network (Table 1).",
    "table2": "Learn the Van der Pol oscillator (Table 2).",
    "vdp": "Draw what was learned of the Van der Pol oscillator (Figures 2 and 6).",
    "table3": "Learn continuous Bernoulli states (Table 3).",
    "cb": "Draw what was learned of continuous Bernoulli states (Figures 3 and 7).",
    "gamma": "Filter Gamma states with and without the correction of variances (appendix).",
    "gaps": "Measure the gaps between bounds and evidence (appendix).",
    "variance": "Measure the variance that an uncorrected prediction loses (section 3.6).",
}
ROOMS = {"table1": "chaotic", "table2": "vdp", "table3": "cb"}
"""Package of each experiment whose name differs from the name of its package."""


@cache
def load(name: str) -> "Experiment":
    """Import the experiment of this name, and return it.

    Example:
        >>> experiment = load("table1")
        >>> experiment.module.TRIALS, list(experiment.pictures)
        (10, ['table1'])
    """
    room = ROOMS.get(name, name)
    return import_module(f"evkf.reproduce.{room}.report").EXPERIMENTS[name]
