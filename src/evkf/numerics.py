"""Small dense linear algebra for positive definite matrices, with closed forms for tiny sizes.

LAPACK calls cost microseconds on matrices of a few entries; up to size 3 the factorisations are
written
out, so that XLA fuses them with their surroundings.
"""

import jax.numpy as jnp
import numpy as np
from jax.lax.linalg import cholesky as lapack_cholesky
from jax.lax.linalg import triangular_solve
from jaxtyping import Array, Float

UNROLL = 3


def symmetrize(matrix: Float[Array, "L L"]) -> Float[Array, "L L"]:
    """Average with the transpose."""
    return 0.5 * (matrix + matrix.T)


def jitter(matrix: Float[Array, "L L"]) -> Float[Array, "L L"]:
    """Raise the diagonal by a few units of rounding, relative to itself.

    Enough for a product $SS^\\top$ formed in floating point to have a Cholesky factor, and far
    below
    any variance that matters: 5e-6 relative in float32 at L = 20, 1e-14 in float64.
    """
    size = matrix.shape[-1]
    relative = 4 * size * jnp.finfo(matrix.dtype).eps
    return matrix + jnp.diag(relative * jnp.diagonal(matrix))


def cholesky(matrix: Float[Array, "L L"]) -> Float[Array, "L L"]:
    """Lower Cholesky factor; NaN where the matrix is not positive definite."""
    size = matrix.shape[-1]
    if size > UNROLL:
        return lapack_cholesky(matrix, symmetrize_input=False)
    rows: list[list] = []
    for i in range(size):
        row: list = []
        for j in range(i):
            dot = sum(row[k] * rows[j][k] for k in range(j))
            row.append((matrix[i, j] - dot) / rows[j][j])
        row.append(jnp.sqrt(matrix[i, i] - sum(x * x for x in row)))
        rows.append(row)
    return _lower(rows)


def inverse_lower(root: Float[Array, "L L"]) -> Float[Array, "L L"]:
    """Inverse of a lower triangular matrix."""
    size = root.shape[-1]
    if size > UNROLL:
        return triangular_solve(root, jnp.eye(size, dtype=root.dtype), left_side=True, lower=True)
    rows: list[list] = []
    for i in range(size):
        row = []
        for j in range(i):
            dot = sum(root[i, k] * rows[k][j] for k in range(j, i))
            row.append(-dot / root[i, i])
        row.append(1 / root[i, i])
        rows.append(row)
    return _lower(rows)


def solve_lower(root: Float[Array, "L L"], right: Float[Array, "L ..."]) -> Float[Array, "L ..."]:
    """Solve `root @ x = right` for a vector or the columns of a matrix."""
    size = root.shape[-1]
    if size <= UNROLL:
        return inverse_lower(root) @ right
    columns = right[:, None] if right.ndim == 1 else right
    solved = triangular_solve(root, columns, left_side=True, lower=True)
    return solved[:, 0] if right.ndim == 1 else solved


def _lower(rows: list[list]) -> Float[Array, "L L"]:
    zero = jnp.zeros_like(rows[0][0])
    size = len(rows)
    return jnp.stack([jnp.stack(row + [zero] * (size - len(row))) for row in rows])


def pack(matrix: Float[Array, "... L L"]) -> Float[Array, "... D"]:
    """The lower triangle of a symmetric matrix as a vector, row by row."""
    rows, columns = np.tril_indices(matrix.shape[-1])
    return matrix[..., rows, columns]


def unpack(vector: Float[Array, " D"], size: int) -> Float[Array, "L L"]:
    """The symmetric matrix whose lower triangle is the vector."""
    rows, columns = np.tril_indices(size)
    index = np.zeros((size, size), int)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows))
    return vector[index]
