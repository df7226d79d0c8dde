"""GPFA is exact Gaussian conditioning, EM that only climbs, and finds what elephant finds."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from evkf.errors import InputError
from evkf.estimators.factor_analysis import pad_trials
from evkf.estimators.gaussian_process import (
    NUGGET,
    GPFAParameters,
    TrialGroup,
    em_step,
    group_lengths,
    log_lik,
    posterior,
)
from evkf.estimators.gpfa import GPFA
from tests.quick import quick_compilation  # noqa: F401

REFERENCE = Path(__file__).with_name("gpfa_reference.npz")
NEURONS, LENGTHS = 4, (3, 7, 5, 7)

infer, evidence = jax.jit(posterior), jax.jit(log_lik)


def recording(seed=0, lengths=LENGTHS):
    rng = np.random.default_rng(seed)
    wave = np.sin(np.arange(max(lengths))[:, None] / 2 + np.arange(NEURONS))
    return [rng.poisson(np.exp(1 + wave[:num] * rng.normal())) for num in lengths]


@pytest.fixture(scope="module")
def trials():
    return recording()


@pytest.fixture(scope="module")
def fitted(trials):
    return GPFA(latents=2, bin_width=20.0, max_iterations=30, tolerance=0.0).fit(trials)


@pytest.fixture(scope="module")
def reference():
    with np.load(REFERENCE) as file:
        return dict(file)


def dense(params, ys):
    """States of one trial from the joint density of all its states and observations."""
    latents, bins = params.C.shape[1], len(ys)
    lag = np.arange(bins)[:, None] - np.arange(bins)
    prior = np.zeros((bins, latents, bins, latents))
    for k, tau in enumerate(np.exp(params.log_tau)):
        smooth = np.exp(-(lag**2) / (2 * tau**2))
        prior[:, k, :, k] = (1 - NUGGET) * smooth + NUGGET * np.eye(bins)
    prior = prior.reshape(bins * latents, bins * latents)
    readout = np.kron(np.eye(bins), params.C)
    cov = readout @ prior @ readout.T + np.kron(np.eye(bins), np.diag(params.R))
    mean = np.tile(params.d, bins)
    gain = np.linalg.solve(cov, readout @ prior).T
    states = (gain @ (ys.reshape(-1) - mean)).reshape(bins, latents)
    spread = (prior - gain @ readout @ prior).reshape(bins, latents, bins, latents)
    return states, spread, multivariate_normal(mean, cov).logpdf(ys.reshape(-1))


def some_params(seed=1, latents=2):
    rng = np.random.default_rng(seed)
    return GPFAParameters(
        jnp.asarray(rng.normal(size=(NEURONS, latents))),
        jnp.asarray(rng.normal(size=NEURONS)),
        jnp.asarray(rng.uniform(0.2, 1.0, size=NEURONS)),
        jnp.asarray(np.log([1.5, 4.0])),
    )


def close(found, wanted, atol=1e-8):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


# Inference


def test_equals_the_joint_gaussian(fitted, trials):
    params = GPFAParameters(fitted.C_, fitted.d_, fitted.R_, np.log(fitted.tau_ / 20.0))
    turn = fitted.loadings_.T @ fitted.C_
    means, covs = fitted.transform(trials, return_cov=True)
    rates, total = fitted.rates(trials), 0.0
    for trial, mean, cov, rate in zip(trials, means, covs, rates, strict=True):
        states, spread, each = dense(params, np.sqrt(trial))
        k = np.arange(len(trial))
        spread = spread[k, :, k]
        close(mean, states @ turn.T)
        close(cov, turn @ spread @ turn.T)
        within = np.einsum("nl,tlk,nk->tn", params.C, spread, params.C)
        close(rate, (states @ params.C.T + params.d) ** 2 + within + params.R)
        total += each
    bins = sum(LENGTHS)
    close(fitted.score(trials), total / bins)
    close(fitted.log_likelihoods_[-1], total / bins)


def test_the_company_of_other_trials_changes_nothing(fitted, trials):
    means, covs = fitted.transform(trials, return_cov=True)
    for trial, mean, cov in zip(trials, means, covs, strict=True):
        alone, spread = fitted.transform(trial, return_cov=True)
        close(alone, mean, 1e-12)
        close(spread, cov, 1e-12)
    each = [fitted.score(trial) * len(trial) for trial in trials]
    close(fitted.score(trials), sum(each) / sum(LENGTHS), 1e-12)


def test_covariances_over_time(trials):
    """From which the timescales are learned."""
    params = some_params()
    roots = [np.sqrt(trial) for trial in trials[:2]]
    ys, seen = pad_trials(roots)
    found = infer(params, ys, seen)
    for mean, trial in zip(found.means, roots, strict=True):
        bins = len(trial)
        states, spread, _ = dense(params, trial)
        close(mean[:bins], states)
        for latent in range(2):
            rows = found.gain[:bins, :, :bins, latent].reshape(-1, bins)
            prior = found.kernels[latent, :bins, :bins]
            close(prior - rows.T @ rows, spread[:, latent, :, latent])


def test_same_inference_as_elephant(reference):
    """For its parameters, with trials of unequal lengths."""
    params = GPFAParameters(*(jnp.asarray(reference[name]) for name in ("C", "d", "R", "log_tau")))
    cuts = np.cumsum(reference["lengths"])[:-1]
    ys, seen = pad_trials(np.split(np.sqrt(reference["other_counts"].astype(float)), cuts))
    found = infer(params, ys, seen)
    turn = reference["loadings"].T @ reference["C"]
    close(np.asarray(found.means)[seen] @ turn.T, reference["other_states"], 1e-8)
    np.testing.assert_allclose(found.log_lik, reference["other_log_lik"], rtol=1e-10)


# Learning


@pytest.mark.parametrize("square_root", [True, False])
def test_every_iteration_climbs(fitted, trials, square_root):
    gpfa = fitted
    if not square_root:
        gpfa = clone(fitted).set_params(square_root=False).fit(trials)
    gains = np.diff(gpfa.log_likelihoods_)
    assert len(gains) == 30
    assert np.all(gains > 0)


def test_each_part_of_the_step_climbs(trials):
    params = some_params()
    ys, seen = pad_trials(sorted((np.sqrt(trial) for trial in trials), key=len))
    groups = group_lengths(sorted(LENGTHS))
    assert groups == (TrialGroup(1, 4, 7), TrialGroup(0, 1, 3))
    new, before = em_step(params, ys, seen, np.full(NEURONS, 1e-3), groups)
    close(before, evidence(params, ys, seen))
    assert np.all(np.asarray(new.log_tau) != np.asarray(params.log_tau))
    assert evidence(params._replace(log_tau=new.log_tau), ys, seen) > before + 0.01
    assert evidence(new._replace(log_tau=params.log_tau), ys, seen) > before + 1


def test_ends_where_the_likelihood_is_flat():
    trials = recording(lengths=(12, 20, 16, 9, 20, 20))
    gpfa = GPFA(latents=1, max_iterations=400, tolerance=1e-12).fit(trials)
    assert len(gpfa.log_likelihoods_) < 400
    ys, seen = pad_trials([np.sqrt(trial) for trial in trials])
    params = GPFAParameters(gpfa.C_, gpfa.d_, gpfa.R_, np.log(gpfa.tau_))
    slopes = jax.jit(jax.grad(log_lik))(jax.tree.map(jnp.asarray, params), ys, seen)
    for slope in slopes:
        close(slope, 0, 1e-3)


def test_finds_what_elephant_finds(reference):
    trials = list(reference["counts"])
    bins = reference["counts"].shape[0] * reference["counts"].shape[1]
    gpfa = GPFA(3, float(reference["bin_width"]), max_iterations=400, tolerance=1e-6).fit(trials)
    total = gpfa.score(trials) * bins
    np.testing.assert_allclose(total, reference["log_lik"], rtol=0.01)
    assert total > reference["log_lik"] - 1.0
    ours, theirs = np.concatenate(gpfa.transform(trials)), np.concatenate(reference["states"])
    for states, wanted in ((ours, theirs), (theirs, ours)):
        design = np.column_stack([states, np.ones(bins)])
        rest = wanted - design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
        assert np.all(1 - rest.var(axis=0) / wanted.var(axis=0) > 0.99)
    taus = np.sort(np.exp(reference["log_tau"]) * reference["bin_width"])
    np.testing.assert_allclose(np.sort(gpfa.tau_), taus, rtol=0.05)
    close(gpfa.loadings_.T @ gpfa.loadings_, np.eye(3), 1e-12)
    # At the optimum expected counts have the mean of the counts.
    rates = np.concatenate(gpfa.rates(trials))
    np.testing.assert_allclose(rates.mean(axis=0), np.concatenate(trials).mean(axis=0), rtol=1e-3)


def test_raw_counts_are_read_as_they_are(trials):
    gpfa = GPFA(latents=2, square_root=False, max_iterations=30).fit(trials)
    for states, rate in zip(gpfa.transform(trials), gpfa.rates(trials), strict=True):
        close(rate, states @ gpfa.loadings_.T + gpfa.d_)


# Conventions


def test_repeats_itself_in_any_precision(fitted, trials):
    with jax.enable_x64(False):
        again = clone(fitted).fit(trials)
        states = again.transform(trials)
    np.testing.assert_array_equal(again.C_, fitted.C_)
    for one, other in zip(states, fitted.transform(trials), strict=True):
        assert one.dtype == np.float64
        np.testing.assert_array_equal(one, other)
    other = clone(fitted).set_params(seed=1).fit(trials)
    assert other.log_likelihoods_[0] != fitted.log_likelihoods_[0]


def test_settings_changed_after_fit_wait_for_the_next(fitted, trials):
    before = fitted.score(trials)
    try:
        fitted.set_params(square_root=False, bin_width=1.0)
        assert fitted.score(trials) == before
    finally:
        fitted.set_params(square_root=True, bin_width=20.0)
    with pytest.raises(ValueError, match="Invalid parameter 'taus'"):
        fitted.set_params(taus=3)


def test_it_says_what_it_is(fitted):
    assert "latents=2" in repr(GPFA(latents=2))
    assert "fitted" not in repr(GPFA())
    assert "fitted to 4 neurons: timescales [" in repr(fitted)


def test_fit_and_transform_in_one(fitted, trials):
    for one, other in zip(
        clone(fitted).fit_transform(trials), fitted.transform(trials), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_works_in_a_pipeline_of_scikit_learn(fitted, trials):
    ys = np.concatenate(trials)
    pipeline = make_pipeline(FunctionTransformer(), clone(fitted)).fit(ys)
    np.testing.assert_array_equal(pipeline.transform(ys), clone(fitted).fit(ys).transform(ys))


@pytest.mark.parametrize("ask", ["transform", "rates", "score"])
def test_not_fitted(trials, ask):
    with pytest.raises(InputError, match="not fitted yet"):
        getattr(GPFA(), ask)(trials)


def hole(trials, value):
    broken = [trial.astype(float) for trial in trials]
    broken[1][2, 3] = value
    return broken


@pytest.mark.parametrize(
    ("change", "options", "what"),
    [
        (lambda X: hole(X, np.nan), {}, r"observation nan \(in X\[1\]\[2, 3\]\): .* no missing"),
        (lambda X: hole(X, -1.0), {}, r"the sqrt of -1.0 \(in X\[1\]\[2, 3\]\)"),
        (lambda X: [X[0], X[1][:, :2]], {}, r"shape \(7, 2\) \(in X\[1\]\): pass \(bins, 4\)"),
        (lambda X: [X[0], X[1][:0]], {}, r"shape=\(0, 4\)\) .* \(in X\[1\]\)"),
        (lambda X: X[0][0], {}, r"shape \(4,\) \(in X\)"),
        (lambda X: np.stack([X[1]] * 2), {}, r"shape \(2, 7, 4\) \(in X\)"),
        (lambda X: [x * [1, 0, 1, 0] for x in X], {}, r"units \[1, 3\] never change"),
        (lambda X: X, {"latents": 5}, "5 latents of 4 units"),
        (lambda X: X, {"latents": 0}, "latents = 0"),
        (lambda X: X, {"latents": 2.5}, "latents = 2.5"),
        (lambda X: X, {"tau": -1.0}, "tau must be positive"),
        (lambda X: X, {"tau": [1.0, 2.0]}, "tau of shape"),
        (lambda X: X, {"bin_width": 0.0}, "bin_width must be positive"),
        (lambda X: X, {"max_iterations": 0}, "max_iterations = 0"),
        (lambda X: X, {"tolerance": np.nan}, "tolerance = nan"),
        (lambda X: X, {"tolerance": -1.0}, "tolerance = -1.0"),
    ],
)
def test_refuses(trials, change, options, what):
    with pytest.raises(InputError, match=what):
        GPFA(**options).fit(change(trials))


def test_refuses_other_neurons(fitted, trials):
    with pytest.raises(InputError, match=r"pass \(bins, 4\)"):
        fitted.transform([trial[:, :3] for trial in trials])
