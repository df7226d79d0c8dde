"""Spikes in bins: exact counts, exact ends, and nothing left out without being counted."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evkf.errors import InputError
from evkf.live.frames import Frame
from evkf.rigs.binning import Binner, exact

UNITS = 3


def fed(binner: Binner, units: list[int], samples: list[int], end: int) -> list[Frame]:
    frames = binner.seen(0)
    for unit, sample in zip(units, samples, strict=True):
        binner.spike(unit, sample)
        frames += binner.seen(sample)
    return frames + binner.seen(end)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.sampled_from([0.01, 0.001, 0.02, 0.0125, 0.0033]),
    rate=st.sampled_from([30_000.0, 24_414.0625, 1000.0, 12_207.03]),
    disorder=st.integers(0, 50),
)
def test_counts_are_those_of_a_histogram(seed: int, width: float, rate: float, disorder: int):
    rng = np.random.default_rng(seed)
    samples = np.sort(rng.integers(0, 3000, 200))
    order = np.argsort(samples + rng.integers(0, disorder + 1, 200), kind="stable")
    samples, units = samples[order], rng.integers(0, UNITS, 200)
    lateness = (disorder + 1) / rate
    binner = Binner(UNITS, width, rate, lateness)
    frames = fed(binner, units.tolist(), samples.tolist(), 4000)
    w = Fraction(repr(width)) * Fraction(repr(rate))
    # A sample is in bin k if it is not before k w: the first whole sample of the bin is its edge.
    edges = [-((-k * w.numerator) // w.denominator) for k in range(len(frames) + 1)]
    assert edges[-1] >= 3000
    for unit in range(UNITS):
        due, _ = np.histogram(samples[units == unit], np.array(edges) - 0.5)
        np.testing.assert_array_equal([frame.y[unit] for frame in frames], due)
    assert [frame.seq for frame in frames] == list(range(len(frames)))
    ends = [round(Fraction(repr(width)) * (k + 1) * 10**9) for k in range(len(frames))]
    assert [frame.sent_ns for frame in frames] == ends
    assert (binner.late, binner.early, binner.lost) == (0, 0, 0)


def test_ends_of_bins_do_not_drift():
    binner = Binner(1, 0.0033, 24_414.0625)
    frames = binner.seen(0)
    for second in range(1, 601):
        frames += binner.seen(second * 24_414)
    assert frames[-1].sent_ns == round(3_300_000 * len(frames))
    assert len(frames) == int(600 * 24_414 / 24_414.0625 / 0.0033)


def test_a_source_found_on_its_way_begins_with_a_whole_bin():
    binner = Binner(UNITS, 0.01, 1000)
    binner.spike(0, 123)
    assert binner.early == 1
    binner.spike(1, 131)
    frames = binner.seen(140)
    assert [(frame.seq, frame.sent_ns, frame.y.tolist()) for frame in frames] == [
        (0, 140_000_000, [0, 1, 0])
    ]


def test_late_spikes_are_counted_not_put_elsewhere():
    binner = Binner(UNITS, 0.01, 1000, lateness=0.005)
    frames = fed(binner, [0, 0, 1], [3, 16, 9], 30)
    assert binner.late == 1
    assert [frame.y.tolist() for frame in frames] == [[1, 0, 0], [1, 0, 0]]


def test_a_session_taken_up_again_counts_what_it_missed():
    binner = Binner(UNITS, 0.01, 1000, first=50, since_ns=500_000_000)
    frames = [*binner.seen(731), *binner.seen(760)]
    assert [(frame.seq, frame.sent_ns) for frame in frames] == [
        (74, 750_000_000),
        (75, 760_000_000),
    ]
    assert binner.lost == 24
    assert not binner.anew


def test_a_session_taken_up_again_in_time_misses_nothing():
    binner = Binner(UNITS, 0.0033, 24_414.0625, first=1, since_ns=3_300_000)
    frames = [*binner.seen(81), *binner.seen(200)]
    assert [(frame.seq, frame.sent_ns) for frame in frames] == [(1, 6_600_000)]
    assert binner.lost == 0


def test_a_source_that_began_anew_is_numbered_on():
    binner = Binner(UNITS, 0.01, 1000, first=50, since_ns=500_000_000)
    frames = [*binner.seen(10), *binner.seen(20)]
    assert [(frame.seq, frame.sent_ns) for frame in frames] == [(50, 20_000_000)]
    assert binner.anew
    assert binner.lost == 0


@pytest.mark.parametrize("jump", [1000, -1000, 1003])
def test_bins_go_on_over_a_step(jump: int):
    rng = np.random.default_rng(0)
    samples = np.sort(rng.integers(0, 4000, 300)) + 5000
    binner, calm = Binner(1, 0.01, 1000, 0.02), Binner(1, 0.01, 1000, 0.02)
    due = [frame for s in samples.tolist() for frame in (calm.spike(0, s), calm.seen(s))[1]]
    frames, stepped = [], False
    for sample in samples.tolist():
        if sample >= 7000 and not stepped:
            stepped = True
            binner.step(jump)
        told = sample + jump * stepped
        binner.spike(0, told)
        frames += binner.seen(told)
    assert [frame.y[0] for frame in frames] == [frame.y[0] for frame in due]
    assert [frame.seq for frame in frames] == [frame.seq for frame in due]
    moved = [frame.sent_ns - other.sent_ns for frame, other in zip(frames, due, strict=True)]
    assert set(moved) == {0, jump * 10**6}
    assert moved == sorted(moved, reverse=jump < 0)
    assert binner.late == 0


def test_a_source_that_was_away_loses_bins():
    binner = Binner(1, 0.01, 1000)
    binner.seen(0)
    binner.spike(0, 14)
    frames = binner.seen(15)
    binner.spike(0, 5003)
    frames += binner.seen(5003)
    frames += binner.seen(5020)
    assert [frame.seq for frame in frames] == [0, 1, 500, 501]
    assert [frame.mask is None for frame in frames] == [True, False, False, True]
    assert binner.lost == 498
    assert [frame.y[0] for frame in frames] == [0, 1, 1, 0]


def test_windows_mask_every_bin_they_touch():
    binner = Binner(UNITS, 0.01, 1000, lateness=0.01)
    binner.seen(0)
    binner.blank(15, 30)
    binner.blank(55, 55)
    frames = binner.seen(100)
    assert [f.seq for f in frames if f.mask is not None] == [1, 2, 3, 5]
    assert not any(f.mask.any() for f in frames if f.mask is not None)
    assert binner.late_blanks == 0
    binner.blank(80, 95)
    assert binner.late_blanks == 1
    assert [frame.mask is None for frame in binner.seen(130)] == [False, True, True]


@pytest.mark.parametrize("seed", range(3))
def test_windows_do_not_pile_up_and_mask_the_same(seed: int):
    rng = np.random.default_rng(seed)
    begins = rng.integers(0, 1000, 300)
    ends = begins + rng.integers(0, 30, 300)
    binner = Binner(UNITS, 0.01, 1000, lateness=2.0)
    binner.seen(0)
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        binner.blank(begin, end)
    touched = {
        seq for b, e in zip(begins, ends, strict=True) for seq in range(b // 10, e // 10 + 1)
    }
    assert len(binner._windows) <= len(touched)
    # As a line that flickers while the clock stands still.
    for _ in range(1000):
        binner.blank(5000, 5003)
    assert len(binner._windows) <= len(touched) + 1
    frames = [frame for now in (1500, 3000, 3500) for frame in binner.seen(now)]
    assert len(frames) == 150
    assert {frame.seq for frame in frames if frame.mask is not None} == touched


def test_numbers_that_make_no_bins_are_refused():
    for number in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError):
            exact(number, "rate")
