"""The textbook filters against independent implementations and against what they converge to."""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filterpy.kalman import MerweScaledSigmaPoints, UnscentedKalmanFilter

from evkf import dynamics as dyn
from evkf import families as fam
from evkf import likelihoods as lik
from evkf.errors import InputError
from evkf.filters import (
    EnsembleKalman,
    ExtendedKalman,
    Kalman,
    ParticleFilter,
    UnscentedKalman,
    scan_filter,
)
from evkf.filters.peers.cloud import resample
from evkf.filters.peers.gain import condition
from evkf.model import Model, simulate
from evkf.numerics.covariance import Covariance, as_covariance
from evkf.types import Status
from tests.filters.peers.test_kalman import problem
from tests.oracles import filterpy_loop, kalman_loop
from tests.quick import quick_compilation  # noqa: F401

KEY = jax.random.key(0)
FEW = 150


def linear_problem(L, N):
    """A linear Gaussian model, the arguments of the oracles, and masks; few or many channels."""
    A, Q, C, b, R, m, P, ys, masks = problem(L, L, full_noise=L % 2 == 0)
    R, cut = R[:N, :N], slice(200)
    noise = R if L % 2 == 0 else np.diag(R)
    prior = fam.GaussianFamily(L).from_moments(jnp.asarray(m), jnp.asarray(P))
    model = Model(dyn.Linear(A, Q), lik.Gaussian(C[:N], b[:N], noise), prior)
    return model, (A, Q, C[:N], b[:N], R, m, P), ys[cut, :N], masks[cut, :N]


EXACT = [Kalman(), ExtendedKalman(), UnscentedKalman(), UnscentedKalman(0.7, 2.0, 1.0)]


@pytest.mark.parametrize(("L", "N"), [(2, 4), (5, 3)])
@pytest.mark.parametrize("filter", EXACT, ids=["kalman", "extended", "unscented", "scaled"])
def test_equals_the_kalman_filter(filter, L, N):
    model, parts, ys, masks = linear_problem(L, N)
    for seen in (np.ones_like(masks), masks):
        _, trace = scan_filter(filter, model, ys, seen)
        means, covs, evidence = kalman_loop(*parts, ys, seen)
        np.testing.assert_allclose(trace.belief.mean, means, atol=1e-8, rtol=0)
        np.testing.assert_allclose(trace.belief.cov, covs, atol=1e-8, rtol=0)
        np.testing.assert_allclose(trace.info.elbo, evidence, atol=1e-8, rtol=0)
        assert not np.any(trace.info.status)
        other = filterpy_loop(*parts, ys, seen)
        np.testing.assert_allclose(trace.belief.mean, other[0], atol=1e-8, rtol=0)
        np.testing.assert_allclose(trace.belief.cov, other[1], atol=1e-8, rtol=0)


@pytest.mark.parametrize("shape", [(3, 5), (6, 2), (40, 3)])
def test_conditioning_in_either_space_is_the_dense_formula(shape):
    S, N = shape
    rng = np.random.default_rng(S)
    X, Y, residual = rng.normal(size=(2, S)), rng.normal(size=(N, S)), rng.normal(size=N)
    found = condition(*map(jnp.asarray, (X, Y, residual)))
    total = Y @ Y.T + np.eye(N)
    gain = X @ Y.T @ np.linalg.inv(total)
    np.testing.assert_allclose(found.gain, gain, atol=1e-12)
    np.testing.assert_allclose(found.cov, X @ X.T - gain @ Y @ X.T, atol=1e-12)
    fit = -0.5 * (residual @ np.linalg.solve(total, residual) + np.linalg.slogdet(total)[1])
    np.testing.assert_allclose(found.fit, fit, atol=1e-12)


# Nonlinear: Van der Pol behind Poisson counts.

C, B = 0.6 * np.random.default_rng(1).normal(size=(5, 2)), np.full(5, 0.5)
VDP = Model(dyn.VanDerPol(dt=0.01), lik.Poisson(C, B))


def test_evidence_does_not_cancel_in_half_the_digits():
    """Signals a thousand times the noise: nearly all of the residual is explained."""
    rng = np.random.default_rng(0)
    C, e = rng.normal(size=(100, 3)), rng.normal(size=3)
    Y, X = 1000 * C, np.eye(3)
    residual = Y @ e + rng.normal(size=100)
    exact = condition(*map(jnp.asarray, (X, Y, residual))).fit
    single = condition(*(jnp.asarray(x, jnp.float32) for x in (X, Y, residual))).fit
    np.testing.assert_allclose(single, exact, atol=0.01)


@pytest.mark.parametrize("options", [{"alpha": 0.7}, {"kappa": -1.0}])
def test_unscented_noise_stays_positive_where_the_centre_counts_negative(options):
    """Spikes of probability p(1 - p) at points far out, where it is nearly zero."""
    likelihood = lik.Bernoulli(3 * np.eye(2))
    prior = fam.GaussianFamily(2).from_moments(jnp.zeros(2), 9.9 * jnp.eye(2))
    model = Model(dyn.Linear(np.eye(2), 0.1), likelihood, prior)
    filter = UnscentedKalman(**options)
    state, info = filter.step(model, filter.init(model), jnp.array([1.0, 0.0]))
    # By symmetry channels do not mix: each has two points of its own and two at its middle.
    radius = 3 * np.sqrt(10 * filter.alpha**2 * (2 + filter.kappa))
    slope = 0.5 * np.tanh(radius / 2) / radius * 3
    spread = (np.tanh(radius / 2) / 2) ** 2 / (filter.alpha**2 * (2 + filter.kappa))
    noise = (2 * 0.25 + 2 / (4 * np.cosh(radius / 2) ** 2)) / 4
    want = 10 - (10 * slope) ** 2 / (spread + noise)
    assert info.status == Status.OK
    np.testing.assert_allclose(np.diagonal(state.belief.cov), want, rtol=1e-8)
    assert np.all(np.diagonal(state.belief.cov) > 0.5)


def test_functions_of_a_user_can_be_filtered_as_gaussian():
    """The same as the likelihood that they spell out."""
    C, R = np.array([[1.0, 0.5], [-0.3, 0.8]]), np.array([0.3, 0.6])
    given = lik.Custom(
        lambda C, z, y: -0.5 * (y - C @ z) ** 2,
        2,
        jnp.asarray(C),
        mean_fn=lambda C, z: C @ z,
        cov_fn=lambda C, z: jnp.asarray(R),
    )
    filter, y = ExtendedKalman(), jnp.array([1.0, -0.5])
    models = [
        Model(dyn.VanDerPol(), likelihood) for likelihood in (given, lik.Gaussian(C, None, R))
    ]
    got, want = (filter.step(model, filter.init(model), y) for model in models)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), got, want)


def flow(z):
    return z + 0.1 * np.array([z[1], 1.5 * (1 - z[0] ** 2) * z[1] - z[0]])


def flow_slope(z):
    return np.eye(2) + 0.1 * np.array([[0, 1], [-3 * z[0] * z[1] - 1, 1.5 * (1 - z[0] ** 2)]])


@pytest.fixture(scope="module")
def counts():
    return np.asarray(simulate(VDP, KEY, FEW)[1])


def test_extended_equals_derivatives_by_hand(counts):
    _, trace = scan_filter(ExtendedKalman(), VDP, counts)
    m, P = np.zeros(2), np.eye(2)
    for t, y in enumerate(counts):
        F = flow_slope(m)
        m, P = flow(m), F @ P @ F.T + 0.01 * np.eye(2)
        rate = np.exp(C @ m + B)
        H = rate[:, None] * C
        total = H @ P @ H.T + np.diag(rate)
        gain = P @ H.T @ np.linalg.inv(total)
        r = y - rate
        evidence = -0.5 * (r @ np.linalg.solve(total, r) + np.linalg.slogdet(2 * np.pi * total)[1])
        m, P = m + gain @ r, P - gain @ H @ P
        np.testing.assert_allclose(trace.belief.mean[t], m, atol=1e-9)
        np.testing.assert_allclose(trace.belief.cov[t], P, atol=1e-9)
        np.testing.assert_allclose(trace.info.elbo[t], evidence, atol=1e-9)


@pytest.mark.parametrize("scaling", [(1.0, 2.0, 0.0), (0.8, 1.0, 1.0)])
def test_unscented_equals_filterpy(counts, scaling):
    _, trace = scan_filter(UnscentedKalman(*scaling), VDP, counts)
    points = MerweScaledSigmaPoints(2, *scaling)
    other = UnscentedKalmanFilter(
        2, 5, 1.0, lambda z: np.exp(C @ z + B), lambda z, dt: flow(z), points
    )
    other.Q = 0.01 * np.eye(2)
    # A negative weight has no place in a mean of variances: the outer points alone then.
    shares = points.Wm if points.Wm[0] >= 0 else np.array([0, 1, 1, 1, 1]) / 4
    for t, y in enumerate(counts):
        other.predict()
        rates = np.exp(other.sigmas_f @ C.T + B)
        other.update(y, R=np.diag(shares @ rates))
        np.testing.assert_allclose(trace.belief.mean[t], other.x, atol=1e-8)
        np.testing.assert_allclose(trace.belief.cov[t], other.P, atol=1e-8)
        np.testing.assert_allclose(trace.info.elbo[t], other.log_likelihood, atol=1e-8)


# Clouds: what they converge to, and how fast.


def deviations(filter, repeats):
    """How far mean and evidence of a cloud are from the Kalman filter's, in independent runs."""
    model, parts, ys, masks = linear_problem(2, 4)
    ys, masks = ys[:12], masks[:12]
    want, _, evidence = kalman_loop(*parts, ys, masks)

    def run(key):
        trace = scan_filter(filter, model, ys, masks, key=key)[1]
        return trace.belief.mean - want, trace.info.elbo - evidence

    return (np.asarray(x) for x in jax.vmap(run)(jax.random.split(KEY, repeats)))


@pytest.mark.parametrize("make", [EnsembleKalman, ParticleFilter])
def test_clouds_converge_at_the_monte_carlo_rate(make):
    """The distance falls as one over the root of the size."""
    few, many = 64, 2048
    coarse, _ = deviations(make(few), 20)
    fine, evidence = deviations(make(many), 20)
    fall = np.log(np.sqrt(np.mean(fine**2) / np.mean(coarse**2)))
    assert -0.56 < fall / np.log(many / few) < -0.44
    assert abs(np.mean(fine)) < 0.004
    assert abs(np.mean(evidence)) < 0.02


def test_the_particle_evidence_is_unbiased():
    """With few particles and many runs; a shared first cloud or a biased choice would show."""
    model, parts, ys, masks = linear_problem(2, 4)
    ys, masks = ys[:6, :2], masks[:6, :2]
    model = Model(
        model.dynamics, lik.Gaussian(parts[2][:2], parts[3][:2], parts[4][:2, :2]), model.prior
    )
    A, Q, readout, offset, R, m, P = parts
    want = kalman_loop(A, Q, readout[:2], offset[:2], R[:2, :2], m, P, ys, masks)[2].sum()
    keys = jax.random.split(KEY, 5_000)

    def run(key):
        return jnp.sum(scan_filter(ParticleFilter(30), model, ys, masks, key=key)[1].info.elbo)

    ratio = np.exp(np.asarray(jax.vmap(run)(keys)) - want)
    assert np.std(ratio) > 0.2
    assert abs(np.mean(ratio) - 1) < 4 * np.std(ratio) / np.sqrt(len(ratio))


class Sine(dyn.GaussianDynamics):
    """The dynamics of `make_particle_reference.py`."""

    noise: Covariance
    num_inputs: int = eqx.field(static=True)

    def mean(self, z, u):
        return z + 0.45 * jnp.sin(z)


def test_particles_agree_with_the_package_of_that_name():
    table = json.loads(Path(__file__).with_name("particle_reference.json").read_text())
    prior = fam.GaussianFamily(1).from_moments(jnp.zeros(1), 0.49 * jnp.eye(1))
    model = Model(Sine(as_covariance(0.04, 1, "noise"), 0), lik.Poisson([[1.0]], [0.5]), prior)
    ys = np.array(table["ys"], float)[:, None]
    runs = 8
    keys = jax.random.split(KEY, runs)
    filter = ParticleFilter(table["particles"])
    traces = [scan_filter(filter, model, ys, key=key)[1] for key in keys]
    trace = jax.tree.map(lambda *x: jnp.stack(x), *traces)
    found = {
        "mean": trace.belief.mean[:, :, 0],
        "var": trace.belief.cov[:, :, 0, 0],
        "log_evidence": jnp.cumsum(trace.info.elbo, axis=1),
    }
    for name, values in found.items():
        want, sd = np.array(table[name]), np.array(table[f"{name}_sd"])
        sem = sd * np.sqrt(1 / runs + 1 / table["runs"])
        z = (np.mean(values, axis=0) - want) / sem
        assert np.abs(z).max() < 4.5, name
        assert np.sqrt(np.mean(z**2)) < 1.6, name
        spread = np.std(values, axis=0, ddof=1) / sd
        assert 0.75 < np.sqrt(np.mean(spread**2)) < 1.3, name


@pytest.mark.slow
def test_particles_of_another_family_follow_a_grid():
    """Gamma states behind counts: the exact filter on a grid."""
    network = dyn.Network([1, 4, 1], jax.random.key(2))
    model = Model(dyn.GammaDynamics(network, 1, 4.0), lik.Poisson([[0.8]]))
    _, ys = simulate(model, KEY, 6)
    grid = jnp.linspace(0.01, 10, 500)[:, None]
    log_prob = jax.vmap(model.family.log_prob, (None, 0))
    density = jnp.exp(log_prob(model.prior, grid))
    moves = jax.vmap(lambda z: model.transition(z, jnp.zeros(0)))(grid)
    kernel = jnp.exp(jax.jit(jax.vmap(log_prob, (0, None)))(moves, grid))
    _, trace = scan_filter(ParticleFilter(20_000), model, ys, key=KEY)
    for t, y in enumerate(ys):
        density = density @ kernel
        density = density / jnp.sum(density)
        joint = density * jnp.exp(
            jax.vmap(lambda z, y=y: model.likelihood.log_prob(z, y, jnp.ones(1, bool)))(grid)
        )
        evidence, density = jnp.log(jnp.sum(joint)), joint / jnp.sum(joint)
        mean = density @ grid[:, 0]
        np.testing.assert_allclose(trace.info.elbo[t], evidence, atol=0.01)
        np.testing.assert_allclose(model.family.mean(trace.belief[t]), mean, atol=0.02)
        var = density @ (grid[:, 0] - mean) ** 2
        np.testing.assert_allclose(model.family.var(trace.belief[t]), var, rtol=0.05)


def test_systematic_choice():
    """Every point between the floor and the ceiling of its share; those without weight never."""
    rng = np.random.default_rng(0)
    weights = rng.exponential(size=1000) ** 3
    weights[:300] = weights[-200:] = 0
    share = len(weights) * weights / weights.sum()
    with jax.enable_x64(False):
        keys = jax.random.split(KEY, 500)
        normal = jnp.asarray(weights / weights.sum(), jnp.float32)
        chosen = jax.jit(jax.vmap(resample, (None, 0)))(normal, keys)
    tallies = np.array([np.bincount(row, minlength=1000) for row in np.asarray(chosen)])
    assert np.all(tallies >= np.floor(share - 1e-2))
    assert np.all(tallies <= np.ceil(share + 1e-2))
    assert not tallies[:, weights == 0].any()
    np.testing.assert_allclose(tallies.mean(axis=0), share, atol=0.1)


def test_particles_are_resampled_at_half_their_number():
    """The effective sample size is what the weights say, and they are even after it was low."""
    filter = ParticleFilter(200)
    step, predict = jax.jit(filter.step), jax.jit(filter.predict)
    state, was_low, was_high = filter.init(VDP), 0, 0
    for t, y in enumerate(np.asarray(simulate(VDP, KEY, 40)[1])):
        before, key = state, jax.random.fold_in(KEY, t)
        state, _ = step(VDP, before, y, None, key)
        weights = np.exp(state.log_weights)
        np.testing.assert_allclose(weights.sum(), 1, rtol=1e-9)
        np.testing.assert_allclose(state.ess, 1 / np.sum(weights**2), rtol=1e-9)
        prediction = predict(VDP, before, jax.random.split(key)[0])
        if 0 < before.ess <= 100:
            np.testing.assert_allclose(prediction.log_weights, -np.log(200))
            was_low += 1
        else:
            np.testing.assert_array_equal(prediction.log_weights, before.log_weights)
            was_high += 1
    assert min(was_low, was_high) > 3


# What goes wrong, and what is refused.

ALL = [Kalman(), ExtendedKalman(), UnscentedKalman(), EnsembleKalman(50), ParticleFilter(50)]


@pytest.mark.parametrize("filter", ALL, ids=lambda filter: type(filter).__name__)
def test_an_impossible_observation_falls_back_to_the_prediction(filter):
    model = linear_problem(2, 4)[0]
    state = filter.init(model)
    prediction = jax.jit(filter.predict)(model, state, jax.random.split(KEY)[0])
    new, info = jax.jit(filter.step)(model, state, jnp.full(4, jnp.nan), None, KEY)
    assert info.status == Status.FELL_BACK
    assert np.isnan(info.elbo)
    np.testing.assert_allclose(new.belief.mean, prediction.belief.mean, rtol=1e-9)
    np.testing.assert_allclose(new.belief.cov, prediction.belief.cov, rtol=1e-9)


@pytest.mark.parametrize("filter", ALL, ids=lambda filter: type(filter).__name__)
def test_unstable_dynamics_stay_finite_and_come_back(filter):
    """Float32, growing without end while nothing is observed; then precise observations."""
    model = Model(dyn.Linear(3 * np.eye(2), 0.1), lik.Gaussian(np.eye(2), noise=0.01))
    model = jax.tree.map(lambda x: x.astype(jnp.float32), model)
    masks = jnp.broadcast_to(jnp.arange(110)[:, None] >= 100, (110, 2))
    inputs = (jnp.ones((110, 2), jnp.float32), masks, jax.random.split(KEY, 110))

    def body(state, inputs):
        state, info = filter.step(model, state, *inputs)
        return state, (state.belief, info.status)

    _, (belief, status) = jax.jit(lambda s: jax.lax.scan(body, s, inputs))(filter.init(model))
    assert np.all(status[:15] == 0)
    assert np.all(status[30:100] == Status.CAPPED)
    assert np.all(np.isfinite(belief.mean))
    assert np.all(np.isfinite(np.linalg.cholesky(belief.cov)))
    if not isinstance(filter, ParticleFilter):  # which has no particle anywhere near
        np.testing.assert_allclose(belief.mean[-1], 1, atol=0.5)


KALMAN_ONLY = "use ExtendedKalman"
REFUSED = {
    "counts": (Kalman(), Model(dyn.Linear([[0.9]], 0.1), lik.Poisson([[1.0]])), KALMAN_ONLY),
    "curved": (Kalman(), Model(dyn.VanDerPol(), lik.Gaussian(np.eye(2))), KALMAN_ONLY),
    "no covariance": (
        ExtendedKalman(),
        Model(dyn.VanDerPol(), lik.Poisson(np.eye(2)), family=fam.DiagonalGaussianFamily(2)),
        "leave family out",
    ),
    "no variance": (
        UnscentedKalman(),
        Model(dyn.VanDerPol(), lik.Custom(lambda z, y: -((y - z) ** 2), 2, mean_fn=lambda z: z)),
        "ParticleFilter",
    ),
    "negative weight": (UnscentedKalman(1e-3), VDP, "raise alpha"),
}
GAMMA = Model(
    dyn.GammaDynamics(dyn.Network([1, 2, 1], KEY), 1, 4.0), lik.Gaussian([[1.0]], noise=0.1)
)
REFUSED |= {
    f"positive states: {type(filter).__name__}": (filter, GAMMA, "ParticleFilter")
    for filter in ALL[1:4]
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    filter, model, remedy = REFUSED[name]
    with pytest.raises(InputError) as caught:
        filter.init(model)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: ParticleFilter(1), "num_particles"),
        (lambda: EnsembleKalman(0), "num_members"),
        (lambda: ParticleFilter(1e2), "num_particles"),
        (lambda: EnsembleKalman(1e2), "num_members"),
        (lambda: UnscentedKalman(alpha=0.0), "alpha"),
        (lambda: UnscentedKalman(beta=np.nan), "beta"),
        (lambda: UnscentedKalman(kappa=-2.0).init(VDP), "kappa"),
        (lambda: ParticleFilter(9).predict(VDP, ParticleFilter(9).init(VDP)), "key"),
        (lambda: EnsembleKalman(9).predict(VDP, EnsembleKalman(9).init(VDP)), "key"),
    ],
)
def test_bad_arguments(make, where):
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.where == where
