"""Bayesian regression of radial basis functions, in one go and one pair of states at a time.

The weights of every latent are a priori $N(0, I)$, and given the pairs $N(W_l, P)$ with one P, as
published: pairs count by one variance for all latents, the mean of theirs, which is Bayes' rule
where these are equal.
"""

from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evkf.dynamics import ResidualRBF
from evkf.filters.peers.learned import MIN_STD
from evkf.numerics.covariance import DiagonalCovariance
from evkf.numerics.linalg import inverse_positive
from evkf.types import Count, Input, Key, Vector

MIN_VAR, HORIZON = MIN_STD**2, 500
"""Floor of the noise, and the bins after which its running mean begins to forget."""


class Pairs(NamedTuple):
    """States of consecutive bins, and the inputs of the second."""

    before: Float[Array, "T L"]
    after: Float[Array, "T L"]
    us: Float[Array, "T U"]

    def put(self, index: Count, before: Vector, after: Vector, u: Input) -> Self:
        """With another pair in a row; beyond the last row it is dropped."""
        rows = zip(self, (before, after, u), strict=True)
        return type(self)(*(old.at[index].set(row, mode="drop") for old, row in rows))


def fit(dynamics: ResidualRBF, pairs: Pairs, key: Key) -> tuple[ResidualRBF, Float[Array, "D D"]]:
    """Place the functions over the range of the pairs and fit weights and noise to them.

    The noise that the weights are regularised by is that of a random walk.
    """
    low, high = jnp.min(pairs.after, axis=0), jnp.max(pairs.after, axis=0)
    placed = dynamics.placed(key, low, high)
    moves = pairs.after - pairs.before
    features = jax.vmap(placed.features)(pairs.before, pairs.us)
    var = jnp.mean(moves**2) + MIN_VAR
    precision = features.T @ features / var + jnp.eye(features.shape[1], dtype=var.dtype)
    cov, _ = inverse_positive(precision)
    weight = cov @ (features.T @ moves) / var
    square = jnp.mean((moves - features @ weight) ** 2, axis=0)
    return _with(placed, weight, square), cov


def absorb(
    dynamics: ResidualRBF,
    cov: Float[Array, "D D"],
    before: Vector,
    after: Vector,
    u: Input,
    count: Count,
) -> tuple[ResidualRBF, Float[Array, "D D"]]:
    """One step of recursive least squares; the noise is the running mean of squared residuals.

    Args:
        dynamics: With weights and noise as known.
        cov: P.
        before: The state.
        after: The state a bin later.
        u: The input of that bin.
        count: How many pairs the noise is the mean of, with this one.
    """
    features = dynamics.features(before, u)
    residual = after - dynamics.mean(before, u)
    var = dynamics.noise.var()
    spread = cov @ features
    # Rounding may turn a variance that is nearly zero negative.
    total = jnp.mean(var) + jnp.maximum(features @ spread, 0)
    weight = dynamics.weight + jnp.outer(spread / total, residual)
    square = var + (residual**2 - var) / jnp.minimum(count, HORIZON)
    return _with(dynamics, weight, square), cov - jnp.outer(spread, spread) / total


def _with(dynamics: ResidualRBF, weight: Float[Array, "D L"], var: Vector) -> ResidualRBF:
    noise = DiagonalCovariance(0.5 * jnp.log(jnp.maximum(var, MIN_VAR)))
    return eqx.tree_at(lambda d: (d.weight, d.noise), dynamics, (weight, noise))
