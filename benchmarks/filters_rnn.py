"""Filters side by side on the chaotic RNN with the true model: accuracy, calibration and time.

The public protocol of `evkf reproduce table1`, which has six of these filters, on the same trials:
Student-t observations (df 2, scale 0.1) of every latent, T = 250, 10 trials. Accuracy in float64,
times of a compiled step in float32. Where a method looks back one bin, the RMSE of that is given
beside. Prints its figures and exits non-zero when one falls short.

    python benchmarks/filters_rnn.py [--quick] [--json FILE] [--methods NAME ...] [--times]

A method is one entry of `METHODS`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from closing import close

from evkf.filters import ExtendedKalman, UnscentedKalman, VariationalKalmanFilter, scan_filter
from evkf.reproduce.chaotic import experiment as chaotic
from evkf.reproduce.chaotic.experiment import BINS, FilterMethod
from evkf.reproduce.runner import time_steps, timed_call

TRIALS, LATENTS = 10, (2, 16, 32, 64)
SLACK = 0.05
TIMED = range(20, BINS)
"""Bins whose steps are timed."""
COVERAGE = (0.87, 0.93)
"""Share of the true states that eVKF's 90 % intervals must hold."""
WITHIN_PARTICLES = 1.02
"""RMSE of eVKF relative to the particle filter's, at most, at L = 2."""


class Rival(NamedTuple):
    """A filter, and the targets for it."""

    method: FilterMethod
    rmse: dict[int, tuple[float, float]]
    """Least and most RMSE by L."""
    most_ms: dict[int, float] = {}  # noqa: RUF012
    """Most time of a step by L."""


def near(figures: dict[int, float]) -> dict[int, tuple[float, float]]:
    """Bounds around the figures of a reference run of the same method."""
    return {L: ((1 - SLACK) * x, (1 + SLACK) * x) for L, x in figures.items()}


def no_worse(figures: dict[int, float]) -> dict[int, tuple[float, float]]:
    """Upper bounds from a reference run of another implementation."""
    return {L: (0.0, (1 + SLACK) * x) for L, x in figures.items()}


TABLE1 = chaotic.METHODS
METHODS = {
    "evkf": Rival(TABLE1["evkf"], dict.fromkeys((16, 32, 64), (0.0, 0.108))),
    "extended": Rival(FilterMethod("extended", ExtendedKalman), {}),
    "unscented": Rival(FilterMethod("unscented", UnscentedKalman), {}),
    "ensemble": Rival(TABLE1["enkf"], no_worse({2: 0.135, 16: 0.148})),
    "particle": Rival(TABLE1["bpf"], near({2: 0.092, 16: 0.117, 32: 0.157, 64: 0.229})),
    "vjf_direct": Rival(TABLE1["vjf"], no_worse({2: 0.110, 16: 0.125, 64: 0.128})),
    "svmc": Rival(TABLE1["svmc"], no_worse({2: 0.103, 16: 0.179})),
    "ovs": Rival(TABLE1["ovs"], no_worse({2: 0.094, 16: 0.105, 64: 0.110}), most_ms={2: 130.0}),
}


def accuracy(name: str, L: int, trials: int) -> dict:
    """RMSE over trials, the share of the truth inside 90 % intervals, and what went wrong."""
    seeds = range(trials)
    rows = chaotic.filter_trials(METHODS[name].method, "public", L, BINS, list(seeds))
    errors = [row["rmse"] for row in rows]
    figures = {
        "rmse": float(np.mean(errors)),
        "rmse_sd": float(np.std(errors)),
        "coverage_90": float(np.mean([row["coverage_90"] for row in rows])),
        "fell_back": sum(row["fell_back"] for row in rows),
    }
    if "rmse_one_bin_back" in rows[0]:
        figures["rmse_one_bin_back"] = float(np.mean([row["rmse_one_bin_back"] for row in rows]))
    if name == "evkf":
        problems = [chaotic.problem("public", L, BINS, seed) for seed in seeds]
        evaluations = [
            np.mean(scan_filter(VariationalKalmanFilter(), model, ys)[1].info.evaluations)
            for model, _, ys in problems
        ]
        figures["evaluations"] = float(np.mean(evaluations))
    return figures


def step_time(name: str, L: int) -> dict:
    """Median time of a compiled step, and of an empty compiled call between the steps."""
    method = METHODS[name].method
    with jax.enable_x64(False):
        model, _, ys = chaotic.problem("public", L, BINS, 0)
        model = chaotic.diagonal(model) if method.diagonal else model
        return time_steps([timed_call(method.make(), model, np.asarray(ys))], TIMED)[0]._asdict()


def shortfalls(rows: list[dict]) -> list[str]:
    """Every target that was missed."""
    missed = []
    particle = {row["L"]: row["rmse"] for row in rows if row["method"] == "particle"}
    for row in rows:
        name, rival, L = f"{row['method']}, L = {row['L']}", METHODS[row["method"]], row["L"]
        least, most = rival.rmse.get(L, (0.0, np.inf))
        if not least <= row["rmse"] <= most:
            missed.append(f"{name}: RMSE {row['rmse']:.4f} outside [{least:.4f}, {most:.4f}]")
        if row["fell_back"]:
            missed.append(f"{name}: {row['fell_back']} updates fell back")
        if row["step_ms"] > rival.most_ms.get(L, np.inf):
            missed.append(f"{name}: {row['step_ms']:.0f} ms above {rival.most_ms[L]:.0f}")
        if row["method"] != "evkf":
            continue
        if not COVERAGE[0] <= row["coverage_90"] <= COVERAGE[1]:
            missed.append(f"{name}: coverage {row['coverage_90']:.3f} outside {COVERAGE}")
        if L == 2 and row["rmse"] > WITHIN_PARTICLES * particle.get(L, np.inf):
            missed.append(f"{name}: RMSE {row['rmse']:.4f} against {particle[L]:.4f} of particles")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 trials, L = 2 and 16 only")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--times", action="store_true", help="measure only the times in --json again"
    )
    options = parser.parse_args()
    if options.times and options.json is None:
        parser.error("--times measures what is in a file: name it by --json")
    jax.config.update("jax_enable_x64", True)
    trials = 3 if options.quick else TRIALS
    rows = []
    if options.times:
        for row in json.loads(options.json.read_text())["rows"]:
            rows.append(row | step_time(row["method"], row["L"]))
            print(f"{row['method']}, L = {row['L']}: step_ms {rows[-1]['step_ms']:.4g}", flush=True)
        return close({"rows": rows}, shortfalls(rows), options.json)
    for L in LATENTS[:2] if options.quick else LATENTS:
        for name in options.methods:
            figures = accuracy(name, L, trials) | step_time(name, L)
            rows.append({"method": name, "L": L, "trials": trials, **figures})
            words = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            print(f"{name}, L = {L}: {words}", flush=True)
    return close({"rows": rows}, shortfalls(rows), options.json)


if __name__ == "__main__":
    sys.exit(main())
