"""Style of all plots, and colours that colour-blind readers can distinguish."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

TRUTH = "#1a1a1a"
ESTIMATE = "#0072b2"
MUTED = "#6f6f6f"
BAND = "#9ccbe8"
SPIKES = LinearSegmentedColormap.from_list("spikes", ["#ffffff", TRUTH])
RATES = LinearSegmentedColormap.from_list("rates", ["#ffffff", "#a6cee3", ESTIMATE, "#08306b"], 40)
"""Colour map of firing rates; it has only 40 colours, which keeps files small."""

Z95 = 1.96
"""Half of the width of a 95 % interval of a Gaussian, in standard deviations."""

P = ParamSpec("P")

STYLE: dict = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.labelcolor": TRUTH,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": TRUTH,
    "ytick.labelcolor": TRUTH,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "image.interpolation": "nearest",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "path",
}


def new_axes(width: float = 4.2, height: float = 3.2) -> Axes:
    """Return the axes of a new matplotlib figure.

    Args:
        width: Width of the figure in inches.
        height: Height of the figure in inches.

    Example:
        >>> ax = new_axes()
        >>> ax.figure.get_size_inches().tolist()
        [4.2, 3.2]
    """
    with matplotlib.rc_context(STYLE):
        return Figure(figsize=(width, height), layout="constrained").add_subplot()


def styled(draw: Callable[P, Axes]) -> Callable[P, Axes]:
    """Return a plotting function that plots in the style of this module (decorator).

    While the function runs, the matplotlib settings are those of `STYLE`, also for axes that were
    made using other settings. The top and right edges of the axes are hidden afterwards.

    Args:
        draw: Function that plots into axes and returns these axes.
    """

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Axes:
        with matplotlib.rc_context(STYLE):
            ax = draw(*args, **kwargs)
            ax.spines[["top", "right"]].set_visible(False)
            return ax

    return inner


def log_numbers(ax: Axes) -> None:
    """Make the vertical axis logarithmic, labelled by plain numbers such as 1, 2, 5 and 10.

    Example:
        >>> ax = new_axes()
        >>> log_numbers(ax)
        >>> ax.get_yscale()
        'log'
    """
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
