"""What a checkpoint says of the dynamics."""

import json
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

from evkf.analysis.phase import fixed_points, limit_cycle, velocity_field
from evkf.dynamics import Driven, ResidualMLP
from evkf.learning import LearnerState
from evkf.live.checkpoint import save
from evkf.live.plan import CHECKPOINTS, Parts, Plan, parts
from evkf.live.rig import rig_counts, rig_model, start_model
from evkf.web.background import Reader
from evkf.web.packing import unpack
from evkf.web.survey import STRETCH, visited, worth
from tests.quick import quick_compilation  # noqa: F401

N, FIRST, BINS = 12, 150, 300
PLAN = Plan("rig", 0.01, latents=2, channels=N, num_windows=2, window=4)
ASKED = [{"plane": [0, 1], "at": None}]


@pytest.fixture(autouse=True, scope="module")
def single_precision() -> Iterator[None]:
    with jax.enable_x64(False):
        yield


@pytest.fixture(scope="module")
def made() -> Parts:
    return parts(PLAN, Path())


@pytest.fixture(scope="module")
def states(made: Parts) -> tuple[LearnerState, LearnerState]:
    """At two checkpoints."""
    true = rig_model(2, N, 0.01)
    counts = rig_counts(true, BINS).astype(np.float32)
    learner = made.learner
    first, _ = learner.scan(learner.init(made.model), counts[:FIRST])
    second, _ = learner.scan(first, counts[FIRST:])
    return first, second


def test_the_field_is_that_of_the_dynamics(tmp_path: Path, states: tuple):
    PLAN.write(tmp_path)
    reader = Reader(tmp_path)
    assert reader.look(ASKED) == []
    save(tmp_path / CHECKPOINTS, FIRST, states[0], {})
    [message] = reader.look(ASKED)
    assert reader.look(ASKED) == []
    header, arrays = unpack(message)
    assert (header["kind"], header["plane"], header["bins"]) == ("field", [0, 1], FIRST)
    assert 0 <= header["seconds_old"] < 60
    dynamics = states[0].model.dynamics
    x, y = np.meshgrid(arrays["x"], arrays["y"])
    points = np.stack([x, y], -1)
    for name, flow in (("", dynamics), ("true_", rig_model(2, N, 0.01).dynamics)):
        moves = velocity_field(flow, points)
        np.testing.assert_allclose(arrays[f"{name}u"], moves[..., 0], atol=1e-5)
        np.testing.assert_allclose(arrays[f"{name}v"], moves[..., 1], atol=1e-5)
    seen = visited(states[0])
    assert seen.shape == (FIRST, 2)
    assert arrays["x"][0] < seen[:, 0].min() < seen[:, 0].max() < arrays["x"][-1]
    starts = seen[np.linspace(0, FIRST - 1, 48).astype(int)]
    rests = fixed_points(dynamics, starts)
    np.testing.assert_array_equal([each["at"] for each in header["fixed"]], rests.points.tolist())
    cycle = limit_cycle(dynamics, seen[-1], max_bins=4000)
    turn = np.zeros((0, 2)) if cycle is None else cycle.points
    np.testing.assert_array_equal(arrays["cycle"], turn)


def test_another_checkpoint_gives_another_field_and_evidence(
    tmp_path: Path, states: tuple, made: Parts
):
    PLAN.write(tmp_path)
    reader = Reader(tmp_path)
    save(tmp_path / CHECKPOINTS, FIRST, states[0], {})
    reader.look(ASKED)
    save(tmp_path / CHECKPOINTS, BINS, states[1], {})
    held = [{"plane": [1, 0], "at": [0.1, 0.2]}]
    said, message = reader.look(held)
    assert unpack(message)[0]["plane"] == [1, 0]
    told = json.loads(said)["evidence"]
    compared = worth(made.learner, made.model, *states)
    assert compared is not None
    assert told == pytest.approx(compared._asdict(), rel=1e-4)
    assert told["bins"] == STRETCH


def test_evidence_is_for_the_model_that_is_right(states: tuple, made: Parts):
    true = rig_model(2, 60, 0.01)
    counts = rig_counts(true, BINS).astype(np.float32)
    learner, start = made.learner, start_model(true)
    first, _ = learner.scan(learner.init(true), counts[:FIRST])
    second, _ = learner.scan(first, counts[FIRST:])
    compared = worth(learner, start, first, second)
    assert compared is not None
    assert compared.model > compared.random_walk + 0.05
    assert compared.model > compared.initial + 0.05
    assert worth(made.learner, made.model, states[1], states[1]) is None


@pytest.mark.parametrize("driven", [False, True])
def test_the_initial_model_is_not_judged_by_where_it_has_been(
    states: tuple, made: Parts, driven: bool
):
    second = states[1]
    mlp = made.model.dynamics
    assert isinstance(mlp, ResidualMLP)
    start = made.model
    if driven:
        start = eqx.tree_at(lambda m: m.dynamics, start, Driven(mlp, np.ones((2, 1))))
        bins = second.ring.bins
        us = np.ones((len(bins.fresh), 1), np.float32)
        second = second._replace(ring=second.ring._replace(bins=bins._replace(u=us)))
    # Many of the states are outside of it.
    known = start.dynamics.visited(np.zeros(2, np.float32), np.full(2, 1e-3, np.float32))
    before = made.learner.init(eqx.tree_at(lambda m: m.dynamics, start, known))
    compared = worth(made.learner, start, before, second)
    assert compared is not None
    assert compared.initial == pytest.approx(compared.model, rel=1e-6)
