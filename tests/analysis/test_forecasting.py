"""Forecasts equal what linear algebra, quadrature and sampling of the model say."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.analysis.forecasting import (
    expected_observation,
    forecast,
    predictive_log_prob,
    sample_forecast,
)
from evkf.dynamics import GammaDynamics, GaussianDynamics, Linear, Network, VanDerPol
from evkf.errors import InputError
from evkf.filters import VariationalKalmanFilter
from evkf.model import Model
from evkf.numerics.covariance import DiagonalCovariance
from evkf.types import Status
from tests.quick import quick_compilation  # noqa: F401

FILTER, KEY = VariationalKalmanFilter(), jax.random.key(0)
A, B = np.array([[0.9, 0.3], [-0.2, 0.8]]), np.array([[0.5], [-1.0]])
Q = np.array([[0.3, 0.1], [0.1, 0.2]])
C, b = np.array([[1.0, 0.2], [-0.3, 1.0], [0.5, 0.5]]), np.array([0.1, -0.2, 0.3])
R = np.array([0.2, 0.4, 0.3])
BELIEF = fam.GaussianBelief(jnp.array([0.5, -1.0]), jnp.array([[0.5, 0.2], [0.2, 0.4]]))
H = 6
US = np.random.default_rng(0).normal(size=(H, 1))


def linear_model(likelihood=None):
    return Model(Linear(A, Q, input_weight=B), likelihood or lik.Gaussian(C, b, R))


def gamma_model(C=0.4):
    network = Network([1, 4, 1], jax.random.key(1))
    return Model(GammaDynamics(network, 1, precision=20.0), lik.Poisson([[C]], [0.2]))


def test_linear_gaussian_is_exact():
    ahead = forecast(FILTER, linear_model(), BELIEF, H, US)
    mean, cov = np.asarray(BELIEF.mean), np.asarray(BELIEF.cov)
    for h in range(H):
        mean, cov = A @ mean + B @ US[h], A @ cov @ A.T + Q
        np.testing.assert_allclose(ahead.mean[h], mean, atol=1e-12)
        np.testing.assert_allclose(ahead.cov[h], cov, atol=1e-12)
        np.testing.assert_allclose(ahead.rate[h], C @ mean + b, atol=1e-12)
    assert not np.any(ahead.status)
    assert ahead.belief.mean.shape == (H, 2)


def test_compiled_forecast_is_the_same():
    compiled = jax.jit(lambda model, belief, us: forecast(FILTER, model, belief, H, us))
    again = compiled(linear_model(), BELIEF, jnp.asarray(US))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12),
        again,
        forecast(FILTER, linear_model(), BELIEF, H, US),
    )
    with pytest.raises(InputError, match=r"inputs of shape \(5, 1\)"):
        compiled(linear_model(), BELIEF, jnp.asarray(US[:-1]))


def test_samples_of_a_linear_model_have_its_moments():
    S = 20_000
    zs, ys = sample_forecast(linear_model(), BELIEF, H, KEY, S, US)
    assert zs.shape == (S, H, 2)
    ahead = forecast(FILTER, linear_model(), BELIEF, H, US)
    std = np.sqrt(np.diagonal(ahead.cov, axis1=1, axis2=2))
    assert np.max(np.abs(zs.mean(0) - ahead.mean) / std) < 5 / np.sqrt(S)
    assert np.max(np.abs(ys.mean(0) - ahead.rate)) < 5 * np.std(ys, axis=0).max() / np.sqrt(S)
    lag_one = np.einsum("si,sj->ij", zs[:, 1] - zs[:, 1].mean(0), zs[:, 0]) / S
    np.testing.assert_allclose(lag_one, A @ ahead.cov[0], atol=0.05)


def test_moments_of_an_oscillator_are_those_of_its_samples():
    model = Model(VanDerPol(noise=1e-4), lik.Poisson(C, b, bin_width=0.1))
    belief = fam.GaussianBelief(jnp.array([1.0, 1.0]), 0.003 * jnp.eye(2))
    ahead = forecast(FILTER, model, belief, 20)
    zs, ys = sample_forecast(model, belief, 20, KEY, 8000)
    sampled = np.stack([np.cov(zs[:, h].T) for h in range(20)])
    std = np.sqrt(np.diagonal(sampled, axis1=1, axis2=2))
    assert np.max(np.abs(zs.mean(0) - ahead.mean) / std) < 0.1
    scale = std[:, :, None] * std[:, None, :]
    assert np.max(np.abs(sampled - ahead.cov) / scale) < 0.15
    assert np.max(np.abs(ahead.mean[-1] - belief.mean)) > 0.5
    np.testing.assert_allclose(ys.mean(0), ahead.rate, rtol=0.1)


def custom_mean(z):
    return C @ z


LIKELIHOODS = {
    "exp": lik.Poisson(C, b, bin_width=0.5),
    "softplus": lik.Poisson(C, b, bin_width=0.5, link="softplus"),
    "bernoulli": lik.Bernoulli(C, b),
    "negative_binomial": lik.NegativeBinomial(C, b),
    "gaussian": lik.Gaussian(C, b, R),
    "student_t": lik.StudentT(C, b),
    "joint": lik.Joint([lik.Bernoulli(C, b), lik.Poisson(C, b)]),
    "custom": lik.Custom(lambda z, y: -((y - C @ z) ** 2), 3, mean_fn=custom_mean),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("family", [fam.GaussianFamily(2), fam.DiagonalGaussianFamily(2)])
def test_expected_observation_is_the_average_over_states(name, family):
    likelihood = LIKELIHOODS[name]
    model = Model(Linear(A, Q), likelihood, family=family)
    belief = family.from_moments(BELIEF.mean, BELIEF.cov)
    values = jax.vmap(likelihood.mean)(family.sample(belief, KEY, 100_000))
    error = np.std(values, axis=0) / np.sqrt(len(values))
    got = expected_observation(model, belief)
    assert np.all(np.abs(got - values.mean(0)) < 4.5 * error)
    at_mean = likelihood.mean(BELIEF.mean)
    linear = name in ("gaussian", "student_t", "custom")
    assert linear or np.any(np.abs(got - at_mean) > 10 * error)


@pytest.mark.parametrize(("std", "accuracy"), [(0.5, 1e-9), (3.0, 1e-6), (30.0, 5e-3)])
def test_quadrature_serves_wide_beliefs(std, accuracy):
    model = Model(Linear([[1.0]], 0.1), lik.Bernoulli([[1.0]], [0.7]))
    got = expected_observation(model, fam.GaussianBelief(jnp.zeros(1), jnp.full((1, 1), std**2)))
    grid = np.linspace(-8, 8, 400_001) * std
    exact = integrate.trapezoid(stats.norm.pdf(grid, 0, std) / (1 + np.exp(-grid - 0.7)), grid)
    np.testing.assert_allclose(got[0], exact, atol=accuracy)


def test_a_family_of_positive_states():
    model = gamma_model()
    belief = model.family.from_moments(jnp.array([1.5]), jnp.array([[0.4]]))
    shape, rate = 1.5**2 / 0.4, 1.5 / 0.4
    exact = np.exp(0.2) * (1 - 0.4 / rate) ** -shape
    np.testing.assert_allclose(expected_observation(model, belief)[0], exact, rtol=1e-9)
    wild = expected_observation(gamma_model(C=5.0), belief)
    assert np.isinf(wild[0])
    ahead = forecast(FILTER, model, belief, 3)
    zs, ys = sample_forecast(model, belief, 3, KEY, 8000)
    assert np.all(zs > 0)
    np.testing.assert_allclose(zs.mean(0), ahead.mean, rtol=0.03)
    np.testing.assert_allclose(np.var(zs, axis=0)[:, 0], ahead.cov[:, 0, 0], rtol=0.1)
    np.testing.assert_allclose(ys.mean(0), ahead.rate, rtol=0.05)


def test_log_prob_equals_the_gaussian_one():
    y, mask = jnp.array([0.3, np.nan, 1.0]), np.array([True, False, True])
    got = predictive_log_prob(linear_model(), BELIEF, y, mask, KEY, 40_000)
    Co = C[mask]
    exact = stats.multivariate_normal(
        Co @ BELIEF.mean + b[mask], Co @ BELIEF.cov @ Co.T + np.diag(R[mask])
    ).logpdf(y[mask])
    np.testing.assert_allclose(got, exact, atol=0.02)


def test_log_prob_of_counts_under_a_positive_state():
    model = gamma_model()
    belief = model.family.from_moments(jnp.array([1.5]), jnp.array([[0.4]]))
    state = stats.gamma(1.5**2 / 0.4, scale=0.4 / 1.5)

    def integrand(z):
        return state.pdf(z) * stats.poisson.pmf(4, np.exp(0.4 * z + 0.2))

    exact = np.log(integrate.quad(integrand, 0, 30)[0])
    got = predictive_log_prob(model, belief, jnp.array([4.0]), None, KEY, 20_000)
    np.testing.assert_allclose(got, exact, atol=0.02)


def test_antithetic_pairs_cancel_what_is_odd():
    model = linear_model(lik.Gaussian(1e-3 * C, b, R))
    y = jnp.asarray(b + 0.5)
    exact = stats.norm(b + 1e-3 * C @ BELIEF.mean, np.sqrt(R)).logpdf(y).sum()
    got = predictive_log_prob(model, BELIEF, y, None, KEY, 20)
    np.testing.assert_allclose(got, exact, atol=2e-5)


class Cycle(GaussianDynamics):
    """Turns by a tenth, away from the origin and towards a circle."""

    noise: DiagonalCovariance
    num_inputs: int = eqx.field(static=True, default=0)

    def mean(self, z, u):
        radius = jnp.sqrt(z @ z + 1e-12)
        turned = jnp.array([z[0] - 0.1 * z[1], z[1] + 0.1 * z[0]]) / jnp.sqrt(1.01)
        return turned * jnp.tanh(1.3 * radius) / radius


@pytest.mark.parametrize("rule", ["cubature", "monte_carlo"])
def test_far_ahead_a_cycle_stays_a_cycle(rule):
    """A tangent at a mean inside the cycle, where states never are, would send it to infinity."""
    cycle = Cycle(DiagonalCovariance(jnp.log(jnp.array([0.1, 0.1]))))
    model = Model(cycle, lik.Poisson([[1.0, 0.0], [0.0, 1.0]]))
    start = model.prior._replace(mean=jnp.array([0.7, 0.0]), cov=0.01 * jnp.eye(2))
    ahead = forecast(VariationalKalmanFilter(rule), model, start, 500)
    assert np.all(ahead.status == 0)
    assert np.max(ahead.cov[:, [0, 1], [0, 1]]) < 1.0
    assert np.linalg.norm(ahead.mean[-1]) < 0.1


def test_an_exploding_forecast_says_so():
    model = Model(Linear([[100.0]], 0.1), lik.Gaussian([[1.0]]))
    ahead = forecast(FILTER, model, model.prior, 5)
    assert list(ahead.status) == [0, *[Status.CAPPED] * 4]
    assert np.all(np.isfinite(ahead.rate))


def test_a_readout_of_an_ill_conditioned_belief_has_no_negative_variance():
    """In single precision $c^\\top P c$ rounds below zero where P is nearly singular along c."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    cov = jnp.asarray(turn @ np.diag([1e6, 1e6, 1e-3]) @ turn.T, jnp.float32)
    likelihood = lik.Bernoulli(np.tile(turn[:, 2], (20, 1)) * np.linspace(0.5, 2, 20)[:, None])
    model = Model(Linear(np.eye(3), 0.1), likelihood)
    small = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), model)
    found = expected_observation(small, fam.GaussianBelief(jnp.zeros(3, jnp.float32), cov))
    assert np.all(np.isfinite(found))


MANY = Model(
    GammaDynamics(Network([11, 4, 11], KEY), 11, 20.0), lik.Gaussian(np.ones((2, 11)), noise=0.1)
)


def test_refusals():
    model = linear_model()
    for call, message in (
        (lambda: forecast(FILTER, model, BELIEF, 0), "horizon = 0"),
        (lambda: forecast(FILTER, model, BELIEF, H), "no inputs"),
        (lambda: forecast(FILTER, model, BELIEF, 2, US), r"inputs of shape \(6, 1\)"),
        (lambda: forecast(FILTER, model, BELIEF.mean, H, US), "no GaussianFamily belief over 2"),
        (lambda: sample_forecast(model, BELIEF, H, KEY, 0, US), "num_samples = 0"),
        (lambda: predictive_log_prob(model, BELIEF, b, None, KEY, 3), "num_samples = 3"),
        (lambda: forecast(FILTER, MANY, MANY.prior, 2), "sample_forecast"),
        (lambda: predictive_log_prob(model, BELIEF, b[:2], None, KEY, 2), "observation of shape"),
        (lambda: predictive_log_prob(model, BELIEF, b, np.ones(3), KEY, 2), "mask of type"),
    ):
        with pytest.raises(InputError, match=message):
            call()
