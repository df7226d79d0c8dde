"""The generative model: what it draws, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf import dynamics as dyn
from evkf import families as fam
from evkf import likelihoods as lik
from evkf.errors import InputError
from evkf.model import Model, simulate
from tests.quick import quick_compilation  # noqa: F401

A = np.array([[0.9, 0.2], [-0.1, 0.8]])
B = np.array([[1.0], [0.5]])
C = np.array([[1.0, 0.0], [0.5, -1.0], [0.3, 0.7]])
Q = np.array([[0.2, 0.05], [0.05, 0.1]])


def linear_model(**options):
    return Model(dyn.Linear(A, Q, input_weight=B), lik.Gaussian(C, noise=0.3), **options)


def test_shapes_and_determinism():
    model = Model(dyn.Linear(A, Q), lik.Poisson(C))
    zs, ys = simulate(model, jax.random.key(0), 20)
    assert zs.shape == (20, 2)
    assert ys.shape == (20, 3)
    again = simulate(model, jax.random.key(0), 20)
    np.testing.assert_array_equal(zs, again[0])
    np.testing.assert_array_equal(ys, again[1])
    other = simulate(model, jax.random.key(1), 20)
    assert not np.any(np.asarray(zs) == np.asarray(other[0]))


def test_moments_of_many_runs():
    """After three driven bins, mean and covariance are the textbook's."""
    prior = fam.GaussianFamily(2).from_moments(jnp.array([1.0, -1.0]), 0.5 * jnp.eye(2))
    model = linear_model(prior=prior)
    us = np.array([[1.0], [0.0], [-2.0]])
    keys = jax.random.split(jax.random.key(2), 5_000)
    zs, ys = jax.vmap(lambda key: simulate(model, key, 3, us))(keys)
    mean, cov = np.array([1.0, -1.0]), 0.5 * np.eye(2)
    for u in us:
        mean, cov = A @ mean + B @ u, A @ cov @ A.T + Q
    assert_moments(zs[:, -1], mean, cov)
    assert_moments(ys[:, -1], C @ mean, C @ cov @ C.T + 0.3 * np.eye(3))


def assert_moments(draws, mean, cov):
    """Within five standard errors."""
    draws = np.asarray(draws)
    var = np.diag(cov)
    assert np.all(np.abs(draws.mean(0) - mean) < 5 * np.sqrt(var / len(draws)))
    error = np.sqrt((cov**2 + np.outer(var, var)) / len(draws))
    assert np.all(np.abs(np.cov(draws.T) - cov) < 5 * error)


def test_the_first_bin_is_one_step_after_z0():
    model = Model(dyn.Linear(A, 1e-12), lik.Gaussian(C, noise=1e-12))
    zs, ys = simulate(model, jax.random.key(0), 3, z0=jnp.array([1.0, 2.0]))
    path = [np.linalg.matrix_power(A, k) @ [1.0, 2.0] for k in (1, 2, 3)]
    np.testing.assert_allclose(zs, path, atol=1e-4)
    np.testing.assert_allclose(ys, np.array(path) @ C.T, atol=1e-4)


def test_inputs_are_required_where_the_dynamics_take_them():
    with pytest.raises(InputError, match=r"no inputs \(in us\): pass shape \(5, 1\)"):
        simulate(linear_model(), jax.random.key(0), 5)
    with pytest.raises(InputError, match=r"inputs of shape \(4, 1\)"):
        simulate(linear_model(), jax.random.key(0), 5, np.zeros((4, 1)))
    undriven = Model(dyn.Linear(A, Q), lik.Gaussian(C))
    with pytest.raises(InputError, match=r"inputs of shape \(5, 1\)"):
        simulate(undriven, jax.random.key(0), 5, np.zeros((5, 1)))


def networks(dim):
    return dyn.Network([dim, 8, dim], jax.random.key(0))


NATURAL = {
    "gamma": (dyn.GammaDynamics(networks(2), 2, 25.0), (0, np.inf)),
    "beta": (dyn.BetaDynamics(networks(2), 2, 20.0), (0, 1)),
    "continuous_bernoulli": (
        dyn.NaturalDynamics(fam.ContinuousBernoulliFamily(2), networks(2)),
        (0, 1),
    ),
    "bernoulli": (dyn.NaturalDynamics(fam.BernoulliFamily(2), networks(2)), (0, 1)),
}


@pytest.mark.parametrize("name", NATURAL)
def test_states_of_every_family(name):
    """States stay in their support, and follow the transition's mean and variance."""
    dynamics, (low, high) = NATURAL[name]
    model = Model(dynamics, lik.Gaussian(C))
    z0 = jnp.array([0.3, 0.9])
    keys = jax.random.split(jax.random.key(3), 4_000)
    draw = jax.jit(jax.vmap(lambda key: simulate(model, key, 1, z0=z0)[0][0]))
    zs = np.asarray(draw(keys))
    assert np.all((zs >= low) & (zs <= high))
    if name == "bernoulli":
        assert set(np.unique(zs)) == {0.0, 1.0}
    belief = dynamics.transition(z0, jnp.zeros(0))
    mean, var = model.family.mean(belief), np.asarray(model.family.var(belief))
    assert np.all(np.abs(zs.mean(0) - mean) < 5 * np.sqrt(var / len(zs)))
    squares = (zs - mean) ** 2
    assert np.all(np.abs(squares.mean(0) - var) < 5 * squares.std(0) / np.sqrt(len(zs)))


def test_the_standard_prior_is_valid_for_every_family():
    for dynamics, _ in NATURAL.values():
        model = Model(dynamics, lik.Gaussian(C))
        assert bool(model.family.valid(model.prior))
    prior = Model(dyn.Linear(A, Q), lik.Gaussian(C)).prior
    np.testing.assert_array_equal(prior.mean, np.zeros(2))
    np.testing.assert_array_equal(prior.cov, np.eye(2))


def test_a_diagonal_gaussian_may_stand_in():
    family = fam.DiagonalGaussianFamily(2)
    model = Model(dyn.Linear(A, Q), lik.Gaussian(C), family=family)
    z = jnp.array([0.5, -2.0])
    belief = model.transition(z, jnp.zeros(0))
    np.testing.assert_allclose(family.mean(belief), A @ z, rtol=1e-12)
    np.testing.assert_allclose(family.var(belief), np.diag(Q), rtol=1e-12)
    # States are still drawn from the dynamics themselves, correlations and all.
    keys = jax.random.split(jax.random.key(4), 4_000)
    zs = jax.vmap(lambda key: simulate(model, key, 1, z0=z)[0][0])(keys)
    assert_moments(zs, A @ z, Q)


def test_the_native_family_passes_transitions_through():
    model = Model(dyn.Linear(A, Q), lik.Gaussian(C))
    z = jnp.array([0.5, -2.0])
    belief = model.transition(z, jnp.zeros(0))
    np.testing.assert_allclose(belief.cov, Q, rtol=1e-12)
    np.testing.assert_allclose(belief.mean, A @ z, rtol=1e-12)


def test_paths_from_many_states_at_once():
    """Those of one state after the other; a wrong shape is still refused."""
    model, starts = Model(dyn.Linear(A, Q), lik.Gaussian(C)), jnp.array([[0.0, 1.0], [2.0, -1.0]])

    def path(z0):
        return simulate(model, jax.random.key(0), 4, z0=z0)[0]

    want = jnp.stack([path(z0) for z0 in starts])
    np.testing.assert_allclose(jax.vmap(path)(starts), want, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(path)(starts[0]), want[0], rtol=1e-12)
    with pytest.raises(InputError, match=r"z0 of shape \(\) \(in z0\): pass shape \(2,\)"):
        jax.vmap(path)(starts[0])
