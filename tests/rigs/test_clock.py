"""Clocks of sources: drift, steps, gaps, lags and strays, told and followed."""

import numpy as np
import pytest

from evkf.rigs.clock import JITTER_NS, SECOND, Clock, Flag, Kind, Step

MS = SECOND // 1000


def arrivals(seconds: float, ppm: float = 0.0, every: int = 5 * MS, jitter: int = 10 * MS):
    """Times on the source's clock, and of arrival: with delays, now and then long."""
    rng = np.random.default_rng(0)
    true = np.arange(0, int(seconds * SECOND), every)
    source = 123 * SECOND + np.round(true * (1 + ppm * 1e-6)).astype(np.int64)
    delay = rng.exponential(jitter / 5, len(true)).clip(0, jitter).astype(np.int64)
    host = np.maximum.accumulate(456 * SECOND + true + delay)
    return source, host


def taken(clock: Clock, source: np.ndarray, host: np.ndarray) -> list:
    found = []
    for number, (s, h) in enumerate(zip(source.tolist(), host.tolist(), strict=True)):
        found += clock.take(s, h, number)
    return found


@pytest.fixture
def flags() -> list[Flag]:
    return []


@pytest.mark.parametrize("ppm", [-100.0, 0.0, 100.0])
def test_a_drift_is_measured_and_told_of(ppm: float, flags: list[Flag]):
    clock = Clock(flags.append)
    source, host = arrivals(60, ppm)
    assert taken(clock, source, host) == list(range(len(source)))
    assert clock.drift_ppm == pytest.approx(ppm, abs=10)
    assert [flag.kind for flag in flags] == ([Kind.DRIFT] if ppm else [])
    if ppm:
        assert ("fast" if ppm > 0 else "slow") in flags[0].text
    # Without messages the line goes on: a minute later it is off by less than a bin.
    later = 120 * SECOND
    true = 123 * SECOND + round(later * (1 + ppm * 1e-6))
    assert abs(clock.to_source(456 * SECOND + later) - true) < 10 * MS


@pytest.mark.parametrize("size", [-1.0, 1.0, -0.2, 3600.0])
@pytest.mark.parametrize("ppm", [-100.0, 100.0])
def test_a_step_is_told_of_and_bins_stay_aligned(size: float, ppm: float, flags: list[Flag]):
    clock = Clock(flags.append)
    source, host = arrivals(90, ppm)
    at = len(source) * 2 // 3
    stepped = source.copy()
    stepped[at:] += int(size * SECOND)
    found = taken(clock, stepped, host)
    steps = [each for each in found if isinstance(each, Step)]
    assert [each for each in found if not isinstance(each, Step)] == list(range(len(source)))
    assert found.index(steps[0]) == at
    assert len(steps) == 1
    assert abs(steps[0].size_ns - size * SECOND) < 5 * MS
    assert [flag.kind for flag in flags].count(Kind.STEP) == 1
    assert clock.drift_ppm == pytest.approx(ppm, abs=20)


def test_both_clocks_going_on_is_a_gap(flags: list[Flag]):
    clock = Clock(flags.append)
    source, host = arrivals(20)
    keep = (np.arange(len(source)) < 1500) | (np.arange(len(source)) > 2500)
    found = taken(clock, source[keep], host[keep])
    assert len(found) == keep.sum()
    assert [flag.kind for flag in flags] == [Kind.GAP]
    assert flags[0].size == pytest.approx(5.0, abs=0.1)
    assert "lost" in flags[0].text


def test_a_stall_is_no_step(flags: list[Flag]):
    clock = Clock(flags.append)
    source, host = arrivals(20)
    stalled = (host > host[2000]) & (host < host[2000] + SECOND)
    host[stalled] = host[2000] + SECOND
    assert taken(clock, source, host) == list(range(len(source)))
    assert flags == []


def test_a_lasting_lag_is_told_of_and_moves_nothing(flags: list[Flag]):
    clock = Clock(flags.append)
    source, host = arrivals(20)
    host[2000:3000] += SECOND // 4
    found = taken(clock, source, np.maximum.accumulate(host))
    assert found == list(range(len(source)))
    assert [flag.kind for flag in flags] == [Kind.LAG]


@pytest.mark.parametrize("size", [3.0, 1e6])
def test_a_message_of_the_future_is_left_out(size: float, flags: list[Flag]):
    clock = Clock(flags.append)
    source, host = arrivals(20)
    source[2000] += int(size * SECOND)
    found = taken(clock, source, host)
    assert found == [number for number in range(len(source)) if number != 2000]
    assert [flag.kind for flag in flags] == [Kind.STRAY]


def test_random_times_confirm_nothing(flags: list[Flag]):
    clock = Clock(flags.append)
    source, host = arrivals(10)
    taken(clock, source, host)
    rng = np.random.default_rng(1)
    later = host[-1] + np.arange(5000) * MS
    found = taken(clock, rng.integers(0, 10**15, 5000), later)
    # Some are before what came last, none is after.
    assert not any(isinstance(each, Step) for each in found)
    assert abs(clock.to_source(int(host[-1])) - source[-1]) < JITTER_NS


def test_what_waits_to_be_confirmed_is_doubtful_for_a_while(flags: list[Flag]):
    clock = Clock(flags.append)
    source, host = arrivals(10)
    taken(clock, source, host)
    now = int(host[-1]) + 10 * MS
    assert not clock.doubtful(now)
    assert clock.take(int(source[-1]) + 5 * SECOND, now) == []
    assert clock.doubtful(now)
    assert not clock.doubtful(now + 2 * SECOND)
