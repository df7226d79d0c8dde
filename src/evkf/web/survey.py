"""What a checkpoint says of the dynamics: their field, where it rests, what it is worth."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from evkf.analysis.phase import fixed_points, grid, limit_cycle, velocity_field
from evkf.dynamics import Dynamics, GaussianDynamics, Linear
from evkf.filters import State, scan_filter
from evkf.learning import Learner, LearnerState
from evkf.learning.monitor import same_box
from evkf.model import Model

SIDE = 20
"""Points of a side of the grid."""

MARGIN = 0.15
"""Of the states that were visited, on either side of the grid."""

STARTS, TURNS = 48, 4000
"""Places from which fixed points are looked for, and bins that a cycle is waited for."""

STRETCH = 100
"""Bins on which models are compared."""

STEPS = 500
"""Bins before them, whose steps a random walk is given."""


class Field(NamedTuple):
    """The dynamics in a plane.

    Attributes:
        x: Coordinates along the first latent, (G,).
        y: And along the second.
        u: Displacement per bin along the first, (G, G), rows by y.
        v: And along the second.
        true_u: The same of the true dynamics, if they are known.
        true_v: Likewise.
    """

    x: np.ndarray
    y: np.ndarray
    u: np.ndarray
    v: np.ndarray
    true_u: np.ndarray | None = None
    true_v: np.ndarray | None = None


class Rest(NamedTuple):
    """Where the dynamics rest, or turn.

    Attributes:
        fixed: Fixed points, (K, L).
        stable: Which of them attract.
        cycle: One turn of the limit cycle, (C, L); empty if there is none.
    """

    fixed: np.ndarray
    stable: np.ndarray
    cycle: np.ndarray


class Worth(NamedTuple):
    """Bounds in nats per bin, of a model and of others, on bins that it had not seen."""

    bins: int
    model: float
    random_walk: float
    initial: float
    """Of the model that the session began with."""


def visited(state: LearnerState) -> np.ndarray:
    """Means of the states that a learner remembers, oldest first, (bins, L)."""
    return np.asarray(state.ring.bins.belief.mean)[_slots(state)]


def _slots(state: LearnerState) -> np.ndarray:
    """Where the ring holds its bins, oldest first."""
    count, size = int(state.ring.count), len(state.ring.bins.fresh)
    return np.arange(max(count - size, int(state.ring.oldest), 0), count) % size


def field(
    dynamics: Dynamics,
    states: np.ndarray,
    plane: Sequence[int],
    at: np.ndarray,
    true: Dynamics | None = None,
) -> Field:
    """The field in a plane of two latents, around states that were visited.

    Args:
        dynamics: That were learned.
        states: (bins, L).
        plane: Two latents.
        at: Where the others are held, (L,).
        true: Dynamics to compare with, in the same coordinates.
    """
    i, j = plane
    low, high = states[:, [i, j]].min(0), states[:, [i, j]].max(0)
    edge = MARGIN * np.maximum(high - low, 1e-3)
    inside = grid(low - edge, high + edge, SIDE)
    points = np.broadcast_to(at, (SIDE, SIDE, len(at))).copy()
    points[..., [i, j]] = inside
    moves = [velocity_field(each, points) for each in (dynamics, true) if each is not None]
    parts = [move[..., axis].astype(np.float32) for move in moves for axis in (i, j)]
    return Field(inside[0, :, 0].astype("f4"), inside[:, 0, 1].astype("f4"), *parts)


def rest(dynamics: Dynamics, states: np.ndarray) -> Rest:
    """Fixed points and limit cycle near states that were visited."""
    starts = states[np.linspace(0, len(states) - 1, STARTS).astype(int)]
    found, cycle = fixed_points(dynamics, starts), None
    if states.shape[1] > 1:
        cycle = limit_cycle(dynamics, states[-1], max_bins=TURNS)
    turn = np.zeros((0, states.shape[1])) if cycle is None else cycle.points
    return Rest(found.points, found.stable, turn)


def worth(
    learner: Learner, start: Model, before: LearnerState, after: LearnerState
) -> Worth | None:
    """Compare the model of a checkpoint with others, on bins that came after it.

    All begin with the belief that the session had. The random walk is given the steps that states
    made before these bins.

    Args:
        learner: That of the session.
        start: The model that the session began with.
        before: At the first checkpoint.
        after: At the next, which remembers the bins in between.

    Returns:
        None where too few bins lie between them, or the states are not Gaussian.
    """
    model, slots = before.model, _slots(after)
    new = int(after.ring.count) - int(before.ring.count)
    if new < STRETCH or len(slots) <= STRETCH or not isinstance(model.dynamics, GaussianDynamics):
        return None
    bins, begin = after.ring.bins, slots[-STRETCH - 1]
    stretch = slots[-STRETCH:]
    state = State(_row(bins.belief, begin))
    means = np.asarray(bins.belief.mean)[slots[:-STRETCH][-STEPS:]]
    steps = np.diff(means, axis=0) ** 2
    if len(steps) < 2 or np.any(steps.mean(0) <= 0):
        return None
    y, mask, u, fresh = (
        np.asarray(part)[stretch] for part in (bins.y, bins.mask, bins.u, bins.fresh)
    )

    def nats(under: Model, us: np.ndarray | None) -> float:
        filtered = scan_filter(learner.filter, under, y, mask, us, state, fresh=fresh)
        return float(np.nanmean(np.asarray(filtered[1].info.elbo)))

    walk = _with_dynamics(model, _walk(steps.mean(0)))
    # It has not been where the model has, and would lose for that alone.
    initial = _with_dynamics(start, same_box(start.dynamics, model.dynamics))
    us = u if u.shape[1] else None
    return Worth(STRETCH, nats(model, us), nats(walk, None), nats(initial, us))


def _row(belief: Any, index: int) -> Any:
    return type(belief)(*(jnp.asarray(np.asarray(leaf)[index]) for leaf in belief))


def _with_dynamics(model: Model, dynamics: Dynamics) -> Model:
    return eqx.tree_at(lambda m: m.dynamics, model, dynamics)


def _walk(square: np.ndarray) -> Linear:
    return Linear(np.eye(len(square)), square)
