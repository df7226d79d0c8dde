"""Online variational smoothing: the regression, the Kalman filter's estimates, and learning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf import dynamics as dyn
from evkf import likelihoods as lik
from evkf.errors import InputError
from evkf.filters import OnlineVariationalSmoother, scan_filter
from evkf.filters.peers.kernel_ridge import KernelRidge, median_width
from evkf.model import Model
from evkf.types import Status
from tests.filters.peers.linear import kalman_run, linear_model
from tests.filters.test_conformance import network
from tests.quick import quick_compilation  # noqa: F401

KEY = jax.random.key(0)


def test_the_regression_finds_a_smooth_function():
    points = jax.random.normal(KEY, (200, 2))
    noise = 0.1 * jax.random.normal(jax.random.key(1), (200, 1))

    def target(x):
        return jnp.stack([jnp.sin(x[:, 0]) * x[:, 1], x[:, 0] - 2 * x[:, 1]], axis=1)

    new = 0.8 * jax.random.normal(jax.random.key(2), (100, 2))
    ridge = KernelRidge.fit(points, target(points) + noise, slice(0, 2), 5e-5)
    assert np.mean((ridge.evaluate(new) - target(new)) ** 2) < 0.1**2
    np.testing.assert_allclose(ridge.evaluate(new, 1), ridge.evaluate(new)[:, :1], atol=1e-9)


def test_the_width_is_tuned_to_the_targets():
    """Wider for what is nearly linear, narrower for what bends; the median distance is known."""
    points = jax.random.normal(KEY, (200, 1))
    straight = KernelRidge.fit(points, points, slice(0, 1), 5e-5).width
    bent = KernelRidge.fit(points, jnp.sin(6 * points), slice(0, 1), 5e-5).width
    assert bent < median_width(1) < straight
    for dim in (1, 5):
        one, two = jax.random.normal(KEY, (2, 100_000, dim))
        distance = jnp.median(jnp.linalg.norm(one - two, axis=1))
        np.testing.assert_allclose(median_width(dim), distance, rtol=0.02)


def test_close_to_kalman_when_linear():
    """Filtering and smoothing one step back, though $q_t$ is diagonal and the posterior is not."""
    model, zs, ys = linear_model(100)
    means, covs, evidence = kalman_run(model, ys)
    filter = OnlineVariationalSmoother(iterations=300, learn=False)
    step, state = jax.jit(filter.step), filter.init(model)
    found, smoothed, bounds = [], [], []
    for t, y in enumerate(ys):
        state, info = step(model, state, y, None, jax.random.fold_in(KEY, t))
        assert info.status == Status.OK
        found.append(state.belief.mean)
        smoothed.append(state.smoothed.mean)
        bounds.append(info.elbo)
    A, Q = np.asarray(model.dynamics.weight), np.asarray(model.dynamics.noise.matrix())
    predicted = A @ covs[:-1] @ A.T + Q
    gains = covs[:-1] @ A.T @ np.linalg.inv(predicted)
    exact = means[:-1] + np.einsum("tij,tj->ti", gains, means[1:] - means[:-1] @ A.T)

    def error(estimate, truth):
        return np.sqrt(np.mean((np.asarray(estimate) - truth) ** 2))

    assert error(found, zs) < 1.05 * error(means, zs)
    assert error(smoothed[1:], zs[:-1]) < 1.05 * error(exact, zs[:-1])
    assert abs(np.mean(bounds) - np.mean(evidence)) < 0.15


def test_learns_linear_dynamics():
    """From far off, the evidence of a bin comes near the true model's."""
    true, _, ys = linear_model(300)
    start = Model(dyn.Linear(0.3 * np.eye(2), 1.0), true.likelihood)
    filter = OnlineVariationalSmoother(
        iterations=100, num_support=80, hidden=30, rate=2e-2, model_rate=1e-2
    )
    state, trace = scan_filter(filter, start, ys, key=KEY)
    _, _, evidence = kalman_run(true, ys)
    _, _, before = kalman_run(start, ys)
    _, _, after = kalman_run(state.model, ys)
    assert np.mean(evidence - after) < 0.4 * np.mean(evidence - before)
    assert not np.any(trace.info.status)
    none = jnp.zeros(3, bool)
    step = jax.jit(filter.step)
    blind, info = step(state.model, state, jnp.full(3, jnp.nan), none, KEY)
    assert (info.elbo, info.status) == (0, Status.OK)
    np.testing.assert_array_equal(blind.model.dynamics.weight, state.model.dynamics.weight)
    mean = state.model.dynamics.mean(state.belief.mean, jnp.zeros(0))
    np.testing.assert_allclose(blind.belief.mean, mean, atol=1e-9)
    again = filter.restart(true, state)
    jax.tree.map(np.testing.assert_array_equal, again.belief, true.prior)
    jax.tree.map(np.testing.assert_array_equal, again[3:], state[3:])
    assert not np.any(again.past.coefficients)
    lost, info = step(state.model, state, jnp.full(3, 1e200), ~none, KEY)
    assert info.status == Status.FELL_BACK
    assert np.isnan(info.elbo)
    jax.tree.map(np.testing.assert_array_equal, lost.belief, blind.belief)
    jax.tree.map(np.testing.assert_array_equal, lost.kernel, state.kernel)


def test_refuses_what_it_cannot_do():
    gamma = Model(dyn.GammaDynamics(network(2, 2), 2, 25.0), lik.Poisson(np.eye(2)))
    with pytest.raises(InputError, match="Gamma"):
        OnlineVariationalSmoother().init(gamma)
    for wrong in ({"num_support": 3}, {"iterations": 0}, {"ridge": 0.0}, {"parts": ()}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            OnlineVariationalSmoother(**wrong)
