"""Smoothing is conditioning the joint Gaussian; with a lag, it is smoothing what was seen."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.analysis.smoothing import FixedLag, smooth
from evkf.dynamics import Linear, NaturalDynamics, Network, VanDerPol
from evkf.errors import InputError
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.model import Model, simulate
from evkf.numerics.linalg import tree_where
from tests.quick import quick_compilation  # noqa: F401

FILTER = VariationalKalmanFilter()
L, N, T, SECOND = 2, 3, 8, 5
A = np.array([[0.9, 0.3], [-0.2, 0.8]])
B = np.array([[0.5], [-1.0]])
Q = np.array([[0.3, 0.1], [0.1, 0.2]])
C = np.array([[1.0, 0.2], [-0.3, 1.0], [0.5, 0.5]])
R = np.diag([0.2, 0.4, 0.3])
M0, P0 = np.array([0.5, -1.0]), np.array([[1.0, 0.3], [0.3, 0.8]])


def linear_model(**options):
    prior = fam.GaussianFamily(L).from_moments(M0, P0)
    dynamics = Linear(A, Q, bias=[0.1, -0.2], input_weight=B)
    return Model(dynamics, lik.Gaussian(C, noise=np.diag(R)), prior, **options)


def recording():
    rng = np.random.default_rng(0)
    ys, us = rng.normal(size=(T, N)), rng.normal(size=(T, 1))
    masks = rng.random((T, N)) < 0.6
    masks[3] = False
    fresh = np.arange(T) == SECOND
    return np.where(masks, ys, np.nan), masks, us, fresh


def dense(ys, masks, us):
    """The posterior of all states of a trial, the one before it first, from their joint density."""
    steps = len(ys)
    precision, linear = np.zeros(((steps + 1) * L,) * 2), np.zeros((steps + 1) * L)
    blocks = [slice(k * L, (k + 1) * L) for k in range(steps + 1)]
    inverse = np.linalg.inv(P0)
    precision[blocks[0], blocks[0]] += inverse
    linear[blocks[0]] += inverse @ M0
    Qi = np.linalg.inv(Q)
    for t in range(steps):
        old, new = blocks[t], blocks[t + 1]
        shift = B @ us[t] + np.array([0.1, -0.2])
        precision[new, new] += Qi
        precision[old, old] += A.T @ Qi @ A
        precision[new, old] -= Qi @ A
        precision[old, new] -= A.T @ Qi
        linear[new] += Qi @ shift
        linear[old] -= A.T @ Qi @ shift
        Co, Ri = C[masks[t]], np.linalg.inv(R[np.ix_(masks[t], masks[t])])
        precision[new, new] += Co.T @ Ri @ Co
        linear[new] += Co.T @ Ri @ ys[t][masks[t]]
    cov = np.linalg.inv(precision)
    mean = (cov @ linear).reshape(-1, L)
    return mean, cov.reshape(steps + 1, L, steps + 1, L).swapaxes(1, 2)


@pytest.mark.parametrize("rule", ["cubature", "moment_matching"])
def test_equals_the_joint_gaussian(rule):
    ys, masks, us, fresh = recording()
    smoothed = smooth(VariationalKalmanFilter(rule), linear_model(), ys, masks, us, fresh)
    close = partial(np.testing.assert_allclose, atol=1e-9, rtol=0)
    for trial in (slice(0, SECOND), slice(SECOND, T)):
        mean, cov = dense(ys[trial], masks[trial], us[trial])
        k = np.arange(len(mean))
        close(smoothed.mean[trial], mean[1:])
        close(smoothed.cov[trial], cov[k, k][1:])
    assert not np.any(smoothed.info.status)


@jax.jit
def lagged_run(smoother, model, ys, masks, us, fresh):
    """Filter and smooth with a lag, bin by bin."""

    def body(carry, inputs):
        state, lagged = carry
        y, mask, u, new = inputs
        state = tree_where(new, FILTER.init(model), state)
        state, _ = FILTER.step(model, state, y, mask, u=u)
        lagged, belief = smoother.push(FILTER, model, lagged, state.belief, u, new)
        return (state, lagged), belief

    start = FILTER.init(model), smoother.init(model)
    return jax.lax.scan(body, start, (ys, masks, us, fresh))[1]


def check_lag(lag, model, ys, masks, us, fresh):
    """`fresh` in the bin after t keeps a smoother of the whole from looking past t."""
    got = lagged_run(FixedLag(lag), model, *(jnp.asarray(x) for x in (ys, masks, us, fresh)))
    for t in range(len(ys)):
        blind = fresh | (np.arange(len(ys)) == t + 1)
        smoothed = smooth(FILTER, model, ys, masks, us, blind)
        then = max(t - lag, 0)
        np.testing.assert_allclose(got.mean[t], smoothed.mean[then], atol=1e-9, rtol=0)
        np.testing.assert_allclose(got.cov[t], smoothed.cov[then], atol=1e-9, rtol=0)


@pytest.mark.parametrize("lag", [0, 3])
def test_lag_equals_smoothing_what_was_seen(lag):
    check_lag(lag, linear_model(), *recording())


@pytest.fixture(scope="module")
def oscillator():
    """Spikes of a Van der Pol oscillator, and the states behind them."""
    rng = np.random.default_rng(1)
    C, b = rng.normal(size=(20, 2)), np.full(20, 1.5)
    dynamics = VanDerPol(noise=0.003)
    model = Model(dynamics, lik.Poisson(C, b, bin_width=0.02))
    zs, ys = simulate(model, jax.random.key(0), 400, z0=jnp.array([1.5, 0.0]))
    return model, zs, ys


def test_lag_equals_smoothing_spikes(oscillator):
    model, _, ys = oscillator
    fresh = np.arange(T) == SECOND
    check_lag(2, model, ys[:T], np.ones((T, 20), bool), np.zeros((T, 0)), fresh)


def test_smoothing_spikes_is_better_than_filtering(oscillator):
    model, zs, ys = oscillator
    smoothed = smooth(FILTER, model, ys)
    _, trace = scan_filter(FILTER, model, ys)

    def error(mean):
        return float(jnp.sqrt(jnp.mean((mean - zs) ** 2)))

    assert error(smoothed.mean) < 0.85 * error(trace.belief.mean)
    np.testing.assert_allclose(smoothed.mean[-1], trace.belief.mean[-1], atol=1e-12)
    miss = smoothed.mean - zs
    squares = np.einsum("ti,tij,tj->t", miss, np.linalg.inv(smoothed.cov), miss)
    assert 0.7 < np.mean(squares) / 2 < 1.5


def test_diagonal_beliefs_of_unconnected_states_are_exact():
    ys, masks, _, fresh = recording()
    dynamics = Linear(np.diag([0.9, 0.7]), [0.3, 0.2])
    likelihood = lik.Gaussian([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]], noise=0.3)
    full, diagonal = (
        smooth(FILTER, Model(dynamics, likelihood, family=family), ys, masks, fresh=fresh)
        for family in (fam.GaussianFamily(2), fam.DiagonalGaussianFamily(2))
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), full[:2], diagonal[:2])


def test_sampled_predictions_are_those_of_the_filter():
    ys, masks, us, _ = recording()
    model, key = linear_model(), jax.random.key(5)
    filter, smoother = VariationalKalmanFilter("monte_carlo"), FixedLag(1)
    smoothed = smooth(filter, model, ys, masks, us, np.arange(T) == 2, key=key)
    _, trace = scan_filter(filter, model, ys[:2], masks[:2], us[:2], key=key)
    np.testing.assert_allclose(smoothed.mean[1], trace.belief.mean[1], atol=1e-12)
    np.testing.assert_allclose(smoothed.info.elbo[:2], trace.info.elbo, atol=1e-9)
    state, push = smoother.init(model), jax.jit(smoother.push)
    for t in (0, 1):
        belief = jax.tree.map(lambda x, t=t: x[t], trace.belief)
        own = jax.random.fold_in(key, t)
        state, lagged = push(filter, model, state, belief, jnp.asarray(us[t]), key=own)
    np.testing.assert_allclose(lagged.mean, smoothed.mean[0], atol=1e-9)
    np.testing.assert_allclose(lagged.cov, smoothed.cov[0], atol=1e-9)


def test_without_correction_the_way_back_is_that_of_the_dynamics():
    """From the forgetful filter's belief, the exact kernel of the linear model."""
    ys, masks, us, _ = recording()
    model, bare = linear_model(), VariationalKalmanFilter(correct=False)
    smoothed = smooth(bare, model, ys[:2], masks[:2], us[:2])
    (before, last), (P, after) = scan_filter(bare, model, ys[:2], masks[:2], us[:2])[1].belief
    gain = P @ A.T @ np.linalg.inv(A @ P @ A.T + Q)
    predicted = np.array([0.1, -0.2]) + A @ before + B @ us[1]
    np.testing.assert_allclose(smoothed.mean[0], before + gain @ (last - predicted), atol=1e-9)
    cov = P - gain @ A @ P + gain @ after @ gain.T
    np.testing.assert_allclose(smoothed.cov[0], cov, atol=1e-9)


def test_float32_stays_positive_definite():
    """Nearly noiseless dynamics, a wide prior, sharp observations of one channel, silences."""
    dim, bins = 4, 1000
    rng = np.random.default_rng(0)
    rotation, C = np.linalg.qr(rng.normal(size=(dim, dim)))[0], rng.normal(size=(1, dim))
    seen = np.arange(bins) % 100 > 70

    def run(ys=None):
        prior = fam.GaussianFamily(dim).from_moments(jnp.zeros(dim), 100 * jnp.eye(dim))
        model = Model(Linear(rotation, 1e-7), lik.Gaussian(C, noise=1e-4), prior)
        ys = simulate(model, jax.random.key(0), bins)[1] if ys is None else ys
        return np.asarray(ys), jax.tree.map(np.asarray, smooth(FILTER, model, ys, seen))

    with jax.enable_x64(False):
        ys, single = run()
    _, double = run(ys)
    assert single.cov.dtype == np.float32
    assert np.all(np.linalg.eigvalsh(single.cov.astype(float)) > 0)
    variances = np.diagonal(double.cov, axis1=1, axis2=2)
    np.testing.assert_allclose(np.diagonal(single.cov, axis1=1, axis2=2), variances, rtol=0.05)
    assert np.max(np.abs(single.mean - double.mean) / np.sqrt(variances)) < 0.1


def test_overflowing_dynamics_leave_the_filtering_belief():
    model = Model(Linear([[1e200]], 0.1), lik.Gaussian([[1.0]]))
    smoothed = smooth(FILTER, model, np.zeros((3, 1)), np.zeros(3, bool))
    assert all(np.all(np.isfinite(x)) for x in smoothed[:2])
    _, trace = scan_filter(FILTER, model, np.zeros((3, 1)), np.zeros(3, bool))
    np.testing.assert_allclose(smoothed.mean, trace.belief.mean)
    np.testing.assert_allclose(smoothed.cov, trace.belief.cov)


def test_refusals():
    model = linear_model()
    ys, masks, us, _ = recording()
    with pytest.raises(InputError, match=r"trial starts of type .* pass 8 booleans"):
        smooth(FILTER, model, ys, masks, us, fresh=np.zeros(3, bool))
    with pytest.raises(InputError, match="fresh"):
        smooth(FILTER, model, ys, masks, us, fresh=np.zeros(T))
    with pytest.raises(InputError, match="lag = -1"):
        FixedLag(-1)
    gamma = NaturalDynamics(fam.GammaFamily(1), Network([1, 2, 2], jax.random.key(0)))
    other = Model(gamma, lik.Poisson([[0.1]]))
    with pytest.raises(InputError, match="NaturalDynamics with GammaFamily beliefs"):
        smooth(FILTER, other, np.zeros((3, 1)))
    with pytest.raises(InputError, match="NaturalDynamics with GammaFamily beliefs"):
        FixedLag(2).init(other)
