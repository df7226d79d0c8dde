"""`Recording`: what it accepts, and what it makes of trials, units and bins."""

import numpy as np
import pytest

from evkf.data import Recording
from evkf.errors import InputError


def recording(**changes) -> Recording:
    rng = np.random.default_rng(0)
    given = {
        "counts": rng.poisson(1.0, (10, 3)),
        "bin_width": 0.01,
        "lengths": (4, 6),
        "start_times": np.array([1.0, 5.0]),
        "behaviour": {"position": rng.normal(size=(10, 2))},
        "trials": {"target": np.array([3, 1])},
        "units": {"id": np.array(["a", "b", "c"])},
        "source": "file.nwb",
    }
    return Recording(**(given | changes))


def test_trials_units_and_bins_are_taken_with_all_that_belongs_to_them():
    whole = recording()
    second = whole.take([1])
    np.testing.assert_array_equal(second.counts, whole.counts[4:])
    np.testing.assert_array_equal(second.behaviour["position"], whole.behaviour["position"][4:])
    assert (second.trials["target"], second.start_times) == ([1], [5.0])
    back = whole.take([1, 0]).take([1, 0])
    np.testing.assert_array_equal(back.counts, whole.counts)
    few = whole.pick([2, 0])
    assert few.units["id"].tolist() == ["c", "a"]
    np.testing.assert_array_equal(few.counts, whole.counts[:, [2, 0]])
    np.testing.assert_array_equal(
        whole.pick(np.array([True, False, True])).counts[:, 0], whole.counts[:, 0]
    )


def test_wider_bins():
    wide = recording().rebinned(2)
    assert (wide.lengths, wide.bin_width) == ((2, 3), 0.02)
    assert wide.counts.sum() == recording().counts.sum()
    np.testing.assert_allclose(
        wide.behaviour["position"][0], recording().behaviour["position"][:2].mean(axis=0)
    )
    assert recording().rebinned(4).lengths == (1, 1)
    signals = recording().rebinned(2, signals=True).counts
    np.testing.assert_allclose(signals, wide.counts / 2)
    words = recording(behaviour={"state": np.full(10, "go")})
    with pytest.raises(InputError, match="state of <U2, which has no mean"):
        words.rebinned(2)


def test_times_and_gaps():
    whole = recording()
    np.testing.assert_allclose(whole.times[3:5], [1.03, 5.0])
    assert not whole.gap_free
    assert recording(start_times=np.array([1.0, 1.04])).gap_free
    assert np.flatnonzero(whole.fresh).tolist() == [0, 4]


def test_blanking_hides_the_bins_a_window_touches():
    masks = recording().blanked(np.array([[1.005, 1.02], [5.05, 5.051]])).masks
    assert np.flatnonzero(~masks.any(axis=1)).tolist() == [0, 1, 9]


def test_rates_are_of_what_was_observed():
    masks = np.ones((10, 3), bool)
    masks[:5, 0] = masks[:, 1] = False
    rates = recording(masks=masks, counts=np.ones((10, 3), int)).rates()
    np.testing.assert_allclose(rates, [100, np.nan, 100])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"counts": np.zeros(3)}, "counts"),
        ({"counts": np.array([["1"] * 3] * 10)}, "pass numbers"),
        ({"counts": np.full((10, 3), np.nan)}, "mask what was not observed"),
        ({"bin_width": 0.0}, "seconds above zero"),
        ({"lengths": (4, 5)}, "lengths"),
        ({"lengths": (0, 10)}, "lengths"),
        ({"start_times": np.zeros(3)}, "start_times"),
        ({"start_times": np.array([0.0, np.nan])}, "start_times"),
        ({"masks": np.ones((10, 2), bool)}, "masks"),
        ({"masks": np.ones((10, 3))}, "True where observed"),
        ({"behaviour": {"x": np.zeros(9)}}, "10 rows"),
        ({"trials": {"x": np.zeros(3)}}, "2 rows"),
        ({"units": {"id": ["a", "a", "b"]}}, "every unit once"),
    ],
)
def test_what_does_not_fit_is_refused(changes, says):
    with pytest.raises(InputError, match=says) as caught:
        recording(**changes)
    assert "file.nwb" in str(caught.value)


@pytest.mark.parametrize("bad", [[], [2], [-1]])
def test_trials_that_are_not_there(bad):
    with pytest.raises(InputError, match="trials"):
        recording().take(bad)
