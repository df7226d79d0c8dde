"""Small dense linear algebra: both ways of computing it agree, and failure is NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf.numerics import linalg as numerics
from evkf.numerics.covariance import DiagonalCovariance, FullCovariance, as_covariance
from tests.quick import quick_compilation  # noqa: F401

COUNT = 50


def positive(size, seed=0, dtype=np.float64):
    roots = np.random.default_rng(seed).normal(size=(COUNT, size, size))
    return (roots @ np.swapaxes(roots, 1, 2) + 0.1 * np.eye(size)).astype(dtype)


def both_ways(monkeypatch, function, *arrays):
    """Written out (up to size 3) and by LAPACK."""
    out = [jax.jit(jax.vmap(function))(*arrays)]
    monkeypatch.setattr(numerics, "UNROLL", 0)
    out.append(jax.jit(jax.vmap(lambda *x: function(*x)))(*arrays))
    monkeypatch.undo()
    return out


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_cholesky_inverse_and_solve(monkeypatch, size):
    matrices = positive(size)
    want = np.linalg.cholesky(matrices)
    rights = np.random.default_rng(1).normal(size=(COUNT, size, 2))
    for got in both_ways(monkeypatch, numerics.cholesky, matrices):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
    for got in both_ways(monkeypatch, numerics.inverse_lower, want):
        np.testing.assert_allclose(got, np.linalg.inv(want), rtol=1e-9, atol=1e-9)
    for got in both_ways(monkeypatch, numerics.solve_lower, want, rights):
        np.testing.assert_allclose(got, np.linalg.solve(want, rights), rtol=1e-9, atol=1e-9)
    for got in both_ways(monkeypatch, numerics.solve_lower, want, rights[..., 0]):
        assert got.shape == (COUNT, size)
        expected = np.linalg.solve(want, rights)[..., 0]
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_float32_stays_float32(size):
    matrices = positive(size, dtype=np.float32)
    root = jax.vmap(numerics.cholesky)(matrices)
    inverse = jax.vmap(numerics.inverse_lower)(root)
    assert root.dtype == inverse.dtype == jnp.float32
    np.testing.assert_allclose(inverse @ root, np.eye(size) + 0 * matrices, atol=2e-4)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_indefinite_is_nan(monkeypatch, size):
    rotate = np.linalg.qr(np.random.default_rng(2).normal(size=(size, size)))[0]
    values = np.linspace(-0.5, 2, size)
    matrix = (rotate * values) @ rotate.T
    for got in both_ways(monkeypatch, numerics.cholesky, matrix[None]):
        assert np.any(np.isnan(got))
    for got in both_ways(monkeypatch, numerics.cholesky, (np.nan * matrix)[None]):
        assert np.any(np.isnan(got))


def test_only_the_lower_half_is_read(monkeypatch):
    matrices = positive(3)
    halves = np.tril(matrices) + np.triu(np.full((3, 3), 7.0), 1)
    for got in both_ways(monkeypatch, numerics.cholesky, halves):
        np.testing.assert_allclose(np.tril(got), np.linalg.cholesky(matrices), rtol=1e-11)
        assert np.all(np.triu(np.asarray(got), 1) == 0)


@pytest.mark.parametrize("size", [2, 3, 8, 20])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_factorisable_repairs_rounding_and_nothing_else(size, dtype):
    """Singular products S S' get a factor; a sound matrix is left alone."""
    rng = np.random.default_rng(3)
    thin = rng.normal(size=(200, size, size // 2)) * 10.0 ** rng.uniform(-3, 3, (200, size, 1))
    singular = jnp.asarray(thin, dtype) @ jnp.swapaxes(jnp.asarray(thin, dtype), 1, 2)
    repaired = jax.vmap(numerics.factorisable)(singular)
    assert np.all(np.isfinite(jax.vmap(numerics.cholesky)(repaired)))
    matrix = jnp.asarray(positive(size)[0], dtype)
    np.testing.assert_array_equal(numerics.factorisable(matrix), numerics.symmetrize(matrix))
    grown = np.diagonal(repaired, axis1=1, axis2=2) / np.diagonal(singular, axis1=1, axis2=2)
    assert np.all(grown <= 1 + 260 * size * np.finfo(dtype).eps)
    assert repaired.dtype == dtype


def test_symmetrize():
    matrix = np.random.default_rng(4).normal(size=(3, 3))
    np.testing.assert_allclose(numerics.symmetrize(matrix), (matrix + matrix.T) / 2)


@pytest.mark.parametrize("value", [0.3, [0.1, 2.0, 0.5], positive(3)[0]])
def test_covariance_keeps_its_matrix(value):
    covariance = as_covariance(value, 3, "noise")
    matrix = np.asarray(value)
    matrix = matrix if matrix.ndim == 2 else np.diag(np.broadcast_to(matrix, 3))
    columns = np.random.default_rng(5).normal(size=(3, 4))
    root = np.linalg.cholesky(matrix)
    np.testing.assert_allclose(covariance.matrix(), matrix, rtol=1e-12)
    np.testing.assert_allclose(covariance.root(), root, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(covariance.var(), np.diag(matrix), rtol=1e-12)
    np.testing.assert_allclose(covariance.log_det_root(), np.linalg.slogdet(root)[1], rtol=1e-12)
    for right in (columns, columns[:, 0]):
        want = np.linalg.solve(root, right)
        np.testing.assert_allclose(covariance.whiten(right), want, rtol=1e-9, atol=1e-12)
    kind = FullCovariance if np.ndim(value) == 2 else DiagonalCovariance
    assert type(covariance) is kind
    assert as_covariance(covariance, 3, "noise") is covariance


def test_no_gradient_step_leaves_the_cone():
    """Whatever is added to its parameters, a covariance stays positive definite."""
    covariance = as_covariance(positive(3)[0], 3, "noise")
    for seed in range(5):
        rng = np.random.default_rng(seed)
        moved = jax.tree.map(lambda x, r=rng: x + 3 * r.normal(size=x.shape), covariance)
        assert np.all(np.linalg.eigvalsh(moved.matrix()) > 0)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_pack_and_unpack(size):
    matrices = positive(size)
    packed = numerics.pack(matrices)
    assert packed.shape == (COUNT, size * (size + 1) // 2)
    np.testing.assert_array_equal(packed[0], matrices[0][np.tril_indices(size)])
    np.testing.assert_array_equal(numerics.unpack(packed[0], size), matrices[0])


@pytest.mark.parametrize("size", [0, 1, 16, 17, 40])
def test_sums_of_few_and_many(size):
    values = jnp.asarray(np.random.default_rng(5).normal(size=size))
    np.testing.assert_allclose(numerics.total(values), np.sum(values), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        numerics.total_of_many(values), np.sum(values), rtol=1e-12, atol=1e-14
    )
    assert not numerics.any_true(values > 100)
    assert bool(numerics.any_true(values > -100)) == (size > 0)
    assert numerics.all_finite(values)
    assert not numerics.all_finite(values, jnp.asarray(jnp.nan))


@pytest.mark.parametrize("size", [1, 3, 4])
def test_diagonal(size):
    matrix = np.random.default_rng(6).normal(size=(size, size))
    np.testing.assert_array_equal(numerics.diagonal(jnp.asarray(matrix)), np.diagonal(matrix))


def test_a_sound_matrix_with_one_wide_direction_is_left_alone():
    direction = np.array([0.6, 0.64, 0.48])
    matrix = jnp.asarray(3 * np.outer(direction, direction) + 5e-4 * np.eye(3), jnp.float32)
    np.testing.assert_array_equal(numerics.factorisable(matrix), numerics.symmetrize(matrix))
