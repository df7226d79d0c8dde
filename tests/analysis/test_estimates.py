"""`Estimates`: the moments of a filtered sequence, its rates and one-step predictions."""

import sys

import jax
import numpy as np
import pytest

from evkf.analysis.estimates import Estimates, join_estimates, summarise, to_xarray
from evkf.analysis.forecasting import forecast
from evkf.dynamics import VanDerPol
from evkf.errors import InputError
from evkf.expectations.readout import expected_observation, observation_variance
from evkf.filters import VJF, VariationalKalmanFilter, scan_filter
from evkf.filters.batched import read_session, scan_checked
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from tests.quick import quick_compilation  # noqa: F401

FILTER = VariationalKalmanFilter(rule="moment_matching")


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    model = Model(VanDerPol(), Poisson(rng.normal(size=(6, 2)), bin_width=0.1))
    return model, np.asarray(simulate(model, jax.random.key(0), 30)[1])


def test_predictions_are_those_of_the_filter(problem):
    model, ys = problem
    fresh = np.arange(30) == 12
    state, trace = scan_filter(FILTER, model, ys, fresh=fresh, predictions=True)
    plain_state, plain = scan_filter(FILTER, model, ys, fresh=fresh)
    np.testing.assert_allclose(state.belief.mean, plain_state.belief.mean, rtol=1e-10)
    np.testing.assert_allclose(trace.belief.cov, plain.belief.cov, rtol=1e-10)
    assert plain.prediction is None
    estimates = summarise(model, trace, variance=True, per=0.1)
    state = FILTER.init(model)
    for t in range(30):
        state = FILTER.init(model) if fresh[t] else state
        ahead = FILTER.predict(model, state).belief
        predicted, variance = expected_observation(model, ahead), observation_variance(model, ahead)
        np.testing.assert_allclose(estimates.predicted[t], predicted, rtol=1e-6)
        np.testing.assert_allclose(estimates.variance[t], variance, rtol=1e-6)
        state, _ = FILTER.step(model, state, ys[t])
        rates = expected_observation(model, state.belief) / 0.1
        np.testing.assert_allclose(estimates.rates[t], rates, rtol=1e-6)


def test_sessions_side_by_side_predict_the_same(problem):
    model, ys = problem
    sessions = [read_session(model, part, None, None, None) for part in (ys, ys[:11])]
    found = scan_checked(FILTER, model, sessions, np.zeros(2, int), predictions=True)
    for (_, trace), part in zip(found, (ys, ys[:11]), strict=True):
        _, alone = scan_filter(FILTER, model, part, predictions=True)
        np.testing.assert_allclose(trace.prediction.mean, alone.prediction.mean, rtol=1e-8)


def test_rows_and_joined_parts_are_the_whole(problem):
    model, ys = problem
    whole = summarise(model, scan_filter(FILTER, model, ys, predictions=True)[1])
    parts = [whole.rows(slice(0, 10)), whole.rows(slice(10, None))]
    for name, joined in join_estimates(parts)._asdict().items():
        np.testing.assert_array_equal(joined, getattr(whole, name))


def test_a_filter_without_predictions_is_refused(problem):
    model, ys = problem
    with pytest.raises(InputError, match="predictions of VJF"):
        scan_filter(VJF(), model, ys, predictions=True)


def test_axes_of_labelled_arrays_have_names(problem):
    model, ys = problem
    estimates = summarise(model, scan_filter(FILTER, model, ys, predictions=True)[1], per=0.1)
    times, units = np.arange(30) / 10, np.array(["a", "b", "c", "d", "e", "f"])
    bare = to_xarray(estimates._replace(rates=None))
    assert set(bare) == {"mean", "cov", "elbo", "predicted"}
    assert set(bare.coords) == {"latent", "other_latent"}
    table = to_xarray(estimates._replace(times=times, units=units), bin_width=0.1)
    assert [table.rates.units, table.time.units, table.bin_width] == ["Hz", "s", 0.1]
    np.testing.assert_array_equal(table.rates.sel(unit="b"), estimates.rates[:, 1])
    cov = table["cov"].sel(latent="z0", other_latent="z1")
    np.testing.assert_array_equal(cov, estimates.cov[:, 0, 1])
    assert to_xarray(estimates._replace(signals=True)).rates.units == "a.u."
    ahead = to_xarray(forecast(FILTER, model, model.prior, 4))
    assert dict(ahead.sizes) == {"bin": 4, "latent": 2, "other_latent": 2, "unit": 6}
    assert ahead.bin.values.tolist() == [1, 2, 3, 4]


def test_without_xarray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(InputError, match=r'pip install "evkf\[xarray\]"'):
        to_xarray(Estimates(np.zeros((2, 1)), np.ones((2, 1, 1)), np.zeros(2)))
