"""Direct variational joint filtering with the true model, against figures of published code.

Linear dynamics (0.99 times the state) with Gaussian noise, where its optimum is eVKF's without
variance correction: RMSE relative to the Kalman filter's. Then the chaotic RNN of the paper's first
table (`chaotic_rnn.py`). Prints its figures and exits non-zero when one falls short.

    python benchmarks/vjf_direct.py [--quick] [--json FILE]
"""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from chaotic_rnn import protocol, rmse

from evkf.dynamics import Linear
from evkf.families import DiagonalGaussian
from evkf.filters import DirectVJF, VariationalKalmanFilter, scan_filter
from evkf.likelihoods import Gaussian
from evkf.model import Model, simulate

FILTER = DirectVJF(learn=False)
PUBLISHED = {2: 0.110, 16: 0.125, 64: 0.128}
RATIOS = {1: 1.04, 10: 1.39, 100: 1.70}
WITHIN, EQUAL, NEAR = 1.05, 0.03, 0.1
WALKS, WALK_BINS = 32, 200


def linear() -> list[dict]:
    """RMSE over the Kalman filter's at three ratios of observation to process noise."""
    family, rows = DiagonalGaussian(WALKS), []
    for ratio in RATIOS:
        likelihood = Gaussian(np.eye(WALKS), noise=0.01 * ratio)
        prior = family.from_moments(jnp.zeros(WALKS), 1e-6 * jnp.eye(WALKS))
        model = Model(Linear(0.99 * np.eye(WALKS), 0.01), likelihood, prior, family)
        zs, ys = simulate(model, jax.random.key(ratio), WALK_BINS)
        errors = {}
        for name, filter in (
            ("vjf", FILTER),
            ("uncorrected", VariationalKalmanFilter(correct=False)),
            ("kalman", VariationalKalmanFilter()),
        ):
            _, trace = scan_filter(filter, model, ys, key=jax.random.key(0))
            mean = jax.vmap(family.mean)(trace.belief)
            errors[name] = float(jnp.sqrt(jnp.mean((mean - zs) ** 2)))
        row = {"R_over_Q": ratio} | {k: v / errors["kalman"] for k, v in errors.items()}
        rows.append(row)
        print(", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
    return rows


def chaotic(sizes: tuple[int, ...], trials: int) -> list[dict]:
    """RMSE on the chaotic RNN."""
    rows = []
    for L in sizes:
        family, errors, seconds = DiagonalGaussian(L), [], []
        for trial in range(trials):
            given, zs, ys = protocol(L, trial)
            prior = family.from_moments(*given.prior)
            model = Model(given.dynamics, given.likelihood, prior, family)
            begin = time.perf_counter()
            _, trace = scan_filter(FILTER, model, ys, key=jax.random.key(trial))
            errors.append(rmse(jax.vmap(family.mean)(trace.belief), zs))
            seconds.append((time.perf_counter() - begin) / len(ys))
        row = {
            "L": L,
            "trials": trials,
            "rmse": float(np.mean(errors)),
            "rmse_sd": float(np.std(errors)),
            "ms_per_step": 1e3 * min(seconds),
        }
        rows.append(row)
        print(", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
    return rows


def shortfalls(result: dict) -> list[str]:
    """Every target that was missed."""
    missed = []
    for row in result["linear"]:
        ratio, vjf, bare = row["R_over_Q"], row["vjf"], row["uncorrected"]
        if abs(vjf / bare - 1) > EQUAL:
            missed.append(f"R/Q = {ratio}: {vjf:.3f} against {bare:.3f} of eVKF")
        if abs(vjf / RATIOS[ratio] - 1) > NEAR:
            missed.append(f"R/Q = {ratio}: {vjf:.3f} against {RATIOS[ratio]} published")
    for row in result["chaotic"]:
        most = WITHIN * PUBLISHED[row["L"]]
        if row["rmse"] > most:
            missed.append(f"L = {row['L']}: RMSE {row['rmse']:.4f} above {most:.4f}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 trials, L = 2 and 16 only")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    sizes, trials = ((2, 16), 2) if options.quick else (tuple(PUBLISHED), 10)
    result = {"linear": linear(), "chaotic": chaotic(sizes, trials)}
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    missed = shortfalls(result)
    print("\n".join(missed) if missed else "all targets met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
