"""Metrics against their definitions."""

import jax.numpy as jnp
import numpy as np
from scipy.stats import multivariate_normal

from evkf.analysis import metrics
from evkf.dynamics import Linear
from evkf.families import GaussianBelief, GaussianFamily

RNG = np.random.default_rng(0)


def test_log_density_is_scipys():
    mean, states = RNG.normal(size=(5, 2)), RNG.normal(size=(5, 2))
    cov = np.array([[2.0, 0.3], [0.3, 1.0]])
    beliefs = GaussianBelief(jnp.asarray(mean), jnp.broadcast_to(jnp.asarray(cov), (5, 2, 2)))
    want = np.mean(
        [multivariate_normal(m, cov).logpdf(z) for m, z in zip(mean, states, strict=True)]
    )
    np.testing.assert_allclose(metrics.mean_log_density(GaussianFamily(2), beliefs, states), want)


def test_transition_kl_of_shifted_systems():
    true, other = Linear([[1.0]], 0.5), Linear([[1.0]], 0.25, bias=[0.3])
    want = 0.5 * (0.5 / 0.25 + 0.3**2 / 0.25 - 1 - np.log(0.5 / 0.25))
    np.testing.assert_allclose(metrics.transition_kl(true, other, jnp.zeros((3, 1))), want)


def test_chamfer_by_brute_force():
    one, other = RNG.normal(size=(20, 3)), RNG.normal(size=(30, 3)) + 1
    gaps = np.linalg.norm(one[:, None] - other, axis=-1)
    want = np.log(gaps.min(axis=1).mean() + gaps.min(axis=0).mean())
    np.testing.assert_allclose(metrics.log_chamfer(one, other), want)


def test_r2_falls_with_noise_and_coverage_with_width():
    truth = RNG.normal(size=(4000, 2))
    noisy = truth @ np.array([[2.0, 1.0], [0.0, 1.0]]) + 3 + 0.0 * truth
    np.testing.assert_allclose(metrics.affine_r2(noisy, truth), 1)
    assert abs(metrics.affine_r2(truth + RNG.normal(size=truth.shape), truth) - 0.5) < 0.05
    cov = np.broadcast_to(np.eye(2), (4000, 2, 2))
    np.testing.assert_allclose(metrics.coverage(0 * truth, cov, truth), 0.9, atol=0.02)
    assert metrics.coverage(0 * truth, 0.25 * cov, truth) < 0.65
