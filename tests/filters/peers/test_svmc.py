"""Streaming variational Monte Carlo: right weights, the Kalman filter's estimates, and learning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf import dynamics as dyn
from evkf import families as fam
from evkf import likelihoods as lik
from evkf.errors import InputError
from evkf.filters import StreamingVMC, scan_filter
from evkf.filters.peers.learned import ShallowNetwork
from evkf.filters.peers.svmc import _draw, _draw_ancestors
from evkf.model import Model, simulate
from evkf.types import Status
from tests.filters.peers.linear import kalman_run, linear_model
from tests.filters.test_conformance import network
from tests.quick import quick_compilation  # noqa: F401

KEY = jax.random.key(0)
SMALL = {"num_particles": 400, "iterations": 3, "num_ancestors": 16, "hidden": 8}


@pytest.mark.parametrize("noise", [0.2, [[0.3, 0.1], [0.1, 0.2]]])
def test_gaussian_proposals_keep_the_dynamics(noise):
    """The mean of p/r under r is one, and weighted draws have the moments of p."""
    dynamics = dyn.Linear([[0.9, 0.2], [-0.1, 0.8]], noise)
    ancestors = jnp.tile(jnp.array([[0.5, -1.0]]), (200_000, 1))
    out = jnp.tile(jnp.array([[0.4, -0.3, 0.2, 0.3]]), (200_000, 1))
    cloud, log_ratio = _draw(
        Model(dynamics, lik.Poisson([[1.0, 0.0]])), out, ancestors, jnp.zeros(0), KEY
    )
    weights = jnp.exp(log_ratio)
    np.testing.assert_allclose(jnp.mean(weights), 1, atol=0.01)
    mean = dynamics.mean(ancestors[0], jnp.zeros(0))
    np.testing.assert_allclose(weights @ cloud / weights.sum(), mean, atol=0.01)


def test_continuous_bernoulli_proposals_keep_the_dynamics():
    dynamics = dyn.NaturalDynamics(fam.ContinuousBernoulliFamily(2), network(2, 2))
    model = Model(dynamics, lik.Gaussian(np.eye(2)))
    ancestors = jnp.tile(jnp.array([[0.2, 0.7]]), (100_000, 1))
    out = jnp.tile(jnp.array([[0.5, -0.8]]), (100_000, 1))
    cloud, log_ratio = _draw(model, out, ancestors, jnp.zeros(0), KEY)
    weights = jnp.exp(log_ratio)
    np.testing.assert_allclose(jnp.mean(weights), 1, atol=0.01)
    mean = model.family.mean(model.transition(ancestors[0], jnp.zeros(0)))
    np.testing.assert_allclose(weights @ cloud / weights.sum(), mean, atol=0.01)


def test_systematic_resampling_draws_in_proportion():
    cloud, weights = jnp.arange(4.0)[:, None], jnp.array([0.1, 0.0, 0.6, 0.3])
    model, _, _ = linear_model(1)
    state = StreamingVMC(num_particles=4).init(model)
    state = state._replace(particles=cloud, log_weights=jnp.log(weights))
    drawn = _draw_ancestors(state, KEY, 1000)[:, 0]
    counts = np.bincount(np.asarray(drawn, int), minlength=4)
    np.testing.assert_allclose(counts, 1000 * weights, atol=1)


def test_close_to_kalman_when_linear():
    """Within a twentieth of the error of the Kalman filter, and of its evidence."""
    model, zs, ys = linear_model(150)
    means, _, evidence = kalman_run(model, ys)
    filter = StreamingVMC(learn=False, **SMALL)
    state, trace = scan_filter(filter, model, ys, key=KEY)
    error, best = (np.sqrt(np.mean((m - zs) ** 2)) for m in (trace.belief.mean, means))
    assert error < 1.05 * best
    assert abs(np.mean(trace.info.elbo) - np.mean(evidence)) < 0.05
    assert np.any(state.proposal.output != 0)


def test_learns_linear_dynamics():
    """From far off, the evidence of a bin comes near the true model's."""
    true, _, ys = linear_model(400)
    start = Model(dyn.Linear(0.3 * np.eye(2), 1.0), true.likelihood)
    filter = StreamingVMC(model_rate=1e-2, decay=300, **SMALL)
    state, trace = scan_filter(filter, start, ys, key=KEY)
    _, _, evidence = kalman_run(true, ys)
    _, _, before = kalman_run(start, ys)
    _, _, after = kalman_run(state.model, ys)
    assert np.mean(evidence - after) < 0.25 * np.mean(evidence - before)
    assert not np.any(trace.info.status)
    np.testing.assert_array_equal(state.model.likelihood.C, true.likelihood.C)


def test_continuous_bernoulli_states_are_followed():
    """Better than the prior's mean, with the true model."""
    dynamics = dyn.NaturalDynamics(fam.ContinuousBernoulliFamily(2), network(2, 2))
    model = Model(dynamics, lik.Gaussian(np.eye(2), noise=0.01))
    zs, ys = simulate(model, KEY, 50)
    _, trace = scan_filter(StreamingVMC(learn=False, **SMALL), model, ys, key=KEY)
    mean = jax.vmap(model.family.mean)(trace.belief)
    assert np.mean((mean - zs) ** 2) < 0.5 * np.mean((zs - zs.mean(axis=0)) ** 2)


def test_what_is_masked_does_not_matter_and_failures_fall_back():
    model, _, _ = linear_model(1)
    filter = StreamingVMC(num_particles=50, iterations=2, num_ancestors=4, hidden=4)
    step, state = jax.jit(filter.step), filter.init(model)
    state = state._replace(proposal=ShallowNetwork(*(0.1 + x for x in state.proposal)))
    some, none = jnp.array([True, False, True]), jnp.zeros(3, bool)
    one, _ = step(model, state, jnp.array([1.0, 2.0, 3.0]), some, KEY)
    two, _ = step(model, state, jnp.array([1.0, jnp.nan, 3.0]), some, KEY)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    again = filter.restart(model, one)
    keys = jax.random.split(KEY)
    jax.tree.map(np.testing.assert_array_equal, again.belief, model.prior)
    jax.tree.map(np.testing.assert_array_equal, again[3:-1], one[3:-1])
    clouds = [step(model, again, jnp.zeros(3), none, key)[0].particles for key in keys]
    assert np.all(clouds[0] != clouds[1])
    blind, info = step(model, state, jnp.full(3, jnp.nan), none, KEY)
    assert info.elbo == 0
    assert info.status == Status.OK
    jax.tree.map(np.testing.assert_array_equal, blind.proposal, state.proposal)
    lost, info = step(model, state, jnp.full(3, 1e200), ~none, KEY)
    assert info.status == Status.FELL_BACK
    assert np.isnan(info.elbo)
    jax.tree.map(np.testing.assert_array_equal, lost.belief, blind.belief)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((lost.belief, lost.proposal)))


def test_refuses_what_it_cannot_do():
    gamma = Model(dyn.GammaDynamics(network(2, 2), 2, 25.0), lik.Poisson(np.eye(2)))
    with pytest.raises(InputError, match="Gamma"):
        StreamingVMC().init(gamma)
    with pytest.raises(InputError, match="num_particles"):
        StreamingVMC(num_particles=0)
    with pytest.raises(InputError, match="prior"):
        StreamingVMC(parts=("prior",))
    model, _, ys = linear_model(1)
    filter = StreamingVMC(num_particles=10)
    with pytest.raises(InputError, match="key"):
        filter.step(model, filter.init(model), ys[0])
