"""A step beside its own matrix products: what is left when all else costs nothing."""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg.lapack import strtri

from evkf.bench.core import Figure, Part, Say, Stream, time_in_turn
from evkf.bench.steps import Cell, build
from evkf.model import simulate

CELL = Cell(64, 1000, "poisson")
MOST_RATIO = 2.0
CALLS, QUICK_CALLS, WARM_UP = 300, 30, 10


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

    def __call__(self, evaluations: int) -> Float[np.ndarray, "L L"]:
        root = np.linalg.cholesky(self.cov)
        self.points @ self.weight.T
        moved = self.slope @ root
        moved.T @ moved
        before = inside = np.linalg.cholesky(self.cov)
        for _ in range(evaluations):
            self.C @ inside
            curved = (self.C.T * self.curvature) @ self.C
            before.T @ curved @ before
            inverse = strtri(np.linalg.cholesky(self.cov), lower=1)[0]
            inverse.T @ inverse
        spread = before @ inverse.T
        return spread @ spread.T


def run(quick: bool, seed: int, say: Say) -> Part:
    """Steps and their products in turn, as many evaluations in both."""
    row = measure(CELL, QUICK_CALLS if quick else CALLS, seed)
    say(
        f"L = {CELL.L}, N = {CELL.N}: a step {row['step_ms']:.2f} ms, its products "
        f"{row['products_ms']:.2f} ms, {row['evaluations']:.1f} evaluations"
    )
    name = f"one step in float32 against its matrix products alone, L = {CELL.L}, N = {CELL.N}"
    figure = Figure(name, row["ratio"], "times", MOST_RATIO, False, "products")
    return Part([row], [figure])


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
        evaluations.append(int(step.said.evaluations))

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
