"""Accuracy lost by float32: the same recordings filtered in float32 and in float64."""

import jax
import numpy as np

from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.model import simulate
from speed.core import Figure, Part, Say
from speed.steps import Cell, build

CELLS = {"Van der Pol": Cell(2, 100, "poisson"), "chaotic network": Cell(10, 200, "poisson")}
BINS, QUICK_BINS = 2000, 300
MOST_DIFFERENCE = 1e-3


def run(quick: bool, seed: int, say: Say) -> Part:
    """Root mean square errors to the true states of both."""
    rows, figures = [], []
    for system, cell in CELLS.items():
        single, double = errors(cell, QUICK_BINS if quick else BINS, seed)
        rows.append({"system": system, "L": cell.L, "N": cell.N, "rmse": [single, double]})
        size = f"{system}, L = {cell.L}, N = {cell.N}"
        say(f"{size}: RMSE {single:.6f} in float32, {double:.6f} in float64")
        name = f"difference in RMSE of float32 and float64, {size}"
        change = abs(single - double)
        figures.append(Figure(name, change, "", MOST_DIFFERENCE, False, "precision"))
    return Part(rows, figures)


def errors(cell: Cell, num_bins: int, seed: int) -> tuple[float, float]:
    """Errors in float32 and in float64, on one recording simulated in float64."""
    with jax.enable_x64(True):
        drawn = simulate(build(cell, seed), jax.random.key(seed), num_bins)
        zs, ys = (np.asarray(x) for x in drawn)
    found = []
    for double in (False, True):
        with jax.enable_x64(double):
            trace = scan_filter(VariationalKalmanFilter(), build(cell, seed), ys)[1]
            mean = np.asarray(trace.belief.mean, float)
        found.append(float(np.sqrt(np.mean((mean - zs) ** 2))))
    return found[0], found[1]
