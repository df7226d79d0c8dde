"""The Gaussian of low rank against the full one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf.errors import InputError
from evkf.families import GaussianFamily, LowRankBelief, LowRankGaussianFamily
from evkf.families.low_rank import inverse

L, R = 5, 2
FAMILY, FULL = LowRankGaussianFamily(L, R), GaussianFamily(L)
RNG = np.random.default_rng(0)


def belief():
    draw = RNG.normal(size=L), RNG.uniform(0.1, 1, L), RNG.normal(size=(L, R))
    return LowRankBelief(*map(jnp.asarray, draw))


ONE, OTHER = belief(), belief()


def test_it_is_the_full_gaussian_with_that_covariance():
    one, other = FAMILY.dense(ONE), FAMILY.dense(OTHER)
    z = jnp.asarray(RNG.normal(size=L))
    for low, full in (
        (FAMILY.log_prob(ONE, z), FULL.log_prob(one, z)),
        (FAMILY.entropy(ONE), FULL.entropy(one)),
        (FAMILY.kl(ONE, OTHER), FULL.kl(one, other)),
        (FAMILY.var(ONE), FULL.var(one)),
        (FAMILY.nat(ONE).quadratic, FULL.nat(one).quadratic),
    ):
        np.testing.assert_allclose(low, full, rtol=1e-10)
    known = inverse(*ONE[1:])
    np.testing.assert_allclose(known.times(one.cov), np.eye(L), atol=1e-12)
    np.testing.assert_allclose(known.var(), np.diag(np.linalg.inv(one.cov)), rtol=1e-10)


def test_samples_have_its_moments():
    draws = FAMILY.sample(ONE, jax.random.key(0), 200_000)
    np.testing.assert_allclose(np.mean(draws, axis=0), ONE.mean, atol=0.02)
    np.testing.assert_allclose(np.cov(draws.T), FAMILY.cov(ONE), atol=0.05)


def test_a_covariance_of_the_family_is_found_and_others_keep_their_variances():
    found = FAMILY.from_moments(ONE.mean, FAMILY.cov(ONE))
    np.testing.assert_allclose(FAMILY.cov(found), FAMILY.cov(ONE), rtol=0.02, atol=0.02)
    root = RNG.normal(size=(L, L))
    cov = jnp.asarray(root @ root.T)
    found = FAMILY.from_moments(ONE.mean, cov)
    np.testing.assert_allclose(FAMILY.var(found), jnp.diagonal(cov), rtol=1e-9)
    assert bool(FAMILY.valid(found))
    assert not bool(FAMILY.valid(found._replace(diagonal=-found.diagonal)))


def test_the_rank_is_checked():
    assert LowRankGaussianFamily(3, 16).rank == 3
    with pytest.raises(InputError, match="rank"):
        LowRankGaussianFamily(3, 0)
