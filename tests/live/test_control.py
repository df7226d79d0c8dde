"""Limits that hold whatever is asked for, what was on when, and a controller that steers."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_controllers import Segment, try_one, violations

from evkf.dynamics import Driven, ResidualMLP
from evkf.live.answers import Estimate, Flags
from evkf.live.control import Steer, input_weight, load
from evkf.live.limits import Delivered, Limiter, Limits, readable
from evkf.live.rig import Subject, rig_model, start_model
from evkf.model import Model
from tests.quick import quick_compilation  # noqa: F401

PERIOD, HOLD = 0.01, 0.015
WEIGHT = np.array([[1.0, 0.0], [0.5, 1.0]])
LIMITS = Limits([1.0, 2.0], [30.0, 500.0], [0.05, 0.15], window=0.1)

asked = st.one_of(
    st.lists(st.floats(), min_size=0, max_size=3),
    st.lists(st.floats(-5, 5), min_size=2, max_size=2),
    st.sampled_from([None, "much", {}, [[1.0, 1.0]], [1j, 0], [10**400, 0], object()]),
)
steps = st.one_of(st.integers(0, 2 * 10**7), st.sampled_from([-(10**9), 0, 10**7, 10**15]))


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(steps, asked), max_size=60))
def test_limits_hold_whatever_goes_in(calls: list):
    limiter, now, last, segments = Limiter(LIMITS, PERIOD, HOLD), 0, 0, []
    for step, values in calls:
        now += step
        out = limiter.limit(values, now)
        last = max(now, last) if segments else now
        segments.append(Segment(last, last + int(HOLD * 1e9), tuple(out.tolist())))
    assert violations(LIMITS, PERIOD, segments) == []


def test_the_judge_of_limits_sees_what_is_wrong():
    def judged(*segments: tuple) -> str:
        return " ".join(violations(LIMITS, PERIOD, [Segment(*each) for each in segments]))

    assert judged((0, 10**7, (0.3, 0.0))) == ""
    assert "amplitude" in judged((0, 10**7, (1.1, 0.0)))
    assert "from" in judged((0, 10**7, (0.3, 0.0)), (10**6, 10**7, (0.4, 0.0)))
    steady = [(t * 10**7, (t + 1) * 10**7, (0.0, 2.0)) for t in range(20)]
    assert "charge" in judged(*steady)


def test_random_controllers_stay_within_limits():
    for seed in range(100):
        assert try_one(np.random.default_rng(seed), 60) == []


def test_what_is_within_the_limits_passes_as_it_is():
    limiter = Limiter(LIMITS, PERIOD, HOLD)
    for step in range(20):
        wanted = [0.1 * (-1) ** step, 0.2]
        assert limiter.limit(wanted, step * 10**7).tolist() == wanted


def test_charge_that_is_spent_comes_back_when_the_window_has_passed():
    limiter, passed = Limiter(LIMITS, PERIOD, HOLD), []
    for step in range(60):
        passed.append(limiter.limit([0.0, 2.0], step * 10**7)[1])
    assert passed[0] == 2.0
    assert min(passed) < 0.5
    assert max(passed[20:]) > 0.5


def test_what_stays_on_too_long_is_counted_until_it_ends():
    limiter = Limiter(LIMITS._replace(charge=[0.05, 0.04]), PERIOD, HOLD)
    limiter.limit([0.0, 0.5], 0)
    limiter.rest(10**9)
    assert limiter.limit([0.0, 0.1], 10**9 + 10**7).tolist() == [0.0, 0.0]
    assert limiter.limit([0.0, 0.1], 10**9 + 11 * 10**7).tolist() == [0.0, 0.1]


@pytest.mark.parametrize("bad", [[1.0], [1.0, -1.0], [1.0, float("nan")], [1.0, 1e300]])
def test_limits_that_are_none_are_refused(bad: list):
    for name in ("amplitude", "rate", "charge"):
        with pytest.raises(ValueError, match=name):
            LIMITS._replace(**{name: bad}).check(2)
    with pytest.raises(ValueError, match="window"):
        LIMITS._replace(window=0.0).check(2)


def test_what_is_read_is_a_copy():
    values = np.ones(2)
    read = readable(values, 2)
    values[0] = 9
    assert read.tolist() == [1.0, 1.0]


def test_what_was_on_is_averaged_over_a_bin():
    delivered = Delivered(1, kept_ns=1000)
    assert delivered.mean(0, 10).tolist() == [0.0]
    for at in range(0, 10_000, 10):
        delivered.add(at, at + 5, [at / 10])
    assert delivered.mean(9_990, 10_000).tolist() == [999 / 2]
    assert delivered.mean(9_994, 9_994).tolist() == [999.0]
    assert len(delivered._parts) < 200


def test_steering_brings_the_simulated_rig_to_a_target():
    true = rig_model(2, 20, 0.01, stimulated=True)
    target, nothing = np.array([1.0, 0.0]), np.zeros(2)
    steer, subject = Steer.of(true, target), Subject(true)
    mean = jax.jit(lambda z, u: true.dynamics.mean(z, u))
    u, distances = nothing, []
    for _ in range(200):
        ahead = np.asarray(mean(subject.z, u))[None]
        latent = subject.z, np.eye(2), np.ones(20), 0.0, 0, ahead, np.ones((1, 2))
        u = np.clip(steer.command(Estimate(0, Flags.NOTHING, *latent, 0, 0, 0), u), -1, 1)
        subject.step(u)
        distances.append(np.linalg.norm(subject.z - target))
    assert np.mean(distances[50:]) < 0.3


def test_steering_goes_by_the_model_as_it_is_learned():
    plain = ResidualMLP(2, 0.04, jax.random.key(0))
    readout = rig_model(2, 20, 0.01).likelihood
    before, after = (Model(Driven(plain, weight), readout) for weight in (0.3 * WEIGHT, WEIGHT))
    steer, fixed = Steer.of(before, [1, 0]), Steer([1, 0], 0.3 * WEIGHT)
    for each in (steer, fixed):
        np.testing.assert_allclose(each.weight, 0.3 * WEIGHT, rtol=1e-6)
        each.model_changed(after)
    np.testing.assert_allclose(steer.weight, WEIGHT, rtol=1e-6)
    np.testing.assert_allclose(fixed.weight, 0.3 * WEIGHT)
    latent = np.zeros(2), np.eye(2), np.ones(3), 0.0, 0, np.zeros((1, 2)), np.ones((1, 2))
    estimate = Estimate(0, Flags.NOTHING, *latent, 0, 0, 0)
    asked = [each.command(estimate, np.zeros(2)) for each in (steer, Steer([1, 0], WEIGHT))]
    np.testing.assert_allclose(*asked, rtol=1e-6)


def test_steering_needs_a_forecast_and_a_target_of_the_right_size():
    latent = np.zeros(2), np.eye(2), np.ones(3), 0.0, 0, np.ones((0, 2)), np.ones((0, 2))
    with pytest.raises(ValueError, match="no forecast"):
        Steer([1, 0], np.eye(2)).command(Estimate(0, Flags.NOTHING, *latent, 0, 0, 0), np.zeros(2))
    with pytest.raises(ValueError, match="one a latent"):
        Steer([1, 0, 0], np.eye(2))
    with pytest.raises(ValueError, match="no input moves"):
        input_weight(rig_model(2, 20, 0.01), [0, 0])


def test_a_session_on_the_rig_begins_with_what_stimulation_does():
    true = rig_model(3, 20, 0.01, seed=4, stimulated=True)
    start = start_model(true)
    known = input_weight(true, np.zeros(3))
    np.testing.assert_allclose(input_weight(start, np.ones(3)), known, rtol=1e-6)
    np.testing.assert_allclose(known.T @ known, 0.3**2 * np.eye(3), atol=1e-7)
    assert start.dynamics.num_inputs == 3


def test_driven_dynamics_are_the_others_with_inputs():
    plain = ResidualMLP(2, 0.04, jax.random.key(0), output_scale=1.0)
    weight = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 0.5]])
    driven = Driven(plain, weight)
    z, u = np.array([0.3, -0.2]), np.array([1.0, -1.0, 0.5])
    np.testing.assert_allclose(
        driven.mean(z, u), plain.mean(z, np.zeros(0)) + weight @ u, rtol=1e-6
    )
    assert driven.visited(np.ones(2), np.ones(2)).undriven.low.tolist() == [-3.0, -3.0]
    assert not driven.visited(np.zeros(2), np.zeros(2)).covers(np.full(2, 9.0))
    with pytest.raises(ValueError, match="without"):
        Driven(driven, weight)


def test_makers_are_found_by_name():
    assert load("evkf.live.control:Steer") is Steer
    for wrong in ("evkf.live.control", "no.such:thing", "evkf.live.control:nothing", ":", "evkf:"):
        with pytest.raises(ValueError, match="cannot be imported"):
            load(wrong)
    with pytest.raises(ValueError, match="cannot be called"):
        load("evkf.live.loop:GONE")
