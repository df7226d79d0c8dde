"""Soundness of beliefs of low rank over a long recording of many latents and channels."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evkf.dynamics import ChaoticRNN
from evkf.families import LowRankGaussianFamily
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from evkf.types import Status
from speed.core import Figure, Part, Say
from speed.low_rank import LARGE, RANK

BINS, QUICK_BINS = 10_000, 400
QUICK_SIZE = (64, 500)
CHUNK = 100
"""Bins simulated and filtered at once."""
MOST_GROWTH = 1.1
"""Largest ratio of variances and errors of the last quarter to those of the second."""


def run(quick: bool, seed: int, say: Say) -> Part:
    """Filter chunk after chunk; when quick, few bins of a small model, without targets."""
    (L, N), bins = (QUICK_SIZE, QUICK_BINS) if quick else (LARGE, BINS)
    with jax.enable_x64(False):
        rows = measure(L, N, bins, seed, say)
    size = f"rank {RANK}, L = {L}, N = {N}, {bins} bins"
    lost = sum(row["not_finite"] for row in rows)
    fell = sum(row["fell_back"] + row["capped"] for row in rows)
    unsettled = sum(row["not_converged"] for row in rows)

    def figure(name: str, value: float, unit: str, most: float | None) -> Figure:
        target = None if quick else most
        return Figure(f"{name}, {size}", value, unit, target, False, "stability")

    def growth(name: str) -> tuple[float, str, float]:
        found, quarter = [row[name] for row in rows], max(len(rows) // 4, 1)
        second, last = found[quarter : 2 * quarter], found[-quarter:]
        return float(np.mean(last) / np.mean(second)), "times", MOST_GROWTH

    return Part(
        rows,
        [
            figure("beliefs that are not finite", lost, "bins", 0),
            figure("bins that fell back or were capped", fell, "bins", 0),
            figure("largest variance, last quarter against second", *growth("most_variance")),
            figure("RMSE, last quarter against second", *growth("rmse")),
            figure("updates that did not converge", unsettled, "bins", None),
        ],
    )


def build_bounded(L: int, N: int, seed: int) -> Model:
    """A chaotic network behind Poisson channels, whose states stay bounded over any time."""
    rng = np.random.default_rng(seed)
    weight, C = (rng.standard_normal((num, L)) / math.sqrt(L) for num in (L, N))
    family = LowRankGaussianFamily(L, RANK)
    return Model(ChaoticRNN(weight), Poisson(C, -np.ones(N)), family=family)


def measure(L: int, N: int, bins: int, seed: int, say: Say) -> list[dict[str, Any]]:
    """Filter chunk after chunk, and return a row for each."""
    model, filter = build_bounded(L, N, seed), VariationalKalmanFilter()
    key, state, z = jax.random.key(seed), filter.init(model), jnp.zeros(L)
    rows = []
    for first in range(0, bins, CHUNK):
        zs, ys = simulate(model, jax.random.fold_in(key, first), CHUNK, z0=z)
        state, (belief, info, _) = scan_filter(filter, model, ys, state=state, first=first)
        z, status = zs[-1], np.asarray(info.status)
        leaves = [np.asarray(leaf).reshape(CHUNK, -1) for leaf in belief]
        finite = np.isfinite(np.concatenate(leaves, axis=1)).all(axis=1)
        var = jax.vmap(model.family.var)(belief)
        rows.append(
            {
                "first_bin": first,
                "not_finite": int(np.sum(~finite)),
                "not_converged": int(np.sum(status & Status.NOT_CONVERGED > 0)),
                "fell_back": int(np.sum(status & Status.FELL_BACK > 0)),
                "capped": int(np.sum(status & Status.CAPPED > 0)),
                "most_variance": float(jnp.max(var)),
                "rmse": float(jnp.sqrt(jnp.mean((belief.mean - zs) ** 2))),
            }
        )
        if (first + CHUNK) % (10 * CHUNK) == 0:
            say(f"{first + CHUNK} of {bins} bins, largest variance {rows[-1]['most_variance']:.3f}")
    return rows
