"""Trials side by side are what they are end to end."""

from functools import partial

import jax
import numpy as np
import pytest

from evkf.dynamics import ResidualMLP
from evkf.estimators import trials as trial_module
from evkf.estimators.trials import read_trials, scan_trials
from evkf.filters import DirectVJF, VariationalKalmanFilter
from evkf.likelihoods import Poisson
from evkf.model import Model
from tests.quick import quick_compilation  # noqa: F401

N, KEY = 4, jax.random.key(1)


@pytest.fixture(scope="module")
def model() -> Model:
    C = np.random.default_rng(0).normal(size=(N, 2))
    return Model(ResidualMLP(2, 0.05, jax.random.key(0), hidden=4), Poisson(C, np.zeros(N)))


@pytest.fixture(scope="module")
def trials(model):
    rng = np.random.default_rng(1)
    counts = [rng.poisson(1.0, (n, N)) for n in (20, 3, 70, 11)]
    return read_trials(model, counts, [rng.random(len(each)) < 0.8 for each in counts])


@pytest.mark.parametrize("rule", ["cubature", "monte_carlo"])
def test_side_by_side_is_end_to_end(model, trials, rule):
    filter = VariationalKalmanFilter(rule, num_samples=8)
    scan = partial(scan_trials, filter, model, trials, KEY, True)
    found, want = scan(side_by_side=True), scan(side_by_side=False)
    num = len(trials.fresh)
    kept = ((trace.belief, trace.prediction, trace.info.elbo) for trace in (found, want))
    for a, b in zip(*map(jax.tree.leaves, kept), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a[:num], b[:num], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("platform", "filter", "lengths", "together"),
    [
        ("gpu", VariationalKalmanFilter(), (2, 3), True),
        ("gpu", VariationalKalmanFilter(), (5,), False),
        ("gpu", DirectVJF(), (2, 3), False),
        ("cpu", VariationalKalmanFilter(), (2, 3), False),
        ("cpu", VariationalKalmanFilter(), (5000,) * 8, True),
        ("cpu", VariationalKalmanFilter(), (50_000,) * 2, False),
    ],
)
def test_trials_go_side_by_side_where_that_is_faster(
    model, monkeypatch, platform, filter, lengths, together
):
    called = []
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(trial_module, "scan_checked", lambda *_, **__: called.append(True) or 1 / 0)
    monkeypatch.setattr(trial_module, "scan_filter", lambda *_, **__: 1 / 0)
    trials = read_trials(model, [np.zeros((n, N)) for n in lengths])
    with pytest.raises(ZeroDivisionError):
        scan_trials(filter, model, trials, KEY)
    assert bool(called) == together
