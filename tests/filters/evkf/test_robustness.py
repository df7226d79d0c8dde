"""Where filters break in practice: wide predictions, hostile streams, overflow, long silences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adversarial import hostile_run, models, stream

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.dynamics import Linear, NaturalDynamics, Network
from evkf.errors import InputError
from evkf.filters import CompiledStep, VariationalKalmanFilter, scan_filter
from evkf.filters.evkf.predict import cap
from evkf.model import Model, simulate
from evkf.types import Status
from tests.quick import in_full, quick_compilation  # noqa: F401

FILTER = VariationalKalmanFilter()


def walk(likelihood, var, dim=1, noise=1e-6):
    """A random walk whose first prediction has (about) a given variance."""
    prior = fam.GaussianFamily(dim).from_moments(jnp.zeros(dim), var * jnp.eye(dim))
    return Model(Linear(np.eye(dim), noise), likelihood, prior)


@pytest.mark.parametrize(("b", "var"), [(-20, 60), (-18, 40), (-16, 30), (0, 100), (-5, 10)])
def test_silence_under_a_wide_prediction(b, var):
    """The expected rate explodes with the variance; the optimum narrows the belief from above."""
    model = walk(lik.Poisson([[1.0]], [float(b)]), float(var))
    state, info = jax.jit(FILTER.step)(model, FILTER.init(model), jnp.zeros(1))
    assert info.status == Status.OK
    grid = np.linspace(0.01, var, 20_000)
    means = -np.linspace(0, 60, 601)[:, None]
    bound = -np.exp(b + means + grid / 2) - 0.5 * (grid / var + means**2 / var - 1)
    bound = bound - 0.5 * (np.log(var) - np.log(grid))
    assert float(info.elbo) >= bound.max() - 1e-4
    assert float(state.belief.cov[0, 0]) < var


def test_a_sampled_likelihood_converges():
    """Poisson written as a function of z and y: the sampled bound has its own maximum."""
    C, b = 0.5 * np.random.default_rng(0).normal(size=(10, 2)), np.zeros(10)

    def log_prob(z, y):
        return y * (C @ z + b) - jnp.exp(C @ z + b)

    dynamics = Linear(0.95 * np.eye(2), 0.05)
    _, ys = simulate(Model(dynamics, lik.Poisson(C, b)), jax.random.key(0), 200)
    model = Model(dynamics, lik.Custom(log_prob, 10))
    _, sampled = scan_filter(FILTER, model, ys, key=jax.random.key(1))
    assert not np.any(sampled.info.status)
    assert np.median(sampled.info.evaluations) <= 8
    _, exact = scan_filter(FILTER, Model(dynamics, lik.Poisson(C, b)), ys)
    std = np.sqrt(np.diagonal(exact.belief.cov, axis1=1, axis2=2))
    assert np.mean(np.abs(sampled.belief.mean - exact.belief.mean) / std) < 0.15


def test_a_bad_gradient_falls_back():
    """A finite value with a NaN gradient is no update."""

    def log_prob(z, y):
        return jnp.where(z > 1e9, jnp.sqrt(z - 1e9), 0.0) + 0 * y

    model = walk(lik.Custom(log_prob, 1), 1.0)
    step = jax.jit(FILTER.step)
    state, info = step(model, FILTER.init(model), jnp.zeros(1), None, jax.random.key(0))
    assert info.status & Status.FELL_BACK
    assert np.isnan(info.elbo)
    np.testing.assert_allclose(state.belief.cov, 1.0, atol=1e-5)


def test_optimum_at_zero_is_reached():
    """Natural parameters may be zero at the optimum; the residual is still finite."""
    family = fam.ContinuousBernoulliFamily(1)
    network = Network([1, 2, 1], jax.random.key(0), output_scale=0.0)
    model = Model(NaturalDynamics(family, network), lik.Gaussian([[1.0]], noise=0.1))
    step = jax.jit(FILTER.step)
    for mask in (True, False):
        state, info = step(model, FILTER.init(model), jnp.array([0.5]), jnp.array([mask]))
        assert info.status == Status.OK
        assert info.evaluations <= 3
        np.testing.assert_allclose(state.belief, 0, atol=1e-6)


@pytest.mark.parametrize("family", [None, fam.DiagonalGaussianFamily(2)])
@pytest.mark.parametrize("gain", [2.0, 1e30])
def test_unstable_dynamics_stay_finite(family, gain):
    """In float32, nothing observed."""
    prior = None if family is None else family.from_moments(jnp.ones(2), jnp.eye(2))
    model = Model(Linear(gain * np.eye(2), 0.1), lik.Poisson(np.eye(2)), prior, family)
    model = jax.tree.map(lambda x: x.astype(jnp.float32), model)
    final, trace = jax.jit(
        lambda s: jax.lax.scan(
            lambda s, _: FILTER.step(model, s, jnp.zeros(2, jnp.float32), jnp.zeros(2, bool)),
            s,
            length=500,
        )
    )(FILTER.init(model))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(final.belief))
    assert trace.status[-1] == Status.CAPPED


def test_nothing_observed_adds_no_variance_but_the_noise():
    """In float32 a long silence must not feed rounding into the covariance."""
    model = walk(lik.Poisson(np.eye(8)), 1.0, dim=8, noise=1e-10)
    model = jax.tree.map(lambda x: x.astype(jnp.float32), model)
    silence = (jnp.zeros((20_000, 8), jnp.float32), jnp.zeros((20_000, 8), bool))
    run = jax.jit(
        lambda s: jax.lax.scan(lambda s, x: (FILTER.step(model, s, *x)[0], None), s, silence)
    )
    with in_full():
        state, _ = run(FILTER.init(model))
    np.testing.assert_allclose(np.diagonal(state.belief.cov), 1, rtol=1e-3)


def test_a_product_of_gammas_keeps_its_rate_feasible():
    """C above the predicted rate: the expected count is infinite there, not at the optimum."""
    family = fam.ProductFamily((fam.GammaFamily(1), fam.GammaFamily(1)))
    network = Network([2, 2, family.num_raw], jax.random.key(0), output_scale=0.0)
    dynamics = NaturalDynamics(family, network)
    model = Model(dynamics, lik.Poisson([[3.0, 0.5], [0.5, 3.0]]))
    whole = NaturalDynamics(
        fam.GammaFamily(2), Network([2, 2, 4], jax.random.key(0), output_scale=0.0)
    )
    same = Model(whole, model.likelihood)
    y = jnp.array([2.0, 0.0])
    step = jax.jit(FILTER.step)
    one, info = step(model, FILTER.init(model), y)
    two, other = step(same, FILTER.init(same), y)
    assert info.status == other.status == Status.OK
    np.testing.assert_allclose(np.concatenate(one.belief), two.belief, rtol=1e-6)
    np.testing.assert_allclose(info.elbo, other.elbo, rtol=1e-8)


def test_a_continued_scan_goes_on_with_its_randomness():
    model = walk(lik.Poisson(np.eye(2)), 1.0, dim=2, noise=0.1)
    _, ys = simulate(model, jax.random.key(0), 20)
    filter, key = VariationalKalmanFilter("monte_carlo", num_samples=8), jax.random.key(1)
    whole, _ = scan_filter(filter, model, ys, key=key)
    half, _ = scan_filter(filter, model, ys[:10], key=key)
    again, _ = scan_filter(filter, model, ys[10:], state=half, key=key, first=10)
    jax.tree.map(np.testing.assert_array_equal, whole, again)
    with pytest.raises(InputError, match="key"):
        scan_filter(filter, model, ys)


def test_compiled_step_refuses_what_does_not_fit():
    model = Model(Linear([[0.9]], 0.1, input_weight=[[1.0]]), lik.Poisson([[1.0]]))
    step = CompiledStep(FILTER, model)
    seen, y = jnp.array([True]), jnp.array([1.0])
    with pytest.raises(InputError, match="no input"):
        step(step.init(), y, seen)
    with pytest.raises(InputError, match="y of int64"):
        step(step.init(), jnp.array([1]), seen, jnp.zeros(1))
    other = Model(model.dynamics, lik.Poisson([[1.0]], link="softplus"))
    with pytest.raises(InputError, match="another kind"):
        step.load(other)
    before = step(step.init(), y, seen, jnp.zeros(1))
    step.load(Model(Linear([[0.1]], 0.1, input_weight=[[1.0]]), lik.Poisson([[1.0]])))
    after = step(before, y, seen, jnp.ones(1))
    assert step.state(after).belief.mean != step.state(before).belief.mean


def test_compiled_step_without_inputs_takes_an_empty_one():
    step = CompiledStep(FILTER, Model(Linear([[0.9]], 0.1), lik.Poisson([[1.0]])))
    seen, y = jnp.array([True]), jnp.array([1.0])
    given, left_out = step(step.init(), y, seen, np.zeros(0)), step(step.init(), y, seen)
    np.testing.assert_array_equal(given, left_out)


@pytest.mark.parametrize(("name", "kind"), [("chaotic", "mixed"), ("unstable", "masked")])
def test_hostile_streams_in_float32(name, kind):
    """A short run of the benchmark: always finite and positive definite."""
    with jax.enable_x64(False), in_full():
        rng = np.random.default_rng(0)
        row = hostile_run(models(rng)[name], *stream(rng, 1000, kind))
    assert row["unsound"] == 0
    assert row["fell_back"] == 0


@pytest.mark.parametrize("dim", [2, 3, 4, 17])
def test_a_wide_direction_that_no_unit_sees(dim):
    """Units read differences of latents whose common mode has drifted far: float32 must not let
    the width of that mode into what they see.
    """
    C = np.repeat(np.eye(dim)[:-1] - np.eye(dim)[1:], 10, axis=0)
    ys = np.random.default_rng(1).poisson(10.0, (20, len(C)))
    ends = []
    for double in (False, True):
        with jax.enable_x64(double):
            wide = 3000 * jnp.ones((dim, dim)) + 0.3 * jnp.eye(dim)
            prior = fam.GaussianFamily(dim).from_moments(jnp.zeros(dim), wide)
            readout = lik.Poisson(C, np.full(len(C), np.log(10.0)))
            model = Model(Linear(np.eye(dim), 0.3), readout, prior)
            state, trace = scan_filter(FILTER, model, ys)
            assert np.all(np.asarray(trace.info.status) == Status.OK)
            ends.append(np.asarray(state.belief.cov))
    np.testing.assert_allclose(ends[0], ends[1], rtol=2e-3)


def test_a_count_of_a_hundred_thousand_at_three_latents():
    with jax.enable_x64(False):
        readout = lik.Poisson([[0.6, 0.64, 0.48]], [np.log(1e5)])
        model = Model(Linear(np.eye(3), 1.0), readout)
        state, info = jax.jit(FILTER.step)(model, FILTER.init(model), jnp.array([1e5]))
        assert info.status == Status.OK
        seen = jnp.array([0.6, 0.64, 0.48])
        np.testing.assert_allclose(seen @ state.belief.cov @ seen, 1e-5, rtol=0.05)


def test_a_latent_that_overflowed_loses_its_correlations():
    inf, nan = jnp.inf, jnp.nan
    mean, cov, capped = cap(
        jnp.zeros(3), jnp.array([[inf, nan, nan], [nan, 4.0, 1.0], [nan, 1.0, 2.0]]), 1e4
    )
    assert capped
    np.testing.assert_array_equal(cov, [[1e8, 0, 0], [0, 4, 1], [0, 1, 2]])
    np.testing.assert_array_equal(mean, np.zeros(3))


def test_large_arrays_of_a_compiled_step_are_its_own():
    rng = np.random.default_rng(2)
    C = rng.normal(size=(9000, 2)) / 100
    first, second = (Model(Linear(0.9 * np.eye(2), 0.1), lik.Poisson(k * C)) for k in (1, 2))
    step = CompiledStep(FILTER, first)
    y, seen = jnp.asarray(rng.poisson(1.0, 9000), float), jnp.ones(9000, bool)
    for model in (first, second):
        step.load(model)
        state, _ = jax.jit(FILTER.step)(model, FILTER.init(model), y, seen)
        found = step.state(step(step.init(), y, seen))
        np.testing.assert_allclose(found.belief.mean, state.belief.mean, rtol=1e-9)
