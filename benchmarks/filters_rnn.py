"""Filters side by side on the chaotic RNN with the true model: accuracy, calibration and time.

The public protocol of `benchmarks/chaotic_rnn.py`: Student-t observations (df 2, scale 0.1) of
every latent, T = 250, 10 trials. Accuracy in float64, times in float32. Prints its figures and
exits non-zero when one falls short.

    python -m benchmarks.filters_rnn [--quick] [--json FILE] [--methods particle,ensemble]

A method is one entry of `METHODS`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from chaotic_rnn import T, protocol, rmse

from evkf.filters import (
    CompiledStep,
    EnsembleKalman,
    ExtendedKalman,
    Filter,
    ParticleFilter,
    UnscentedKalman,
    VariationalKalmanFilter,
    scan_filter,
)
from evkf.types import Status

TRIALS, LATENTS = 10, (2, 16, 32, 64)
CALLS, WARM_UP = 200, 20
"""Timed calls of a compiled step, and those made before them."""
SLACK = 0.05


class Method(NamedTuple):
    """How to make a filter, and the RMSE it must keep to at some L."""

    make: Callable[[], Filter]
    rmse: dict[int, tuple[float, float]]
    """Least and most RMSE by L."""
    calls: int = CALLS
    """Timed calls, fewer for slow methods."""


def near(figures: dict[int, float]) -> dict[int, tuple[float, float]]:
    """As in a reference run of the same method."""
    return {L: ((1 - SLACK) * x, (1 + SLACK) * x) for L, x in figures.items()}


def no_worse(figures: dict[int, float]) -> dict[int, tuple[float, float]]:
    """At most as in a reference run of another implementation."""
    return {L: (0.0, (1 + SLACK) * x) for L, x in figures.items()}


METHODS = {
    "evkf": Method(VariationalKalmanFilter, dict.fromkeys((16, 32, 64), (0.0, 0.108))),
    "extended": Method(ExtendedKalman, {}),
    "unscented": Method(UnscentedKalman, {}),
    "ensemble": Method(EnsembleKalman, no_worse({2: 0.135, 16: 0.148})),
    "particle": Method(ParticleFilter, near({2: 0.092, 16: 0.117, 32: 0.157, 64: 0.229})),
}


def accuracy(method: Method, L: int, trials: int) -> dict:
    """RMSE over trials, the share of the truth inside 90 % intervals, and what went wrong."""
    filter, errors, inside, fell_back = method.make(), [], [], 0
    for trial in range(trials):
        model, zs, ys = protocol(L, trial)
        _, trace = scan_filter(filter, model, ys, key=jax.random.key(trial))
        mean = jax.vmap(model.family.mean)(trace.belief)
        std = jnp.sqrt(jax.vmap(model.family.var)(trace.belief))
        errors.append(rmse(mean, zs))
        inside.append(float(jnp.mean(jnp.abs(mean - zs) < 1.6449 * std)))
        fell_back += int(jnp.sum(trace.info.status & Status.FELL_BACK > 0))
    return {
        "rmse": float(np.mean(errors)),
        "rmse_sd": float(np.std(errors)),
        "coverage_90": float(np.mean(inside)),
        "fell_back": fell_back,
    }


def step_time(method: Method, L: int) -> dict:
    """Median time of a compiled step, and of an empty compiled call between the steps."""
    with jax.enable_x64(False):
        model, _, ys = protocol(L, 0)
        step = CompiledStep(method.make(), model, key=True)
        rows, seen = [jnp.asarray(y) for y in np.asarray(ys)], jnp.ones(L, bool)
        keys = list(jax.random.split(jax.random.key(0), T))
        one = jnp.ones(())
        empty = jax.jit(lambda x: x + 1).lower(one).compile()
        carry, steps, empties = step.init(), [], []
        for call in range(WARM_UP + method.calls):
            start = time.perf_counter_ns()
            carry = step(carry, rows[call % T], seen, None, keys[call % T])
            np.asarray(carry)
            middle = time.perf_counter_ns()
            np.asarray(empty(one))
            steps.append(middle - start)
            empties.append(time.perf_counter_ns() - middle)
    median, floor = (float(np.median(x[WARM_UP:])) / 1e3 for x in (steps, empties))
    return {"step_us": median, "empty_us": floor}


def shortfalls(rows: list[dict]) -> list[str]:
    """Every target that was missed."""
    missed = []
    for row in rows:
        name = f"{row['method']}, L = {row['L']}"
        least, most = METHODS[row["method"]].rmse.get(row["L"], (0.0, np.inf))
        if not least <= row["rmse"] <= most:
            missed.append(f"{name}: RMSE {row['rmse']:.4f} outside [{least:.4f}, {most:.4f}]")
        if row["fell_back"]:
            missed.append(f"{name}: {row['fell_back']} updates fell back")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 trials, L = 2 and 16 only")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--methods", default=",".join(METHODS), help="names, joined by commas")
    options = parser.parse_args()
    names = options.methods.split(",")
    if unknown := set(names) - set(METHODS):
        parser.error(f"unknown methods {sorted(unknown)}: choose from {', '.join(METHODS)}")
    jax.config.update("jax_enable_x64", True)
    trials = 3 if options.quick else TRIALS
    rows = []
    for L in LATENTS[:2] if options.quick else LATENTS:
        for name in names:
            figures = accuracy(METHODS[name], L, trials) | step_time(METHODS[name], L)
            rows.append({"method": name, "L": L, "trials": trials, **figures})
            print(f"{name}, L = {L}: done", file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    for row in rows:
        print(", ".join(f"{k} {v if isinstance(v, str) else f'{v:.4g}'}" for k, v in row.items()))
    missed = shortfalls(rows)
    print("\n".join(missed) if missed else "all targets met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
