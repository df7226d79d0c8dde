"""Beliefs of low rank: the best of their kind, and near the full Gaussian's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evkf import dynamics as dyn
from evkf import likelihoods as lik
from evkf.errors import InputError
from evkf.expectations.dispatch import Moments, gaussian_ell
from evkf.expectations.readout import expected_observation
from evkf.families import GaussianFamily, LowRankBelief, LowRankGaussianFamily
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.filters.evkf.predict import push_low_rank
from evkf.filters.evkf.results import Limits
from evkf.filters.evkf.update_low_rank import maximise_bound
from evkf.filters.peers.cloud import summarise
from evkf.learning import Learner
from evkf.model import Model, simulate
from evkf.numerics.linalg import cholesky
from tests.quick import quick_compilation  # noqa: F401

L, R, N = 6, 2, 40
RNG = np.random.default_rng(0)
C = RNG.normal(size=(N, L)) / np.sqrt(L)
SEEN = jnp.ones(N, bool)
FILTER = VariationalKalmanFilter()
PREDICTION = LowRankBelief(
    jnp.zeros(L), jnp.full(L, 0.05), jnp.asarray(RNG.normal(size=(L, R)) * 0.8)
)


def best_bound(likelihood, y):
    """The highest bound over all beliefs of the family, by gradient ascent on their numbers."""
    family = LowRankGaussianFamily(L, R)

    def loss(free):
        mean, log_diagonal, factor = free
        belief = LowRankBelief(mean, jnp.exp(log_diagonal), factor)
        ell = gaussian_ell(
            likelihood, mean, cholesky(family.cov(belief)), y, SEEN, jax.random.key(0), 2
        )
        value = ell.evaluate(Moments.standard(L, mean.dtype)).value
        return family.kl(belief, PREDICTION) - value

    free = (PREDICTION.mean, jnp.log(PREDICTION.diagonal), PREDICTION.factor)
    adam = optax.adam(optax.cosine_decay_schedule(0.05, 3000))

    def body(carry, _):
        free, moments = carry
        value, grad = jax.value_and_grad(loss)(free)
        updates, moments = adam.update(grad, moments)
        return (optax.apply_updates(free, updates), moments), value

    _, values = jax.lax.scan(body, (free, adam.init(free)), length=3000)
    return -values[-1]


@pytest.mark.parametrize("bin_width", [0.5, 5.0])
def test_the_update_finds_the_best_belief_of_its_kind(bin_width):
    likelihood = lik.Poisson(C, bin_width=bin_width)
    y = jnp.asarray(RNG.poisson(bin_width * np.exp(C @ RNG.normal(size=L))), float)
    found = maximise_bound(likelihood, PREDICTION, y, SEEN, Limits(50, 1e-9))
    assert found.residual <= 1e-9
    best = float(jax.jit(best_bound)(likelihood, y))
    assert float(found.elbo) > best - 0.03


def test_the_mean_is_that_of_the_full_posterior():
    """On which the family puts no constraint, where the model is conjugate."""
    likelihood = lik.Gaussian(C, noise=0.3)
    y = jnp.asarray(RNG.normal(size=N))
    found = maximise_bound(likelihood, PREDICTION, y, SEEN, Limits(50, 1e-12))
    precision = np.linalg.inv(LowRankGaussianFamily(L, R).cov(PREDICTION)) + C.T @ C / 0.3
    np.testing.assert_allclose(
        found.belief.mean, np.linalg.solve(precision, C.T @ y / 0.3), atol=1e-5
    )


def test_the_prediction_keeps_what_can_be_kept():
    """Linear dynamics: exact mean, factor and variances (with as many latents as patterns)."""
    weight = RNG.normal(size=(L, L)) / np.sqrt(L)
    linear = dyn.Linear(weight, noise=0.1)
    new, cross = push_low_rank(linear, PREDICTION, jnp.zeros(0), "cubature", True)
    wide = weight @ LowRankGaussianFamily(L, R).cov(PREDICTION) @ weight.T
    np.testing.assert_allclose(new.mean, weight @ PREDICTION.mean, atol=1e-12)
    np.testing.assert_allclose(new.factor, weight @ PREDICTION.factor, atol=1e-12)
    np.testing.assert_allclose(
        new.diagonal + jnp.sum(new.factor**2, axis=1), np.diag(wide) + 0.1, rtol=1e-10
    )
    np.testing.assert_allclose(cross.spread, np.trace(wide) / 0.1, rtol=1e-10)
    matched, _ = push_low_rank(linear, PREDICTION, jnp.zeros(0), "moment_matching", True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), matched, new)
    still, _ = push_low_rank(linear, PREDICTION, jnp.zeros(0), "cubature", False)
    np.testing.assert_allclose(still.diagonal, 0.1)
    # Moment matching propagates the variance by itself.
    own, _ = push_low_rank(linear, PREDICTION, jnp.zeros(0), "moment_matching", False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), own, matched)


def test_an_update_that_was_cut_short_tells_the_bound_of_what_it_returns():
    likelihood, y = lik.Poisson(C, bin_width=5.0), jnp.full(N, 30.0)
    cut = maximise_bound(likelihood, PREDICTION, y, SEEN, Limits(2, 1e-3))
    assert cut.residual > 1e-3
    family = LowRankGaussianFamily(L, R)
    root = cholesky(family.cov(cut.belief))
    ell = gaussian_ell(likelihood, cut.belief.mean, root, y, SEEN, jax.random.key(0), 2)
    bound = ell.evaluate(Moments.standard(L, y.dtype)).value - family.kl(cut.belief, PREDICTION)
    np.testing.assert_allclose(cut.elbo, bound, rtol=1e-6)


def test_particles_tell_correlations_to_a_belief_of_low_rank():
    points = jnp.asarray(RNG.normal(size=(500, 2)) @ np.array([[1.0, 0.8], [0.0, 0.3]]))
    weights = jnp.full(500, 1 / 500)
    wanted = GaussianFamily(2).cov(summarise(GaussianFamily(2), points, weights))
    family = LowRankGaussianFamily(2, 1)
    found = family.cov(summarise(family, points, weights))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_near_the_full_gaussian_on_a_stream():
    """Strong correlations: half of the latents move together."""
    shared = np.eye(L) * 0.3
    shared[:3, :3] += 0.2
    dynamics, likelihood = dyn.Linear(shared, noise=0.1), lik.Poisson(C, bin_width=0.3)
    full = Model(dynamics, likelihood)
    zs, ys = simulate(full, jax.random.key(0), 200)
    low = Model(dynamics, likelihood, family=LowRankGaussianFamily(L, R))
    _, wide = scan_filter(FILTER, full, ys)
    _, found = scan_filter(FILTER, low, ys)
    assert not np.any(found.info.status)
    errors = [np.sqrt(np.mean((trace.belief.mean - zs) ** 2)) for trace in (wide, found)]
    assert errors[1] < 1.02 * errors[0]
    densities = [
        float(jnp.mean(jax.vmap(family.log_prob)(trace.belief, zs))) / L
        for family, trace in ((GaussianFamily(L), wide), (LowRankGaussianFamily(L, R), found))
    ]
    assert densities[1] > densities[0] - 0.1
    assert abs(float(jnp.mean(found.info.elbo - wide.info.elbo))) < 0.3


def test_expected_observations_are_the_full_gaussians():
    likelihood, dynamics = lik.Poisson(C), dyn.Linear(np.eye(L), noise=0.1)
    family = LowRankGaussianFamily(L, R)
    low, full = Model(dynamics, likelihood, family=family), Model(dynamics, likelihood)
    wanted = expected_observation(full, family.dense(PREDICTION))
    np.testing.assert_allclose(expected_observation(low, PREDICTION), wanted, rtol=1e-9)


def test_what_it_cannot_do_is_refused():
    family = LowRankGaussianFamily(L, R)
    full = Model(dyn.Linear(np.eye(L), noise=np.eye(L)), lik.Poisson(C), family=family)
    with pytest.raises(InputError, match="full noise matrix"):
        FILTER.predict(full, FILTER.init(full))
    model = Model(dyn.Linear(np.eye(L), noise=0.1), lik.Poisson(C), family=family)
    with pytest.raises(InputError, match="LowRankGaussianFamily"):
        Learner().init(model)
    sampling = VariationalKalmanFilter("monte_carlo")
    with pytest.raises(InputError, match="monte_carlo"):
        sampling.predict(model, sampling.init(model), key=jax.random.key(0))
    mixed = Model(dyn.Linear(np.eye(L), noise=0.1), lik.Gaussian(C, noise=np.eye(N)), family=family)
    with pytest.raises(InputError, match="Gaussian observations"):
        FILTER.step(mixed, FILTER.init(mixed), jnp.zeros(N))
