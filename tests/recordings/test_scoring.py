"""Scores: the true model beats what knows less."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from evkf.analysis.decoding import RidgeDecoder
from evkf.analysis.spike_metrics import bits_per_spike
from evkf.data import Recording
from evkf.dynamics import VanDerPol
from evkf.errors import InputError
from evkf.filters import VariationalKalmanFilter
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from evkf.recordings import scoring
from evkf.recordings.halves import ALPHAS, LEAST, Halves, Pair, halve, spikes
from evkf.recordings.scoring import Score, baselines, condition_average, score_recording
from evkf.recordings.units import UnitModel
from tests.quick import quick_compilation  # noqa: F401

N, K, T = 16, 10, 60


@pytest.fixture(scope="module")
def truth() -> tuple[UnitModel, Recording]:
    rng = np.random.default_rng(0)
    C = rng.normal(size=(N, 2)) / 2
    model = Model(VanDerPol(1.5, noise=0.01), Poisson(C, np.full(N, 3.0), bin_width=0.02))
    start = np.array([[1.0, 0.0], [-1.0, 0.5]])
    drawn = [simulate(model, jax.random.key(k), T, z0=start[k % 2]) for k in range(K)]
    states = np.concatenate([zs for zs, _ in drawn])
    recording = Recording(
        np.concatenate([ys for _, ys in drawn]).astype(int),
        0.02,
        (T,) * K,
        behaviour={"hand": states @ rng.normal(size=(2, 2))},
        trials={"target": np.arange(K) % 2},
        source="day1.npz",
    )
    units = tuple(map(str, range(N)))
    return UnitModel(model, VariationalKalmanFilter(), units, 0.02), recording


METHODS = [
    "eVKF",
    "random walk",
    "GPFA (not causal)",
    "linear dynamical system",
    "causal smoothing",
    "Wiener filter",
    "average of the condition",
]


@pytest.fixture(scope="module")
def rows(truth) -> dict[str, Score]:
    told = []
    made = score_recording(
        *truth, condition="target", behaviour="hand", progress=lambda *done: told.append(done)
    )
    assert told == [(k + 1, 7) for k in range(7)]
    return {row.method: row for row in made}


@pytest.mark.parametrize("column", ["one_step", "co_smoothing", "rates_r2", "latents_r2"])
def test_the_truth_beats_the_baselines(rows, column):
    assert list(rows) == METHODS
    own = getattr(rows["eVKF"], column)
    causal = [row for name, row in rows.items() if name not in ("eVKF", "GPFA (not causal)")]
    others = [getattr(row, column) for row in causal]
    assert own > max(value for value in others if value is not None)
    assert own > 0.4


def test_averages_of_conditions_are_found(rows):
    assert rows["eVKF"].psth > rows["linear dynamical system"].psth
    assert all(row.psth > 0.3 for row in rows.values() if row.psth is not None)


def test_columns_that_do_not_apply_are_empty(rows):
    empty = {
        name: {column for column, value in row._asdict().items() if value is None}
        for name, row in rows.items()
    }
    assert empty == {
        "eVKF": set(),
        "random walk": set(),
        "GPFA (not causal)": {"one_step"},
        "linear dynamical system": set(),
        "causal smoothing": {"latents_r2"},
        "Wiener filter": {"psth", "latents_r2"},
        "average of the condition": {"rates_r2", "latents_r2"},
    }


def test_what_is_not_asked_is_not_told(truth):
    model, recording = truth
    rows = score_recording(model, recording)
    assert [row.method for row in rows] == METHODS[:-1]
    assert {row[3:] for row in rows} == {(None, None, None)}


def test_a_long_trial_with_gaps_and_a_silent_unit(truth):
    model, recording = truth
    counts, masks = recording.counts.copy(), np.ones(recording.counts.shape, bool)
    counts[:, 3] = 0
    masks[100:150], counts[100:150] = False, 7
    behaviour = {"hand": recording.behaviour["hand"]}
    one = Recording(counts, 0.02, masks=masks, behaviour=behaviour)
    rows = score_recording(model, one, behaviour="hand")
    assert [row.method for row in rows] == METHODS[:-1]
    # the model was not told that a unit fell silent; the others learn it
    assert rows[0].one_step > 0.2
    assert rows[0].latents_r2 > 0.9
    for row in rows[1:]:
        assert row.one_step is None or row.one_step > 0.2, row
        assert row.co_smoothing > 0.1, row
        assert row.rates_r2 > 0.5, row


@pytest.fixture(scope="module")
def gaps() -> Halves:
    """Units that never change, of which two bins in five were not observed."""
    rng, trials, bins, units = np.random.default_rng(1), 80, 50, 8
    counts, masks = rng.poisson(0.6, (trials * bins, units)), np.ones((trials, bins, units), bool)
    masks[:, 15:35] = False
    target = {"target": np.arange(trials) % 8}
    seen = masks.reshape(counts.shape)
    recording = Recording(counts, 0.02, (bins,) * trials, masks=seen, trials=target)
    order = rng.permutation(trials)
    return halve(recording, order[:40], order[40:], "target")


def test_to_baselines_gaps_are_not_silence(gaps):
    units = tuple(map(str, range(8)))
    readout = Poisson(np.zeros((8, 2)), np.full(8, np.log(30.0)), bin_width=0.02)
    start = Model(VanDerPol(1.5, noise=0.01), readout)
    model = UnitModel(start, VariationalKalmanFilter(), units, 0.02)
    for make in baselines(gaps, model, passes=2, em_steps=5):
        row = make()
        told = [bits for bits in (row.one_step, row.co_smoothing) if bits is not None]
        assert len(told) == (1 if row.method.startswith("GPFA") else 2)
        assert np.abs(told).max() < 0.03, row


def test_gaps_are_left_out_of_averages(gaps):
    assert gaps.mean == pytest.approx(np.full(8, 0.6), abs=0.05)
    constant = np.full(gaps.test.counts.shape, 0.6)
    assert gaps.psth(constant) == pytest.approx(0, abs=0.1)


def test_maps_are_fitted_to_what_was_observed(truth):
    """Every unit in bins of its own; what is written where nothing was seen does not matter."""
    _, recording = truth
    masks = np.random.default_rng(2).uniform(size=recording.counts.shape) < 0.7
    masks[:, 0] = np.arange(K * T) < T
    masks[:, 1] = False
    halves = halve(replace(recording, masks=masks), np.arange(5), np.arange(5, K))
    states = Pair(*(half.behaviour["hand"] for half in (halves.train, halves.test)))
    found = halves.mapped(states, halves.everyone)
    np.testing.assert_allclose(found[:, :2], np.tile(halves.mean[:2], (len(found), 1)))
    seen, unit = halves.train.masks[:, 5], halves.train.counts[:, [5]]
    groups = np.repeat(np.arange(5), T)
    ridge = RidgeDecoder(ALPHAS).fit(states.train[seen], unit[seen], groups[seen])
    want = np.maximum(ridge.predict(states.test)[:, 0], LEAST * halves.mean[5])
    np.testing.assert_allclose(found[:, 5], want)


def test_the_walk_gets_the_passes_of_a_fit(truth, monkeypatch):
    asked = []
    monkeypatch.setattr(scoring, "random_walk", lambda halves, model, passes: asked.append(passes))
    for name in ("evkf", "gpfa", "linear_system", "smoothing", "wiener"):
        monkeypatch.setattr(scoring, name, lambda *_: None)
    score_recording(*truth)
    assert asked == [None]


def test_averages_expect_no_less_than_maps_do(truth, monkeypatch):
    _, recording = truth
    monkeypatch.setattr(scoring, "condition_psth", lambda *args, **_: np.zeros((5 * T, N)))
    told = []
    monkeypatch.setattr(Halves, "one_step", lambda halves, expected: told.append(expected))
    halves = halve(recording, np.arange(5), np.arange(5, K), "target")
    condition_average(halves)
    np.testing.assert_allclose(told[0], np.tile(LEAST * halves.mean, (5 * T, 1)))


def test_of_an_unknown_condition_the_mean_is_expected(truth):
    _, recording = truth
    each = replace(recording, trials={"target": np.arange(K)})
    row = condition_average(halve(each, np.arange(5), np.arange(5, K), "target"))
    assert abs(row.one_step) < 0.05


def test_what_was_not_observed_does_not_count(truth):
    _, recording = truth
    masks = np.ones(recording.counts.shape, bool)
    masks[::3] = False
    odd = replace(recording, masks=masks, counts=np.where(masks, recording.counts, 99))
    trials = np.arange(K)
    first, second = (halve(half, trials[:5], trials[5:]) for half in (recording, odd))
    assert spikes(second.test).max() < 99
    expected = np.full(first.test.counts.shape, 0.5)
    expected[second.test.masks] = 1.0
    plain = bits_per_spike(first.test.counts, np.ones_like(expected), second.test.masks)
    assert second.one_step(expected) == pytest.approx(plain)


def test_the_very_target_is_decoded(truth):
    _, recording = truth
    halves = halve(recording, np.arange(5), np.arange(5, K), "target", "processing/hand")
    hand = Pair(halves.train.behaviour["hand"], halves.test.behaviour["hand"])
    assert halves.behaviour_r2(hand) == pytest.approx(1, abs=1e-3)
    assert halves.hide.sum() == N // 4


@pytest.mark.parametrize(
    ("trials", "condition", "says"),
    [([0, 1, 2], "goal", "choose among target"), ([0, 1], None, "three or more")],
)
def test_what_cannot_be_scored(truth, trials, condition, says):
    model, recording = truth
    with pytest.raises(InputError, match=says) as caught:
        score_recording(model, recording.take(trials), condition)
    assert "day1.npz: trials" in str(caught.value)
