"""Split trials into a training half and a test half, and score predictions of the test half.

`evkf score` uses this module. `Halves.one_step` and `Halves.co_smoothing` compute bits per spike by
`evkf.analysis.spike_metrics.bits_per_spike` for `evkf score`.

Some units, chosen at random, are held out: co-smoothing predicts their counts from the remaining
units. Counts that were not observed are left out of bits per spike, of averages over trials of a
condition, and of regressions from features to counts. Methods that cannot leave out counts get
the mean count of the unit in the training half instead.
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
"""Share of units that are held out, for co-smoothing."""
LEAST = 0.05
"""Smallest expected count, as a share of the unit's mean count in the training half: linear maps
may predict negative counts, which are raised to this floor."""
ALPHAS = tuple(np.logspace(0, 5, 6))
"""Penalties that ridge regression from features to counts chooses from."""
BLOCKS = 10
"""Number of blocks that a recording of one trial is cut into."""


def in_blocks(recording: Recording) -> Recording:
    """Return a recording of one trial cut into ten blocks, which count as trials.

    A recording of two trials or more is returned unchanged. Raise InputError if one trial has fewer
    than 20 bins.

    Args:
        recording: The recording to cut.

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
    """Return True for each held-out trial, (trials,): about one in `nth` trials, at random.

    The seed is fixed, so the same trials are held out each time. Trials are chosen at random
    because experiments often go through conditions in turn. At least one trial is held out.

    Args:
        num_trials: Number of trials.
        nth: 2 to hold out half of the trials, 5 for a fifth.

    Example:
        >>> int(held_out(10, 5).sum()), int(held_out(2, 5).sum())
        (2, 1)
    """
    order = np.random.default_rng(0).permutation(num_trials)
    return order % nth == min(nth, num_trials) - 1


def halved(recording: Recording) -> tuple[Recording, Bool[np.ndarray, " K"]]:
    """Return the recording, and True for each trial of the test half.

    A recording of one trial is cut into blocks, which count as trials. Raise InputError if there
    are two trials.

    Args:
        recording: The recording, of one trial or of three or more.

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
    """Features, such as rates or latents, of the training half and of the test half.

    Attributes:
        train: Features of the training half, (training bins, features).
        test: Features of the test half, (test bins, features).
    """

    train: Float[np.ndarray, "T F"]
    test: Float[np.ndarray, "S F"]


class Halves(NamedTuple):
    """A recording split into a training half and a test half, and what to score.

    Attributes:
        train: Recording of the trials to learn from.
        test: Recording of the trials to score.
        hide: True for each held-out unit, for co-smoothing, (units,).
        condition: Name of the trial column that holds the condition of each trial; None to compute
            no averages over trials of a condition.
        behaviour: Name of the behaviour to decode, such as "hand_vel"; None to decode nothing.
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
        """Mean observed count per bin in the training half, 1e-6 or more, (units,)."""
        return np.maximum(self._mean, 1e-6)

    @property
    def moving(self) -> Bool[np.ndarray, " N"]:
        """True for each unit whose observed counts change in the training half, (units,)."""
        return np.ptp(self.filled(self.train), axis=0) > 0

    def filled(self, half: Recording) -> Float[np.ndarray, "T N"]:
        """Return counts of a half; counts that were not observed are replaced by the unit's mean.

        The mean is that of the observed counts in the training half.

        Args:
            half: `train` or `test`.
        """
        return np.where(half.masks, half.counts, self._mean)

    @property
    def _mean(self) -> Float[np.ndarray, " N"]:
        # If the counts of a unit never change, the mean is exactly this count, as `moving` needs.
        return spikes(self.train).sum(axis=0) / np.maximum(self.train.masks.sum(axis=0), 1)

    def both(self, make: Callable[[np.ndarray, Sequence[int]], np.ndarray]) -> Pair:
        """Return features of the training half and of the test half, made by a function.

        Args:
            make: Function that gets the counts (see `filled`) and the number of bins of each trial,
                and returns features, (bins, features).
        """
        train, test = (make(self.filled(half), half.lengths) for half in (self.train, self.test))
        return Pair(train, test)

    def decoded(self, features: Pair) -> Float[np.ndarray, "S D"] | None:
        """Return decoded behaviour of the test half; None if there is no behaviour to decode.

        The ridge regression from features to behaviour is fitted to the training half.

        Args:
            features: Features of the training half and of the test half.
        """
        if self.behaviour is None:
            return None
        target = _columns(self.train, self.behaviour)
        return decode_ridge(features.train, target, self.train.trial_of_bin, features.test)

    def behaviour_r2(self, features: Pair) -> float | None:
        """Return R² of decoded behaviour in the test half; None if there is no behaviour to decode.

        Args:
            features: Features of the training half and of the test half.
        """
        found = self.decoded(features)
        if found is None or self.behaviour is None:
            return None
        return r2(_columns(self.test, self.behaviour), found)

    def one_step(self, expected: Float[np.ndarray, "S N"]) -> float:
        """Return bits per spike of one-step predictions, for all units in the test half.

        Args:
            expected: Expected counts in each bin, predicted from the bins before,
                (test bins, units).
        """
        return bits_per_spike(spikes(self.test), expected, self.test.masks)

    def co_smoothing(self, expected: Float[np.ndarray, "S M"]) -> float:
        """Return bits per spike of the held-out units in the test half.

        Args:
            expected: Expected counts of the held-out units, predicted from the remaining units,
                (test bins, held-out units).
        """
        seen = self.test.masks[:, self.hide]
        return bits_per_spike(spikes(self.test)[:, self.hide], expected, seen)

    def psth(self, expected: Float[np.ndarray, "S N"]) -> float | None:
        """Return R² of expected counts, averaged over trials of a condition, in the test half.

        See `evkf.analysis.spike_metrics.psth_r2`. Return None if there are no conditions.

        Args:
            expected: Expected counts in each bin of the test half, (test bins, units).
        """
        if self.condition is None:
            return None
        labels, width = self.test.trials[self.condition], self.test.bin_width
        asked = self.test.lengths, labels, width
        return psth_r2(spikes(self.test), expected, *asked, masks=self.test.masks)

    def mapped(self, features: Pair, units: np.ndarray) -> Float[np.ndarray, "S M"]:
        """Return expected counts in the test half, by ridge regression from features to counts.

        The regression is fitted to the training half. Units that were observed in the same bins are
        fitted together and share one penalty. The prediction for a unit is the mean count of the
        unit in the training half if the observed counts of the unit never change there, or were
        observed in one trial only. Expected counts have a floor: values below 0.05 times the unit's
        mean count (`LEAST`) are raised to this floor.

        Args:
            features: Features of the training half and of the test half.
            units: Indices of the units to predict.

        Returns:
            Expected counts per bin, (test bins, number of `units`).
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
    """Check what to score, and return the recording split into a training half and a test half.

    Raise InputError if the condition or behaviour is missing, if the behaviour contains values that
    are not finite, or if there is only one unit.

    Args:
        recording: The recording, already cut into trials or blocks.
        train: Indices of the trials to learn from.
        test: Indices of the trials to score.
        condition: Name of the trial column that holds the condition of each trial.
        behaviour: Name of the behaviour to decode. Of a path such as "processing/behavior/hand_vel"
            only the last part is used.
        seed: Seed of the random choice of held-out units.
        share: Share of held-out units; at least one unit is held out, and at least one is not.

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
    """Return counts as floating-point numbers, zero where not observed, (bins, units).

    Example:
        >>> masks = np.array([[True, False]])
        >>> spikes(Recording(np.array([[2, 3]]), 0.02, masks=masks)).tolist()
        [[2.0, 0.0]]
    """
    return recording.observed.astype(float)


def _columns(recording: Recording, name: str) -> Float[np.ndarray, "T D"]:
    return np.asarray(recording.behaviour[name], float).reshape(recording.num_bins, -1)
