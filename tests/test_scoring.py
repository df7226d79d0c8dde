"""Scores: the true model beats what knows less."""

import jax
import numpy as np
import pytest

from evkf.data import Recording
from evkf.dynamics import VanDerPol
from evkf.errors import InputError
from evkf.filters import VariationalKalmanFilter
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from evkf.scoring import score_recording
from evkf.units import UnitModel
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


def test_the_truth_beats_the_baselines(truth):
    own, *others = score_recording(*truth, condition="target", behaviour="hand")
    assert own.one_step is not None
    assert own.one_step > 0
    assert own.behaviour is not None
    assert own.behaviour > 0.7
    for other in others:
        assert own.one_step > other.one_step
        assert own.co_smoothing > other.co_smoothing
        assert own.behaviour > other.behaviour
        assert other.psth is None or own.psth > other.psth


def test_what_is_not_asked_is_not_told(truth):
    model, recording = truth
    rows = score_recording(model, recording.take([0, 1, 2]))
    assert {(row.psth, row.behaviour) for row in rows} == {(None, None)}


@pytest.mark.parametrize(
    ("trials", "condition", "says"),
    [([0, 1, 2], "goal", "there are target"), ([0, 1], None, "three or more")],
)
def test_what_cannot_be_scored(truth, trials, condition, says):
    model, recording = truth
    with pytest.raises(InputError, match=says) as caught:
        score_recording(model, recording.take(trials), condition)
    assert "day1.npz: trials" in str(caught.value)
