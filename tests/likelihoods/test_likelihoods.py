"""Densities, masks, samples and closed-form expectations of every likelihood."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evkf import likelihoods as lik
from evkf.likelihoods.poisson import log_softplus
from evkf.numerics.quadrature import gauss_hermite
from tests.likelihoods.cases import (
    CASES,
    EVERY,
    NOISE,
    WIDTH,
    L,
    N,
    as_float32,
    full_noise,
    readout,
)

SEEN = np.array([True, False, True, False])
ALL = np.ones(N, bool)


@jax.jit
def log_probs(likelihood, zs, ys, mask):
    return jax.vmap(likelihood.log_prob, (0, 0, None))(zs, ys, mask)


@jax.jit
def gradients(likelihood, zs, ys, mask):
    return jax.vmap(jax.value_and_grad(likelihood.log_prob), (0, 0, None))(zs, ys, mask)


@partial(jax.jit, static_argnums=3)
def samples(likelihood, z, key, num):
    return jax.vmap(likelihood.sample, (None, 0))(z, jax.random.split(key, num))


def draw(case, count, seed):
    """States, their readouts and observations drawn by SciPy."""
    C, b = readout()
    zs = np.random.default_rng(seed).normal(size=(count, L))
    a = zs @ C.T + b
    ys = case.oracle(a, EVERY).rvs(random_state=np.random.default_rng(seed + 1))
    return C, b, zs, a, np.asarray(ys, float)


@pytest.mark.parametrize("name", CASES)
def test_log_prob_is_scipys(name):
    case = CASES[name]
    C, b, zs, a, ys = draw(case, 200, 1)
    frozen = case.oracle(a, EVERY)
    want = (frozen.logpmf if case.discrete else frozen.logpdf)(ys).sum(-1)
    got = log_probs(case.make(C, b, EVERY), zs, ys, ALL)
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_masked_entries_do_nothing(name):
    """NaN where masked: value and gradient are those of the model without these channels."""
    case = CASES[name]
    C, b, zs, _, ys = draw(case, 50, 2)
    kept = np.flatnonzero(SEEN)
    spoiled = np.where(SEEN, ys, np.nan)
    whole, part = case.make(C, b, EVERY), case.make(C[kept], b[kept], kept)
    got = gradients(whole, zs, spoiled, SEEN)
    want = gradients(part, zs, ys[:, kept], SEEN[kept])
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-12), got, want)
    none = gradients(whole, zs, spoiled * np.nan, np.zeros(N, bool))
    assert all(np.all(np.asarray(x) == 0) for x in none)


def test_full_noise_is_scipys_and_marginalises():
    C, b = readout()
    R = full_noise()
    rng = np.random.default_rng(3)
    zs, ys = rng.normal(size=(50, L)), 2 * rng.normal(size=(50, N))
    whole = lik.Gaussian(C, b, R, WIDTH)
    for mask in (ALL, SEEN, np.array([False, True, True, True])):
        kept = np.flatnonzero(mask)
        cov = R[np.ix_(kept, kept)] / WIDTH
        rest = (ys - zs @ C.T - b)[:, kept]
        want = stats.multivariate_normal(np.zeros(len(kept)), cov).logpdf(rest)
        spoiled = np.where(mask, ys, np.nan)
        got = log_probs(whole, zs, spoiled, mask)
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


def test_a_diagonal_matrix_is_independent_noise():
    C, b = readout()
    y = np.random.default_rng(4).normal(size=N)
    one, other = lik.Gaussian(C, b, NOISE, WIDTH), lik.Gaussian(C, b, np.diag(NOISE), WIDTH)
    assert one.independent
    assert not other.independent
    values = [model.log_prob(jnp.ones(L), y, SEEN) for model in (one, other)]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_normalised(name):
    """Each channel's density sums or integrates to one over y."""
    case = CASES[name]
    C, b = readout()
    likelihood = case.make(C, b, EVERY)
    z = np.array([0.3, -0.2])
    if name == "bernoulli":
        ys, weight = np.arange(2.0), 1.0
    elif case.discrete:
        ys, weight = np.arange(600.0), 1.0
    else:
        # The substitution y = sinh(x) reaches far enough for the tails of the Student-t.
        x = np.linspace(-12, 12, 4001)
        ys, weight = np.sinh(x), np.cosh(x) * (x[1] - x[0])
    grid = np.ones((len(ys), N)) * ys[:, None]
    for n in range(N):
        logs = log_probs(likelihood, np.ones((len(ys), L)) * z, grid, np.arange(N) == n)
        np.testing.assert_allclose(np.sum(np.exp(logs) * weight), 1, rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_mean_and_samples(name):
    """Means are SciPy's; means and variances of 10,000 draws within five standard errors of
    them.
    """
    case = CASES[name]
    C, b = readout()
    z = np.array([0.5, -0.5])
    likelihood = case.make(C, b, EVERY)
    frozen = case.oracle(C @ z + b, EVERY)
    np.testing.assert_allclose(likelihood.mean(z), frozen.mean(), rtol=1e-10)
    draws = np.asarray(samples(likelihood, z, jax.random.key(5), 10_000))
    assert draws.dtype == np.float64
    error = np.abs(draws.mean(0) - frozen.mean()) / np.sqrt(frozen.var() / len(draws))
    assert np.all(error < 5), error
    squares = (draws - frozen.mean()) ** 2
    error = np.abs(squares.mean(0) - frozen.var()) / (squares.std(0) / np.sqrt(len(draws)))
    assert np.all(error < 5), error


def test_full_noise_samples():
    C, b = readout()
    R = full_noise()
    z = jnp.array([0.5, -0.5])
    likelihood = lik.Gaussian(C, b, R, WIDTH)
    draws = np.asarray(samples(likelihood, z, jax.random.key(6), 10_000)) - likelihood.mean(z)
    cov = R / WIDTH
    error = np.sqrt((cov**2 + np.outer(np.diag(cov), np.diag(cov))) / len(draws))
    assert np.all(np.abs(draws.T @ draws / len(draws) - cov) < 5 * error)


def test_heavy_tails_are_drawn():
    """At two degrees of freedom there is no variance to compare: the whole distribution is."""
    likelihood = lik.StudentT([[1.0]], df=2.0, scale=0.1, bin_width=4.0)
    draws = samples(likelihood, jnp.ones(1), jax.random.key(7), 20_000)
    assert stats.kstest(np.asarray(draws)[:, 0], stats.t(2.0, 1.0, 0.05).cdf).pvalue > 1e-3


def test_bin_width_scales_information():
    """Twice the bin is twice the expected count, and half the variance of a continuous signal."""
    C, b = readout()
    z = jnp.ones(L)
    for make in (lik.Poisson, lik.NegativeBinomial):
        np.testing.assert_allclose(
            make(C, b, bin_width=2.0).mean(z), 2 * make(C, b).mean(z), rtol=1e-12
        )
    odds = [p / (1 - p) for p in (lik.Bernoulli(C, b, bin_width=w).mean(z) for w in (1.0, 2.0))]
    np.testing.assert_allclose(odds[1], 2 * odds[0], rtol=1e-12)
    assert lik.StudentT(C, b, scale=3.0, bin_width=9.0).each_scale()[0] == pytest.approx(1.0)
    y, seen = jnp.zeros(N), ALL
    halved = lik.Gaussian(C, b, noise=0.5).log_prob(z, y, seen)
    np.testing.assert_allclose(lik.Gaussian(C, b, bin_width=2.0).log_prob(z, y, seen), halved)


def test_large_dispersion_is_poisson():
    C, b = readout()
    y, z = jnp.array([0.0, 1.0, 3.0, 7.0]), jnp.array([0.3, -0.2])
    nearly = lik.NegativeBinomial(C, b, 1e7, WIDTH).log_prob(z, y, ALL)
    np.testing.assert_allclose(nearly, lik.Poisson(C, b, WIDTH).log_prob(z, y, ALL), atol=1e-5)


def sites(likelihood, a, v, y):
    """Expectations over N(a, v) by 100 Gauss–Hermite nodes, with derivatives by autodiff."""
    nodes, weights = gauss_hermite(100)

    def terms(a, n):
        return likelihood.each_kernel(jnp.broadcast_to(a, (N,)), y)[n]

    slope = jax.grad(terms)
    points = a + np.sqrt(v) * nodes[:, None]
    for f in (terms, slope, jax.grad(slope)):
        values = jax.jit(jax.vmap(jax.vmap(f, (0, 0)), (0, None)))(points, jnp.arange(N))
        yield weights @ np.asarray(values)


def test_closed_site_is_quadrature_and_sampling():
    C, b = readout()
    likelihood = lik.Poisson(C, b, WIDTH)
    rng = np.random.default_rng(8)
    a, v = rng.normal(size=N), np.array([0.01, 0.3, 1.0, 2.0])
    y = np.array([0.0, 1.0, 4.0, 30.0])
    site = likelihood.each_site(a, v, y)
    assert site is not None
    for got, want in zip(site, sites(likelihood, a, v, y), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    draws = likelihood.each_kernel(a + np.sqrt(v) * rng.normal(size=(100_000, N)), y)
    error = np.std(draws, axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(np.mean(draws, axis=0) - site.value) < 5 * error)
    # Bonnet and Price: the same three numbers are the derivatives of the first.
    slope = jax.grad(lambda a: jnp.sum(likelihood.each_site(a, v, y).value))(a)
    bend = jax.grad(lambda v: jnp.sum(likelihood.each_site(a, v, y).value))(v)
    np.testing.assert_allclose(slope, site.slope, rtol=1e-10)
    np.testing.assert_allclose(2 * bend, site.curvature, rtol=1e-10)


def test_only_the_exponential_link_has_a_closed_site():
    one = jnp.ones(N)
    for name, case in CASES.items():
        likelihood = case.make(*readout(), EVERY)
        if isinstance(likelihood, lik.ReadoutLikelihood):
            assert (likelihood.each_site(one, one, one) is None) == (name != "poisson")


def test_log_softplus_at_extremes():
    a = np.array([-800, -100, -40, -20, -15.1, -15, -14.9, -5, 0, 5, 40, 800.0, 1e6])
    middle = np.clip(a, -700, 700)
    want = np.where(a < -40, a, np.log(np.logaddexp(0, middle)))
    want = np.where(a > 700, np.log(np.maximum(a, 1)), want)
    np.testing.assert_allclose(log_softplus(a), want, rtol=1e-13, atol=1e-14)
    slopes = np.asarray(jax.vmap(jax.grad(log_softplus))(a))
    want = 1 / (1 + np.exp(-middle)) / np.where(a > 0, np.logaddexp(0, a), 1)
    want = np.where(a > 0, want, 1 / (1 + np.exp(middle)) * np.exp(middle - log_softplus(middle)))
    np.testing.assert_allclose(slopes, want, rtol=1e-12)
    small = log_softplus(jnp.asarray(a, jnp.float32))
    assert small.dtype == jnp.float32
    np.testing.assert_allclose(small, log_softplus(a), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [*CASES, "gaussian_full"])
def test_float32_stays_float32(name):
    C, b = readout()
    if name == "gaussian_full":
        likelihood = lik.Gaussian(C, b, full_noise(), WIDTH)
    else:
        likelihood = CASES[name].make(C, b, EVERY)
    small = as_float32(likelihood)
    z = jnp.array([0.3, -0.2], jnp.float32)
    y = jnp.array([1, 0, 1, 0], jnp.float32)
    value = log_probs(small, z[None], y[None], SEEN)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, log_probs(likelihood, z[None], y[None], SEEN), rtol=1e-5)
    made = [
        jax.eval_shape(small.mean, z),
        jax.eval_shape(small.sample, z, jax.random.key(0)),
        jax.eval_shape(jax.grad(small.log_prob), z, y, SEEN),
    ]
    if isinstance(small, lik.ReadoutLikelihood):
        made += jax.tree.leaves(jax.eval_shape(small.each_site, y, y, y))
    assert {x.dtype for x in made} == {jnp.dtype("float32")}


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64"])
def test_any_number_type_can_be_observed(dtype):
    C, b = readout()
    z, y = jnp.array([0.3, -0.2]), np.array([0, 1, 1, 0])
    for name in ("poisson", "gaussian"):
        likelihood = CASES[name].make(C, b, EVERY)
        want = log_probs(likelihood, z[None], y[None].astype(float), ALL)
        got = log_probs(likelihood, z[None], y[None].astype(dtype), ALL)
        assert got.dtype == jnp.float64
        assert got == want
