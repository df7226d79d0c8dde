"""The number of latents that is suggested."""

from typing import NamedTuple

import numpy as np
import pytest

from evkf.data import Recording
from evkf.errors import InputError
from evkf.recordings import dimension
from evkf.recordings.dimension import compare, suggest_latents
from evkf.recordings.halves import held_out, in_blocks


class Found:
    def __init__(self, score: float, bins: int):
        self.elbo = np.full(bins, score)


class Given(NamedTuple):
    elbo: np.ndarray


@pytest.fixture
def pretend(monkeypatch):
    """Fits that score as a table says; which recordings they were given."""
    fitted, scores = [], {2: -5.0, 4: -3.0, 8: -4.0, 12: -3.5, 16: -1.0}

    def fit(recording, latents, likelihood, hidden, passes, seed):
        fitted.append((recording, latents, passes))
        return latents

    monkeypatch.setattr(dimension, "fit_recording", fit)
    monkeypatch.setattr(
        dimension, "infer", lambda latents, test: Found(scores[latents], test.num_bins)
    )
    return fitted


def test_the_best_is_taken_and_two_worse_ones_end_it(pretend):
    told = []
    recording = Recording(np.ones((50, 20), int), 0.02, (5,) * 10)
    found = suggest_latents(recording, progress=lambda *x: told.append(x))
    assert found.latents == 4
    assert told == list(found.scores.items()) == [(2, -5.0), (4, -3.0), (8, -4.0), (12, -3.5)]
    assert all(train.num_trials == 8 and passes == 15 for train, _, passes in pretend)


def test_the_least_within_a_standard_error_of_the_best_is_taken(pretend, monkeypatch):
    rng = np.random.default_rng(0)
    trials = np.repeat(rng.normal(0, 10, 8), 5)  # trials differ much more than models do
    noise = np.repeat(rng.normal(0, 0.3, 8), 5)
    bounds = {2: trials - 1, 4: trials - 0.01 + noise - noise.mean(), 8: trials, 12: trials - 0.5}
    monkeypatch.setattr(dimension, "infer", lambda latents, _: Given(bounds[latents]))
    recording = Recording(np.ones((200, 16), int), 0.02, (5,) * 40)
    found = suggest_latents(recording, candidates=(2, 4, 8, 12))
    assert (found.latents, max(found.scores, key=found.scores.get)) == (4, 8)
    assert found.behind[8] == (0.0, 0.0)
    assert found.behind[2].mean == pytest.approx(1)
    short = 0.01 - noise + noise.mean()
    error = short[::5].std(ddof=1) / np.sqrt(8)
    assert found.behind[4] == pytest.approx((0.01, error))
    for latents, behind in found.behind.items():
        assert behind.mean == pytest.approx(found.scores[8] - found.scores[latents], abs=1e-9)


def test_one_trial_is_cut_and_candidates_are_fewer_than_units(pretend):
    found = suggest_latents(Recording(np.ones((50, 5), int), 0.02), passes=3)
    assert list(found.scores) == [2, 4]
    assert {(train.num_bins, passes) for train, _, passes in pretend} == {(40, 3)}
    with pytest.raises(InputError, match="give the number of latents"):
        suggest_latents(Recording(np.ones((50, 2), int), 0.02))


def test_blocks_and_parts():
    recording = Recording(np.arange(50).reshape(25, 2), 0.02, start_times=np.array([3.0]))
    blocks = in_blocks(recording)
    assert (blocks.num_trials, blocks.num_bins) == (10, 25)
    np.testing.assert_allclose(blocks.times, recording.times)
    assert in_blocks(blocks) is blocks
    with pytest.raises(InputError, match="20 bins or more"):
        in_blocks(Recording(np.ones((19, 1), int), 0.02))
    assert [held_out(num, 2).sum() for num in (2, 3, 8)] == [1, 1, 4]


@pytest.fixture
def table(monkeypatch, pretend):
    """What the bounds of every bin left out are, by the number of latents."""
    bounds = {}
    monkeypatch.setattr(dimension, "infer", lambda latents, _: Given(bounds[latents]))
    return bounds


def test_few_trials_are_compared_in_pieces(table):
    """What sets two candidates apart, beside its error, is found within one or two trials."""
    rng = np.random.default_rng(0)
    noise = np.repeat(rng.normal(0, 1.0, 10), 20)
    for lengths in ((1000,), (200,) * 5):  # two blocks of 100 bins are left out, or one trial
        worse = {short: noise - noise.mean() - short for short in (0.1, 1.0)}
        recording = Recording(np.ones((1000, 16), int), 0.02, lengths)
        for short, latents in ((0.1, 2), (1.0, 4)):
            table.update({2: worse[short], 4: np.zeros(200)})
            assert suggest_latents(recording, candidates=(2, 4)).latents == latents


def test_without_an_error_the_best_is_taken(table):
    """Two blocks of 20 bins make four pieces: too few to tell."""
    table.update({2: np.repeat([-1000.0, 1.0], 20), 4: np.zeros(40)})
    recording = Recording(np.ones((200, 16), int), 0.02)
    assert suggest_latents(recording, candidates=(2, 4)).latents == 4
    short, error = compare(np.array([-1000.0, 1.0]), np.zeros(2))
    assert short > error


def test_a_score_that_is_not_finite_is_worse_than_any_other(table):
    bad, good = np.full(40, np.nan), np.zeros(40)
    recording = Recording(np.ones((200, 20), int), 0.02, (20,) * 10)
    for values, latents in (
        ((good, bad, bad, good), 2),
        ((bad, bad, bad, good - 5, good), 16),
        ((bad, good - 1, bad, good), 12),
        ((bad, good, good + np.inf, good - 1), 4),
        ((good + np.inf, good, bad, good - 1), 4),
    ):
        table.update(zip(dimension.CANDIDATES, values, strict=False))
        found = suggest_latents(recording)
        assert found.latents == latents
        assert max(found.scores, key=lambda number: found.scores[number]) == latents
    table.update(dict.fromkeys(dimension.CANDIDATES, bad))
    with pytest.raises(InputError, match="no finite score of 2, 4, 8, 12, 16 latents"):
        suggest_latents(recording)
