"""Covariance matrices stored as unconstrained numbers.

Any values of these numbers give a positive definite matrix, so gradient steps cannot break it.
"""

from abc import abstractmethod
from typing import Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.numerics.checks import real_numbers
from evkf.numerics.linalg import diagonal, solve_lower, total
from evkf.types import Matrix, Scalar, Vector


class Covariance(eqx.Module):
    """A covariance matrix $P$, stored by its lower Cholesky factor $R$ with $P = R R^T$."""

    @abstractmethod
    def root(self) -> Matrix:
        """Return the lower Cholesky factor of the covariance."""

    @abstractmethod
    def matrix(self) -> Matrix:
        """Return the covariance matrix."""

    @abstractmethod
    def var(self) -> Vector:
        """Return the variances, the diagonal of the covariance matrix."""

    @abstractmethod
    def log_det_root(self) -> Scalar:
        """Return the log-determinant of the Cholesky factor, half that of the covariance."""

    @abstractmethod
    def whiten(self, columns: Float[Array, "L ..."]) -> Float[Array, "L ..."]:
        """Return the inverse of the Cholesky factor times a vector or a matrix."""

    @abstractmethod
    def relative_trace(self, other: Matrix) -> Scalar:
        """Return the trace of the inverse of this covariance times another covariance."""

    @abstractmethod
    def widened(self, log_factor: Scalar) -> Self:
        """Return this covariance with all standard deviations multiplied by exp(`log_factor`)."""


class DiagonalCovariance(Covariance):
    """A diagonal covariance (independent components).

    Attributes:
        log_std: Logarithms of the standard deviations, (L,).
    """

    log_std: Vector

    def root(self) -> Matrix:
        return jnp.diag(jnp.exp(self.log_std))

    def matrix(self) -> Matrix:
        return jnp.diag(self.var())

    def var(self) -> Vector:
        return jnp.exp(2 * self.log_std)

    def log_det_root(self) -> Scalar:
        return total(self.log_std)

    def whiten(self, columns: Float[Array, "L ..."]) -> Float[Array, "L ..."]:
        return (columns.T * jnp.exp(-self.log_std)).T

    def relative_trace(self, other: Matrix) -> Scalar:
        return total(diagonal(other) * jnp.exp(-2 * self.log_std))

    def widened(self, log_factor: Scalar) -> Self:
        return type(self)(self.log_std + log_factor)


class FullCovariance(Covariance):
    """Any covariance matrix, stored by its lower Cholesky factor.

    Attributes:
        log_diagonal: Logarithms of the diagonal of the Cholesky factor, (L,).
        lower: Matrix that has the entries of the Cholesky factor below the diagonal, (L, L). Its
            other entries are ignored.
    """

    log_diagonal: Vector
    lower: Float[Array, "L L"]

    def root(self) -> Matrix:
        return jnp.tril(self.lower, -1) + jnp.diag(jnp.exp(self.log_diagonal))

    def matrix(self) -> Matrix:
        root = self.root()
        return root @ root.T

    def var(self) -> Vector:
        return jnp.sum(self.root() ** 2, axis=-1)

    def log_det_root(self) -> Scalar:
        return total(self.log_diagonal)

    def whiten(self, columns: Float[Array, "L ..."]) -> Float[Array, "L ..."]:
        return solve_lower(self.root(), columns)

    def relative_trace(self, other: Matrix) -> Scalar:
        return jnp.trace(self.whiten(self.whiten(other).T))

    def widened(self, log_factor: Scalar) -> Self:
        return type(self)(self.log_diagonal + log_factor, self.lower * jnp.exp(log_factor))


def as_covariance(value: "ArrayLike | Covariance", dim: int, where: str) -> Covariance:
    """Return input as a `Covariance`; raise InputError if it is no covariance of `dim` components.

    Args:
        value: One variance for all components, (dim,) variances, a (dim, dim) positive definite
            matrix, or a `Covariance`, which is returned unchanged.
        dim: Number of components.
        where: Name of the argument in the error.

    Example:
        >>> as_covariance(0.01, 2, "noise").var()
        Array([0.01, 0.01], dtype=float32)
    """
    if isinstance(value, Covariance):
        if value.var().shape != (dim,):
            raise InputError(
                f"covariance of {value.var().shape[0]} components for {dim}",
                where,
                f"pass one of {dim} dimensions",
            )
        return value
    array = real_numbers(value, where)
    dtype = jnp.result_type(float)
    if array.shape in ((), (dim,)):
        if not np.all(np.isfinite(array)) or np.any(array <= 0):
            raise InputError(
                f"variances must be positive and finite, got {array.tolist()}",
                where,
                "pass variances (not standard deviations or logarithms) above zero",
            )
        return DiagonalCovariance(jnp.asarray(0.5 * np.log(np.broadcast_to(array, dim)), dtype))
    if array.shape != (dim, dim):
        raise InputError(
            f"covariance of shape {array.shape}",
            where,
            f"pass a number, {dim} variances, or a ({dim}, {dim}) matrix",
        )
    root = positive_root(array, where)
    return FullCovariance(
        jnp.asarray(np.log(np.diagonal(root)), dtype), jnp.asarray(np.tril(root, -1), dtype)
    )


def positive_root(matrix: np.ndarray, where: str) -> np.ndarray:
    """Return the lower Cholesky factor of a matrix.

    Raise InputError if the matrix is not finite, symmetric and positive definite. `where` is the
    name of the matrix in the error.
    """
    if not np.all(np.isfinite(matrix)):
        raise InputError("covariance with NaN or infinite entries", where, "pass finite numbers")
    if not np.allclose(matrix, matrix.T, rtol=1e-5, atol=1e-8 * np.abs(matrix).max()):
        raise InputError("covariance is not symmetric", where, "pass 0.5 * (P + P.T)")
    smallest = np.linalg.eigvalsh(matrix)[0]
    if smallest <= 0:
        raise InputError(
            f"covariance is not positive definite (smallest eigenvalue {smallest:.3g})",
            where,
            "add a small multiple of the identity, or check the matrix",
        )
    return np.linalg.cholesky(matrix)
