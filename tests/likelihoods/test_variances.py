"""The covariance of observations given the state, which Kalman-type filters use."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.linalg import block_diag

from evkf import likelihoods as lik
from evkf.errors import InputError
from tests.likelihoods.cases import CASES, EVERY, WIDTH, as_float32, full_noise, readout
from tests.quick import quick_compilation  # noqa: F401

Z = jnp.array([0.3, -0.8])


@pytest.mark.parametrize("name", CASES)
def test_variances_are_scipys(name):
    case = CASES[name]
    C, b = readout()
    likelihood = case.make(C, b, EVERY)
    want = np.broadcast_to(case.oracle(C @ np.asarray(Z) + b, EVERY).var(), b.shape)
    np.testing.assert_allclose(likelihood.cov(Z), want, rtol=1e-12)
    single = as_float32(likelihood).cov(Z.astype(jnp.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, want, rtol=1e-5)


def test_a_near_certain_spike_keeps_its_variance():
    """Near 1 it is the chance of silence, not a rounded difference."""
    var = lik.Bernoulli([[1.0]]).cov(jnp.array([60.0]))
    np.testing.assert_allclose(var, np.exp(-60), rtol=1e-9)


def test_correlated_noise():
    C, b = readout()
    likelihood = lik.Gaussian(C, b, full_noise(), WIDTH)
    np.testing.assert_allclose(likelihood.cov(Z), full_noise() / WIDTH, rtol=1e-12)
    both = lik.Joint([lik.Poisson(C, b), likelihood])
    want = block_diag(np.diag(np.exp(C @ np.asarray(Z) + b)), full_noise() / WIDTH)
    np.testing.assert_allclose(both.cov(Z), want, rtol=1e-12)
    apart = lik.Joint([lik.Poisson(C, b), lik.Gaussian(C, b, 0.3)])
    np.testing.assert_allclose(apart.cov(Z), np.append(np.exp(C @ np.asarray(Z) + b), [0.3] * 4))


@pytest.mark.parametrize("df", [0.15, 0.7, 1.0, 1.3, 2.0])
def test_heavy_tails_count_by_their_central_interval(df):
    """Of 90 %: there is no variance."""
    likelihood = lik.StudentT([[1.0]], df=df, scale=0.5, bin_width=4.0)
    want = (0.25 * stats.t.ppf(0.95, df) / stats.norm.ppf(0.95)) ** 2
    np.testing.assert_allclose(likelihood.cov(jnp.zeros(1)), want, rtol=2e-3)


def test_what_states_no_variance_is_refused():
    custom = lik.Custom(lambda z, y: -((y - z) ** 2), 1)
    with pytest.raises(InputError, match="Custom has no variance"):
        lik.Likelihood.cov(custom, jnp.zeros(1))
    with pytest.raises(InputError, match="no cov_fn was given"):
        custom.cov(jnp.zeros(1))
