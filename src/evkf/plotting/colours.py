"""Colours for conditions that colour-blind readers can distinguish."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.colors import LinearSegmentedColormap

from evkf.errors import InputError
from evkf.numerics.trials import Lengths, read_bins, slices

OKABE_ITO = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#1a1a1a"]
TOL = [
    "#332288",
    "#cc6677",
    "#117733",
    "#88ccee",
    "#999933",
    "#882255",
    "#44aa99",
    "#ddcc77",
    "#aa4499",
]
"""Palettes: `OKABE_ITO` for up to 7 conditions, `TOL` (Tol's muted palette) for up to 9; for more
conditions `by_condition` uses the matplotlib colour map `cividis`."""
ROUND = LinearSegmentedColormap.from_list(
    "round",
    ["#0072b2", "#12a5c4", "#009e73", "#a3a500", "#e69f00", "#d55e00", "#b5527f", "#6a51a3"],
)
"""Colour map for movement directions: neighbouring directions have similar colours."""

Labels = Shaped[np.ndarray, " K"] | Sequence
Colours = Mapping[Any, Any]


def by_condition(conditions: Labels, trials: int) -> dict[Any, Any]:
    """Return a dictionary that gives each condition a colour, in sorted order of conditions.

    Args:
        conditions: Condition of each trial.
        trials: Number of trials; raise InputError if `conditions` has another length.

    Example:
        >>> by_condition(["up", "down", "up"], 3)
        {'down': '#0072b2', 'up': '#e69f00'}
    """
    labels = np.asarray(conditions)
    if labels.shape != (trials,):
        what = f"conditions of shape {labels.shape}"
        raise InputError(what, "conditions", f"pass one for each of the {trials} trials")
    names = sorted(set(labels.tolist()), key=None if labels.dtype.kind in "biuf" else str)
    spread = matplotlib.colormaps["cividis"](np.linspace(0, 0.95, len(names)))
    enough = (colours for colours in (OKABE_ITO, TOL, spread) if len(colours) >= len(names))
    return dict(zip(names, next(enough), strict=False))


def by_direction(
    positions: Float[np.ndarray, "T 2"], lengths: Lengths, conditions: Labels
) -> dict[Any, Any]:
    """Return a dictionary that gives each condition a colour by its mean movement direction.

    Colours change gradually around the circle of directions. The movement of a trial is the vector
    from the first to the last position of the trial; the direction of a condition is that of the
    mean movement of its trials.

    Args:
        positions: Positions, (bins, 2).
        lengths: Number of bins of each trial.
        conditions: Condition of each trial.

    Example:
        >>> paths = np.array([[0.0, 0], [1, 0], [0, 0], [0, 1], [0, 0], [-1, -0.1]])
        >>> list(by_direction(paths, (2, 2, 2), ["right", "up", "left"]))
        ['left', 'right', 'up']
    """
    path = read_bins(positions, "positions")
    trials = slices(lengths, len(path))
    names, labels = list(by_condition(conditions, len(trials))), np.asarray(conditions)
    way = np.array([path[trial.stop - 1] - path[trial.start] for trial in trials])
    mean = np.array([way[labels == name].mean(axis=0) for name in names])
    order = np.argsort(np.arctan2(mean[:, 1], mean[:, 0]))
    hues = ROUND(np.arange(len(names)) * (1 - 1 / 8) / max(len(names) - 1, 1))
    return {names[index]: tuple(hue) for index, hue in zip(order, hues.tolist(), strict=True)}
