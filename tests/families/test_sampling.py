"""Samples match their family, and so do their gradients."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from evkf.families import (
    BernoulliFamily,
    BetaFamily,
    ContinuousBernoulliFamily,
    DiagonalGaussianFamily,
    GammaFamily,
)
from tests.families.cases import (
    DTYPES,
    SIZE,
    UNIVARIATE,
    along,
    close,
    compiled,
    fill,
    fisher,
    jitted,
)
from tests.quick import plain_compilation  # noqa: F401

NUM = 5_000
MEMBERS = {
    DiagonalGaussianFamily: [[3.0, -0.5], [-4.0, -20.0], [0.0, -1e-3]] * 2,
    GammaFamily: [[-0.7, -2.0], [0.0, -0.1], [3.0, -2.0], [40.0, -1e3], [1e4, -50.0], [1e6, -2.0]],
    BetaFamily: [[-0.6, -0.5], [0.0, 2.0], [4.0, 0.5], [30.0, 300.0], [2e3, 1e3], [1e6, 1e6]],
    ContinuousBernoulliFamily: [[0.0], [1e-4], [1.0], [-3.0], [20.0], [-50.0]],
    BernoulliFamily: [[0.0], [-2.0], [4.0]] * 2,
}
both = pytest.mark.parametrize("dtype", DTYPES)


@cache
def sampler(cls):
    """Compiled: six members' samples and statistics, and their derivatives in a direction."""
    family = cls(6)

    def statistics(nat):
        z = family.sample(nat, jax.random.key(1), NUM)
        return z, jax.vmap(family.stats)(z)

    return compiled(lambda nat, direction: jax.jvp(statistics, (nat,), (direction,)))


@pytest.mark.parametrize("cls", UNIVARIATE)
@both
def test_samples_and_their_gradients(cls, dtype):
    """Means of t(z) are the mean parameters, and of their derivatives the Fisher information."""
    nat, family = np.asarray(MEMBERS[cls], dtype), cls(SIZE)
    nats = fill(nat)
    mean_params = np.asarray(jitted(family, "to_mean")(nats))[:6]
    matrix = np.asarray(fisher(family, nats))[:6]
    mean, var, _ = (np.asarray(x)[:6] for x in jitted(family, "each_moments")(nats))
    for k in range(family.num_params):
        (z, stats), (dz, dstats) = sampler(cls)(
            nat, np.eye(family.num_params, dtype=dtype)[[k] * 6]
        )
        assert z.dtype == dz.dtype == dtype
        assert z.shape == (NUM, 6)
        assert np.all(np.isfinite(stats))
        matches(stats, mean_params)
        matches(dstats, matrix[:, :, k])
        matches(z, mean)
        matches((np.asarray(z) - mean) ** 2, var)
        moved = fill(np.eye(family.num_params, dtype=dtype)[[k] * 6])
        matches(dz, np.asarray(along(family, cls.mean)(nats, moved))[:6])


def matches(samples, want):
    """The mean over samples is within five standard errors, and rounding, of what it should be."""
    samples, want = np.asarray(samples, np.float64), np.asarray(want, np.float64)
    error = samples.std(0) / np.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(0) - want) <= 5 * error + 3e-6 * np.abs(want) + 1e-12)


@both
def test_samples_stay_inside_the_support(dtype):
    for cls, nat in [
        (GammaFamily, [[-0.999, -1e3], [-0.99, -1.0], [1e6, -1e-3]]),
        (BetaFamily, [[-0.999, -0.999], [1e6, -0.99], [-0.99, 1e6]]),
        (ContinuousBernoulliFamily, [[-1e4], [0.0], [1e4]]),
    ]:
        nat = np.asarray(nat * 2, dtype)
        (z, stats), slopes = sampler(cls)(nat, np.ones_like(nat))
        z, (low, high) = np.asarray(z), cls.support
        inside = (
            (z > low) & (z < high) if cls is not ContinuousBernoulliFamily else (z >= 0) & (z <= 1)
        )
        assert np.all(inside)
        assert np.all(np.isfinite(stats))
        assert np.all(np.isfinite(slopes[0]))


@pytest.mark.parametrize(("cls", "law"), [(GammaFamily, "gamma"), (BetaFamily, "beta")])
def test_distribution_functions(cls, law):
    """Kolmogorov–Smirnov against SciPy's distribution functions."""
    nat = np.array([[-0.5, -0.6], [3.0, -0.3], [200.0, 5.0 if cls is BetaFamily else -0.9]] * 2)
    (z, _), _ = sampler(cls)(nat, np.ones_like(nat))
    for column, (first, second) in zip(np.asarray(z).T, nat, strict=True):
        args = (first + 1, 0, -1 / second) if cls is GammaFamily else (first + 1, second + 1)
        assert scipy.stats.kstest(column, law, args=args).pvalue > 1e-3


def test_continuous_bernoulli_quantiles_move_smoothly_through_zero():
    """The same uniform draw gives a continuous path, with the derivative it claims."""
    family, key = ContinuousBernoulliFamily(1), jax.random.key(5)

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


def test_straight_through_is_exact_for_linear_functions():
    family, nat = BernoulliFamily(2), jnp.array([[0.3], [-1.0]])
    weight = jnp.array([2.0, -3.0])
    key = jax.random.key(0)
    exact = compiled(jax.grad(lambda nat: family.mean(nat) @ weight))(nat)
    drawn = compiled(jax.grad(lambda nat: jnp.mean(family.sample(nat, key, 7) @ weight)))(nat)
    close(drawn, exact, 1e-14)
    (z, _), _ = sampler(BernoulliFamily)(np.zeros((6, 1)), np.zeros((6, 1)))
    assert set(np.unique(z)) == {0.0, 1.0}
