"""Expected log-likelihoods: every way of computing them against brute force."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.expectations.dispatch import Moments, expectation_method, gaussian_ell, is_conjugate
from evkf.expectations.products import MAX_SUM, feasible_start, product_ell
from evkf.expectations.readout import choose_level, expect_channels
from evkf.numerics.linalg import unpack
from tests.likelihoods.cases import CASES, EVERY, L, N, full_noise, readout
from tests.quick import quick_compilation  # noqa: F401

KEY = jax.random.key(0)
ALL = np.ones(N, bool)
SEEN = np.array([True, True, False, True])
COUNTS = np.array([0.0, 1.0, 1.0, 3.0])
BITS = np.array([0.0, 1.0, 1.0, 0.0])
REALS = np.array([0.3, -1.0, 2.0, 0.0])
OBSERVED = {
    "poisson": COUNTS,
    "poisson_softplus": COUNTS,
    "bernoulli": BITS,
    "negative_binomial": COUNTS,
    "student_t": REALS,
    "gaussian": REALS,
}


def custom_log_prob(params, z, y):
    a = params @ z
    return y * a - jnp.exp(a)


def custom(C):
    return lik.Custom(custom_log_prob, len(C), jnp.asarray(C))


# ------------------------------------------------------------------------------------- the table

LIKELIHOODS = {
    "gaussian": lik.Gaussian(np.ones((1, L))),
    "poisson": lik.Poisson(np.ones((1, L))),
    "softplus": lik.Poisson(np.ones((1, L)), link="softplus"),
    "bernoulli": lik.Bernoulli(np.ones((1, L))),
    "negative_binomial": lik.NegativeBinomial(np.ones((1, L))),
    "student_t": lik.StudentT(np.ones((1, L))),
    "custom": custom(np.ones((1, L))),
}
CLOSED, RULE, SUM, DRAW = "closed form", "quadrature", "exact sum", "sampling"
NORMAL = [CLOSED, CLOSED, RULE, RULE, RULE, RULE, DRAW]
TABLE = {
    fam.GaussianFamily(L): NORMAL,
    fam.DiagonalGaussianFamily(L): NORMAL,
    fam.GammaFamily(L): [CLOSED, CLOSED, *[DRAW] * 5],
    fam.BetaFamily(L): [CLOSED, *[DRAW] * 6],
    fam.ContinuousBernoulliFamily(L): [CLOSED, CLOSED, *[DRAW] * 5],
    fam.BernoulliFamily(L): [CLOSED, CLOSED, *[SUM] * 5],
    fam.BernoulliFamily(MAX_SUM + 1): [CLOSED, CLOSED, *[DRAW] * 5],
    fam.ProductFamily((fam.GammaFamily(1), fam.BetaFamily(1))): [CLOSED, *[DRAW] * 6],
    fam.ProductFamily((fam.GammaFamily(1), fam.BernoulliFamily(1))): [CLOSED, CLOSED, *[DRAW] * 5],
}


@pytest.mark.parametrize("family", TABLE, ids=str)
def test_method(family):
    got = {name: expectation_method(family, likelihood) for name, likelihood in LIKELIHOODS.items()}
    assert got == dict(zip(LIKELIHOODS, TABLE[family], strict=True))


def test_method_of_a_joint_names_each_once():
    parts = [LIKELIHOODS[name] for name in ("gaussian", "student_t", "bernoulli", "custom")]
    assert (
        expectation_method(fam.GaussianFamily(L), lik.Joint(parts))
        == "closed form, quadrature, sampling"
    )


def test_conjugate():
    for name, likelihood in LIKELIHOODS.items():
        assert is_conjugate(likelihood) == (name == "gaussian")
    assert is_conjugate(lik.Joint([LIKELIHOODS["gaussian"]] * 2))
    assert not is_conjugate(lik.Joint([LIKELIHOODS["gaussian"], LIKELIHOODS["poisson"]]))


# -------------------------------------------------------------------------- full Gaussian beliefs


def gaussian_belief():
    """A prediction, a belief in its whitened coordinates, and that belief's mean and covariance."""
    rng = np.random.default_rng(1)
    mean, root = rng.normal(size=L), np.tril(0.5 * rng.normal(size=(L, L))) + 0.5 * np.eye(L)
    u, spread = rng.normal(size=L), np.triu(0.3 * rng.normal(size=(L, L))) + 0.6 * np.eye(L)
    whole = root @ spread
    return (mean, root), (u, spread), (mean + root @ u, whole @ whole.T)


@partial(jax.jit, static_argnums=6)
def evaluate(likelihood, prior, belief, y, mask, key=KEY, num_samples=64):
    return gaussian_ell(likelihood, *prior, y, mask, key, num_samples).evaluate(
        Moments.from_root(*belief)
    )


@jax.jit
def slopes(likelihood, prior, belief, y, mask):
    """Derivatives of the value in the mean of u and the root of its covariance."""
    return jax.grad(lambda belief: evaluate(likelihood, prior, belief, y, mask).value)(belief)


@jax.jit
def at_a_point(likelihood, prior, u, y):
    """The log density at a point and its derivatives."""

    def log_prob(u):
        return likelihood.log_prob(prior[0] + prior[1] @ u, y, jnp.ones(N, bool))

    return log_prob(u), jax.grad(log_prob)(u), jax.hessian(log_prob)(u)


def channel_values(name, mean, cov):
    """E[log p(y_n | a_n)] for every channel, by 4001 trapezoids over ten standard deviations."""
    C, b = readout()
    case, y = CASES[name], OBSERVED[name]
    x = np.linspace(-10, 10, 4001)
    weights = stats.norm.pdf(x) * (x[1] - x[0])
    std = np.sqrt(np.einsum("nl,lk,nk->n", C, cov, C))
    frozen = case.oracle(C @ mean + b + std * x[:, None], EVERY)
    return weights @ (frozen.logpmf if case.discrete else frozen.logpdf)(y)


@pytest.mark.parametrize("name", CASES)
def test_gaussian_belief(name):
    """Value against brute force; gradient and curvature against derivatives of the value."""
    likelihood, y = CASES[name].make(*readout(), EVERY), OBSERVED[name]
    prior, belief, (mean, cov) = gaussian_belief()
    got = evaluate(likelihood, prior, belief, np.where(SEEN, y, np.nan), SEEN)
    want = channel_values(name, mean, cov)[SEEN].sum()
    np.testing.assert_allclose(got.value, want, rtol=2e-6 if name == "student_t" else 1e-8)
    slope, bend = slopes(likelihood, prior, belief, y, SEEN)
    np.testing.assert_allclose(got.grad, slope, rtol=1e-8, atol=1e-10)
    # With P = S S', the derivative in S is the expected Hessian times S.
    np.testing.assert_allclose(unpack(got.curv, L) @ belief[1], bend, rtol=1e-7, atol=1e-9)


def test_gaussian_belief_with_correlated_noise():
    C, b = readout()
    R = full_noise()
    prior, belief, (mean, cov) = gaussian_belief()
    got = evaluate(lik.Gaussian(C, b, R), prior, belief, np.where(SEEN, REALS, np.nan), SEEN)
    C, b, y, R = C[SEEN], b[SEEN], REALS[SEEN], R[np.ix_(SEEN, SEEN)]
    want = stats.multivariate_normal(C @ mean + b, R).logpdf(y)
    want -= 0.5 * np.trace(np.linalg.solve(R, C @ cov @ C.T))
    np.testing.assert_allclose(got.value, want, rtol=1e-10)
    root = prior[1]
    slope = root.T @ C.T @ np.linalg.solve(R, y - b - C @ mean)
    np.testing.assert_allclose(got.grad, slope, rtol=1e-9)
    curv = -root.T @ C.T @ np.linalg.solve(R, C @ root)
    np.testing.assert_allclose(unpack(got.curv, L), curv, rtol=1e-9)


def test_narrow_beliefs_are_points():
    """As the belief shrinks the expectation becomes the density and its derivatives at the mean."""
    prior, (u, _), _ = gaussian_belief()
    for name in ("bernoulli", "student_t", "poisson_softplus"):
        likelihood, y = CASES[name].make(*readout(), EVERY), OBSERVED[name]
        value, grad, curv = at_a_point(likelihood, prior, u, y)
        for size in (1e-3, 1e-5, 1e-9):
            got = evaluate(likelihood, prior, (u, size * np.eye(L)), y, ALL)
            atol = 200 * size**2 + 1e-9
            np.testing.assert_allclose(got.value, value, atol=atol)
            np.testing.assert_allclose(got.grad, grad, atol=atol)
            np.testing.assert_allclose(unpack(got.curv, L), curv, atol=atol)


def test_sampled_gaussian_belief():
    """A Poisson written as a custom likelihood, sampled, against its closed form."""
    C, _ = readout()
    exact, sampled = lik.Poisson(C), custom(C)
    prior, belief, (mean, cov) = gaussian_belief()
    num = 4096
    got = evaluate(sampled, prior, belief, COUNTS, SEEN, KEY, num)
    want = evaluate(exact, prior, belief, COUNTS, SEEN)
    log_factorials = np.sum(np.where(SEEN, jax.scipy.special.gammaln(COUNTS + 1), 0))
    zs = np.random.default_rng(2).multivariate_normal(mean, cov, 20_000)
    rates = np.where(SEEN, np.exp(zs @ C.T), 0)
    error = np.std(np.sum(np.where(SEEN, COUNTS * (zs @ C.T), 0) - rates, -1)) / np.sqrt(num)
    assert abs(got.value - want.value - log_factorials) < 5 * error
    error = np.std(rates @ C @ prior[1], axis=0) / np.sqrt(num)
    assert np.all(np.abs(got.grad - want.grad) < 5 * error)
    assert np.max(np.abs(got.curv - want.curv)) < 0.2 * np.max(np.abs(want.curv))
    # Gradient and curvature are the derivatives of the sampled value itself.
    some = evaluate(sampled, prior, belief, COUNTS, SEEN)
    slope, bend = slopes(sampled, prior, belief, COUNTS, SEEN)
    np.testing.assert_allclose(some.grad, slope, rtol=1e-9)
    np.testing.assert_allclose(unpack(some.curv, L) @ belief[1], bend, rtol=1e-8)
    other = evaluate(sampled, prior, belief, COUNTS, SEEN, jax.random.key(1), num)
    assert other.value != got.value
    again = evaluate(sampled, prior, belief, COUNTS, SEEN, KEY, num)
    assert again.value == got.value


def test_joint_of_all_methods():
    C, b = readout()
    parts = [lik.Poisson(C, b), lik.StudentT(C, b, 3.0, 0.5), lik.Gaussian(C, b), custom(C)]
    y, mask = np.tile(COUNTS, 4), np.concatenate([SEEN, ALL, SEEN, ALL])
    prior, belief, _ = gaussian_belief()
    got = evaluate(lik.Joint(parts), prior, belief, y, mask)
    keys = jax.random.split(KEY, 4)
    pieces = zip(parts, y.reshape(4, N), mask.reshape(4, N), keys, strict=True)
    terms = [evaluate(part, prior, belief, ys, m, k) for part, ys, m, k in pieces]
    for name in ("value", "grad", "curv"):
        want = sum(getattr(term, name) for term in terms)
        np.testing.assert_allclose(getattr(got, name), want, rtol=1e-12)


# --------------------------------------------------------------------------- quadrature's reach

# Widths of the belief in units of the likelihood's scale, and the largest error in nats found
# there:
# over centres within three standard deviations of 0, silence, a few counts and 20 (or an outlier of
# 20 scales). The negative binomial's is by far the largest, as it grows with the count; the second
# largest (the Student-t with two degrees of freedom) is a quarter of it or less.
FOUND = {
    0.5: 6e-10,
    1.0: 3e-5,
    2.0: 4e-5,
    4.0: 0.014,
    6.0: 0.11,
    8.0: 7e-3,
    12.0: 0.045,
    20.0: 0.27,
}
CENTRES = np.linspace(-3, 3, 25)
READOUT = np.ones((len(CENTRES), 1))
SPANS = {
    "bernoulli": (lik.Bernoulli(READOUT), [0.0, 1.0], 0.06),
    "negative_binomial": (lik.NegativeBinomial(READOUT, dispersion=2.0), [0.0, 3.0, 20.0], 1.0),
    "student_t": (lik.StudentT(READOUT, df=2.0, scale=0.5), [0.0, 2.0, 10.0], 0.25),
    "softplus": (lik.Poisson(READOUT, link="softplus"), [0.0, 3.0, 20.0], 0.05),
}


@jax.jit
def compare_with_trapezoids(likelihood, width, y):
    """Errors of value, slope and curvature, in units of the likelihood's scale."""
    scale = likelihood.each_scale()
    std = width * scale
    a, y = CENTRES * std, jnp.full(len(CENTRES), y)
    got = expect_channels(likelihood, a, std**2, y, choose_level(likelihood, std**2))
    x = jnp.linspace(-10, 10, 2001)
    weights = jnp.exp(-0.5 * x**2) / jnp.sum(jnp.exp(-0.5 * x**2))

    def value(points):
        return likelihood.each_kernel(points, y)

    def slope(points):
        return jax.jvp(value, (points,), (jnp.ones_like(points),))[1]

    def curvature(points):
        return jax.jvp(slope, (points,), (jnp.ones_like(points),))[1]

    points = a + std * x[:, None]
    wants = [weights @ f(points) for f in (value, slope, curvature)]
    units = (1, scale, scale**2)
    return [jnp.max(jnp.abs((g - w) * s)) for g, w, s in zip(got, wants, units, strict=True)]


@pytest.mark.parametrize("name", SPANS)
def test_quadrature_against_trapezoids(name):
    likelihood, ys, share = SPANS[name]
    for width, found in FOUND.items():
        errors = np.array([compare_with_trapezoids(likelihood, width, y) for y in ys])
        bound = 1.2 * max(found * share, 4e-10)
        # Derivatives are off by a few times as much.
        assert np.all(errors.max(0) < bound * np.array([1, 15, 80])), (width, errors.max(0))


# ------------------------------------------------------------------------------ product families


def marginal(family, params, num):
    """Points and weights of an accurate rule for one dimension, its density taken from SciPy."""
    if family is fam.BernoulliFamily:
        p = 1 / (1 + np.exp(-params[0]))
        return np.array([0.0, 1.0]), np.array([1 - p, p])
    if family is fam.ContinuousBernoulliFamily:
        x, w = np.polynomial.legendre.leggauss(num)
        z, w = 0.5 * (1 + x), 0.5 * w
        density = np.exp(params[0] * z)
        return z, w * density / (w @ density)
    x = np.linspace(-1, 1, num)
    if family is fam.DiagonalGaussianFamily:
        var = -0.5 / params[1]
        z = params[0] * var + 10 * np.sqrt(var) * x
        weights = stats.norm(params[0] * var, np.sqrt(var)).pdf(z)
    elif family is fam.GammaFamily:
        z = np.exp(-8 + 6 * (1 + x))  # from 3e-4 to 55
        weights = stats.gamma(params[0] + 1, scale=-1 / params[1]).pdf(z) * z
    else:
        z = 1 / (1 + np.exp(-20 * x))
        weights = stats.beta(params[0] + 1, params[1] + 1).pdf(z) * z * (1 - z)
    return z, weights / weights.sum()


def brute_force(family, nat, log_prob, num=160):
    """E[log p(y|z)] over a product of two dimensions."""
    (x, wx), (y, wy) = (marginal(family, row, num) for row in np.asarray(nat))
    grid = np.stack(np.meshgrid(x, y, indexing="ij"), -1)
    return wx @ log_prob(grid) @ wy


NATS = {
    fam.DiagonalGaussianFamily: np.array([[0.5, -1.0], [-2.0, -4.0]]),
    fam.GammaFamily: np.array([[3.0, -6.0], [1.5, -4.0]]),
    fam.BetaFamily: np.array([[2.0, 1.0], [0.5, 4.0]]),
    fam.ContinuousBernoulliFamily: np.array([[3.0], [-0.7]]),
    fam.BernoulliFamily: np.array([[1.0], [-0.4]]),
}
CLOSED_PAIRS = [
    *[(family, "gaussian") for family in NATS],
    *[(family, "poisson") for family in NATS if family is not fam.BetaFamily],
    (fam.DiagonalGaussianFamily, "bernoulli"),
    (fam.DiagonalGaussianFamily, "poisson_softplus"),
    (fam.DiagonalGaussianFamily, "negative_binomial"),
    (fam.BernoulliFamily, "student_t"),
    (fam.BernoulliFamily, "bernoulli"),
]


def scipy_log_prob(name):
    """log p(y|z) over the observed channels, at points (..., L)."""
    C, b = readout()
    case, y = CASES[name], OBSERVED[name]

    def log_prob(z):
        frozen = case.oracle(z @ C.T + b, EVERY)
        terms = (frozen.logpmf if case.discrete else frozen.logpdf)(y)
        return np.where(SEEN, terms, 0).sum(-1)

    return log_prob


@partial(jax.jit, static_argnums=(0, 5))
def value_and_slope(family, likelihood, nat, y, mask, num_samples=64):
    ell = product_ell(family, likelihood, y, mask, KEY, num_samples, nat)
    return jax.value_and_grad(ell)(nat)


@pytest.mark.parametrize(
    ("family", "name"), CLOSED_PAIRS, ids=lambda x: x if isinstance(x, str) else x.__name__
)
def test_product_belief(family, name):
    """Value and gradient against brute force and its central differences."""
    nat, log_prob = NATS[family], scipy_log_prob(name)
    likelihood, y = CASES[name].make(*readout(), EVERY), np.where(SEEN, OBSERVED[name], np.nan)
    assert expectation_method(family(L), likelihood) != "sampling"
    value, slope = value_and_slope(family(L), likelihood, nat, y, SEEN)
    np.testing.assert_allclose(value, brute_force(family, nat, log_prob), rtol=1e-7)
    h = 1e-4
    for index in np.ndindex(nat.shape):
        up, down = nat.copy(), nat.copy()
        up[index] += h
        down[index] -= h
        rise = brute_force(family, up, log_prob) - brute_force(family, down, log_prob)
        np.testing.assert_allclose(slope[index], rise / (2 * h), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", [fam.GammaFamily, fam.BetaFamily, fam.ContinuousBernoulliFamily])
def test_sampled_product_belief(family):
    """Pairs without a closed form, within five standard errors of brute force."""
    nat, num = NATS[family], 4_000
    log_prob = scipy_log_prob("student_t")
    likelihood = CASES["student_t"].make(*readout(), EVERY)
    assert expectation_method(family(L), likelihood) == "sampling"
    value, slope = value_and_slope(family(L), likelihood, nat, REALS, SEEN, num)
    want = brute_force(family, nat, log_prob)
    spread = brute_force(family, nat, lambda z: (log_prob(z) - want) ** 2)
    assert abs(value - want) < 5 * np.sqrt(spread / num)
    assert np.all(np.isfinite(slope))


@pytest.mark.parametrize("family", [fam.BetaFamily, fam.GammaFamily, fam.ContinuousBernoulliFamily])
def test_product_belief_with_correlated_noise(family):
    C, b = readout()
    R = full_noise()
    nat = NATS[family]
    value, _ = value_and_slope(family(L), lik.Gaussian(C, b, R), nat, REALS, SEEN)
    frozen = stats.multivariate_normal(np.zeros(SEEN.sum()), R[np.ix_(SEEN, SEEN)])
    want = brute_force(family, nat, lambda z: frozen.logpdf((REALS - z @ C.T - b)[..., SEEN]))
    np.testing.assert_allclose(value, want, rtol=1e-7)


def test_bernoulli_beliefs_are_summed_over_their_states():
    """Three dimensions, any likelihood: the sum over eight states."""
    C = np.random.default_rng(3).normal(size=(N, 3))
    family = fam.BernoulliFamily(3)
    nat = np.array([[1.0], [-2.0], [0.3]])
    states = np.array(list(np.ndindex(2, 2, 2)), float)
    p = 1 / (1 + np.exp(-nat[:, 0]))
    weights = np.prod(np.where(states == 1, p, 1 - p), axis=-1)
    for likelihood in (lik.StudentT(C), lik.NegativeBinomial(C), custom(C), lik.Bernoulli(C)):
        values = jax.vmap(likelihood.log_prob, (0, None, None))(states, COUNTS, SEEN)
        value, _ = value_and_slope(family, likelihood, nat, COUNTS, SEEN)
        np.testing.assert_allclose(value, weights @ values, rtol=1e-10)


MIXED = {
    "sampled": (fam.GammaFamily, fam.BetaFamily, "poisson", 0.0),
    "gaussian": (fam.GammaFamily, fam.BetaFamily, "gaussian", 1e-7),
    "poisson": (fam.GammaFamily, fam.ContinuousBernoulliFamily, "poisson", 1e-7),
}


@pytest.mark.parametrize("case", MIXED)
def test_mixed_product(case):
    """Blocks of different families, in closed form or within five standard errors."""
    first, second, name, tolerance = MIXED[case]
    family = fam.ProductFamily((first(1), second(1)))
    nat = jnp.asarray(NATS[first][:1]), jnp.asarray(NATS[second][:1])
    (x, wx), (y, wy) = marginal(first, nat[0][0], 160), marginal(second, nat[1][0], 160)
    values = scipy_log_prob(name)(np.stack(np.meshgrid(x, y, indexing="ij"), -1))
    want = wx @ values @ wy
    error = np.sqrt(wx @ (values - want) ** 2 @ wy / 4_000)
    likelihood = CASES[name].make(*readout(), EVERY)
    got, slope = value_and_slope(family, likelihood, nat, OBSERVED[name], SEEN, 4_000)
    assert abs(got - want) < (tolerance * abs(want) if tolerance else 5 * error)
    assert all(np.all(np.isfinite(part)) for part in slope)


def test_gamma_poisson_needs_a_rate_above_the_readout():
    """E[exp(c z)] is finite only while c is below the rate; masked channels do not count."""
    C = np.array([[0.5, 0.2], [0.1, 2.0]])
    likelihood = lik.Poisson(C)
    y, both = np.zeros(2), np.ones(2, bool)

    def value(rate, mask=both):
        nat = np.array([[3.0, -5.0], [3.0, -rate]])
        return float(value_and_slope(fam.GammaFamily(2), likelihood, nat, y, mask)[0])

    assert value(2.0) == -np.inf
    assert value(1.0) == -np.inf
    expected = -((1 - 0.5 / 5) ** -4 * (1 - 0.2 / 2.5) ** -4)
    expected -= (1 - 0.1 / 5) ** -4 * (1 - 2 / 2.5) ** -4
    assert value(2.5) == pytest.approx(expected, rel=1e-12)
    only_first = np.array([True, False])
    finite = -((1 - 0.5 / 5) ** -4 * (1 - 0.2 / 1.0) ** -4)
    assert value(1.0, only_first) == pytest.approx(finite, rel=1e-12)


def test_feasible_start_keeps_the_mean():
    family, prior = fam.GammaFamily(2), jnp.array([[3.0, -5.0], [3.0, -1.0]])
    C = np.array([[0.5, 0.2], [0.1, 2.0]])
    both, first = np.ones(2, bool), np.array([True, False])
    start = feasible_start(family, lik.Poisson(C), prior, both)
    np.testing.assert_allclose(start[0], prior[0])
    assert -start[1, 1] > 2.0
    np.testing.assert_allclose(family.mean(start), family.mean(prior), rtol=1e-12)
    value, _ = value_and_slope(family, lik.Poisson(C), start, np.zeros(2), both)
    assert np.isfinite(value)
    for likelihood, mask in (
        (lik.Poisson(C), first),
        (lik.Poisson(C, link="softplus"), both),
        (lik.Gaussian(C), both),
    ):
        np.testing.assert_array_equal(feasible_start(family, likelihood, prior, mask), prior)
    joint = lik.Joint([lik.Gaussian(C), lik.Poisson(C)])
    moved = feasible_start(family, joint, prior, np.ones(4, bool))
    np.testing.assert_allclose(moved, start)
    mixed = fam.ProductFamily((fam.BetaFamily(1), fam.GammaFamily(1)))
    parts = feasible_start(mixed, lik.Poisson(C), (prior[:1] * -1, prior[1:]), both)
    np.testing.assert_array_equal(parts[0], prior[:1] * -1)
    np.testing.assert_allclose(parts[1], start[1:])


def test_masking_everything_leaves_nothing():
    none = np.zeros(N, bool)
    for family, name in CLOSED_PAIRS:
        likelihood = CASES[name].make(*readout(), EVERY)
        y = np.full(N, np.nan)
        value, slope = value_and_slope(family(L), likelihood, NATS[family], y, none)
        assert value == 0
        assert np.all(slope == 0)
