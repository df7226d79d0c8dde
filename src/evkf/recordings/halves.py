"""Trials split into a training half and a held-out half, and the scores of the held-out half.

Unobserved counts are left out of bits per spike, of condition averages and of fits of maps to
counts. Methods without masks see the mean count of the unit in the training half instead.
`evkf.recordings.scoring` uses this file.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from evkf.analysis.decoding import RidgeDecoder, decode_ridge, r2
from evkf.analysis.spike_metrics import bits_per_spike, psth_r2
from evkf.data import Recording
from evkf.errors import InputError
from evkf.numerics.checks import check_known

HIDDEN_SHARE = 0.25
"""Share of held-out units, for co-smoothing."""
LEAST = 0.05
"""Least prediction of a linear map, which may be negative, as a share of the mean count."""
ALPHAS = tuple(np.logspace(0, 5, 6))
"""Penalties of the ridge regression from features to counts."""
BLOCKS = 10
"""Blocks that a single trial is cut into."""


def in_blocks(recording: Recording) -> Recording:
    """Return the recording with a single trial cut into blocks, which count as trials.

    Example:
        >>> in_blocks(Recording(np.ones((25, 2), int), 0.02)).lengths
        (2, 3, 3, 2, 2, 3, 3, 2, 2, 3)
    """
    if recording.num_trials > 1:
        return recording
    if recording.num_bins < 2 * BLOCKS:
        what = f"one trial of {recording.num_bins} bins"
        raise InputError(what, recording.source, f"pass {2 * BLOCKS} bins or more, or trials")
    edges = np.linspace(0, recording.num_bins, BLOCKS + 1).round().astype(int)
    starts = recording.start_times[0] + recording.bin_width * edges[:-1]
    return replace(recording, lengths=tuple(np.diff(edges)), start_times=starts, trials={})


def held_out(num_trials: int, nth: int) -> np.ndarray:
    """Return True for one of `nth` trials, drawn at random with a fixed seed.

    At random, because experiments often go through their conditions in turn.

    Example:
        >>> int(held_out(10, 5).sum()), int(held_out(2, 5).sum())
        (2, 1)
    """
    order = np.random.default_rng(0).permutation(num_trials)
    return order % nth == min(nth, num_trials) - 1


def halved(recording: Recording) -> tuple[Recording, Bool[np.ndarray, " K"]]:
    """Return the recording, in blocks if it is one trial, and True for the held-out trials.

    Example:
        >>> blocks, judged = halved(Recording(np.ones((40, 2), int), 0.02))
        >>> blocks.num_trials, int(judged.sum())
        (10, 5)
    """
    recording = in_blocks(recording)
    if recording.num_trials < 3:
        what = f"{recording.num_trials} trials"
        raise InputError(what, f"{recording.source}: trials", "pass three or more, or one long one")
    return recording, held_out(recording.num_trials, 2)


class Pair(NamedTuple):
    """Features of every bin of the two halves."""

    train: Float[np.ndarray, "T F"]
    test: Float[np.ndarray, "S F"]


class Halves(NamedTuple):
    """A training half and a held-out half, and the columns to score.

    Attributes:
        train: Trials to learn from.
        test: Trials to score.
        hide: True for held-out units, for co-smoothing.
        condition: Column of the trials to average over.
        behaviour: Behavioural series to decode.
    """

    train: Recording
    test: Recording
    hide: Bool[np.ndarray, " N"]
    condition: str | None = None
    behaviour: str | None = None

    @property
    def everyone(self) -> Int[np.ndarray, " N"]:
        """Indices of all units."""
        return np.arange(len(self.hide))

    @property
    def mean(self) -> Float[np.ndarray, " N"]:
        """Mean observed counts of the training half; above zero."""
        return np.maximum(self._mean, 1e-6)

    @property
    def moving(self) -> Bool[np.ndarray, " N"]:
        """True for units whose observed counts change in the training half."""
        return np.ptp(self.filled(self.train), axis=0) > 0

    def filled(self, half: Recording) -> Float[np.ndarray, "T N"]:
        """Return counts, with the mean of the unit where not observed."""
        return np.where(half.masks, half.counts, self._mean)

    @property
    def _mean(self) -> Float[np.ndarray, " N"]:
        # for a unit that never changes exactly its count, as `moving` needs
        return spikes(self.train).sum(axis=0) / np.maximum(self.train.masks.sum(axis=0), 1)

    def both(self, make: Callable[[np.ndarray, Sequence[int]], np.ndarray]) -> Pair:
        """Return the results of a function of counts and lengths for both halves."""
        train, test = (make(self.filled(half), half.lengths) for half in (self.train, self.test))
        return Pair(train, test)

    def decoded(self, features: Pair) -> Float[np.ndarray, "S D"] | None:
        """Return decoded behaviour of the test half, by ridge regression on the other."""
        if self.behaviour is None:
            return None
        target = _columns(self.train, self.behaviour)
        return decode_ridge(features.train, target, self.train.trial_of_bin, features.test)

    def behaviour_r2(self, features: Pair) -> float | None:
        """Return R² of decoded behaviour."""
        found = self.decoded(features)
        if found is None or self.behaviour is None:
            return None
        return r2(_columns(self.test, self.behaviour), found)

    def one_step(self, expected: Float[np.ndarray, "S N"]) -> float:
        """Return bits per spike of all units, for one-step predictions."""
        return bits_per_spike(spikes(self.test), expected, self.test.masks)

    def co_smoothing(self, expected: Float[np.ndarray, "S M"]) -> float:
        """Return bits per spike of the held-out units, for counts predicted from the others."""
        seen = self.test.masks[:, self.hide]
        return bits_per_spike(spikes(self.test)[:, self.hide], expected, seen)

    def psth(self, expected: Float[np.ndarray, "S N"]) -> float | None:
        """Return R² of condition averages of expected counts."""
        if self.condition is None:
            return None
        labels, width = self.test.trials[self.condition], self.test.bin_width
        asked = self.test.lengths, labels, width
        return psth_r2(spikes(self.test), expected, *asked, masks=self.test.masks)

    def mapped(self, features: Pair, units: np.ndarray) -> Float[np.ndarray, "S M"]:
        """Return expected counts of units of the test half, by ridge regression on the other.

        Units observed in the same bins share one regression. Units that never change, or were
        observed in one trial only, keep their mean.
        """
        expected = np.tile(self.mean[units], (len(features.test), 1))
        counts, groups, moving = spikes(self.train), self.train.trial_of_bin, self.moving[units]
        patterns, which = np.unique(self.train.masks[:, units], axis=1, return_inverse=True)
        for k, seen in enumerate(patterns.T):
            own = np.flatnonzero((which == k) & moving)
            if not len(own) or np.ptp(groups[seen]) == 0:
                continue
            target = counts[np.ix_(seen, units[own])]
            ridge = RidgeDecoder(ALPHAS).fit(features.train[seen], target, groups[seen])
            expected[:, own] = ridge.predict(features.test)
        return np.maximum(expected, LEAST * self.mean[units])


def halve(
    recording: Recording,
    train: np.ndarray,
    test: np.ndarray,
    condition: str | None = None,
    behaviour: str | None = None,
    seed: int = 0,
    share: float = HIDDEN_SHARE,
) -> Halves:
    """Split a recording into halves, and check the columns to score.

    Args:
        recording: The recording.
        train: Trials to learn from.
        test: Trials to score.
        condition: Column of the trials to average over.
        behaviour: Name of the behavioural series to decode; of a path, its last part.
        seed: Seed of the held-out units.
        share: Share of held-out units, of which there is one or more.

    Example:
        >>> recording = Recording(np.ones((8, 4), int), 0.02, lengths=(2, 2, 2, 2))
        >>> halves = halve(recording, np.array([0, 3]), np.array([1, 2]))
        >>> halves.train.lengths, int(halves.hide.sum())
        ((2, 2), 1)
    """
    source = recording.source
    if condition is not None:
        check_known("column", condition, recording.trials, f"{source}: trials")
    if behaviour is not None:
        behaviour = behaviour.rpartition("/")[2]
        check_known("behaviour", behaviour, recording.behaviour, f"{source}: behaviour")
        if not np.isfinite(recording.behaviour[behaviour]).all():
            remedy = "align to trials that it covers"
            raise InputError("NaN", f"{source}: behaviour {behaviour!r}", remedy)
    units = recording.num_units
    if units < 2:
        raise InputError("one unit", f"{source}: units", "score two or more")
    hide = np.zeros(units, bool)
    num = min(max(1, round(share * units)), units - 1)
    hide[np.random.default_rng(seed).permutation(units)[:num]] = True
    return Halves(recording.take(train), recording.take(test), hide, condition, behaviour)


def spikes(recording: Recording) -> Float[np.ndarray, "T N"]:
    """Return counts as real numbers, zero where not observed.

    Example:
        >>> masks = np.array([[True, False]])
        >>> spikes(Recording(np.array([[2, 3]]), 0.02, masks=masks)).tolist()
        [[2.0, 0.0]]
    """
    return recording.observed.astype(float)


def _columns(recording: Recording, name: str) -> Float[np.ndarray, "T D"]:
    return np.asarray(recording.behaviour[name], float).reshape(recording.num_bins, -1)
