"""How long a step takes: the compiled call and the scan, beside the floor of an empty call."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from evkf.dynamics import ChaoticRNN, VanDerPol
from evkf.errors import InputError
from evkf.filters import CompiledStep, VariationalKalmanFilter, scan_filter
from evkf.likelihoods import Bernoulli, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from evkf.model import Model, simulate
from evkf.types import Status

BIN_WIDTH = 0.005
WARM_UP = 50
"""Calls made and thrown away before the measured ones."""
SCANS = 5
"""Timed scans, of which the median is taken."""
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"

Readout = Float[np.ndarray, "N L"]
Offset = Float[np.ndarray, " N"]

LIKELIHOODS: dict[str, Callable[[Readout, Offset], Likelihood]] = {
    "poisson": lambda C, b: Poisson(C, b, bin_width=BIN_WIDTH),
    "gaussian": lambda C, b: Gaussian(C, noise=0.5),
    "bernoulli": lambda C, b: Bernoulli(C, b, bin_width=BIN_WIDTH),
    "negative_binomial": lambda C, b: NegativeBinomial(C, b, dispersion=2.0, bin_width=BIN_WIDTH),
    "student_t": lambda C, b: StudentT(C, df=4.0, scale=0.5),
}


class Cell(NamedTuple):
    """One combination to measure."""

    L: int
    N: int
    likelihood: str


class Row(NamedTuple):
    """What was measured for a cell; times of single calls include reading back the result.

    Attributes:
        L: Latent dimensions.
        N: Channels.
        likelihood: A key of `LIKELIHOODS`.
        compile_s: Tracing, lowering and compiling the step.
        median_us: Median time of one compiled step.
        p99_us: Its 99th percentile.
        scan_us: Time per step of `scan_filter` over the same bins, checks of the input included.
        empty_us: Median time of a compiled `x + 1` on a scalar, called between the steps.
        ratio: `median_us / empty_us`.
        evaluations: Mean evaluations of the update per step.
        not_ok: Bins whose status was not OK.
        compiles_after_first: Compilations while the stream ran; there should be none.
    """

    L: int
    N: int
    likelihood: str
    compile_s: float
    median_us: float
    p99_us: float
    scan_us: float
    empty_us: float
    ratio: float
    evaluations: float
    not_ok: int
    compiles_after_first: int


MOST_RATIO = {Cell(2, 200, "poisson"): 10.0}
"""Targets: the most that a step may cost, in empty calls."""


def shortfalls(rows: Sequence[Row]) -> list[str]:
    """What fell short of its target, in words."""
    missed = []
    for row in rows:
        name = f"L = {row.L}, N = {row.N}, {row.likelihood}"
        most = MOST_RATIO.get(Cell(row.L, row.N, row.likelihood), math.inf)
        if row.ratio > most:
            missed.append(f"{name}: {row.ratio:.1f} empty calls, target {most:g}")
        if row.compiles_after_first:
            missed.append(f"{name}: {row.compiles_after_first} compilations after the first call")
    return missed


def cells(latents: Sequence[int], neurons: Sequence[int], likelihoods: Sequence[str]) -> list[Cell]:
    """The grid of all combinations.

    Example:
        >>> cells([2], [100, 200], ["poisson"])[1]
        Cell(L=2, N=200, likelihood='poisson')
    """
    for name in likelihoods:
        if name not in LIKELIHOODS:
            raise InputError(
                f"unknown likelihood {name!r}",
                "--likelihood",
                f"choose from {', '.join(LIKELIHOODS)}",
            )
    for where, values in (("--latents", latents), ("--neurons", neurons)):
        if min(values) < 1:
            raise InputError(f"{min(values)} is too few", where, "pass 1 or more")
    return [Cell(*cell) for cell in product(latents, neurons, likelihoods)]


def build(cell: Cell, seed: int) -> Model:
    """A model at the rates of a recording: Van der Pol at L = 2, else a chaotic network."""
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(cell.N, cell.L)) / math.sqrt(3 * cell.L)
    b = np.log(25 + 25 * rng.random(cell.N))
    if cell.L == 2:
        dynamics = VanDerPol(dt=BIN_WIDTH)
    else:
        weight = rng.normal(size=(cell.L, cell.L)) / math.sqrt(cell.L)
        dynamics = ChaoticRNN(weight, tau=0.1, dt=BIN_WIDTH)
    return Model(dynamics, LIKELIHOODS[cell.likelihood](C, b))


def measure(cell: Cell, num_calls: int, seed: int) -> Row:
    """Stream simulated bins through one compiled step, the state carried on, in float32.

    Every step is followed by an empty call, so that both medians see the same machine. Observations
    are on the device before the clock starts.
    """
    with jax.enable_x64(False):
        model, filter = build(cell, seed), VariationalKalmanFilter()
        _, ys = simulate(model, jax.random.key(seed), WARM_UP + num_calls)
        rows = [jnp.asarray(y) for y in np.asarray(ys)]
        seen, one = jnp.ones(cell.N, bool), jnp.ones(())
        start = time.perf_counter()
        step = CompiledStep(filter, model)
        compile_s = time.perf_counter() - start
        empty = jax.jit(lambda x: x + 1).lower(one).compile()

        carry = step.init()

        def one_call(y: jax.Array) -> tuple[int, int]:
            nonlocal carry
            start = time.perf_counter_ns()
            carry = step(carry, y, seen)
            np.asarray(carry)
            middle = time.perf_counter_ns()
            np.asarray(empty(one))
            return middle - start, time.perf_counter_ns() - middle

        for y in rows[:WARM_UP]:
            one_call(y)
        with count_compiles() as compiles:
            steps, empties = zip(*(one_call(y) for y in rows[WARM_UP:]), strict=True)
        info = scan_filter(filter, model, ys)[1].info
        with count_compiles() as more:
            scan_s = statistics.median(_time_scan(filter, model, ys) for _ in range(SCANS))
    median, floor = float(np.median(steps)) / 1e3, float(np.median(empties)) / 1e3
    return Row(
        *cell,
        compile_s=compile_s,
        median_us=median,
        p99_us=float(np.percentile(steps, 99)) / 1e3,
        scan_us=1e6 * scan_s / len(rows),
        empty_us=floor,
        ratio=median / floor,
        evaluations=float(np.mean(info.evaluations)),
        not_ok=int(np.sum(np.asarray(info.status) != Status.OK)),
        compiles_after_first=len(compiles) + len(more),
    )


def _time_scan(filter: VariationalKalmanFilter, model: Model, ys: jax.Array) -> float:
    start = time.perf_counter()
    jax.block_until_ready(scan_filter(filter, model, ys))
    return time.perf_counter() - start


@contextmanager
def count_compiles() -> Iterator[list[float]]:
    """Collect the durations of all compilations inside the block."""
    durations: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILE_EVENT:
            durations.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield durations
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


HEADER = (
    "Times in µs, except of compiling. A step is one compiled call with its result read back;\n"
    "empty is a compiled x + 1 called between the steps; ratio is median / empty.\n\n"
    f"{'L':>3} {'N':>5} {'likelihood':17} {'compile':>8} {'median':>8} {'p99':>8}"
    f" {'scan':>8} {'empty':>7} {'ratio':>6} {'evals':>6}"
)


def line(row: Row) -> str:
    """A row of the printed table, under `HEADER`."""
    return (
        f"{row.L:>3} {row.N:>5} {row.likelihood:17} {row.compile_s:>6.2f} s"
        f" {row.median_us:>8.1f} {row.p99_us:>8.1f} {row.scan_us:>8.1f}"
        f" {row.empty_us:>7.1f} {row.ratio:>6.1f} {row.evaluations:>6.2f}"
    )
