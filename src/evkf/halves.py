"""One half of the trials to learn from, the other to be judged on, and what is judged.

What was not observed counts as no spike for methods that know no gaps, and is left out of bits per
spike.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from evkf.data import Recording
from evkf.decoding import Ridge, decode, r2
from evkf.errors import InputError
from evkf.spike_metrics import bits_per_spike, psth_r2

HIDDEN = 0.25
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
        """Counts of a bin of the training half; above zero."""
        return np.maximum(spikes(self.train).mean(axis=0), 1e-6)

    def both(self, make: Callable[[np.ndarray, Sequence[int]], np.ndarray]) -> Pair:
        """What a function of counts and lengths makes of the halves."""
        train, test = (make(spikes(half), half.lengths) for half in (self.train, self.test))
        return Pair(train, test)

    def decoded(self, features: Pair) -> Float[np.ndarray, "S D"] | None:
        """Behaviour of the test half, by ridge regression that the other half taught."""
        if self.behaviour is None:
            return None
        target = _columns(self.train, self.behaviour)
        return decode(features.train, target, _groups(self.train), features.test)

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
        return psth_r2(spikes(self.test), expected, self.test.lengths, labels, width)

    def mapped(self, features: Pair, units: np.ndarray) -> Float[np.ndarray, "S M"]:
        """Expected counts of units of the test half, by ridge regression on the other.

        Units that never change there keep their mean.
        """
        target, mean = spikes(self.train)[:, units], self.mean[units]
        expected, moving = np.tile(mean, (len(features.test), 1)), np.ptp(target, axis=0) > 0
        if moving.any():
            ridge = Ridge(ALPHAS).fit(features.train, target[:, moving], _groups(self.train))
            expected[:, moving] = ridge.predict(features.test)
        return np.maximum(expected, LEAST * mean)


def halve(
    recording: Recording,
    train: np.ndarray,
    test: np.ndarray,
    condition: str | None = None,
    behaviour: str | None = None,
    seed: int = 0,
    share: float = HIDDEN,
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
    if condition is not None and condition not in recording.trials:
        there = ", ".join(recording.trials) or "none"
        raise InputError(f"no column {condition!r}", f"{source}: trials", f"there are {there}")
    if behaviour is not None:
        behaviour = behaviour.rpartition("/")[2]
        if behaviour not in recording.behaviour:
            there = ", ".join(recording.behaviour) or "none"
            what = f"no behaviour {behaviour!r}"
            raise InputError(what, f"{source}: behaviour", f"there are {there}")
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
    return np.where(recording.masks, recording.counts, 0).astype(float)


def _groups(recording: Recording) -> Int[np.ndarray, " T"]:
    return np.repeat(np.arange(recording.num_trials), recording.lengths)


def _columns(recording: Recording, name: str) -> Float[np.ndarray, "T D"]:
    return np.asarray(recording.behaviour[name], float).reshape(recording.num_bins, -1)
