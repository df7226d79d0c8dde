"""Methods that learn while they filter, on the Van der Pol stream, beside eVKF.

The protocol of `evkf reproduce table2`, and its first trials, with eVKF learning in every bin and
with direct VJF as well: 3500 bins learned in one pass, readout known; then frozen and judged on 500
more. RMSE is that of a bin (root of the mean square over coordinates), averaged; "late" over the
last 1000 learned bins. log q is of the 500 judged bins, oracle the filter of eVKF given the true
dynamics. Prints its figures, last those that were missed, and exits non-zero if there are any.

    python benchmarks/filters_vdp.py [--quick] [--json FILE] [--methods NAME ...] [--seeds N]
"""

import argparse
import sys
from pathlib import Path

import jax
import numpy as np
from closing import close

from evkf.dynamics import ResidualMLP
from evkf.families import DiagonalGaussianFamily
from evkf.filters import DirectVJF
from evkf.likelihoods import Likelihood
from evkf.model import Model
from evkf.reproduce.streams import LearningMethod
from evkf.reproduce.vdp import experiment as vdp

SEEDS = 5


def start_direct(likelihood: Likelihood, seed: int) -> Model:
    """A random walk with beliefs that hold latents independent."""
    dynamics = ResidualMLP(2, 0.04, jax.random.key(1000 + seed))
    return Model(dynamics, likelihood, family=DiagonalGaussianFamily(2))


METHODS = {
    "evkf": vdp.METHODS["evkf_every_bin"],
    "vjf": vdp.METHODS["vjf"],
    "vjf_direct": LearningMethod("VJF, direct", start_direct, lambda learn: DirectVJF(learn=learn)),
    "svmc": vdp.METHODS["svmc"],
    "ovs": vdp.METHODS["ovs"],
}
MOST = {
    ("vjf", "poisson"): {"rmse_late": 0.39, "kl": 72.0},
    ("vjf", "gaussian"): {"rmse_late": 0.30, "kl": 41.0},
    ("svmc", "poisson"): {"rmse_late": 0.23, "rmse_test": 0.33, "kl": 12.0},
    ("svmc", "gaussian"): {"rmse_late": 0.16, "rmse_test": 0.25, "kl": 6.4},
}
LEAST = {("vjf", "poisson"): {"log_q": -3.9}}
"""Figures of the published code of a method."""


def figures(kind: str, method: LearningMethod | None, seeds: list[int]) -> list[dict]:
    """One row for every trial; of the oracle without a method."""
    rows, _ = vdp.learn_and_judge(kind, method, seeds, vdp.LEARNED)
    names = {"rmse_late": "rmse_late", "rmse_judged": "rmse_test", "log_q": "log_q"}
    names |= {"kl": "kl", "log_chamfer": "log_chamfer"}
    return [{new: row[old] for old, new in names.items()} for row in rows]


def shortfalls(kind: str, method: str, mean: dict) -> list[str]:
    """Every figure that was missed."""
    above = [
        f"{method}, {kind}: {name} {mean[name]:.3f} above {most}"
        for name, most in MOST.get((method, kind), {}).items()
        if not mean[name] <= most
    ]
    below = [
        f"{method}, {kind}: {name} {mean[name]:.3f} below {least}"
        for name, least in LEAST.get((method, kind), {}).items()
        if not mean[name] >= least
    ]
    return above + below


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="recordings")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    seeds, result, missed = list(range(1 if options.quick else options.seeds)), {}, []

    def summarise(name: str, rows: list[dict]) -> dict:
        mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        result[name] = {"mean": mean, "rows": rows}
        print(f"{name}: " + ", ".join(f"{k} {v:.3f}" for k, v in mean.items()), flush=True)
        return mean

    for kind in ("poisson", "gaussian"):
        true = figures(kind, None, seeds)
        floors = [row.pop("log_chamfer") for row in true]
        for row in true:
            del row["kl"]
        summarise(f"{kind} oracle", true)
        for method in options.methods:
            rows = figures(kind, METHODS[method], seeds)
            for row, floor in zip(rows, floors, strict=True):
                row["chamfer_above_floor"] = row.pop("log_chamfer") - floor
            missed += shortfalls(kind, method, summarise(f"{kind} {method}", rows))
    return close(result, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
