"""A replayed window is what the filter did, and its gradient that of the filter's bound."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from evkf.dynamics import Linear
from evkf.families import GaussianBelief
from evkf.learning.window_filter import filter_window
from evkf.likelihoods import Gaussian
from evkf.model import Model
from evkf.parameters import free, split
from tests.learning import cases
from tests.learning.cases import FILTER, KEY, MODELS, TRIAL, L, T, seen, watch
from tests.oracles import kalman_loop
from tests.quick import quick_compilation  # noqa: F401

PARTS = ("dynamics", "noise", "readout", "observation")
ALL = (*PARTS, "prior")


@jax.jit
def run(model, window):
    return filter_window(FILTER, model, window, KEY)


def with_beliefs(window, beliefs):
    return window._replace(bins=window.bins._replace(belief=beliefs))


def close(one, two, tolerance):
    def check(a, b):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    jax.tree.map(check, one, two)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "mixed" else ()) for n in MODELS]
)
def test_equals_the_filter(name):
    model, window, elbo = seen(name)
    bounds, beliefs = run(model, window)
    # The replay of a Student-t has fewer nodes than the filter where the prediction is wide.
    tolerance = 3e-5 if name == "student_t" else 1e-7
    close(beliefs, window.bins.belief, tolerance)
    close(bounds, elbo, tolerance)


@pytest.mark.parametrize("name", ["linear", "full_noise"])
def test_conjugate_models_need_no_anchor(name):
    model, window, elbo = seen(name)
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(T, L, L))
    covs = jnp.asarray(roots @ roots.swapaxes(1, 2) + np.eye(L))
    anchors = GaussianBelief(jnp.asarray(3 * rng.normal(size=(T, L))), covs)
    bounds, beliefs = run(model, with_beliefs(window, anchors))
    close(beliefs, window.bins.belief, 1e-10)
    close(bounds, elbo, 1e-10)


def test_replays_converge_together():
    """From anchors of another model, the results of one replay being the anchors of the next."""
    model, window, elbo = seen("poisson")
    other = eqx.tree_at(lambda m: m.dynamics.bias, model, model.dynamics.bias + 0.3)
    _, beliefs = run(other, window)
    errors = []
    for _ in range(20):
        bounds, beliefs = run(model, with_beliefs(window, beliefs))
        errors.append(float(jnp.max(jnp.abs(beliefs.mean - window.bins.belief.mean))))
    assert errors[0] > 1e-3
    assert errors[-1] < 1e-7
    close(bounds, elbo, 1e-7)


def test_a_trial_restarts_from_the_prior():
    model, window, _ = seen("linear")
    window = window._replace(bins=window.bins._replace(fresh=jnp.arange(T) == TRIAL))
    bounds, beliefs = run(model, window)
    elsewhere = window._replace(start=jax.tree.map(lambda leaf: 2 * leaf, window.start))
    moved, other = run(model, elsewhere)
    assert np.all(np.abs(other.mean - beliefs.mean)[:TRIAL] > 1e-6)
    np.testing.assert_array_equal(other.mean[TRIAL:], beliefs.mean[TRIAL:])
    np.testing.assert_array_equal(moved[TRIAL:], bounds[TRIAL:])
    shifted = eqx.tree_at(lambda m: m.prior.mean, model, model.prior.mean + 1)
    moved, _ = run(shifted, window)
    np.testing.assert_array_equal(moved[:TRIAL], bounds[:TRIAL])
    assert np.all(moved[TRIAL:] != bounds[TRIAL:])


def opened(model, parts):
    """A vector of free parameters, and the way back to the model."""
    learned, rest = split(free(model, parts), parts)
    flat, unravel = ravel_pytree(learned)
    return flat, lambda flat: eqx.combine(unravel(flat), rest).build()


def gradient(build, window):
    """The gradient of a weighted sum of replayed bounds."""

    @jax.jit
    @jax.grad
    def grad(flat, weights):
        return weights @ filter_window(FILTER, build(flat), window, KEY)[0]

    return grad


def slope_of(total, flat):
    """Finite differences."""
    step = 1e-4
    moves = step * jnp.eye(len(flat))
    return np.array([(total(flat + move) - total(flat - move)) / (2 * step) for move in moves])


def test_gradient_is_that_of_the_kalman_likelihood():
    """Against finite differences of a textbook filter in NumPy: A, Q, C, b, R and the prior."""
    likelihood = Gaussian(*cases.readout(), noise=[0.3, 0.4, 0.5, 0.6])
    model = Model(Linear(cases.A, cases.Q), likelihood, seen("linear").model.prior)
    flat, build = opened(model, ALL)
    window = seen("linear").window
    bins = window.bins._replace(u=jnp.zeros((T, 0)))

    def evidence(flat):
        m = build(flat)
        given = m.dynamics.weight, m.dynamics.noise.matrix(), m.likelihood.C, m.likelihood.b
        given = (*given, jnp.diag(m.likelihood.noise.var()), *m.prior)
        given = [np.asarray(array) for array in given]
        ys, masks = np.asarray(bins.y), np.asarray(bins.mask)
        trials = (slice(0, TRIAL), slice(TRIAL, None))
        return sum(np.sum(kalman_loop(*given, ys[t], masks[t])[2]) for t in trials)

    found = gradient(build, window._replace(bins=bins))(flat, jnp.ones(T))
    # The textbook has no bias.
    ones = jax.tree.map(jnp.ones_like, split(free(model, ALL), ALL)[0])
    known = ravel_pytree(eqx.tree_at(lambda f: f.model.dynamics.bias, ones, jnp.zeros(L)))[0]
    np.testing.assert_allclose(known * found, slope_of(evidence, flat), rtol=1e-6, atol=1e-6)


def filtered(build, name, num=T):
    """The sum of the converged filter's own bounds over the first bins."""
    bins = cases.recording(name)
    return lambda flat: jnp.sum(watch(build(flat), *bins)[1].elbo[:num])


def test_gradient_of_a_product_is_that_of_the_bound():
    model, window, _ = seen("diagonal_gaussian")
    flat, build = opened(model, PARTS)
    found = gradient(build, window)(flat, jnp.ones(T))
    wanted = slope_of(filtered(build, "diagonal_gaussian"), flat)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_gradient_under_spikes_is_nearly_that_of_the_bound():
    """Exact in a bin; over bins the step of the replay couples mean and covariance less than the
    optimum does, and the fewer the spikes, the more that is.
    """
    model, window, _ = seen("poisson")
    flat, build = opened(model, ALL)
    grad = gradient(build, window)
    found, wanted = grad(flat, jnp.eye(T)[0]), slope_of(filtered(build, "poisson", num=1), flat)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    found, wanted = grad(flat, jnp.ones(T)), slope_of(filtered(build, "poisson"), flat)
    assert np.linalg.norm(found - wanted) < 0.05 * np.linalg.norm(wanted)
