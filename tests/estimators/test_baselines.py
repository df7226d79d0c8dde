"""Common features and expected counts: causal, within trials, and as good as others measured."""

import numpy as np
import pytest

from evkf.analysis.decoding import decode_ridge, r2
from evkf.analysis.spike_metrics import bits_per_spike
from evkf.errors import InputError
from evkf.estimators.baselines import PRIOR, causal_smoothing, condition_psth, wiener_features
from evkf.estimators.linear_system import LinearDynamicalSystem
from tests.estimators.ragged import LENGTHS, UNITS, ragged
from tests.quick import quick_compilation  # noqa: F401
from tests.real_recordings import maze_reaches


def test_smoothing_is_causal_and_within_trials():
    counts = ragged()
    found = causal_smoothing(counts, LENGTHS, 1.5)
    kernel = np.exp(-0.5 * (np.arange(8) / 1.5) ** 2)
    ends = np.cumsum(LENGTHS)
    for end, num in zip(ends, LENGTHS, strict=True):
        for t in range(num):
            past = counts[end - num : end - num + t + 1][::-1]
            total = kernel[: t + 1] @ past
            at = end - num + t
            np.testing.assert_allclose(found[at], total / kernel.sum())
            scaled = causal_smoothing(counts, LENGTHS, 1.5, rescaled=True)[at]
            np.testing.assert_allclose(scaled, total / kernel[: t + 1].sum())
    flat = causal_smoothing(np.ones((200, 1)), (100, 100), 4.0)
    np.testing.assert_allclose(flat[[99, 199]], 1)
    assert flat[100] < 0.25


def test_wiener_features_are_the_last_bins():
    counts = ragged()
    found = wiener_features(counts, LENGTHS, 3).reshape(-1, 3, UNITS)
    np.testing.assert_array_equal(found[7], counts[[7, 6, 5]])
    np.testing.assert_array_equal(found[3, 1:], 0)


def test_averages_of_conditions():
    counts = np.arange(12).reshape(6, 2)
    args = counts, (2, 3, 1), ["a", "a", "b"]
    found = condition_psth(*args, (4, 1), ["a", "b"])
    sums = [[4, 6], [8, 10], [8, 9], [8, 9], [10, 11]]
    trials = np.array([[2], [2], [1], [1], [1]])
    np.testing.assert_allclose(found, (sums + PRIOR * counts.mean(axis=0)) / (trials + PRIOR))
    smooth = condition_psth(*args, (3,), ["a"], sd_bins=1.0)
    assert np.ptp(smooth[:, 0]) < np.ptp(found[:3, 0])
    with pytest.raises(InputError, match="c"):
        condition_psth(*args, (1,), ["c"])


def test_averages_of_conditions_are_of_what_was_observed():
    counts, lengths, labels = np.array([[2], [9], [4], [6]]), (2, 2), ["a", "a"]
    masks = np.array([[True], [False], [True], [True]])
    found = condition_psth(counts, lengths, labels, (2,), ["a"], masks=masks)
    np.testing.assert_allclose(
        found[:, 0], [(6 + 4 * PRIOR) / (2 + PRIOR), (6 + 4 * PRIOR) / (1 + PRIOR)]
    )
    still = np.where(masks, 3, 0)
    smooth = condition_psth(still, lengths, labels, (2,), ["a"], sd_bins=1.0, masks=masks)
    np.testing.assert_allclose(smooth, 3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda y: causal_smoothing(y, LENGTHS, 0.0), "sd_bins"),
        (lambda y: condition_psth(y, LENGTHS, [0, 1], (3,), [0]), "conditions"),
    ],
)
def test_what_does_not_fit_is_refused(call, says):
    with pytest.raises(InputError, match=says):
        call(ragged())


@pytest.mark.slow
def test_measured_figures_on_a_real_recording():
    """What others got for these methods on the same halves; see the README beside the data."""
    reaches = maze_reaches()
    trials, bins, units = reaches.counts.shape
    order = np.random.default_rng(0).permutation(trials)
    train, test = order[: trials // 2], order[trials // 2 :]

    def both(part):
        return reaches.counts[part].reshape(-1, units), [bins] * len(part)

    lds = LinearDynamicalSystem(12).fit(list(reaches.counts[train]))
    found = {
        "smoothing": [causal_smoothing(*both(part), sd_bins=4.0) for part in (train, test)],
        "wiener": [wiener_features(*both(part)) for part in (train, test)],
        "lds": [np.vstack(lds.transform(list(reaches.counts[p]))) for p in (train, test)],
    }
    want = {"smoothing": 0.622, "wiener": 0.689, "lds": 0.595}
    velocity = [reaches.velocity[part].reshape(-1, 2) for part in (train, test)]
    groups = np.repeat(np.arange(len(train)), bins)
    for name, (seen, new) in found.items():
        score = r2(velocity[1], decode_ridge(seen, velocity[0], groups, new))
        assert score > want[name] - 0.035, (name, score)
        assert score < want[name] + 0.05, (name, score)
    test_counts, lengths = both(test)
    kinds = reaches.conditions
    psth = condition_psth(*both(train), kinds[train], lengths, kinds[test], sd_bins=3.5)
    assert bits_per_spike(test_counts, psth) > 0.1
    ahead = np.vstack(lds.rates(list(reaches.counts[test]), "past"))
    assert bits_per_spike(test_counts, ahead) > 0.05
