"""One half of the trials to learn from, the other to be judged on, and what is judged.

What was not observed is left out of bits per spike, of condition averages and of what maps to
counts are fitted to. Methods that know no gaps see there the mean count of the unit in the training
half.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from evkf.analysis.decoding import RidgeDecoder, decode_ridge, r2
from evkf.analysis.spike_metrics import bits_per_spike, psth_r2
from evkf.data import Recording
from evkf.errors import InputError
from evkf.numerics.checks import check_known

HIDDEN_SHARE = 0.25
"""Share of the units left out for co-smoothing."""
LEAST = 0.05
"""Of a unit's mean count: what linear maps predict may not be less, for it may be negative."""
ALPHAS = tuple(np.logspace(0, 5, 6))
"""Penalties of maps from features to counts."""


class Pair(NamedTuple):
    """Features of every bin of the two halves."""

    train: Float[np.ndarray, "T F"]
    test: Float[np.ndarray, "S F"]


class Halves(NamedTuple):
    """Trials to learn from and trials to judge, and what is asked of them."""

    train: Recording
    test: Recording
    hide: Bool[np.ndarray, " N"]
    """Units left out for co-smoothing."""
    condition: str | None = None
    """Column of the trials to average over."""
    behaviour: str | None = None
    """What to decode."""

    @property
    def everyone(self) -> Int[np.ndarray, " N"]:
        """All units."""
        return np.arange(len(self.hide))

    @property
    def mean(self) -> Float[np.ndarray, " N"]:
        """Counts of an observed bin of the training half; above zero."""
        return np.maximum(self._mean, 1e-6)

    @property
    def moving(self) -> Bool[np.ndarray, " N"]:
        """Units whose observed counts change in the training half."""
        return np.ptp(self.filled(self.train), axis=0) > 0

    def filled(self, half: Recording) -> Float[np.ndarray, "T N"]:
        """Counts; where nothing was observed, the unit's mean."""
        return np.where(half.masks, half.counts, self._mean)

    @property
    def _mean(self) -> Float[np.ndarray, " N"]:
        # that of a unit that never changes is its very count, which tells it from others
        return spikes(self.train).sum(axis=0) / np.maximum(self.train.masks.sum(axis=0), 1)

    def both(self, make: Callable[[np.ndarray, Sequence[int]], np.ndarray]) -> Pair:
        """What a function of counts and lengths makes of the halves."""
        train, test = (make(self.filled(half), half.lengths) for half in (self.train, self.test))
        return Pair(train, test)

    def decoded(self, features: Pair) -> Float[np.ndarray, "S D"] | None:
        """Behaviour of the test half, by ridge regression that the other half taught."""
        if self.behaviour is None:
            return None
        target = _columns(self.train, self.behaviour)
        return decode_ridge(features.train, target, self.train.trial_of_bin, features.test)

    def behaviour_r2(self, features: Pair) -> float | None:
        """R² of decoded behaviour."""
        found = self.decoded(features)
        if found is None or self.behaviour is None:
            return None
        return r2(_columns(self.test, self.behaviour), found)

    def one_step(self, expected: Float[np.ndarray, "S N"]) -> float:
        """Bits per spike of all units, from counts expected of a bin before it was seen."""
        return bits_per_spike(spikes(self.test), expected, self.test.masks)

    def co_smoothing(self, expected: Float[np.ndarray, "S M"]) -> float:
        """Bits per spike of the hidden units, from counts that the others let expect."""
        seen = self.test.masks[:, self.hide]
        return bits_per_spike(spikes(self.test)[:, self.hide], expected, seen)

    def psth(self, expected: Float[np.ndarray, "S N"]) -> float | None:
        """R² of condition averages of expected counts."""
        if self.condition is None:
            return None
        labels, width = self.test.trials[self.condition], self.test.bin_width
        asked = self.test.lengths, labels, width
        return psth_r2(spikes(self.test), expected, *asked, masks=self.test.masks)

    def mapped(self, features: Pair, units: np.ndarray) -> Float[np.ndarray, "S M"]:
        """Expected counts of units of the test half, by ridge regression on the other.

        Units observed in the same bins share one. Those that never change, or were observed in one
        trial only, keep their mean.
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
    """Check what is asked, and take the halves apart.

    Args:
        recording: The recording.
        train: Trials to learn from.
        test: Trials to judge.
        condition: Column of the trials.
        behaviour: Name of what to decode; of a path, its last part.
        seed: Of the units left out.
        share: How many of the units are left out, one or more.

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
    """Counts, zero where nothing was observed.

    Example:
        >>> masks = np.array([[True, False]])
        >>> spikes(Recording(np.array([[2, 3]]), 0.02, masks=masks)).tolist()
        [[2.0, 0.0]]
    """
    return recording.observed.astype(float)


def _columns(recording: Recording, name: str) -> Float[np.ndarray, "T D"]:
    return np.asarray(recording.behaviour[name], float).reshape(recording.num_bins, -1)
