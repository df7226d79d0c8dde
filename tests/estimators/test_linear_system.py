"""The linear dynamical system: exact inference, EM that climbs, causal states, and refusals."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from evkf.errors import InputError
from evkf.estimators.linear_system import LDSParameters, LinearDynamicalSystem
from tests.estimators.ragged import LENGTHS, cut, ragged
from tests.quick import quick_compilation  # noqa: F401


@pytest.fixture(scope="module")
def fitted():
    return LinearDynamicalSystem(2, iterations=25).fit(cut(ragged()))


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
    counts, ends, trials = ragged(), np.cumsum(LENGTHS), cut(ragged())
    smooth, now = (np.vstack(fitted.transform(trials, given)) for given in ("all", "now"))
    ahead, density = np.vstack(fitted.transform(trials, "past")), 0.0
    params = LDSParameters(*map(np.asarray, fitted.params_))
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
    np.testing.assert_allclose(fitted.score(trials), density / ends[-1])


def test_expected_counts_have_the_spread_of_states(fitted):
    counts, num = ragged(), LENGTHS[0]
    params = LDSParameters(*map(np.asarray, fitted.params_))
    means, covs, _ = dense(params, np.sqrt(counts[:num]))
    spread = [params.C @ covs[t, :, t] @ params.C.T for t in range(num)]
    want = (means @ params.C.T + params.d) ** 2 + params.R
    want += np.array([np.diagonal(matrix) for matrix in spread])
    np.testing.assert_allclose(fitted.rates(cut(counts), "all")[0], want, atol=1e-9)


@pytest.mark.parametrize("transformation", ["sqrt", "log"])
@pytest.mark.parametrize("lengths", [LENGTHS, (40,)])
def test_every_iteration_climbs(transformation, lengths):
    trials = cut(ragged(lengths), lengths)
    lds = LinearDynamicalSystem(2, transformation, iterations=25).fit(trials)
    gains = np.diff(lds.log_likelihoods_)
    assert gains.min() > -1e-10
    assert gains.sum() > 0.1
    np.testing.assert_allclose(lds.log_likelihoods_[-1], lds.score(trials))
    assert all(np.all(rates >= 0) for rates in lds.rates(trials))


def test_the_maximum_of_em_is_one():
    """At convergence, no small change of a parameter is better."""
    trials = cut(ragged((30,) * 8), (30,) * 8)
    lds = LinearDynamicalSystem(1, iterations=400).fit(trials)
    best, params = lds.score(trials), lds.params_
    for i, leaf in enumerate(params):
        for factor in (0.97, 1.03):
            lds.params_ = params._replace(**{params._fields[i]: factor * np.asarray(leaf)})
            assert lds.score(trials) < best + 1e-6, params._fields[i]


@pytest.mark.parametrize("given", ["now", "past"])
def test_no_bin_knows_what_comes_after_it_or_other_trials(fitted, given):
    counts = ragged()
    changed = counts.copy()
    changed[5:] += 3
    for infer in (fitted.transform, fitted.rates):
        before, after = (np.vstack(infer(cut(y), given)) for y in (counts, changed))
        same = 5 if given == "now" else 6
        np.testing.assert_array_equal(before[:same], after[:same])
        assert np.abs(before[same] - after[same]).max() > 1e-3
        alone = infer(changed[3:9], given)
        np.testing.assert_allclose(alone, after[3:9], atol=1e-12)


def test_units_of_fit_are_asked_for(fitted):
    with pytest.raises(InputError, match=r"pass \(bins, 5\)"):
        fitted.transform([trial[:, :4] for trial in cut(ragged())])
    with pytest.raises(InputError, match="given"):
        fitted.transform(cut(ragged()), "then")


def test_works_in_scikit_learn(fitted):
    trials = cut(ragged())
    again = clone(fitted)
    assert repr(again) == "LinearDynamicalSystem(iterations=25, latents=2)"
    with pytest.raises(NotFittedError):
        again.transform(trials)
    for one, other in zip(again.fit_transform(trials), fitted.transform(trials), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.set_params(latents=1).get_params()["latents"] == 1
    assert again.n_features_in_ == trials[0].shape[1]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: LinearDynamicalSystem(9).fit(x), "9 latents"),
        (lambda x: LinearDynamicalSystem(0).fit(x), "latents"),
        (lambda x: LinearDynamicalSystem(2, "cube").fit(x), "sqrt or log"),  # pyright: ignore
        (lambda x: LinearDynamicalSystem(2).fit(x[0][0]), r"shape \(5,\) \(in X\)"),
        (lambda x: LinearDynamicalSystem(2).fit([y[:1] for y in x]), "one bin"),
        (lambda x: LinearDynamicalSystem(2).fit([0 * y for y in x]), "never change"),
        (lambda x: LinearDynamicalSystem(2).fit([y - 9 for y in x]), "pass counts"),
        (lambda x: LinearDynamicalSystem(2).transform(x), "call fit"),
        (lambda x: LinearDynamicalSystem(2).score(x), "call fit"),
    ],
)
def test_what_does_not_fit_is_refused(call, says):
    with pytest.raises(InputError, match=says):
        call(cut(ragged()))
