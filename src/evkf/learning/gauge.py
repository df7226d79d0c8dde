"""The gauge: keep the coordinates of the latent space fixed while the readout is learned.

The readout is the weights C and offsets b: observations depend on $Cz + b$, where z is the latent
state. Latent states are defined only up to an affine map $Az + c$: weights $C A^{-1}$, offsets
$b - C A^{-1} c$ and states $Az + c$ explain the data as well as C, b and z. A gradient step of C
and b within the column space of C only changes the coordinates, and the dynamics can make the same
change. This component is therefore removed from every step. The subspace that C spans can still
rotate as the data require, but the axes within the subspace stay. If the dynamics are known,
frozen, or cannot follow a change of coordinates, they fix the coordinates, and nothing is removed.
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
    """Return an orthonormal basis, as rows, of the column space of the weights C of all readouts.

    The weights of several readouts are concatenated over channels. Without a learned readout, the
    basis is empty, (0, 0).
    """
    readouts = _readouts(learned)
    if not readouts:
        return jnp.zeros((0, 0))
    C = jnp.concatenate([C for C, _ in readouts.values()])
    # A small ridge, because C'C has no Cholesky factor if columns of C are linearly dependent.
    square, info = C.T @ C, jnp.finfo(C.dtype)
    ridge = 100 * info.eps * jnp.trace(square) + info.tiny
    return solve_lower(cholesky(square + ridge * jnp.eye(len(square), dtype=C.dtype)), C.T)


def can_move(model: Model) -> bool:
    """Return True if the dynamics can follow any affine change of the latent coordinates.

    Only then must the gauge be held.
    """
    dynamics = model.dynamics
    if isinstance(dynamics, Driven):
        dynamics = dynamics.undriven
    return isinstance(dynamics, GaussianDynamics) and dynamics.any_coordinates


def hold_gauge(basis: Float[Array, "L N"], change: Free) -> Free:
    """Return a gradient step whose changes of C and b have no component in the span of the basis.

    All other changes are returned as given.

    Args:
        basis: Result of `gauge` for the weights C at the start of learning. Its products with C and
            b then never change.
        change: Step of all learned numbers.
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
    """Return weights C and offsets b of every readout in a tree, by the path to the readout."""
    leaves: dict[tuple, dict[str, Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(path[-1], GetAttrKey) and path[-1].name in ("C", "b"):
            leaves.setdefault(path[:-1], {})[path[-1].name] = leaf
    return {path: (pair["C"], pair["b"]) for path, pair in leaves.items() if len(pair) == 2}
