"""Filtering a chaotic RNN with the true model: accuracy and calibration against targets.

The public protocol of the paper's first table: Student-t observations of every latent, T = 250, 10
trials. Prints its figures and exits non-zero when one falls short.

    python benchmarks/chaotic_rnn.py [--quick] [--json FILE]
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from closing import close

from evkf.dynamics import ChaoticRNN
from evkf.families import GaussianFamily
from evkf.filters import ParticleFilter, VariationalKalmanFilter, scan_filter
from evkf.likelihoods import StudentT
from evkf.model import Model, simulate

T, TRIALS, PARTICLES = 250, 10, 10_000
MOST_RMSE = {16: 0.108, 32: 0.108, 64: 0.108}
COVERAGE = (0.87, 0.93)
WITHIN_PARTICLES = 1.02


def protocol(L: int, trial: int) -> tuple[Model, jax.Array, jax.Array]:
    """One trial: its own couplings, states and observations."""
    key = jax.random.fold_in(jax.random.key(L), trial)
    weight_key, run_key = jax.random.split(key)
    weight = jax.random.normal(weight_key, (L, L)) / np.sqrt(L)
    likelihood = StudentT(np.eye(L), df=2.0, scale=0.1)
    prior = GaussianFamily(L).from_moments(jnp.zeros(L), 0.01 * jnp.eye(L))
    model = Model(ChaoticRNN(weight), likelihood, prior)
    zs, ys = simulate(model, run_key, T)
    return model, zs, ys


def rmse(mean: jax.Array, zs: jax.Array) -> float:
    """Root of the mean square over dimensions, averaged over time."""
    return float(jnp.mean(jnp.sqrt(jnp.mean((mean - zs) ** 2, axis=-1))))


def run(quick: bool) -> dict:
    """All figures of the benchmark."""
    trials = 3 if quick else TRIALS
    filter = VariationalKalmanFilter()
    rows = []
    for L in (2, 16) if quick else (2, 16, 32, 64):
        ours, inside, evaluations, particles = [], [], [], []
        for trial in range(trials):
            model, zs, ys = protocol(L, trial)
            _, trace = scan_filter(filter, model, ys)
            ours.append(rmse(trace.belief.mean, zs))
            std = jnp.sqrt(jnp.diagonal(trace.belief.cov, axis1=1, axis2=2))
            inside.append(float(jnp.mean(jnp.abs(trace.belief.mean - zs) < 1.6449 * std)))
            evaluations.append(float(jnp.mean(trace.info.evaluations)))
            if L == 2:
                key = jax.random.key(trial)
                _, cloud = scan_filter(ParticleFilter(PARTICLES), model, ys, key=key)
                particles.append(rmse(cloud.belief.mean, zs))
        row = {
            "L": L,
            "trials": trials,
            "rmse": float(np.mean(ours)),
            "rmse_sd": float(np.std(ours)),
            "coverage_90": float(np.mean(inside)),
            "evaluations": float(np.mean(evaluations)),
        }
        if particles:
            row["particle_rmse"] = float(np.mean(particles))
        rows.append(row)
    return {"rows": rows}


def shortfalls(rows: list[dict]) -> list[str]:
    """Every target that was missed."""
    missed = []
    for row in rows:
        L = row["L"]
        if row["rmse"] > MOST_RMSE.get(L, np.inf):
            missed.append(f"L = {L}: RMSE {row['rmse']:.4f} above {MOST_RMSE[L]}")
        if row["rmse"] > WITHIN_PARTICLES * row.get("particle_rmse", np.inf):
            missed.append(f"L = {L}: RMSE {row['rmse']:.4f} against {row['particle_rmse']:.4f}")
        if not COVERAGE[0] <= row["coverage_90"] <= COVERAGE[1]:
            missed.append(f"L = {L}: coverage {row['coverage_90']:.3f} outside {COVERAGE}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 trials, L = 2 and 16 only")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    result = run(options.quick)
    for row in result["rows"]:
        print(", ".join(f"{key} {value:.4g}" for key, value in row.items()))
    return close(result, shortfalls(result["rows"]), options.json)


if __name__ == "__main__":
    sys.exit(main())
