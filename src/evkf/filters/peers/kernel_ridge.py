"""Kernel ridge regression on samples of a standard normal, used by online variational smoothing.

The kernel is Gaussian; the width is tuned on held-out samples. scikit-learn has the same
regression, but this implementation runs inside a compiled step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve
from jaxtyping import Array, Float

from evkf.types import Scalar

TUNING_STEPS, TUNING_RATE = 25, 0.1
"""Number of steps that tune the logarithm of the kernel width, and length of the first step. Steps
go against the sign of the slope of the error, and become shorter, down to zero.
"""


class KernelRidge(NamedTuple):
    r"""The function $x \mapsto \sum_i \exp(-|x - x_i|^2 / 2 w^2)\, a_i$."""

    points: Float[Array, "S L"]
    width: Scalar
    coefficients: Float[Array, "S D"]

    @staticmethod
    def zero(num: int, dim: int, outputs: int, dtype: jnp.dtype) -> "KernelRidge":
        """Return the function that is zero everywhere."""
        width = jnp.asarray(median_width(dim), dtype)
        return KernelRidge(jnp.zeros((num, dim), dtype), width, jnp.zeros((num, outputs), dtype))

    @staticmethod
    def fit(
        points: Float[Array, "S L"], targets: Float[Array, "S D"], tuned: slice, penalty: float
    ) -> "KernelRidge":
        r"""Return the regression of targets on samples of a standard normal.

        Args:
            points: The samples, one row each.
            targets: Values at the samples, one row each.
            tuned: Columns of the targets that determine the kernel width: the width is chosen so
                that a fit to half of the samples predicts the other half best.
            penalty: Penalty $\lambda$ on the squared norm, relative to the mean squared error: the
                number of samples times $\lambda$ is added to the diagonal of the kernel matrix.
        """
        squares, half = _squared_distances(points, points), len(points) // 2
        chosen = targets[:, tuned]
        inside, across = squares[:half, :half], squares[half:, :half]

        def solve_gram(squares: Array, log_width: Scalar, right: Array) -> Array:
            gram = _gram(squares, log_width)
            diagonal = penalty * len(gram) * jnp.eye(len(gram), dtype=gram.dtype)
            return solve(gram + diagonal, right, assume_a="pos")

        def error(log_width: Scalar) -> Scalar:
            predicted = _gram(across, log_width) @ solve_gram(inside, log_width, chosen[:half])
            return jnp.mean((predicted - chosen[half:]) ** 2)

        def body(step: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            log_width, best, least = carry
            value, slope = jax.jvp(error, (log_width,), (jnp.ones_like(log_width),))
            better = value < least
            best, least = jnp.where(better, log_width, best), jnp.where(better, value, least)
            length = TUNING_RATE * (1 - step / TUNING_STEPS)
            return log_width - length * jnp.sign(slope), best, least

        start = jnp.log(jnp.asarray(median_width(points.shape[1]), points.dtype))
        infinite = jnp.full_like(start, jnp.inf)
        _, log_width, _ = jax.lax.fori_loop(0, TUNING_STEPS, body, (start, start, infinite))
        return KernelRidge(points, jnp.exp(log_width), solve_gram(squares, log_width, targets))

    def evaluate(self, x: Float[Array, "T L"], first: int | None = None) -> Float[Array, "T D"]:
        """Return the outputs at every row of x; only the first `first` outputs if given."""
        gram = _gram(_squared_distances(x, self.points), jnp.log(self.width))
        return gram @ self.coefficients[:, :first]


def median_width(dim: int) -> float:
    """Return the median distance of two draws of a standard normal (Wilson & Hilferty)."""
    return (2 * dim * (1 - 2 / (9 * dim)) ** 3) ** 0.5


def _squared_distances(x: Float[Array, "T L"], points: Float[Array, "S L"]) -> Float[Array, "T S"]:
    across = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(points**2, axis=1) - 2 * x @ points.T
    return jnp.maximum(across, 0)


def _gram(squares: Float[Array, "T S"], log_width: Scalar) -> Float[Array, "T S"]:
    return jnp.exp(-0.5 * squares * jnp.exp(-2 * log_width))
