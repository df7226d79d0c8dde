"""Samples match their family, and so do their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from evkf.draws import log_gamma_draw
from evkf.families import (
    Bernoulli,
    Beta,
    ContinuousBernoulli,
    DiagonalGaussian,
    Gamma,
)
from tests.families.cases import DTYPES, UNIVARIATE, close

NUM = 5_000
MEMBERS = {
    DiagonalGaussian: [[3.0, -0.5], [-4.0, -20.0], [0.0, -1e-3]],
    Gamma: [[-0.7, -2.0], [0.0, -0.1], [3.0, -2.0], [40.0, -1e3], [1e4, -50.0], [1e6, -2.0]],
    Beta: [[-0.6, -0.5], [0.0, 2.0], [4.0, 0.5], [30.0, 300.0], [2e3, 1e3], [1e6, 1e6]],
    ContinuousBernoulli: [[0.0], [1e-4], [1.0], [-3.0], [20.0], [-50.0]],
    Bernoulli: [[0.0], [-2.0], [4.0]],
}
both = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.parametrize("cls", UNIVARIATE)
@both
def test_samples_and_their_gradients(cls, dtype):
    """Means of t(z) are the mean parameters, and of their derivatives the Fisher information."""
    nat = jnp.array(MEMBERS[cls], dtype)
    family = cls(len(nat))

    def statistics(nat):
        z = family.sample(nat, jax.random.key(1), NUM)
        return z, jax.vmap(family.stats)(z)

    values = jax.jit(lambda nat: (family.to_mean(nat), family.each_fisher(nat)))(nat)
    moments = jax.jit(lambda d: jax.jvp(family.each_moments, (nat,), (d,)))
    samples = jax.jit(lambda d: jax.jvp(statistics, (nat,), (d,)))
    for k in range(family.num_params):
        direction = jnp.zeros_like(nat).at[:, k].set(1)
        (z, stats), (dz, dstats) = samples(direction)
        (mean, var, _), (dmean, _, _) = moments(direction)
        assert z.dtype == dz.dtype == dtype
        assert z.shape == (NUM, len(nat))
        assert np.all(np.isfinite(stats))
        matches(stats, values[0])
        matches(dstats, values[1][:, :, k])
        matches(z, mean)
        matches(dz, dmean)
        matches((np.asarray(z) - np.asarray(mean)) ** 2, var)


def matches(samples, want):
    """The mean over samples is within five standard errors, and rounding, of what it should be."""
    samples, want = np.asarray(samples, np.float64), np.asarray(want, np.float64)
    error = samples.std(0) / np.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(0) - want) <= 5 * error + 3e-6 * np.abs(want) + 1e-12)


@both
def test_samples_stay_inside_the_support(dtype):
    for cls, nat in [
        (Gamma, [[-0.999, -1e3], [-0.99, -1.0], [1e6, -1e-3]]),
        (Beta, [[-0.999, -0.999], [1e6, -0.99], [-0.99, 1e6]]),
    ]:
        family = cls(3)
        draw = jax.jit(family.sample, static_argnums=2)
        z = np.asarray(draw(jnp.array(nat, dtype), jax.random.key(0), 2000))
        assert np.all((z > cls.support[0]) & (z < cls.support[1]))
        assert np.all(np.isfinite(jax.vmap(family.stats)(z)))
    family = ContinuousBernoulli(3)
    z = np.asarray(family.sample(jnp.array([[-1e4], [0.0], [1e4]], dtype), jax.random.key(0), 5000))
    assert np.all((z >= 0) & (z <= 1))


@pytest.mark.parametrize(("cls", "law"), [(Gamma, "gamma"), (Beta, "beta")])
def test_distribution_functions(cls, law):
    """Kolmogorov–Smirnov against SciPy's distribution functions."""
    nat = jnp.array([[-0.5, -0.6], [3.0, -0.3], [200.0, 5.0 if cls is Beta else -0.9]])
    z = np.asarray(cls(3).sample(nat, jax.random.key(3), 4000))
    for column, (first, second) in zip(z.T, np.asarray(nat), strict=True):
        args = (first + 1, 0, -1 / second) if cls is Gamma else (first + 1, second + 1)
        assert scipy.stats.kstest(column, law, args=args).pvalue > 1e-3


def test_continuous_bernoulli_quantiles_move_smoothly_through_zero():
    """The same uniform draw gives a continuous path, with the derivative it claims."""
    family, key = ContinuousBernoulli(1), jax.random.key(5)

    @jax.jit
    def draw(x):
        return family.sample(jnp.array([[x]]), key, 500)[:, 0]

    slopes = jax.jit(lambda x: jax.jvp(draw, (x,), (1.0,))[1])
    grid = [-2.001, -1.999, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 1.999, 2.001, 30.0]
    for x in grid:
        step = 1e-4
        close((draw(x + step) - draw(x - step)) / (2 * step), slopes(x), 1e-6, scale=1e-2)
    u = np.asarray(draw(0.0))
    close(slopes(0.0), u * (1 - u) / 2, 1e-13)


@jax.jit
def _draw_and_slope(a):
    return jax.jvp(lambda a: log_gamma_draw(jax.random.key(2), a), (a,), (jnp.ones_like(a),))


@both
@pytest.mark.parametrize("shape", [0.003, 0.5, 20.0, 900.0, 1100.0, 3e4, 1e6])
def test_gradient_of_gamma_draws_keeps_the_quantile(shape, dtype):
    """Against central differences of SciPy's quantiles, also where the draw itself underflows."""
    a = jnp.full(200, shape, dtype)
    log_draw, slope = _draw_and_slope(a)
    assert slope.dtype == dtype
    log_draw = np.asarray(log_draw, np.float64)
    exact, step = float(a[0]), 1e-4 * float(a[0])
    if shape < 0.01:
        # F(x) = x^a / Gamma(a + 1) but for terms in x, which SciPy cannot represent here.
        small = log_draw < -20
        want = (scipy.special.digamma(exact + 1) - log_draw) / exact
        assert np.mean(small) > 0.5
        close(np.asarray(slope)[small], want[small], 1e-5 if dtype == np.float32 else 1e-8)
        return
    level = scipy.special.gammainc(exact, np.exp(log_draw))
    use = (level > 0.01) & (level < 0.99)
    up, down = (np.log(scipy.special.gammaincinv(exact + s, level)) for s in (step, -step))
    tolerance = 3e-4 if dtype == np.float32 and 100 < shape < 1000 else 3e-5
    close(np.asarray(slope)[use], ((up - down) / (2 * step))[use], tolerance, scale=1 / exact)


def test_straight_through_is_exact_for_linear_functions():
    family, nat = Bernoulli(2), jnp.array([[0.3], [-1.0]])
    weight = jnp.array([2.0, -3.0])
    key = jax.random.key(0)
    exact = jax.grad(lambda nat: family.mean(nat) @ weight)(nat)
    close(jax.grad(lambda nat: jnp.mean(family.sample(nat, key, 7) @ weight))(nat), exact, 1e-14)
    assert set(np.unique(family.sample(nat, key, 100))) == {0.0, 1.0}
