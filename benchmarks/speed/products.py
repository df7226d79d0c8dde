"""A step beside its own matrix products: what is left when all else costs nothing.

Measured in a process of its own whose BLAS has one thread: threads of BLAS go on spinning after a
product, and slow down the step that follows, and one another where the machine is not idle.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg import get_lapack_funcs

from evkf.errors import EvkfError
from evkf.model import simulate
from evkf.numerics.jax_config import low_latency
from speed.core import Figure, Part, Say, Stream, time_in_turn
from speed.steps import Cell, build

CELL = Cell(64, 1000, "poisson")
MOST_RATIO = 2.0
CALLS, QUICK_CALLS, WARM_UP = 300, 30, 10
PROGRAM = "from speed.products import main; main()"
FOLDER = str(Path(__file__).parents[1])
"""Folder of this package."""
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}


class Products:
    """The products and factorisations of one step in float32, by NumPy's BLAS and LAPACK.

    With random matrices, as their time does not depend on what is in them. The prediction sends 2L
    points through the weights of the network and moves a root by its Jacobian; every evaluation
    takes a root to the channels and their curvature back, whitens it, and inverts the precision by
    its Cholesky factor; at the end the covariance is taken out of the whitened coordinates.
    """

    def __init__(self, L: int, N: int, seed: int):
        rng = np.random.default_rng(seed)

        def normal(*shape: int) -> Float[np.ndarray, "..."]:
            return (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)

        self.points, self.weight, self.slope = normal(2 * L, L), normal(L, L), normal(L, L)
        self.C, self.curvature = normal(N, L), rng.random(N).astype(np.float32)
        root = np.tril(normal(L, L)) + np.eye(L, dtype=np.float32)
        self.cov = root @ root.T
        (self.invert,) = get_lapack_funcs(("trtri",), (root,))

    def __call__(self, evaluations: int) -> Float[np.ndarray, "L L"]:
        root = np.linalg.cholesky(self.cov)
        _ = self.points @ self.weight.T
        moved = self.slope @ root
        _ = moved.T @ moved
        before = inverse = np.linalg.cholesky(self.cov)
        for _ in range(evaluations):
            _ = self.C @ inverse.T
            curved = (self.C.T * self.curvature) @ self.C
            _ = before.T @ curved @ before
            inverse = self.invert(np.linalg.cholesky(self.cov), lower=1)[0]
            _ = inverse.T @ inverse
        spread = before @ inverse.T
        return spread @ spread.T


def run(quick: bool, seed: int, say: Say) -> Part:
    """Steps and their products in turn, as many evaluations in both."""
    row = measure_apart(QUICK_CALLS if quick else CALLS, seed)
    say(
        f"L = {CELL.L}, N = {CELL.N}: a step {row['step_ms']:.2f} ms, its products "
        f"{row['products_ms']:.2f} ms, {row['evaluations']:.1f} evaluations"
    )
    size = f"L = {CELL.L}, N = {CELL.N}"
    name = f"one step in float32 against its matrix products alone on one thread, {size}"
    figure = Figure(name, row["ratio"], "times", MOST_RATIO, False, "products")
    return Part([row], [figure])


def measure_apart(num_calls: int, seed: int) -> dict:
    """`measure` in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, str(num_calls), str(seed)]
    path = os.pathsep.join([FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise EvkfError(f"the part products failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def measure(cell: Cell, num_calls: int, seed: int) -> dict:
    """Medians of both, and their ratio."""
    with jax.enable_x64(False):
        model = build(cell, seed)
        _, ys = simulate(model, jax.random.key(seed), num_calls)
        step = Stream(model, ys)
    products = Products(cell.L, cell.N, seed)
    evaluations = []

    def same() -> None:
        products(evaluations[-1])

    def count() -> None:
        evaluations.append(int(step.info.evaluations))

    calls: list[Callable[[], object]] = [step, count, same]
    with jax.enable_x64(False):
        times = 1e3 * np.median(time_in_turn(calls, num_calls, WARM_UP), axis=0)
    return {
        "L": cell.L,
        "N": cell.N,
        "step_ms": float(times[0]),
        "products_ms": float(times[2]),
        "ratio": float(times[0] / times[2]),
        "evaluations": float(np.mean(evaluations)),
    }


def main() -> None:
    """Print the row as JSON; the arguments are the number of calls and the seed."""
    low_latency()
    print(json.dumps(measure(CELL, *map(int, sys.argv[1:]))))
