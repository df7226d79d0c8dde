"""The gauge of the learner: fixed coordinates of the latent space while the readout is learned.

States are defined up to an affine map: $C A^{-1}$, $b - C A^{-1} c$ and $Az + c$ explain the data
as well as C, b and z. A step of the readout within the column space of C only changes coordinates,
which the dynamics can do as well. Such steps are left out: the subspace may turn as the data
require, and the axes within it stay. Dynamics that are known or frozen, or that cannot follow a
change of coordinates, fix the coordinates themselves, and nothing is held.
"""

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey
from jaxtyping import Array, Float

from evkf.dynamics import Driven, GaussianDynamics
from evkf.model import Model
from evkf.numerics.linalg import cholesky, solve_lower
from evkf.parameters import Free


def gauge(learned: Free) -> Float[Array, "L N"]:
    """Return an orthonormal basis of the column space of all readouts; empty without any."""
    readouts = _readouts(learned)
    if not readouts:
        return jnp.zeros((0, 0))
    C = jnp.concatenate([C for C, _ in readouts.values()])
    # A little more than C'C, which has no factor if columns depend on one another.
    square, info = C.T @ C, jnp.finfo(C.dtype)
    ridge = 100 * info.eps * jnp.trace(square) + info.tiny
    return solve_lower(cholesky(square + ridge * jnp.eye(len(square), dtype=C.dtype)), C.T)


def can_move(model: Model) -> bool:
    """True if the dynamics can follow a change of coordinates, so that a gauge is needed."""
    dynamics = model.dynamics
    if isinstance(dynamics, Driven):
        dynamics = dynamics.undriven
    return isinstance(dynamics, GaussianDynamics) and dynamics.any_coordinates


def hold_gauge(basis: Float[Array, "L N"], change: Free) -> Free:
    """Remove the component in the span of a basis from a step of C and b.

    The basis is that of the first C: its products with C and b then stay as they were, however many
    steps there are.
    """
    moves = _readouts(change)
    step = jnp.concatenate([jnp.column_stack([dC, db]) for dC, db in moves.values()])
    kept = step - basis.T @ (basis @ step)
    start, replaced = 0, {}
    for path, (dC, _) in moves.items():
        rows = kept[start : start + len(dC)]
        replaced[path] = (rows[:, :-1], rows[:, -1])
        start += len(dC)

    def replace(path: tuple, leaf: Array) -> Array:
        name = path[-1].name if isinstance(path[-1], GetAttrKey) else None
        pair = replaced.get(path[:-1])
        if pair is None or name not in ("C", "b"):
            return leaf
        return pair[0] if name == "C" else pair[1]

    return jax.tree_util.tree_map_with_path(replace, change)


def _readouts(tree: Free) -> dict[tuple, tuple[Float[Array, "N L"], Float[Array, " N"]]]:
    """Return C and b of every readout in a tree, by the path to it."""
    leaves: dict[tuple, dict[str, Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(path[-1], GetAttrKey) and path[-1].name in ("C", "b"):
            leaves.setdefault(path[:-1], {})[path[-1].name] = leaf
    return {path: (pair["C"], pair["b"]) for path, pair in leaves.items() if len(pair) == 2}
