"""What figures show of continuous Bernoulli dynamics, and trajectories that dynamics generate."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from evkf.families import ContinuousBernoulliFamily, Family
from evkf.model import Model, simulate
from evkf.reproduce.runner import Result
from evkf.reproduce.streams import pick
from evkf.reproduce.tables import rounded
from evkf.types import Belief, Key

BOX = 10.0
"""Edge of the box in which trajectories are compared: Gaussian dynamics can leave the square."""
SHOWN, ONWARD, PATHS = 30, 20, 20
"""Bins of filtering that are drawn, bins generated after them, and in how many paths."""
DOTS = 500
"""Generated states that are drawn."""
GRID = np.stack(np.meshgrid(np.linspace(0, 1, 11), np.linspace(0, 1, 11)), axis=-1)
"""Where velocities are drawn."""


def quantile(nat: Float[np.ndarray, "..."], level: float) -> Float[np.ndarray, "..."]:
    """Where a continuous Bernoulli has this share of its mass below it.

    Example:
        >>> quantile(np.array([-100.0, 0.0, 100.0]), 0.95).round(3)
        array([0.03 , 0.95 , 0.999])
    """
    size = np.maximum(np.abs(nat), 1e-6)
    mass = np.where(nat > 0, 1 - level, level)
    edge = -np.log1p(mass * np.expm1(-size)) / size
    return np.where(nat > 0, 1 - edge, edge)


def interval(family: Family, beliefs: Belief) -> tuple[np.ndarray, np.ndarray]:
    """The central 90 % of every coordinate of beliefs."""
    if isinstance(family, ContinuousBernoulliFamily):
        nat = np.asarray(beliefs)[..., 0]
        return quantile(nat, 0.05), quantile(nat, 0.95)
    mean, std = jax.vmap(family.mean)(beliefs), jnp.sqrt(jax.vmap(family.var)(beliefs))
    return np.asarray(mean - 1.645 * std), np.asarray(mean + 1.645 * std)


def trajectories(model: Model, starts: Float[np.ndarray, "K 2"], key: Key) -> np.ndarray:
    """Of 500 bins, one from every start; those of dynamics that diverge end at the edge of a box.

    Example:
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Gaussian
        >>> grows = Model(Linear(100 * np.eye(2), noise=1.0), Gaussian(np.eye(2)))
        >>> found = trajectories(grows, np.ones((2, 2)), jax.random.key(0))
        >>> found.shape, float(np.abs(found).max())
        ((1000, 2), 10.0)
    """
    keys = jax.random.split(key, len(starts))
    pairs = zip(keys, jnp.asarray(starts), strict=True)
    runs = np.concatenate([simulate(model, key, 500, z0=z)[0] for key, z in pairs])
    return np.clip(np.nan_to_num(runs, nan=BOX), -BOX, BOX)


def series(model: Model, beliefs: Belief, states: np.ndarray) -> Result:
    """What figures show: beliefs, where they lead, and velocities in states and in parameters."""
    family, shown = model.family, pick(beliefs, slice(0, SHOWN))
    low, high = interval(family, shown)
    starts = family.sample(pick(shown, -1), jax.random.key(0), PATHS)
    keys = jax.random.split(jax.random.key(1), PATHS)
    paths = [simulate(model, key, ONWARD, z0=z)[0] for key, z in zip(keys, starts, strict=True)]
    points = jnp.asarray(GRID.reshape(-1, 2))
    move = jax.vmap(lambda z: model.dynamics.transition(z, jnp.zeros(0)))(points)
    found = {
        "mean": jax.vmap(family.mean)(shown),
        "low": low,
        "high": high,
        "states": states[: SHOWN + ONWARD],
        "onward": np.stack(paths),
        "dots": trajectories(model, states[:1], jax.random.key(4))[:DOTS],
        "field": jax.vmap(model.dynamics.family.mean)(move) - points,
    }
    if isinstance(family, ContinuousBernoulliFamily):
        found["nat"] = move[..., 0]
    return {name: rounded(value) for name, value in found.items()}
