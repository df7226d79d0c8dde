"""Kernel ridge regression onto draws of a standard normal, its width tuned on held-out draws."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve
from jaxtyping import Array, Float

from evkf.types import Scalar

TUNING, TUNING_RATE = 25, 0.1
"""Steps of the logarithm of the width, by the sign of the slope, and the length of the first; they
shorten to zero."""


class Ridge(NamedTuple):
    """$x \\mapsto \\sum_i \\exp(-|x - x_i|^2 / 2 w^2)\\, a_i$."""

    points: Float[Array, "S L"]
    width: Scalar
    coefficients: Float[Array, "S D"]


def median_width(dim: int) -> float:
    """Median distance of two draws of a standard normal (Wilson & Hilferty's chi-square)."""
    return (2 * dim * (1 - 2 / (9 * dim)) ** 3) ** 0.5


def no_ridge(num: int, dim: int, outputs: int, dtype: jnp.dtype) -> Ridge:
    """The function that is zero everywhere."""
    width = jnp.asarray(median_width(dim), dtype)
    return Ridge(jnp.zeros((num, dim), dtype), width, jnp.zeros((num, outputs), dtype))


def values(ridge: Ridge, x: Float[Array, "T L"], first: int | None = None) -> Float[Array, "T D"]:
    """The function, or the first of its outputs, at every row."""
    gram = _gram(_squares(x, ridge.points), jnp.log(ridge.width))
    return gram @ first_outputs(ridge, first).coefficients


def first_outputs(ridge: Ridge, num: int | None) -> Ridge:
    """The function with only the first of its outputs; all, if no number is given."""
    return ridge._replace(coefficients=ridge.coefficients[:, :num])


def fit(
    points: Float[Array, "S L"], targets: Float[Array, "S D"], tuned: slice, ridge: float
) -> Ridge:
    """Regress on draws of a standard normal.

    Args:
        points: The draws.
        targets: What to regress.
        tuned: The columns of the targets by which the width is chosen: fitted on half of the
            draws, they should predict the other half.
        ridge: $\\lambda$, the penalty on the squared norm beside the mean squared error: the number
            of draws times $\\lambda$ is added to the diagonal.
    """
    squares, half = _squares(points, points), len(points) // 2
    chosen = targets[:, tuned]
    inside, across = squares[:half, :half], squares[half:, :half]

    def solved(squares: Array, log_width: Scalar, right: Array) -> Array:
        gram = _gram(squares, log_width)
        penalty = ridge * len(gram) * jnp.eye(len(gram), dtype=gram.dtype)
        return solve(gram + penalty, right, assume_a="pos")

    def error(log_width: Scalar) -> Scalar:
        found = _gram(across, log_width) @ solved(inside, log_width, chosen[:half])
        return jnp.mean((found - chosen[half:]) ** 2)

    def body(step: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        log_width, best, least = carry
        value, slope = jax.jvp(error, (log_width,), (jnp.ones_like(log_width),))
        better = value < least
        best, least = jnp.where(better, log_width, best), jnp.where(better, value, least)
        length = TUNING_RATE * (1 - step / TUNING)
        return log_width - length * jnp.sign(slope), best, least

    start = jnp.log(jnp.asarray(median_width(points.shape[1]), points.dtype))
    infinite = jnp.full_like(start, jnp.inf)
    _, log_width, _ = jax.lax.fori_loop(0, TUNING, body, (start, start, infinite))
    return Ridge(points, jnp.exp(log_width), solved(squares, log_width, targets))


def _squares(x: Float[Array, "T L"], points: Float[Array, "S L"]) -> Float[Array, "T S"]:
    """Squared distances."""
    across = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(points**2, axis=1) - 2 * x @ points.T
    return jnp.maximum(across, 0)


def _gram(squares: Float[Array, "T S"], log_width: Scalar) -> Float[Array, "T S"]:
    return jnp.exp(-0.5 * squares * jnp.exp(-2 * log_width))
