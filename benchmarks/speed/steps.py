"""Time of a step: the compiled call and the scan, beside the floor of an empty call."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from evkf.dynamics import ChaoticRNN, VanDerPol
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.likelihoods import Bernoulli, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from evkf.model import Model, simulate
from evkf.types import Status
from speed.core import Figure, Part, Say, Stream, count_compiles, empty_call, time_in_turn

BIN_WIDTH = 0.005
WARM_UP = 50
"""Calls made and thrown away before the measured ones."""
SCANS = 5
"""Timed scans, of which the median is taken."""
CALLS, QUICK_CALLS = 1000, 100
"""Measured calls of a row."""

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


GRID = ((2, 10), (100, 200), tuple(LIKELIHOODS))
"""Latent dimensions, channels and likelihoods."""
MOST_RATIO = {Cell(2, 100, "poisson"): 3.0, Cell(10, 200, "poisson"): 8.0}
"""Targets: the most that a step may cost, in empty calls."""
LEAST_SCAN = {Cell(2, 100, "poisson"): 3.0}
"""Targets: how many times as fast a scan should be, per step."""


class Row(NamedTuple):
    """Measurements of a cell; times of single calls include reading back the result.

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


def run(quick: bool, seed: int, say: Say) -> Part:
    """Every size and likelihood of `GRID`; when quick, those with a target alone."""
    cells = [Cell(*cell) for cell in product(*GRID)]
    if quick:
        cells = list(MOST_RATIO)
    say(HEADER)
    rows = []
    for cell in cells:
        rows.append(measure(cell, QUICK_CALLS if quick else CALLS, seed))
        say(line(rows[-1]))
    return Part([row._asdict() for row in rows], figures(rows))


def figures(rows: Sequence[Row]) -> list[Figure]:
    """The figures of the rows that have a target, and how often anything was compiled again."""
    found = []
    for row in rows:
        cell = Cell(row.L, row.N, row.likelihood)
        name = f"L = {row.L}, N = {row.N}, {row.likelihood}"
        if cell in MOST_RATIO:
            most = MOST_RATIO[cell]
            found.append(Figure(f"one step, {name}", row.ratio, "empty calls", most, False, "step"))
        if cell in LEAST_SCAN:
            times = row.median_us / row.scan_us
            found.append(
                Figure(
                    f"a scan is faster per step than single steps, {name}",
                    times,
                    "times",
                    LEAST_SCAN[cell],
                    True,
                    "step",
                )
            )
    again = sum(row.compiles_after_first for row in rows)
    found.append(Figure("compilations after the first call", again, "", 0, False, "step"))
    return found


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
        step, empty = Stream(model, ys), empty_call()
        time_in_turn([step, empty], WARM_UP, 0)
        with count_compiles() as compiles:
            steps, empties = 1e6 * time_in_turn([step, empty], num_calls, 0).T
        info = scan_filter(filter, model, ys)[1].info
        with count_compiles() as more:
            scan_s = statistics.median(_time_scan(filter, model, ys) for _ in range(SCANS))
    median, floor = float(np.median(steps)), float(np.median(empties))
    return Row(
        *cell,
        compile_s=step.compile_s,
        median_us=median,
        p99_us=float(np.percentile(steps, 99)),
        scan_us=1e6 * scan_s / len(ys),
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
