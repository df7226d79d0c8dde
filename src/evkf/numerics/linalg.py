"""Linear algebra of small positive definite matrices.

A call of LAPACK costs microseconds even for a matrix of a few entries. So factorisations up to size
3 are written out entry by entry, and XLA compiles them together with the code around them.
"""

from functools import reduce
from operator import add, or_
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.lax.linalg import cholesky as lapack_cholesky
from jax.lax.linalg import triangular_solve
from jaxtyping import Array, Bool, Float, PyTree

UNROLL = 3
FEW = 16
"""Largest number of entries that are summed one by one (see `total`)."""

Tree = TypeVar("Tree")


def tree_where(condition: Bool[Array, ""], yes: Tree, no: Tree) -> Tree:
    """Return tree `yes` if the condition is true, else tree `no`; both have the same structure.

    A leaf that is the same object in both trees is returned as it is.
    """
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), yes, no)


def shapes(tree: PyTree) -> tuple[Any, list[tuple[tuple[int, ...], Any]]]:
    """Return the structure of a JAX tree, and a list of shape and dtype of each leaf."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]


def total(values: Float[Array, "..."]) -> Float[Array, ""]:
    """Return the sum of all entries.

    Up to 16 entries are added one by one, because XLA prepares memory for every `jnp.sum` in every
    call, which takes longer than so short a sum.
    """
    return reduce(add, jnp.ravel(values)) if 0 < values.size <= FEW else jnp.sum(values)


def total_of_many(values: Float[Array, " N"]) -> Float[Array, ""]:
    """Return the sum of a long vector, by a matrix product: faster than `jnp.sum` (see `total`)."""
    return (jnp.stack([values, values]) @ jnp.ones_like(values))[0]


def any_true(values: Bool[Array, "..."]) -> Bool[Array, ""]:
    """Return True if any entry is true; up to 16 entries are compared one by one (see `total`)."""
    return reduce(or_, jnp.ravel(values)) if 0 < values.size <= FEW else jnp.any(values)


def all_finite(*trees: PyTree) -> Bool[Array, ""]:
    """Return True if every number of every tree is finite."""
    return ~any_true(~jnp.isfinite(ravel_pytree(trees)[0]))


def symmetrize(matrix: Float[Array, "L L"]) -> Float[Array, "L L"]:
    """Return the average of a matrix and its transpose, which is symmetric."""
    return 0.5 * (matrix + matrix.T)


def factorisable(cov: Float[Array, "L L"]) -> Float[Array, "L L"]:
    """Return a covariance made symmetric and, if needed, with a larger diagonal.

    If rounding has made the (L, L) matrix not positive definite, the diagonal is multiplied by
    1 + 256 L eps, where eps is the rounding unit. Otherwise the diagonal stays as it is, because a
    small increase in every bin would add up to unwanted process noise.
    """
    cov = symmetrize(cov)
    relative = 256 * cov.shape[-1] * jnp.finfo(cov.dtype).eps
    raised = cov * (1 + relative * jnp.eye(cov.shape[-1], dtype=cov.dtype))
    # A pivot that fails makes all later pivots NaN, so a test of the last pivot is enough.
    return jnp.where(cholesky(cov)[-1, -1] > 0, cov, raised)


def cholesky(matrix: Float[Array, "L L"]) -> Float[Array, "L L"]:
    """Return the lower Cholesky factor; some entries are NaN if not positive definite."""
    size = matrix.shape[-1]
    if size > UNROLL:
        return lapack_cholesky(matrix, symmetrize_input=False)
    rows: list[list[Any]] = []
    pivots: list[Any] = []
    for i in range(size):
        row: list[Any] = []
        for j in range(i):
            dot = sum(row[k] * rows[j][k] for k in range(j))
            # Multiply by a reciprocal: XLA fuses this, but not a quotient that is used twice.
            row.append((matrix[i, j] - dot) * pivots[j])
        pivot = matrix[i, i] - sum(x * x for x in row)
        pivots.append(lax.rsqrt(pivot))
        row.append(jnp.sqrt(pivot))
        rows.append(row)
    return _lower(rows)


def inverse_lower(root: Float[Array, "L L"]) -> Float[Array, "L L"]:
    """Return the inverse of a lower triangular matrix."""
    size = root.shape[-1]
    if size > UNROLL:
        return triangular_solve(root, jnp.eye(size, dtype=root.dtype), left_side=True, lower=True)
    rows: list[list[Any]] = []
    for i in range(size):
        row = []
        for j in range(i):
            dot = sum(root[i, k] * rows[k][j] for k in range(j, i))
            row.append(-dot / root[i, i])
        row.append(1 / root[i, i])
        rows.append(row)
    return _lower(rows)


def diagonal(matrix: Float[Array, "L L"]) -> Float[Array, " L"]:
    """Return the diagonal of a square matrix."""
    size = matrix.shape[-1]
    if size <= UNROLL:
        return jnp.stack([matrix[i, i] for i in range(size)])
    return jnp.diagonal(matrix)


def inverse_positive(
    matrix: Float[Array, "L L"],
) -> tuple[Float[Array, "L L"], Float[Array, ""]]:
    """Return the inverse and the log-determinant of a positive definite matrix."""
    size = matrix.shape[-1]
    if size > UNROLL:
        root = cholesky(matrix)
        inverse = inverse_lower(root)
        return inverse.T @ inverse, 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
    if size == 1:
        return 1 / matrix, jnp.log(matrix[0, 0])
    if size == 2:
        (a, b), (_, d) = matrix
        cofactors = [[d, -b], [-b, a]]
        det = a * d - b * b
    else:
        (a, b, c), (_, d, e), (_, _, f) = matrix
        x, y, z = d * f - e * e, c * e - b * f, b * e - c * d
        cofactors = [
            [x, y, z],
            [y, a * f - c * c, b * c - a * e],
            [z, b * c - a * e, a * d - b * b],
        ]
        det = a * x + b * y + c * z
    return jnp.stack([jnp.stack(row) for row in cofactors]) / det, jnp.log(det)


def solve_lower(
    root: Float[Array, "L L"], right: Float[Array, "L ..."], transposed: bool = False
) -> Float[Array, "L ..."]:
    """Return the solution x of `root @ x = right`.

    Args:
        root: Lower triangular matrix, (L, L).
        right: A vector (L,), or a matrix whose columns are solved for.
        transposed: If True, solve `root.T @ x = right`.
    """
    size = root.shape[-1]
    if size <= UNROLL:
        inverse = inverse_lower(root)
        return (inverse.T if transposed else inverse) @ right
    columns = right[:, None] if right.ndim == 1 else right
    solved = triangular_solve(root, columns, left_side=True, lower=True, transpose_a=transposed)
    return solved[:, 0] if right.ndim == 1 else solved


def _lower(rows: list[list[Any]]) -> Float[Array, "L L"]:
    zero = jnp.zeros_like(rows[0][0])
    size = len(rows)
    return jnp.stack([jnp.stack(row + [zero] * (size - len(row))) for row in rows])


def pack(matrix: Float[Array, "... L L"]) -> Float[Array, "... D"]:
    """Return the lower triangle of a symmetric matrix as a vector, row by row."""
    size = matrix.shape[-1]
    if size <= UNROLL:
        return jnp.concatenate([matrix[..., i, : i + 1] for i in range(size)], axis=-1)
    rows, columns = np.tril_indices(size)
    return matrix[..., rows, columns]


def unpack(vector: Float[Array, " D"], size: int) -> Float[Array, "L L"]:
    """Return the (size, size) symmetric matrix whose lower triangle, row by row, is the vector."""
    rows, columns = np.tril_indices(size)
    index = np.zeros((size, size), int)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows))
    if size <= UNROLL:
        return jnp.stack([vector[i] for i in index.ravel()]).reshape(size, size)
    return vector[index]
