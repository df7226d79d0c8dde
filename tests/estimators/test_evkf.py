"""The estimator keeps scikit-learn's conventions, agrees with the library, and loses nothing."""

import subprocess
import sys
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from evkf.analysis.estimates import to_xarray
from evkf.analysis.forecasting import forecast
from evkf.analysis.smoothing import smooth
from evkf.dynamics import Linear
from evkf.errors import InputError
from evkf.estimators.evkf import EVKF
from evkf.estimators.settings import Learning
from evkf.expectations.readout import expected_observation
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.likelihoods import Custom, Gaussian, Poisson
from evkf.model import Model, simulate
from tests.quick import quick_compilation, quick_environment  # noqa: F401

NEURONS, BINS = 12, 160
SMALL = {"latents": 2, "learning": Learning(hidden=8, warm_up=60, ring=128)}
READOUT = np.random.default_rng(0).normal(size=(NEURONS, 2))
TURN = 0.99 * np.array([[np.cos(0.2), -np.sin(0.2)], [np.sin(0.2), np.cos(0.2)]])
TRUE = Model(Linear(TURN, noise=0.02), Poisson(READOUT, np.full(NEURONS, 0.5)))


@pytest.fixture(scope="module")
def data():
    zs, ys = simulate(TRUE, jax.random.key(0), 2 * BINS)
    return np.asarray(zs), np.asarray(ys)


@pytest.fixture(scope="module")
def fitted(data):
    return EVKF(**SMALL).fit(data[1][:BINS])


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def explained(states, truth):
    design = np.column_stack([states, np.ones(len(states))])
    rest = truth - design @ np.linalg.lstsq(design, truth, rcond=None)[0]
    return 1 - np.sum(rest**2) / np.sum((truth - truth.mean(0)) ** 2)


def test_what_cannot_stream_is_refused_every_time():
    """Estimates of a stream hold the rate, which a likelihood without a mean does not tell."""
    meanless = Custom(lambda z, y: -((y - z) ** 2), 2)
    model = EVKF(**SMALL, likelihood=meanless).fit(np.ones((8, 2)))
    for _ in range(2):
        with pytest.raises(InputError, match="mean_fn"):
            model.partial_fit(np.ones((2, 2)))


# Conventions


def test_constructor_only_stores():
    learning = Learning(parts=["dynamics"])
    estimator = EVKF(latents=-1, likelihood="nonsense", learning=learning)
    assert estimator.learning is learning
    assert vars(estimator) == estimator.get_params(deep=False)
    text = "EVKF(latents=-1, learning=Learning(parts=['dynamics']), likelihood='nonsense')"
    assert repr(estimator).replace("\n     ", "") == text


def test_parameters_are_set_and_cloned(fitted):
    estimator = clone(fitted.set_params(seed=0))
    assert estimator is not fitted
    assert estimator.get_params() == fitted.get_params()
    assert not hasattr(estimator, "state_")
    assert estimator.set_params(latents=3, learning__ring=64).get_params()["latents"] == 3
    assert estimator.get_params()["learning__ring"] == estimator.learning.ring == 64
    assert fitted.learning.ring == 128
    with pytest.raises(ValueError, match="Invalid parameter 'rings'"):
        estimator.set_params(rings=3)
    with pytest.raises(InputError, match="no parameter 'learning__rings'"):
        estimator.set_params(learning__rings=3)
    assert EVKF().set_params(learning__rate=0.1).learning != EVKF().learning
    with pytest.raises(AttributeError):
        EVKF().learning.rate = 0.1
    known = clone(EVKF(likelihood=Poisson(READOUT)))
    assert same(known.likelihood, Poisson(READOUT))


@pytest.mark.parametrize(
    "name", ["state_", "model_", "learner_", "n_features_in_", "bins_missing_"]
)
def test_nothing_is_there_before_fit(name):
    estimator = EVKF()
    assert not hasattr(estimator, name)
    with pytest.raises(InputError, match="not fitted yet"):
        getattr(estimator, name)


def test_not_fitted():
    ys = np.zeros((3, 4))
    asked = [lambda e: e.transform(ys), lambda e: e.smooth(ys), lambda e: e.score(ys)]
    asked += [
        lambda e: e.forecast(2),
        lambda e: e.forecast_one(),
        lambda e: e.save("x.safetensors"),
    ]
    for ask in [*asked, check_is_fitted]:
        with pytest.raises(ValueError, match="not fitted"):
            ask(EVKF())


def test_needs_no_extra_to_be_imported():
    code = "import sys, evkf; evkf.EVKF(); print({'xarray', 'safetensors'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Learning


def test_finds_states_and_foretells(fitted, data):
    check_is_fitted(fitted)
    zs, ys = (array[BINS : BINS + 64] for array in data)
    assert fitted.n_features_in_ == NEURONS
    assert int(fitted.state_.ring.count) == BINS
    filtered, smoothed = fitted.transform(ys), fitted.smooth(ys)
    _, trace = scan_filter(VariationalKalmanFilter(), TRUE, ys)
    best = explained(trace.belief.mean, zs)
    assert best - 0.05 < explained(filtered, zs) < explained(smoothed, zs)
    assert fitted.score(ys) > np.mean(trace.info.elbo) - 0.3


def test_fit_starts_anew_and_repeats_itself(fitted, data):
    again = clone(fitted).fit(data[1][BINS:]).fit(data[1][:BINS])
    assert same(again.state_, fitted.state_)


def test_more_passes_teach_more(fitted, data):
    ys = data[1][:BINS]
    more = clone(fitted).set_params(learning__passes=9).fit(ys)
    assert more.score(ys) > fitted.score(ys)
    wanted = more.transform(ys)[-1]
    np.testing.assert_allclose(more.estimate_.mean, wanted, atol=1e-6)
    assert int(more.state_.ring.count) == SMALL["learning"].ring


def test_a_stream_is_learned_whole_however_it_is_cut(data, tmp_path):
    ys = data[1]
    learning = replace(SMALL["learning"], parts=["dynamics"], watch=True)
    one = EVKF(2, likelihood="gaussian", learning=learning)
    for y in ys[:45]:
        one.learn_one(y)
    assert one.bins_missing_ == 15
    assert not one.__sklearn_is_fitted__()
    assert not hasattr(one, "state_")
    np.testing.assert_allclose(one.forecast_one(), ys[:45].mean(axis=0), rtol=1e-6)
    with pytest.raises(InputError, match="15 bins are missing"):
        one.forecast(1)
    one.save(tmp_path / "warming.safetensors")
    one.partial_fit(ys[45:100])
    assert int(one.state_.ring.count) == 100
    one.save(tmp_path / "begun.safetensors")
    for y in ys[100:110]:
        one.learn_one(y)
    one.partial_fit([ys[110:115], ys[115:120]])
    assert np.isfinite(one.evidence_.over_walk)
    assert np.flatnonzero(one.state_.ring.bins.fresh[:120]).tolist() == [0, 110, 115]
    one.save(tmp_path / "end.safetensors")
    np.save(tmp_path / "ys.npy", ys)
    # In another process, stopped and begun again at other bins.
    code = """
import numpy as np
from evkf.estimators.evkf import EVKF

ys = np.load("ys.npy")
one = EVKF.load("warming.safetensors").partial_fit(ys[45:50])
for y in ys[50:100]:
    one.learn_one(y)
one.save("begun2.safetensors")
one = EVKF.load("begun.safetensors").partial_fit(ys[100:110])
for t, y in enumerate(ys[110:120]):
    one.learn_one(y, fresh=t % 5 == 0)
one.save("end2.safetensors")
"""
    environment = quick_environment() | {"JAX_ENABLE_X64": "true"}
    run = [sys.executable, "-c", code]
    subprocess.run(run, check=True, cwd=tmp_path, env=environment, timeout=300)
    for name in ("begun", "end"):
        first, second = (tmp_path / f"{name}{n}.safetensors" for n in ("", "2"))
        assert first.read_bytes() == second.read_bytes()


def test_known_model_with_inputs_goes_on_after_loading(tmp_path):
    rng = np.random.default_rng(1)
    dynamics = Linear(0.9 * np.eye(1), noise=0.1, input_weight=[[0.5]])
    likelihood = Gaussian([[1.0], [2.0]], noise=0.5)
    us = rng.normal(size=(30, 1))
    ys = np.asarray(simulate(Model(dynamics, likelihood), jax.random.key(2), 30, us)[1])
    ys = np.where(np.arange(60).reshape(30, 2) == 6, np.nan, ys)
    masks = np.isfinite(ys)
    one = EVKF(1, likelihood, dynamics, learning=Learning(ring=32))
    one.learn_one(ys[0], mask=masks[0], inputs=us[0])
    assert one.learner_.parts == ("dynamics", "noise", "prior")
    one.partial_fit(ys[1:], masks=masks[1:], inputs=us[1:])
    assert same(one.model_.likelihood, likelihood)
    assert not same(one.model_.dynamics, dynamics)

    before = jax.tree.map(np.copy, one.state_)
    ahead = one.forecast(2, inputs_ahead=us[:2])
    np.testing.assert_allclose(one.forecast_one(us[0]), ahead.rate[0], rtol=1e-9)
    with pytest.raises(InputError, match="no input"):
        one.forecast_one()
    belief = one.state_.filter.belief
    np.testing.assert_array_equal(one.estimate_.mean, belief.mean)
    np.testing.assert_array_equal(one.estimate_.cov, belief.cov)
    assert same(one.state_, before)

    one.freeze().partial_fit(ys[:9], masks=masks[:9], inputs=us[:9])
    assert same(one.model_, before.model)
    one.thaw("dynamics").partial_fit(ys[:9], masks=masks[:9], inputs=us[:9])
    assert not same(one.model_.dynamics.weight, before.model.dynamics.weight)
    assert same(one.model_.dynamics.noise, before.model.dynamics.noise)
    with pytest.raises(InputError, match="'readout' is not learned"):
        one.thaw("readout")
    with pytest.raises(InputError, match="watch=True"):
        one.evidence_  # noqa: B018

    path = tmp_path / "known.safetensors"
    one.save(path)
    weak = jnp.full(2, 0.0)  # of no kind of its own: JAX calls it a weak float
    other = {
        "likelihood": eqx.tree_at(lambda found: found.b, Gaussian([[0.0], [0.0]]), weak),
        "dynamics": Linear([[0.0]], 1.0, None, [[0.0]]),
    }
    loaded = EVKF.load(path, **other)
    assert same(loaded.state_, one.state_)
    assert same(loaded.likelihood, likelihood)
    assert same(loaded.dynamics, dynamics)
    np.testing.assert_array_equal(loaded.forecast_one(us[0]), one.forecast_one(us[0]))
    for wrong in ({}, {**other, "likelihood": Gaussian([[0.0]])}):
        with pytest.raises(InputError, match="as likelihood, loaded with"):
            EVKF.load(path, **wrong)


def test_loads_only_estimators(tmp_path, fitted):
    from evkf.data.storage import save_tree

    save_tree(tmp_path / "a.safetensors", (), {})
    with pytest.raises(InputError, match="no EVKF"):
        EVKF.load(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="use save and load"):
        fitted.__reduce_ex__(4)


def test_saves_what_the_state_was_made_with(fitted, tmp_path):
    path = tmp_path / "a.safetensors"
    fitted.set_params(learning__ring=np.int64(77)).save(path)
    fitted.set_params(learning=SMALL["learning"])
    assert EVKF.load(path).get_params() == fitted.get_params()
    assert same(EVKF.load(path).state_, fitted.state_)


# Inference


def test_trials_are_kept_apart(fitted, data):
    before = fitted.state_
    trials = [data[1][:20], data[1][20:27], data[1][27:60]]
    for infer, given in ((fitted.transform, "past"), (fitted.smooth, "all")):
        means, estimates = infer(trials), fitted.infer(trials, given=given)
        assert [len(mean) for mean in means] == [20, 7, 33]
        assert estimates[1].cov.shape == (7, 2, 2)
        assert estimates[2].rates.shape == (33, NEURONS)
        np.testing.assert_allclose(means[1], estimates[1].mean, rtol=1e-9, atol=1e-12)
        alone = [infer(trial) for trial in trials]
        for mean, own in zip(means, alone, strict=True):
            assert type(mean) is np.ndarray
            assert mean.flags.writeable
            np.testing.assert_allclose(mean, own, rtol=1e-9, atol=1e-12)
    assert same(fitted.state_, before)


def test_agrees_with_the_library(fitted, data):
    ys, filter = data[1][:64].copy(), fitted.learner_.filter
    masks = np.random.default_rng(3).random(ys.shape) < 0.8
    ys[~masks] = np.nan
    masks[5] = False
    state, trace = scan_filter(filter, fitted.model_, ys, masks)
    estimates = fitted.infer(ys, masks=masks)
    np.testing.assert_allclose(estimates.mean, trace.belief.mean, rtol=1e-9)
    np.testing.assert_allclose(estimates.cov, trace.belief.cov, rtol=1e-9)
    rate = expected_observation(fitted.model_, jax.tree.map(lambda x: x[7], trace.belief))
    np.testing.assert_allclose(estimates.rates[7], rate, rtol=1e-9)
    np.testing.assert_array_equal(fitted.transform(ys, "rates", masks=masks), estimates.rates)
    before = fitted.forecast(1, ys[:8], masks=masks[:8]).rate[0]
    np.testing.assert_allclose(estimates.predicted[8], before, rtol=1e-9)
    elbo = np.asarray(trace.info.elbo)[np.arange(64) != 5]
    np.testing.assert_allclose(fitted.score(ys, masks=masks), elbo.mean(), rtol=1e-9)
    found = smooth(filter, fitted.model_, ys, masks)
    smoothed = fitted.infer(ys, given="all", masks=masks)
    np.testing.assert_allclose(smoothed.mean, found.mean, rtol=1e-9)
    np.testing.assert_allclose(smoothed.cov, found.cov, rtol=1e-9)
    assert smoothed.predicted is None
    ahead = fitted.forecast(4, ys, masks=masks)
    wanted = forecast(filter, fitted.model_, state.belief, 4)
    for have, want in zip(jax.tree.leaves(ahead), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-9)


def test_labelled_arrays(fitted, data):
    ys = data[1]
    table = to_xarray(fitted.infer(ys[:5]))
    assert table["mean"].dims == ("bin", "latent")
    assert table["cov"].dims == ("bin", "latent", "other_latent")
    np.testing.assert_array_equal(table["mean"], fitted.transform(ys[:5]))
    smoothed = fitted.infer([ys[:2], ys[:3]], given="all")
    assert [to_xarray(trial).sizes["bin"] for trial in smoothed] == [2, 3]
    ahead = to_xarray(fitted.forecast(4))
    assert dict(ahead.sizes) == {"bin": 4, "latent": 2, "other_latent": 2, "unit": NEURONS}
    assert ahead.bin.values.tolist() == [1, 2, 3, 4]


def test_works_in_scikit_learn(fitted, data):
    ys = data[1]
    pipeline = make_pipeline(FunctionTransformer(), clone(fitted)).fit(ys[:BINS])
    np.testing.assert_array_equal(pipeline.transform(ys[:9]), fitted.transform(ys[:9]))
    np.testing.assert_allclose(pipeline.score(ys[:9]), fitted.score(ys[:9]))
    scores = cross_val_score(clone(fitted), [ys[t : t + 80] for t in range(0, 320, 80)], cv=2)
    assert np.all(np.isfinite(scores))


# Refusals

YS = np.ones((5, 3))
BAD = {
    "one axis": (lambda e: e.fit(YS[0]), "X with 1 axes"),
    "three axes": (lambda e: e.fit(YS[None]), "X with 3 axes"),
    "nothing": (lambda e: e.fit(YS[:0]), "no bins"),
    "a scalar bin": (lambda e: e.learn_one(3.0), r"pass shape \(neurons,\)"),
    "negative": (lambda e: e.partial_fit([YS, -YS]), r"in X\[1\]\[0, 0\]"),
    "nan": (lambda e: e.fit(YS * np.nan), r"nan that is not masked \(in X\[0, 0\]"),
    "widths": (lambda e: e.fit([YS, np.ones((5, 4))]), r"in X\[1\]"),
    "masks": (lambda e: e.fit([YS, YS], masks=[YS > 0]), "1 masks for 2 trials"),
    "no mask": (lambda e: e.fit(YS, masks=YS), r"type float64 \(in masks\)"),
    "inputs": (lambda e: e.fit([YS], inputs=[YS[:2]]), r"in inputs\[0\]"),
    "latents": (lambda e: e.set_params(latents=4).fit(YS), "4 latents of 3 neurons"),
    "half a latent": (lambda e: e.set_params(latents=1.5).fit(YS), "latents = 1.5"),
    "warm-up": (lambda e: e.set_params(learning__warm_up=2).fit(YS), "warm_up = 2"),
    "hidden": (lambda e: e.set_params(learning__hidden=[]).fit(YS), "no hidden layers"),
    "no passes": (lambda e: e.set_params(learning__passes=0).fit(YS), "passes = 0"),
    "likelihood": (lambda e: e.set_params(likelihood="cauchy").fit(YS), "'cauchy'"),
    "dynamics": (lambda e: e.set_params(dynamics="rnn").fit(YS), "'rnn'"),
    "known": (
        lambda e: e.set_params(dynamics=Linear([[1.0]], 0.1)).fit(YS),
        "dynamics of 1 latents and 0 inputs for latents=2",
    ),
    "loss": (lambda e: e.set_params(learning__loss="l2").fit(YS), "'l2'"),
    "part": (lambda e: e.set_params(learning__parts=["all"]).fit(YS), "'all'"),
    "readout": (lambda e: e.set_params(likelihood=Poisson(READOUT)).fit(YS), "12 channels"),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name):
    act, words = BAD[name]
    estimator = EVKF()
    with pytest.raises(InputError, match=words):
        act(estimator)
    assert not hasattr(estimator, "n_features_in_")


def test_refuses_once_fitted(fitted):
    with pytest.raises(InputError, match="for 12 channels"):
        fitted.transform(YS)
    with pytest.raises(InputError, match="no observed bins"):
        fitted.score(np.ones((3, NEURONS)), masks=np.zeros(3, bool))
    with pytest.raises(InputError, match="one at a time"):
        fitted.forecast(3, [np.ones((3, NEURONS))])
