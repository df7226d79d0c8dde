"""Spikes fall in the bins they belong to, and behaviour is averaged over the same ones."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evkf.errors import InputError
from evkf.numerics.binning import (
    bin_index,
    bin_spikes,
    check_bin_width,
    check_samples,
    check_spike_times,
    resample,
    whole_bins,
)


@pytest.mark.parametrize("width", [0.001, 0.005, 0.02, 0.1, 1 / 30, 1 / 30000])
@pytest.mark.parametrize("start", [0.0, 0.3, -1.7, 5000.1])
def test_a_spike_on_an_edge_is_in_the_bin_that_begins_there(width, start):
    k = np.arange(20_000)
    exact = np.array([float(Fraction(start) + int(i) * Fraction(width)) for i in k])
    for times in (start + k * width, exact):
        counts = bin_spikes([times], start, width, len(k))
        assert counts.dtype.kind == "i"
        np.testing.assert_array_equal(counts, 1)
        np.testing.assert_array_equal(bin_index(times - 0.01 * width, start, width), k - 1)


def test_edges_of_a_clock_that_began_long_ago():
    k = np.arange(20_000)
    times = np.array([float(Fraction(1_700_000_000) + int(i) * Fraction(1, 1000)) for i in k])
    np.testing.assert_array_equal(bin_index(times, 1.7e9, 0.001), k)


def test_times_as_people_write_them():
    assert int(0.15 // 0.05) == 2  # what plain division makes of it
    times = np.array([float(f"{k * 5 / 1000:.3f}") for k in range(4000)])
    np.testing.assert_array_equal(bin_spikes([times], 0.0, 0.005, 4000), 1)


@given(
    st.lists(st.integers(-50, 300), max_size=60),
    st.integers(-20, 100),
    st.integers(1, 40),
    st.integers(1, 12),
)
def test_counts_are_those_of_whole_numbers(samples, start, num, wide):
    """At 1 kHz everything is a whole number of milliseconds, which Python counts exactly."""
    samples = sorted(samples)
    expected = [
        sum(start + k * wide <= s < start + (k + 1) * wide for s in samples) for k in range(num)
    ]
    times = [np.array(samples, float) / 1000, np.zeros(0)]
    counts = bin_spikes(times, start / 1000, wide / 1000, num)
    assert counts[:, 0].tolist() == expected
    assert not counts[:, 1].any()


def test_whole_bins_between_two_times():
    for k in range(1, 200):
        assert whole_bins(0.1, 0.1 + 0.005 * k, 0.005) == k
        assert whole_bins(0.1, 0.1 + 0.005 * k - 1e-6, 0.005) == k - 1


@pytest.mark.parametrize("width", [0.0, np.nan, -0.1])
def test_bins_that_are_none(width):
    with pytest.raises(InputError, match="bin_width"):
        check_bin_width(width)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([0.1, np.nan, 0.3], "index 1"),
        ([0.1, 0.2, np.inf], "index 2"),
        ([0.1, 0.3, 0.2, 0.4], "0.2 s after one at 0.3 s.*index 2"),
        ([-0.1, 0.2], "1 spikes outside the session of 0 to 1 s.*index 0"),
        ([0.5, 1.5, 2.5], "2 spikes outside.*1.5 s.*index 1.*clock"),
        ([[0.1]], "one a spike"),
        (["0.1"], "pass seconds"),
    ],
)
def test_wrong_spike_times_are_named(times, says):
    with pytest.raises(InputError, match=says) as caught:
        check_spike_times(np.array(times), "file.nwb: unit u7", (0.0, 1.0))
    assert "file.nwb: unit u7" in str(caught.value)


def test_right_spike_times_pass():
    check_spike_times(np.array([0.0, 0.5, 0.5, 1.0]), "f", (0.0, 1.0))
    check_spike_times(np.array([-3.0, 9.0]), "f")
    check_spike_times(np.zeros(0), "f", (0.0, 1.0), after=5.0)


def test_parts_of_spike_times_are_checked_against_what_came_before():
    with pytest.raises(InputError, match=r"0.1 s after one at 0.2 s \(in f, index 40\)"):
        check_spike_times(np.array([0.1, 0.3]), "f", first=40, after=0.2)


def test_behaviour_is_the_mean_of_the_samples_in_a_bin():
    rng = np.random.default_rng(0)
    times, values = np.arange(1000) / 1000, rng.normal(size=(1000, 2, 2))
    starts = np.array([0.1, 0.12, 0.5])
    binned = resample(times, values, starts, 0.02)
    assert binned.shape == (3, 2, 2)
    for row, first in zip(binned, (100, 120, 500), strict=True):
        np.testing.assert_allclose(row, values[first : first + 20].mean(axis=0))
    every = resample(times, values, np.arange(200) * 0.005, 0.005)
    np.testing.assert_allclose(every, values.reshape(200, 5, 2, 2).mean(axis=1))


def test_bins_without_samples_are_interpolated():
    times = np.arange(10) / 10
    binned = resample(times, 2 * times + 1, np.arange(0, 90) / 100, 0.01)
    held = np.arange(0, 90, 10)
    np.testing.assert_allclose(binned[held], 2 * times[:9] + 1)
    between = np.setdiff1d(np.arange(90), held)
    np.testing.assert_allclose(binned[between], 2 * (between / 100 + 0.005) + 1)


def test_a_bin_at_the_ends_of_the_samples():
    times, values = np.array([1.0, 2.0]), np.array([5.0, 7.0])
    binned = resample(times, values, np.array([0.75, 0.86, 2.04, 2.15]), 0.1)
    np.testing.assert_allclose(binned, [np.nan, 5, 7, np.nan])


@pytest.mark.parametrize(
    ("times", "values", "says"),
    [
        ([0, 1, 2], [0, np.nan, np.nan], "2 of 3 samples.*index 1.*leave out the column"),
        ([0, 1, 2], [[0, 1], [1, 2], [2, np.inf]], "1 of 3 samples.*index 2"),
        ([0, 2, 1], [0, 1, 2], "not in order"),
        ([0, np.nan, 1], [0, 1, 2], "not finite"),
        ([0, 1], [0, 1, 2], "one time for every row"),
        ([], [], "one row or more"),
        ([0, 1], ["a", "b"], "pass numbers"),
    ],
)
def test_wrong_behaviour_is_named(times, values, says):
    with pytest.raises(InputError, match=says) as caught:
        check_samples(np.array(times, float), np.array(values), "f.nwb: hand")
    assert "f.nwb: hand" in str(caught.value)
