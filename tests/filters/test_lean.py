"""Steps of very many sessions, sessions last, against the filter itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf.dynamics import Linear, ResidualMLP
from evkf.families import DiagonalGaussianFamily
from evkf.filters import ExtendedKalman, VariationalKalmanFilter, lean
from evkf.likelihoods import Poisson, StudentT
from evkf.model import Model

L, N, B = 3, 24, 1024
RNG = np.random.default_rng(0)
C = RNG.normal(size=(N, L)) / np.sqrt(L)
FILTER = VariationalKalmanFilter()
with jax.enable_x64(False):
    MODEL = Model(ResidualMLP(L, 0.05, jax.random.key(0), 8), Poisson(C, np.ones(N), bin_width=0.3))
    STATES = jax.vmap(lambda _: FILTER.init(MODEL))(jnp.arange(B))
QUICK = jax.jit(lambda states, ys, masks: lean.step_many(FILTER, MODEL, states, ys, masks))
ITSELF = jax.jit(jax.vmap(lambda state, y, mask: FILTER.step(MODEL, state, y, mask)))


@pytest.fixture(autouse=True)
def float32():
    with jax.enable_x64(False):
        yield


def follow(ys, masks):
    quick = itself = STATES
    for y in ys:
        quick, said = QUICK(quick, y, masks)
        itself, like = ITSELF(itself, y, masks)
    return quick.belief, said, itself.belief, like


def differences(found, expected):
    std = np.sqrt(np.diagonal(expected.cov, axis1=1, axis2=2))
    mean = np.abs(found.mean - expected.mean) / std
    cov = np.abs(found.cov - expected.cov) / (std[:, :, None] * std[:, None])
    return mean.max(), cov.max()


def test_what_the_filter_gives():
    ys = jnp.asarray(RNG.poisson(1.0, (4, B, N)), jnp.float32)
    masks = np.ones((B, N), bool)
    masks[1], masks[2, :12] = False, False
    found, said, expected, like = follow(ys, masks)
    assert max(differences(found, expected)) < 5e-3
    np.testing.assert_allclose(said.elbo, like.elbo, atol=0.02)
    np.testing.assert_allclose(said.gap, like.gap, atol=0.1)
    assert said.elbo[1] == 0
    assert np.mean(np.asarray(said.evaluations) == said.evaluations[0]) > 0.9
    assert [leaf.dtype for leaf in said] == [leaf.dtype for leaf in like]


def test_sessions_that_need_care_are_done_by_the_filter_itself():
    """Thousands of counts where few were expected, and beliefs that must be capped."""
    ys = jnp.asarray(RNG.poisson(1.0, (1, B, N)), jnp.float32).at[0, :10].mul(1000)
    masks = jnp.ones((B, N), bool)
    found, said, expected, like = follow(ys, masks)
    np.testing.assert_allclose(found.mean[:10], expected.mean[:10], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(said.status[:10], like.status[:10])
    far = STATES._replace(belief=STATES.belief._replace(mean=STATES.belief.mean.at[7].set(2e4)))
    (state, said), (same, like) = QUICK(far, ys[0], masks), ITSELF(far, ys[0], masks)
    np.testing.assert_array_equal(said.status, like.status)
    np.testing.assert_allclose(state.belief.mean[7], same.belief.mean[7], rtol=1e-5)


def test_factorisations_by_rows():
    with jax.enable_x64(True):
        _check_factorisations()


def _check_factorisations():
    half = RNG.normal(size=(7, 5, 5))
    matrices = half @ half.transpose(0, 2, 1) + 0.1 * np.eye(5)
    i, j = np.tril_indices(5)
    rows = list(jnp.asarray(matrices[:, i, j].T))
    root, log_det = lean._cholesky(rows, 5)
    np.testing.assert_allclose(np.stack(root), np.linalg.cholesky(matrices)[:, i, j].T, rtol=1e-9)
    np.testing.assert_allclose(log_det, 0.5 * np.linalg.slogdet(matrices)[1], rtol=1e-9)
    inverse, log_det = lean._inverse(rows, 5)
    np.testing.assert_allclose(np.stack(inverse), np.linalg.inv(matrices)[:, i, j].T, rtol=1e-7)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(matrices)[1], rtol=1e-9)


@pytest.mark.parametrize(
    ("filter", "model", "sessions"),
    [
        (FILTER, MODEL, 64),
        (ExtendedKalman(), MODEL, B),
        (VariationalKalmanFilter(max_evaluations=3), MODEL, B),
        (VariationalKalmanFilter(rule="moment_matching"), MODEL, B),
        (FILTER, lambda: Model(MODEL.dynamics, StudentT(C)), B),
        (
            FILTER,
            lambda: Model(MODEL.dynamics, MODEL.likelihood, family=DiagonalGaussianFamily(L)),
            B,
        ),
        (FILTER, lambda: Model(Linear(np.eye(L), noise=np.eye(L) + 0.1), MODEL.likelihood), B),
    ],
)
def test_what_else_is_left_to_vmap(filter, model, sessions):
    assert lean.applies(FILTER, MODEL, B)
    assert not lean.applies(filter, model if isinstance(model, Model) else model(), sessions)


def test_tolerance_is_kept():
    """A strict filter does by itself what three evaluations cannot settle."""
    strict = VariationalKalmanFilter(tolerance=1e-6)
    ys = jnp.asarray(RNG.poisson(1.0, (B, N)), jnp.float32)
    masks = jnp.ones((B, N), bool)
    _, said = jax.jit(lambda s: lean.step_many(strict, MODEL, s, ys, masks))(STATES)
    assert np.all(np.asarray(said.residual) <= 1e-6)
    assert not np.any(said.status)
