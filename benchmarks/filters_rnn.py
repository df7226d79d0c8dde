"""Filters side by side on the chaotic RNN with the true model: accuracy, calibration and time.

The public protocol of `benchmarks/chaotic_rnn.py`: Student-t observations (df 2, scale 0.1) of
every latent, T = 250, 10 trials. Accuracy in float64, times of a compiled step in float32. Where a
method looks back one bin, the RMSE of that is given beside. Prints its figures and exits non-zero
when one falls short.

    python benchmarks/filters_rnn.py [--quick] [--json FILE] [--methods NAME ...] [--times]

A method is one entry of `METHODS`.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from chaotic_rnn import protocol, rmse
from closing import close
from streams import Streamed

from evkf.families import DiagonalGaussianFamily
from evkf.filters import (
    DirectVJF,
    EnsembleKalman,
    ExtendedKalman,
    Filter,
    OnlineVariationalSmoother,
    ParticleFilter,
    StreamingVMC,
    UnscentedKalman,
    VariationalKalmanFilter,
)
from evkf.model import Model

TRIALS, LATENTS = 10, (2, 16, 32, 64)
SLACK = 0.05


class Method(NamedTuple):
    """How to make a filter, and what it must keep to."""

    make: Callable[[], Filter]
    rmse: dict[int, tuple[float, float]]
    """Least and most RMSE by L."""
    most_ms: dict[int, float] = {}  # noqa: RUF012
    """Most time of a step by L."""
    diagonal: bool = False
    """Whether it has beliefs of independent latents."""


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
    "vjf_direct": Method(
        lambda: DirectVJF(learn=False),
        no_worse({2: 0.110, 16: 0.125, 64: 0.128}),
        diagonal=True,
    ),
    "svmc": Method(
        lambda: StreamingVMC(learn=False, iterations=15), no_worse({2: 0.103, 16: 0.179})
    ),
    "ovs": Method(
        lambda: OnlineVariationalSmoother(learn=False),
        no_worse({2: 0.094, 16: 0.105, 64: 0.110}),
        most_ms={2: 130.0},
    ),
}


def problem(method: Method, L: int, trial: int) -> tuple[Model, jax.Array, jax.Array]:
    """The protocol, in the family of beliefs that a method has."""
    model, zs, ys = protocol(L, trial)
    if method.diagonal:
        family = DiagonalGaussianFamily(L)
        prior = family.from_moments(*model.prior)
        model = Model(model.dynamics, model.likelihood, prior, family)
    return model, zs, ys


def accuracy(method: Method, L: int, trials: int) -> dict:
    """RMSE over trials, the share of the truth inside 90 % intervals, and what went wrong."""
    streamed = Streamed(method.make(), problem(method, L, 0)[0])
    errors, inside, fell_back, back = [], [], 0, []
    for trial in range(trials):
        model, zs, ys = problem(method, L, trial)
        ran = streamed(model, ys, trial)
        mean = jax.vmap(model.family.mean)(ran.belief)
        std = jnp.sqrt(jax.vmap(model.family.var)(ran.belief))
        errors.append(rmse(mean, zs))
        inside.append(float(jnp.mean(jnp.abs(mean - zs) < 1.6449 * std)))
        fell_back += ran.fell_back
        if ran.smoothed is not None:
            back.append(rmse(jax.vmap(model.family.mean)(ran.smoothed)[1:], zs[:-1]))
    figures = {
        "rmse": float(np.mean(errors)),
        "rmse_sd": float(np.std(errors)),
        "coverage_90": float(np.mean(inside)),
        "fell_back": fell_back,
    }
    return figures | ({"rmse_one_bin_back": float(np.mean(back))} if back else {})


def step_time(method: Method, L: int) -> dict:
    """Median time of a compiled step, and of an empty compiled call between the steps."""
    with jax.enable_x64(False):
        model, _, ys = problem(method, L, 0)
        ran = Streamed(method.make(), model)(model, ys, 0)
    return {"step_ms": ran.step_ms, "empty_us": ran.empty_us}


def shortfalls(rows: list[dict]) -> list[str]:
    """Every target that was missed."""
    missed = []
    for row in rows:
        name, method, L = f"{row['method']}, L = {row['L']}", METHODS[row["method"]], row["L"]
        least, most = method.rmse.get(L, (0.0, np.inf))
        if not least <= row["rmse"] <= most:
            missed.append(f"{name}: RMSE {row['rmse']:.4f} outside [{least:.4f}, {most:.4f}]")
        if row["fell_back"]:
            missed.append(f"{name}: {row['fell_back']} updates fell back")
        if row["step_ms"] > method.most_ms.get(L, np.inf):
            missed.append(f"{name}: {row['step_ms']:.0f} ms above {method.most_ms[L]:.0f}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 trials, L = 2 and 16 only")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--times", action="store_true", help="measure only the times in --json anew"
    )
    options = parser.parse_args()
    if options.times and options.json is None:
        parser.error("--times measures what is in a file: name it by --json")
    jax.config.update("jax_enable_x64", True)
    trials = 3 if options.quick else TRIALS
    rows = []
    if options.times:
        for row in json.loads(options.json.read_text())["rows"]:
            rows.append(row | step_time(METHODS[row["method"]], row["L"]))
            print(f"{row['method']}, L = {row['L']}: step_ms {rows[-1]['step_ms']:.4g}", flush=True)
        return close({"rows": rows}, shortfalls(rows), options.json)
    for L in LATENTS[:2] if options.quick else LATENTS:
        for name in options.methods:
            figures = accuracy(METHODS[name], L, trials) | step_time(METHODS[name], L)
            rows.append({"method": name, "L": L, "trials": trials, **figures})
            said = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            print(f"{name}, L = {L}: {said}", flush=True)
    return close({"rows": rows}, shortfalls(rows), options.json)


if __name__ == "__main__":
    sys.exit(main())
