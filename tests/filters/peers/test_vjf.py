"""Variational joint filtering: its optimum is known, its regression has a closed form."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.analysis.metrics import transition_kl
from evkf.dynamics import (
    GammaDynamics,
    Linear,
    NaturalDynamics,
    Network,
    ResidualMLP,
    ResidualRBF,
    VanDerPol,
)
from evkf.errors import InputError
from evkf.filters import VJF, DirectVJF, State, VariationalKalmanFilter, scan_filter
from evkf.filters.peers.vjf import StatePairs, fit_dynamics, update_dynamics
from evkf.filters.peers.vjf_direct import DirectVJFState
from evkf.model import Model, simulate
from evkf.types import Status
from tests.quick import quick_compilation  # noqa: F401

BARE = VariationalKalmanFilter(correct=False)
DIRECT = DirectVJF(learn=False)
KEY = jax.random.key(0)


def standardised(family, got, want):
    """Differences of means in standard deviations, and ratios of variances."""
    mean, var = jax.vmap(family.mean), jax.vmap(family.var)
    return (mean(got) - mean(want)) / jnp.sqrt(var(want)), var(got) / var(want)


def updates(model, beliefs, ys):
    """One bin of both filters from the same beliefs."""
    family = model.family
    keys = jax.random.split(KEY, len(ys))

    def both(belief, y, key):
        start = DirectVJFState(belief, model, DIRECT.init(model).optimiser)
        got, info = DIRECT.step(model, start, y, None, key)
        want, exact = BARE.step(model, State(belief), y)
        return got.belief, want.belief, info.elbo, exact.elbo - exact.gap

    got, want, bound, exact = jax.jit(jax.vmap(both))(beliefs, ys, keys)
    return (*standardised(family, got, want), bound - exact)


def unbiased(samples, tolerance):
    """Zero to four standard errors, and small one by one."""
    samples = np.asarray(samples)
    assert abs(samples.mean()) < 4 * samples.std() / np.sqrt(samples.size)
    assert np.sqrt(np.mean(samples**2)) < tolerance


def test_direct_updates_are_those_of_evkf_without_correction():
    """Linear and Gaussian; noise of the channels 1, 10 and 100 times that of the dynamics."""
    rng = np.random.default_rng(0)
    family, num = fam.DiagonalGaussianFamily(3), 100
    likelihood = lik.Gaussian(np.eye(3), noise=[0.01, 0.1, 1.0])
    model = Model(Linear(0.9 * np.eye(3) + 0.05, 0.01), likelihood, family=family)
    means = jnp.asarray(rng.normal(size=(num, 3)))
    beliefs = jax.vmap(family.each_from_moments)(means, jnp.full((num, 3), 0.02))
    ys = means + jnp.asarray(rng.normal(size=(num, 3)) * [0.2, 0.4, 1.0])
    shift, ratio, bound = updates(model, beliefs, ys)
    unbiased(shift, 0.2)
    np.testing.assert_allclose(np.mean(ratio, axis=0), 1, atol=0.03)
    assert abs(np.mean(bound)) < 4 * np.std(bound) / np.sqrt(num)


@pytest.mark.slow
def test_direct_updates_of_saturating_states_too():
    rng = np.random.default_rng(1)
    family, num = fam.ContinuousBernoulliFamily(2), 100
    network = Network([2, 8, 2], jax.random.key(1), output_scale=3.0)
    likelihood = lik.Gaussian(rng.normal(size=(5, 2)), noise=0.3)
    model = Model(NaturalDynamics(family, network), likelihood)
    beliefs = jnp.asarray(3 * rng.normal(size=(num, 2, 1)))
    shift, ratio, _ = updates(model, beliefs, jnp.asarray(rng.normal(size=(num, 5))))
    assert np.sqrt(np.mean(shift**2)) < 0.1
    np.testing.assert_allclose(np.median(ratio), 1, atol=0.02)


def test_direct_learns_by_its_bound():
    """The noise of a random walk, started four times too large in its deviation."""
    family = fam.DiagonalGaussianFamily(2)
    likelihood = lik.Gaussian(np.eye(2), noise=0.01)
    true = Model(Linear(np.eye(2), 0.01), likelihood, family=family)
    _, ys = simulate(true, KEY, 200)
    start = Model(Linear(np.eye(2), 0.16), likelihood, family=family)
    filter = DirectVJF(0.05, 20, parts=("noise",), optimiser=optax.adam(0.02))
    state, trace = scan_filter(filter, start, ys, key=KEY)
    var = state.model.dynamics.noise.var()
    assert np.all(var < 0.05)
    assert np.all(var > 0.005)
    np.testing.assert_array_equal(state.model.dynamics.weight, np.eye(2))
    assert np.mean(trace.info.elbo[-50:]) > np.mean(trace.info.elbo[:50])


@pytest.mark.parametrize("noise", [0.1, [0.02, 0.18]])
def test_recursive_least_squares_is_bayes_rule(noise):
    """Of one noise for all latents: the mean of theirs, where they differ."""
    rng = np.random.default_rng(0)
    dynamics = ResidualRBF(2, noise, KEY, num=6, num_inputs=1)
    weight = jnp.asarray(rng.normal(size=dynamics.weight.shape))
    dynamics, noise = eqx.tree_at(lambda d: d.weight, dynamics, weight), np.asarray(noise)
    root = rng.normal(size=(7, 7))
    cov = root @ root.T + 0.1 * np.eye(7)
    before, after, u = rng.normal(size=2), rng.normal(size=2), np.ones(1)
    new, less = update_dynamics(dynamics, jnp.asarray(cov), before, after, u, jnp.asarray(10))
    phi = np.asarray(dynamics.features(before, u))
    want = np.linalg.inv(np.linalg.inv(cov) + np.outer(phi, phi) / 0.1)
    target = np.linalg.solve(cov, weight) + np.outer(phi, after - before) / 0.1
    np.testing.assert_allclose(less, want, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(new.weight, want @ target, rtol=1e-8, atol=1e-10)
    residual = after - np.asarray(dynamics.mean(before, u))
    np.testing.assert_allclose(new.noise.var(), noise + (residual**2 - noise) / 10, rtol=1e-8)


def test_the_fit_after_the_warm_up_finds_the_flow():
    """States all over the place, and an input that pushes them."""
    rng = np.random.default_rng(0)
    true = VanDerPol(input_weight=[[0.1], [0.0]])
    before, us = rng.uniform(-2, 2, size=(2000, 2)), rng.normal(size=(2000, 1))
    means = np.asarray(jax.vmap(true.mean)(jnp.asarray(before), jnp.asarray(us)))
    after = means + 0.1 * rng.normal(size=means.shape)
    pairs = StatePairs(*map(jnp.asarray, (before, after, us)))
    found, cov = fit_dynamics(ResidualRBF(2, 1.0, KEY, num_inputs=1), pairs, KEY)
    np.testing.assert_allclose(found.noise.var(), 0.01, rtol=0.1)
    np.testing.assert_allclose(found.weight[-1], [0.1, 0.0], atol=0.01)
    error = jax.vmap(found.mean)(pairs.before, pairs.us) - means
    assert np.sqrt(np.mean(error**2)) < 0.03
    assert np.all(np.linalg.eigvalsh(cov) > 0)


def small(likelihood, num=20):
    return Model(
        ResidualRBF(2, 0.04, KEY, num=num), likelihood, family=fam.DiagonalGaussianFamily(2)
    )


def test_amortised_learns_to_infer_and_to_predict():
    """States that turn, by more in a bin than the noise moves them."""
    rng = np.random.default_rng(0)
    likelihood = lik.Gaussian(rng.normal(size=(30, 2)) / np.sqrt(3), noise=0.1)
    turn = np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    true = Model(Linear(0.98 * turn, 0.04), likelihood)
    zs, ys = simulate(true, KEY, 1600)
    model = small(likelihood, num=50)
    state, trace = scan_filter(VJF(warm_up=600), model, ys[:1400], key=KEY)
    assert not np.any(trace.info.status)
    means = jax.vmap(model.family.mean)(trace.belief)
    error = np.sqrt(np.mean((means - zs[:1400]) ** 2, axis=1))
    assert error[-300:].mean() < 0.6 * error[:300].mean()
    near = zs[200:1400:10]
    kl, untaught = (
        transition_kl(true.dynamics, dynamics, near)
        for dynamics in (state.model.dynamics, model.dynamics)
    )
    assert kl < 0.25 * untaught
    frozen = VJF(warm_up=600, learn=False)
    after, trace = scan_filter(frozen, state.model, ys[1400:], state=state, key=KEY, first=1400)
    jax.tree.map(np.testing.assert_array_equal, after._replace(belief=0), state._replace(belief=0))
    rest = np.asarray(jax.vmap(model.family.mean)(trace.belief)) - zs[1400:]
    assert np.sqrt(np.mean(rest**2)) < 0.2


@pytest.mark.slow
def test_readout_and_other_dynamics_are_learned_by_gradient():
    rng = np.random.default_rng(0)
    likelihood = lik.Poisson(rng.normal(size=(4, 2)))
    model = Model(
        ResidualMLP(2, 0.1, KEY, hidden=4), likelihood, family=fam.DiagonalGaussianFamily(2)
    )
    filter = VJF(hidden=4, warm_up=0, parts=("dynamics", "readout"))
    y = jnp.ones(4)
    state, _ = jax.jit(filter.step)(model, filter.init(model), y, None, KEY)
    assert np.all(state.model.likelihood.C != likelihood.C)
    changed = state.model.dynamics.network.biases[-1] != model.dynamics.network.biases[-1]
    assert np.all(changed)
    np.testing.assert_array_equal(state.model.dynamics.noise.var(), model.dynamics.noise.var())


def test_the_jump_between_trials_is_not_dynamics():
    """Trials of ten bins far from the prior's mean: the noise is that within trials."""
    rng = np.random.default_rng(0)
    num = 600
    likelihood = lik.Gaussian(rng.normal(size=(30, 2)) / np.sqrt(3), noise=0.5)
    fresh = np.arange(num) % 10 == 0
    angle = 0.1 * np.arange(num) + 2 * np.pi * np.repeat(rng.random(num // 10), 10)
    zs = 3 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    ys = zs @ np.asarray(likelihood.C).T + np.sqrt(0.5) * rng.normal(size=(num, 30))
    model, filter = small(likelihood), VJF(warm_up=400)
    state, trace = scan_filter(filter, model, ys, key=KEY, fresh=fresh)
    means = np.asarray(jax.vmap(model.family.mean)(trace.belief))
    moves = np.diff(means, axis=0)[~fresh[1:]]
    assert state.count == num - num // 10
    assert np.all(state.model.dynamics.noise.var() < 1.2 * np.mean(moves[:400] ** 2, axis=0))


def test_without_a_warm_up_the_noise_given_counts():
    """As much as ten bins."""
    likelihood = lik.Gaussian(np.random.default_rng(0).normal(size=(4, 2)))
    model, filter = small(likelihood), VJF(hidden=3, warm_up=0)
    state, trace = scan_filter(filter, model, jnp.ones((2, 4)), key=KEY)
    first, second = jax.vmap(model.family.mean)(trace.belief)
    want = 0.04 + ((second - first) ** 2 - 0.04) / 11
    np.testing.assert_allclose(state.model.dynamics.noise.var(), want, rtol=1e-8)


@pytest.fixture(scope="module")
def bins():
    """A small filter some bins into a recording, its step compiled."""
    likelihood = lik.Poisson(np.random.default_rng(0).normal(size=(4, 2)))
    model = small(likelihood)
    filter = VJF(hidden=4, warm_up=3)
    _, ys = simulate(model, KEY, 8)
    state, _ = scan_filter(filter, model, ys, key=KEY)
    return filter, model, ys, state, jax.jit(filter.step)


def test_what_is_missing_is_not_used(bins):
    _, model, ys, state, step = bins
    none = np.zeros(4, bool)
    after, info = step(model, state, np.full(4, np.nan), none, KEY)
    assert info.elbo == 0
    assert info.status == 0
    want = BARE.predict(state.model, State(state.belief)).belief
    np.testing.assert_allclose(after.belief, want, rtol=1e-10)
    jax.tree.map(np.testing.assert_array_equal, after._replace(belief=0), state._replace(belief=0))
    some = np.array([True, False, True, True])
    runs = [step(model, state, ys[0].at[1].set(v), some, KEY) for v in (np.nan, 7.0)]
    jax.tree.map(np.testing.assert_array_equal, *runs)
    assert np.all(np.isfinite(runs[0][0].belief))


def test_a_bad_observation_falls_back_and_teaches_nothing(bins):
    _, model, ys, state, step = bins
    after, info = step(model, state, ys[0].at[0].set(np.inf), np.ones(4, bool), KEY)
    assert info.status == Status.FELL_BACK
    assert np.isnan(info.elbo)
    assert np.all(np.isfinite(after.belief))
    jax.tree.map(np.testing.assert_array_equal, after._replace(belief=0), state._replace(belief=0))


def test_another_trial_keeps_what_was_learned(bins):
    filter, model, ys, _, _ = bins
    state, trace = scan_filter(filter, model, ys, key=KEY, fresh=np.arange(8) % 4 == 0)
    assert state.count == 6
    assert np.any(state.model.dynamics.weight)
    assert np.all(np.isfinite(trace.info.elbo))


def test_gaps_of_many_saturating_latents_are_averaged_over_many_samples():
    """Too many for a grid: within the error of a thousand samples, whatever the bins use."""
    dim, num = 11, 100_000
    family = fam.ContinuousBernoulliFamily(dim)
    dynamics = NaturalDynamics(family, Network([dim, 4, dim], KEY, output_scale=0.3))
    model = Model(dynamics, lik.Gaussian(np.ones((1, dim))))
    zs = family.sample(model.prior, KEY, num)
    there = np.asarray(jax.vmap(model.transition, (0, None))(zs, jnp.zeros(0)))
    most = 5 * there.std(axis=0) / np.sqrt(1000)
    for filter in (DirectVJF(iterations=1, num_samples=1, learn=False), VJF(hidden=1)):
        start = filter.init(model)
        got, _ = jax.jit(filter.step)(model, start, jnp.zeros(1), jnp.zeros(1, bool), KEY)
        assert np.all(np.abs(got.belief - there.mean(axis=0)) < most)


GAUSSIAN = Model(Linear([[0.9]], 0.1), lik.Poisson([[1.0]]))
DIAGONAL = Model(GAUSSIAN.dynamics, GAUSSIAN.likelihood, family=fam.DiagonalGaussianFamily(1))
CORRELATED = np.array([[0.2, 0.1], [0.1, 0.2]])
FULL, FULL_LINEAR = (
    Model(dynamics, lik.Poisson(np.eye(2)), family=fam.DiagonalGaussianFamily(2))
    for dynamics in (ResidualRBF(2, CORRELATED, KEY), Linear(np.eye(2), CORRELATED))
)
MEANLESS = Model(
    ResidualRBF(1, 0.1, KEY),
    lik.Custom(lambda z, y: y * z, 1),
    family=fam.DiagonalGaussianFamily(1),
)
POSITIVE = Model(GammaDynamics(Network([1, 2, 1], KEY), 1, 4.0), lik.Poisson([[1.0]]))


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (lambda: VJF().init(GAUSSIAN), "GaussianFamily beliefs"),
        (lambda: DirectVJF().init(GAUSSIAN), "DiagonalGaussianFamily"),
        (lambda: VJF().init(FULL), "full noise"),
        (lambda: VJF().init(FULL_LINEAR), "full noise"),
        (lambda: DirectVJF().init(FULL_LINEAR), "full noise"),
        (lambda: VJF().init(POSITIVE), "use VariationalKalmanFilter or ParticleFilter"),
        (lambda: DirectVJF().init(POSITIVE), "use VariationalKalmanFilter or ParticleFilter"),
        (lambda: VJF().init(MEANLESS), "VJF needs the mean of y given z: no mean_fn"),
        (lambda: VJF(hidden=0), "hidden"),
        (lambda: VJF(warm_up=-1), "warm_up"),
        (lambda: VJF(parts=("prior",)), "parts"),
        (lambda: DirectVJF(rate=0.0), "rate"),
        (lambda: DirectVJF(iterations=0), "iterations"),
        (lambda: ResidualRBF(2, 0.1, KEY, num=0), "num = 0"),
        (lambda: DIRECT.step(DIAGONAL, DIRECT.init(DIAGONAL), jnp.ones(1)), "no key"),
        (lambda: DIRECT.step(DIAGONAL, DIRECT.init(DIAGONAL), jnp.ones(2), None, KEY), "shape"),
    ],
)
def test_refusals(action, what):
    with pytest.raises(InputError, match=what):
        action()
