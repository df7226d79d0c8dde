"""Baselines: exact where there is something to be exact about, causal, and as good as measured."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from evkf.analysis.decoding import decode_ridge, r2
from evkf.analysis.spike_metrics import bits_per_spike
from evkf.errors import InputError
from evkf.estimators.baselines import (
    PRIOR,
    LinearDynamicalSystem,
    TrialGPFA,
    causal_smoothing,
    condition_psth,
    wiener_features,
)
from evkf.estimators.gpfa import GPFA
from evkf.estimators.linear_gaussian import Params
from tests.quick import quick_compilation  # noqa: F401
from tests.real_recordings import maze_reaches

LENGTHS, UNITS = (3, 6, 4, 6), 5


def ragged(lengths=LENGTHS, seed=0):
    rng = np.random.default_rng(seed)
    wave = np.sin(np.arange(max(lengths))[:, None] / 4 + np.arange(UNITS))
    return np.vstack([rng.poisson(np.exp(1 + wave[:n] * rng.normal())) for n in lengths])


@pytest.fixture(scope="module")
def fitted():
    return LinearDynamicalSystem(2, iterations=25).fit(ragged(), LENGTHS)


def dense(params, ys):
    """Joint Gaussian of the states and observations of one trial: (mean, covariance) of states,
    how they depend on observations, and the density.
    """
    A, Q, C, d, R, m, P = params
    bins, latents = len(ys), len(A)
    cov = np.zeros((bins, latents, bins, latents))
    mean, var = [m], [P]
    for _ in range(bins - 1):
        mean.append(A @ mean[-1])
        var.append(A @ var[-1] @ A.T + Q)
    for s in range(bins):
        block = var[s]
        for t in range(s, bins):
            cov[t, :, s], cov[s, :, t] = block, block.T
            block = A @ block
    cov = cov.reshape(bins * latents, bins * latents)
    readout = np.kron(np.eye(bins), C)
    noise = np.kron(np.eye(bins), np.diag(R))
    prior, y_mean = np.concatenate(mean), np.concatenate([C @ x + d for x in mean])
    y_cov = readout @ cov @ readout.T + noise
    gain = np.linalg.solve(y_cov, readout @ cov).T
    means = prior + gain @ (ys.ravel() - y_mean)
    post = cov - gain @ readout @ cov
    density = multivariate_normal(y_mean, y_cov).logpdf(ys.ravel())
    return means.reshape(bins, latents), post.reshape(bins, latents, bins, latents), density


def test_states_are_those_of_the_joint_gaussian(fitted):
    counts, ends = ragged(), np.cumsum(LENGTHS)
    smooth, now = fitted.states(counts, LENGTHS, "all"), fitted.states(counts, LENGTHS)
    ahead, density = fitted.states(counts, LENGTHS, "past"), 0.0
    params = Params(*map(np.asarray, fitted.params_))
    for trial, (end, num) in enumerate(zip(ends, LENGTHS, strict=True)):
        ys = np.sqrt(counts[end - num : end])
        want, _, added = dense(params, ys)
        density += added
        np.testing.assert_allclose(smooth[end - num : end], want, atol=1e-9)
        for t in range(num):
            want, _, _ = dense(params, ys[: t + 1])
            np.testing.assert_allclose(now[end - num + t], want[-1], atol=1e-9)
            if t + 1 < num:
                np.testing.assert_allclose(
                    ahead[end - num + t + 1], params.A @ want[-1], atol=1e-9, err_msg=f"{trial}"
                )
    np.testing.assert_allclose(fitted.score(counts, LENGTHS), density / ends[-1])


def test_expected_counts_have_the_spread_of_states(fitted):
    counts, num = ragged(), LENGTHS[0]
    params = Params(*map(np.asarray, fitted.params_))
    means, covs, _ = dense(params, np.sqrt(counts[:num]))
    spread = [params.C @ covs[t, :, t] @ params.C.T for t in range(num)]
    want = (means @ params.C.T + params.d) ** 2 + params.R
    want += np.array([np.diagonal(matrix) for matrix in spread])
    np.testing.assert_allclose(fitted.rates(counts, LENGTHS, "all")[:num], want, atol=1e-9)


@pytest.mark.parametrize("transform", ["sqrt", "log"])
@pytest.mark.parametrize("lengths", [LENGTHS, (40,)])
def test_every_iteration_climbs(transform, lengths):
    lds = LinearDynamicalSystem(2, transform, iterations=25).fit(ragged(lengths), lengths)
    gains = np.diff(lds.log_likelihoods_)
    assert gains.min() > -1e-10
    assert gains.sum() > 0.1
    want = lds.score(ragged(lengths), lengths)
    np.testing.assert_allclose(lds.log_likelihoods_[-1], want)
    assert np.all(lds.rates(ragged(lengths), lengths) >= 0)


def test_the_maximum_of_em_is_one():
    """At convergence, no small change of a parameter is better."""
    counts, lengths = ragged((30,) * 8), (30,) * 8
    lds = LinearDynamicalSystem(1, iterations=400).fit(counts, lengths)
    best, params = lds.score(counts, lengths), lds.params_
    for i, leaf in enumerate(params):
        for factor in (0.97, 1.03):
            lds.params_ = params._replace(**{params._fields[i]: factor * np.asarray(leaf)})
            assert lds.score(counts, lengths) < best + 1e-6, params._fields[i]


@pytest.mark.parametrize("given", ["now", "past"])
def test_no_bin_knows_what_comes_after_it_or_other_trials(fitted, given):
    counts = ragged()
    changed = counts.copy()
    changed[5:] += 3
    for infer in (fitted.states, fitted.rates):
        before, after = infer(counts, LENGTHS, given), infer(changed, LENGTHS, given)
        same = 5 if given == "now" else 6
        np.testing.assert_array_equal(before[:same], after[:same])
        assert np.abs(before[same] - after[same]).max() > 1e-3
        alone = infer(changed[3:9], LENGTHS[1:2], given)
        np.testing.assert_allclose(alone, after[3:9], atol=1e-12)


def test_smoothing_is_causal_and_within_trials():
    counts = ragged()
    found = causal_smoothing(counts, LENGTHS, 1.5)
    kernel = np.exp(-0.5 * (np.arange(8) / 1.5) ** 2)
    ends = np.cumsum(LENGTHS)
    for end, num in zip(ends, LENGTHS, strict=True):
        for t in range(num):
            past = counts[end - num : end - num + t + 1][::-1]
            total = kernel[: t + 1] @ past
            at = end - num + t
            np.testing.assert_allclose(found[at], total / kernel.sum())
            scaled = causal_smoothing(counts, LENGTHS, 1.5, rescaled=True)[at]
            np.testing.assert_allclose(scaled, total / kernel[: t + 1].sum())
    flat = causal_smoothing(np.ones((200, 1)), (100, 100), 4.0)
    np.testing.assert_allclose(flat[[99, 199]], 1)
    assert flat[100] < 0.25


def test_wiener_features_are_the_last_bins():
    counts = ragged()
    found = wiener_features(counts, LENGTHS, 3).reshape(-1, 3, UNITS)
    np.testing.assert_array_equal(found[7], counts[[7, 6, 5]])
    np.testing.assert_array_equal(found[3, 1:], 0)


def test_averages_of_conditions():
    counts = np.arange(12).reshape(6, 2)
    args = counts, (2, 3, 1), ["a", "a", "b"]
    found = condition_psth(*args, (4, 1), ["a", "b"])
    sums = [[4, 6], [8, 10], [8, 9], [8, 9], [10, 11]]
    trials = np.array([[2], [2], [1], [1], [1]])
    np.testing.assert_allclose(found, (sums + PRIOR * counts.mean(axis=0)) / (trials + PRIOR))
    smooth = condition_psth(*args, (3,), ["a"], sd_bins=1.0)
    assert np.ptp(smooth[:, 0]) < np.ptp(found[:3, 0])
    with pytest.raises(InputError, match="c"):
        condition_psth(*args, (1,), ["c"])


def test_averages_of_conditions_are_of_what_was_observed():
    counts, lengths, labels = np.array([[2], [9], [4], [6]]), (2, 2), ["a", "a"]
    masks = np.array([[True], [False], [True], [True]])
    found = condition_psth(counts, lengths, labels, (2,), ["a"], masks=masks)
    np.testing.assert_allclose(
        found[:, 0], [(6 + 4 * PRIOR) / (2 + PRIOR), (6 + 4 * PRIOR) / (1 + PRIOR)]
    )
    still = np.where(masks, 3, 0)
    smooth = condition_psth(still, lengths, labels, (2,), ["a"], sd_bins=1.0, masks=masks)
    np.testing.assert_allclose(smooth, 3)


def test_gpfa_is_gpfa():
    counts = ragged()
    found = TrialGPFA(2, max_iterations=3).fit(counts, LENGTHS)
    trials = np.split(counts, np.cumsum(LENGTHS)[:-1])
    gpfa = GPFA(2, 0.02, max_iterations=3).fit(trials)
    np.testing.assert_allclose(found.states(counts, LENGTHS), np.vstack(gpfa.transform(trials)))
    np.testing.assert_allclose(found.rates(counts, LENGTHS), np.vstack(gpfa.rates(trials)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda y: LinearDynamicalSystem(9).fit(y, LENGTHS), "9 latents"),
        (lambda y: LinearDynamicalSystem(0).fit(y, LENGTHS), "latents"),
        (lambda y: LinearDynamicalSystem(2, "cube").fit(y, LENGTHS), "sqrt or log"),  # pyright: ignore
        (lambda y: LinearDynamicalSystem(2).fit(y, (3, 6)), "lengths"),
        (lambda y: LinearDynamicalSystem(2).fit(y, [1] * 19), "one bin"),
        (lambda y: LinearDynamicalSystem(2).fit(0 * y, LENGTHS), "never change"),
        (lambda y: LinearDynamicalSystem(2).fit(y - 9, LENGTHS), "pass counts"),
        (lambda y: LinearDynamicalSystem(2).states(y, LENGTHS), "call fit"),
        (lambda y: TrialGPFA(2).states(y, LENGTHS), "call fit"),
        (lambda y: causal_smoothing(y, LENGTHS, 0.0), "sd_bins"),
        (lambda y: condition_psth(y, LENGTHS, [0, 1], (3,), [0]), "conditions"),
    ],
)
def test_what_does_not_fit_is_refused(call, says):
    with pytest.raises(InputError, match=says):
        call(ragged())


def test_units_of_fit_are_asked_for(fitted):
    with pytest.raises(InputError, match="4 units"):
        fitted.states(ragged()[:, :4], LENGTHS)
    with pytest.raises(InputError, match="given"):
        fitted.states(ragged(), LENGTHS, "then")


@pytest.mark.slow
def test_measured_figures_on_a_real_recording():
    """What others got for these methods on the same halves; see the README beside the data."""
    reaches = maze_reaches()
    trials, bins, units = reaches.counts.shape
    order = np.random.default_rng(0).permutation(trials)
    train, test = order[: trials // 2], order[trials // 2 :]

    def both(part):
        return reaches.counts[part].reshape(-1, units), [bins] * len(part)

    lds = LinearDynamicalSystem(12).fit(*both(train))
    found = {
        "smoothing": [causal_smoothing(*both(part), sd_bins=4.0) for part in (train, test)],
        "wiener": [wiener_features(*both(part)) for part in (train, test)],
        "lds": [lds.states(*both(part)) for part in (train, test)],
    }
    want = {"smoothing": 0.622, "wiener": 0.689, "lds": 0.595}
    velocity = [reaches.velocity[part].reshape(-1, 2) for part in (train, test)]
    groups = np.repeat(np.arange(len(train)), bins)
    for name, (seen, new) in found.items():
        score = r2(velocity[1], decode_ridge(seen, velocity[0], groups, new))
        assert score > want[name] - 0.035, (name, score)
        assert score < want[name] + 0.05, (name, score)
    test_counts, lengths = both(test)
    kinds = reaches.conditions
    psth = condition_psth(*both(train), kinds[train], lengths, kinds[test], sd_bins=3.5)
    assert bits_per_spike(test_counts, psth) > 0.1
    assert bits_per_spike(test_counts, lds.rates(test_counts, lengths, "past")) > 0.05
