"""Linear and Gaussian, the variational filter is the Kalman filter, to rounding."""

import jax
import numpy as np
import pytest

from evkf.dynamics import Linear
from evkf.families import GaussianFamily
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.likelihoods import Gaussian, Joint
from evkf.model import Model
from tests.oracles import filterpy_loop, kalman_loop
from tests.quick import quick_compilation  # noqa: F401

T = 1000


def problem(L, seed, full_noise):
    rng = np.random.default_rng(seed)
    N = L + 2
    A = rng.normal(size=(L, L))
    A *= 0.97 / np.abs(np.linalg.eigvals(A)).max()
    root = rng.normal(size=(L, L))
    Q = root @ root.T / L + 0.05 * np.eye(L)
    C, b = rng.normal(size=(N, L)), rng.normal(size=N)
    noise = rng.normal(size=(N, N))
    R = noise @ noise.T / N + 0.1 * np.eye(N) if full_noise else np.diag(rng.uniform(0.1, 1, N))
    m, P = rng.normal(size=L), np.eye(L)
    z = m
    ys = []
    for _ in range(T):
        z = A @ z + np.linalg.cholesky(Q) @ rng.normal(size=L)
        ys.append(C @ z + b + np.linalg.cholesky(R) @ rng.normal(size=N))
    masks = rng.random((T, N)) < 0.7
    masks[100:110] = False
    return A, Q, C, b, R, m, P, np.array(ys), masks


@pytest.mark.parametrize("L", range(1, 9))
def test_equals_kalman(L):
    A, Q, C, b, R, m, P, ys, masks = problem(L, L, full_noise=L % 2 == 0)
    noise = R if L % 2 == 0 else np.diag(R)
    prior = GaussianFamily(L).from_moments(m, P)
    model = Model(Linear(A, Q), Gaussian(C, b, noise), prior)
    for seen in (np.ones_like(masks), masks):
        _, trace = scan_filter(VariationalKalmanFilter(), model, ys, seen)
        means, covs, evidence = kalman_loop(A, Q, C, b, R, m, P, ys, seen)
        np.testing.assert_allclose(trace.belief.mean, means, atol=1e-8, rtol=0)
        np.testing.assert_allclose(trace.belief.cov, covs, atol=1e-8, rtol=0)
        np.testing.assert_allclose(trace.info.elbo, evidence, atol=1e-7, rtol=0)
        assert not np.any(trace.info.status)
        other = filterpy_loop(A, Q, C, b, R, m, P, ys, seen)
        np.testing.assert_allclose(trace.belief.mean, other[0], atol=1e-8, rtol=0)
        np.testing.assert_allclose(trace.belief.cov, other[1], atol=1e-8, rtol=0)


def test_moment_matching_equals_kalman_too():
    A, Q, C, b, R, m, P, ys, masks = problem(3, 30, full_noise=True)
    prior = GaussianFamily(3).from_moments(m, P)
    model = Model(Linear(A, Q), Gaussian(C, b, R), prior)
    _, trace = scan_filter(VariationalKalmanFilter("moment_matching"), model, ys, masks)
    means, covs, _ = kalman_loop(A, Q, C, b, R, m, P, ys, masks)
    np.testing.assert_allclose(trace.belief.mean, means, atol=1e-8, rtol=0)
    np.testing.assert_allclose(trace.belief.cov, covs, atol=1e-8, rtol=0)


def test_joint_of_gaussians_equals_one():
    A, Q, C, b, R, m, P, ys, masks = problem(3, 31, full_noise=False)
    prior = GaussianFamily(3).from_moments(m, P)
    whole = Gaussian(C, b, np.diag(R))
    parts = Joint([Gaussian(C[:2], b[:2], np.diag(R)[:2]), Gaussian(C[2:], b[2:], np.diag(R)[2:])])
    runs = [
        scan_filter(VariationalKalmanFilter(), Model(Linear(A, Q), lik, prior), ys, masks)[1]
        for lik in (whole, parts)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), runs[0], runs[1])


def test_without_correction_the_prediction_forgets_the_variance():
    A, Q, C, b, R, m, P, _ys, _masks = problem(2, 32, full_noise=False)
    model = Model(Linear(A, Q), Gaussian(C, b, np.diag(R)), GaussianFamily(2).from_moments(m, P))
    bare = VariationalKalmanFilter(correct=False)
    prediction = bare.predict(model, bare.init(model))
    np.testing.assert_allclose(prediction.belief.cov, Q, atol=1e-12)
    np.testing.assert_allclose(prediction.belief.mean, A @ m, atol=1e-12)
