"""Filter steps per second over many sessions at once, on whatever device JAX has."""

import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evkf.dynamics import ResidualMLP
from evkf.errors import InputError
from evkf.filters import Filter, VariationalKalmanFilter
from evkf.filters.batched import Session, _scan_many, scan_checked
from evkf.likelihoods import Poisson
from evkf.model import Model
from speed.core import Figure, Part, Say

LATENTS, NEURONS, BINS = 10, 200, 64
BIN_WIDTH, RATE = 0.02, 10.0
ON_CPU, ON_GPU = (64, 256, 1024), (256, 1024, 4096, 16_384, 65_536, 131_072)
"""Sessions at once."""
QUICK_BINS, REPEATS = 10, 5
LEAST_STEPS, LEAST_FASTER = 2e7, 100.0


def run(quick: bool, seed: int, say: Say, cpu: float | None = None) -> Part:
    """Every number of sessions; the fastest is the figure, with a target on a GPU alone.

    Args:
        quick: The least number of sessions alone, and few bins.
        seed: Of model and spikes.
        say: Told of every row.
        cpu: Steps per second on a CPU, to compare a GPU with.
    """
    gpu = jax.default_backend() == "gpu"
    numbers = ON_GPU if gpu else ON_CPU
    bins = QUICK_BINS if quick else BINS
    rows = []
    with jax.enable_x64(False):
        for num in numbers[:1] if quick else numbers:
            rows.append(measure(num, bins, seed))
            say(f"{num} sessions: {rows[-1]['steps_per_s']:.3g} steps per second")
    best = max(row["steps_per_s"] for row in rows)
    size = f"L = {LATENTS}, N = {NEURONS}, up to {rows[-1]['sessions']} sessions at once"
    judged = gpu and not quick
    target = LEAST_STEPS if judged else None
    figures = [Figure(f"filter steps, {size}", best, "per second", target, True, "sessions")]
    if cpu is not None:
        target = LEAST_FASTER if judged else None
        name = f"filter steps per second on a GPU against a CPU, {size}"
        figures.append(Figure(name, best / cpu, "times", target, True, "sessions"))
    return Part(rows, figures)


def build(seed: int) -> Model:
    """A residual network behind Poisson units that fire at about 10 spikes a second."""
    C = np.random.default_rng(seed).normal(size=(NEURONS, LATENTS)) / math.sqrt(LATENTS)
    dynamics = ResidualMLP(LATENTS, 0.05, jax.random.key(seed), 32)
    return Model(dynamics, Poisson(C, np.full(NEURONS, math.log(RATE)), bin_width=BIN_WIDTH))


def measure(num: int, bins: int, seed: int) -> dict[str, Any]:
    """So many sessions, as `scan_sessions` filters them; for a GPU with the data there already."""
    model, filter = build(seed), VariationalKalmanFilter()
    rate = BIN_WIDTH * RATE * math.exp(0.5)
    ys = jax.random.poisson(jax.random.key(seed), rate, (bins, num, NEURONS)).astype(jnp.float32)
    scan = (_on_cpu if jax.default_backend() == "cpu" else _on_gpu)(filter, model, ys)
    traces = [trace for _, trace in scan()]
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        scan()
        times.append(time.perf_counter() - start)
    return {
        "sessions": num,
        "bins": bins,
        "steps_per_s": num * bins / float(np.median(times)),
        "not_ok": int(sum(np.sum(trace.info.status != 0) for trace in traces)),
        "finite": all(bool(np.all(np.isfinite(trace.belief.mean))) for trace in traces),
    }


def _on_cpu(filter: Filter, model: Model, ys: Array) -> Callable[[], list]:
    sessions = [
        Session(y, np.ones(y.shape, bool), np.zeros((len(y), 0)))
        for y in np.swapaxes(np.asarray(ys), 0, 1)
    ]
    return partial(scan_checked, filter, model, sessions, np.zeros(len(sessions), int))


def _on_gpu(filter: Filter, model: Model, ys: Array) -> Callable[[], list]:
    bins, num, _ = ys.shape
    masks, us = jnp.ones(ys.shape, bool), jnp.zeros((bins, num, 0))
    lengths, firsts = jnp.full(num, bins), jnp.zeros(num, int)
    begin = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (num, *leaf.shape)), filter.init(model)
    )

    def scan() -> list:
        given = (ys, masks, us, lengths, firsts, begin, None)
        return [jax.block_until_ready(_scan_many(filter, model, *given))]

    return scan


def read_steps(file: Path) -> float:
    """The most steps per second in the bench.json of a CPU."""
    remedy = "name a bench.json that `benchmarks/bench.py sessions` wrote on a CPU"
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        platform = stored["device"]["platform"]
        steps = max(float(row["steps_per_s"]) for row in stored["parts"]["sessions"]["rows"])
    except FileNotFoundError as error:
        raise InputError("no such file", str(file), remedy) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("no result of many sessions", str(file), remedy) from error
    if platform != "cpu":
        raise InputError(f"a result of a {platform}", str(file), remedy)
    return steps
