"""Spikes with times on a source's clock in, bins out: clock and binning together."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from evkf.live.frames import Frame
from evkf.rigs.binning import QUIET_S, Binner, exact
from evkf.rigs.clock import SECOND, Clock, Step
from evkf.rigs.gateway import Notes, Setup

NEVER = 2**62
"""Longer than any session."""

LARGEST_SAMPLE = 2**53
"""No clock has come so far."""


class Moment(NamedTuple):
    """What a source tells of a time.

    Attributes:
        sample: When, on its clock.
        unit: That spiked, if one did.
        blank: Samples before and after that are to be masked; 0 if none are.
        lost: Messages that are missing before this one.
    """

    sample: int
    unit: int | None = None
    blank: int = 0
    lost: int = 0


class Intake:
    """Takes what a source tells, and gives bins.

    Args:
        setup: What the gateway was told.
        rate: Samples a second.
        notes: Told of what is odd.
        lasting: Whether silence, however long, is silence: the source is known to be there.

    Attributes:
        clock: Of the source.
        binner: What makes the bins.
        paced: Whether the source tells of time that passes without spikes: bins wait for it then.
    """

    def __init__(self, setup: Setup, rate: float | Fraction, notes: Notes, lasting: bool = False):
        self._notes, self._rate = notes, exact(rate, "sample rate")
        self._silence = round(setup.silence * SECOND)
        self._quiet = NEVER if lasting else round(QUIET_S * SECOND)
        self.clock = Clock(notes.flag, self._quiet)
        given = setup.lateness, setup.first, setup.since_ns
        self.binner = Binner(len(setup.units), setup.bin_width, self._rate, *given)
        # Messages are so many samples out of order at most; later ones are late.
        self._disorder = int(setup.lateness * self._rate)
        self._last: int | None = None
        """The latest sample that was told of, on the clock as it is now."""
        self._loss = False
        self._heard = 0
        self._counted = (0, 0, 0, 0)
        self._away = self.paced = False
        self._told_begin = False

    def take(self, moment: Moment, host_ns: int) -> list[Frame]:
        """What is told at a time of this machine's clock; bins that are over then."""
        silent = self._heard > 0 and host_ns - self._heard > self._quiet
        self._away |= silent and not self.paced
        self._heard = host_ns
        self._loss |= moment.lost > 0
        found, items = [], self.clock.take(self._ns(moment.sample), host_ns, moment)
        for each in items:
            if isinstance(each, Step):
                step = round(each.size_ns * self._rate / SECOND)
                self.binner.step(step)
                self._last = None if self._last is None else self._last + step
            else:
                found += self._put(each)
        # One that waits, or is left out as a stray, leaves the loss to the next.
        self._loss &= not items
        self._tell()
        return found

    def _put(self, moment: Moment) -> list[Frame]:
        last = max(moment.sample, self._last or 0)
        if self._loss:
            # What was lost came after one message and before the other, give or take the disorder.
            begin = moment.sample if self._last is None else self._last - self._disorder
            self.binner.blank(begin, last + self._disorder)
        if moment.blank:
            self.binner.blank(moment.sample - moment.blank, moment.sample + moment.blank)
        if moment.unit is not None:
            self.binner.spike(moment.unit, moment.sample)
        self._last, away, self._away = last, self._away, False
        return self.binner.seen(moment.sample, away)

    def idle(self, host_ns: int) -> list[Frame]:
        """Bins that are over by this machine's clock, of a source that is silent."""
        silent = host_ns - self._heard
        if self._last is None or self.paced or self._away or self.clock.doubtful(host_ns):
            return []
        if not self._silence < silent < self._quiet:
            return []
        source_ns = self.clock.to_source(host_ns - self._silence)
        return self.binner.seen(max(int(source_ns * self._rate / SECOND), 0))

    def leave(self) -> None:
        """Be told that the source is away: until it is heard again, it is not silent."""
        self._away = True

    def _ns(self, sample: int) -> int:
        return sample * SECOND * self._rate.denominator // self._rate.numerator

    def _tell(self) -> None:
        """Note what the binner has counted since the last call."""
        binner = self.binner
        counts = (binner.late, binner.early, binner.late_blanks, binner.lost)
        if counts == self._counted:
            return
        words = (
            ("late_spike", "came after its bin had come out, and is not counted"),
            ("early_spike", "before the first whole bin"),
            ("late_blank", "came after a bin of it had come out, which is not masked"),
            ("lost_bin", "the source was away, or the session was"),
        )
        for (code, text), now, before in zip(words, counts, self._counted, strict=True):
            if now > before:
                self._notes.count(code, text, now - before)
        self._counted = counts
        if binner.anew and not self._told_begin:
            self._told_begin = True
            self._notes.tell("the source's clock began anew: bins are numbered on without a gap")


def whole(value: object, most: int = LARGEST_SAMPLE) -> int | None:
    """A whole number from 0 to before `most`; None if it is none.

    Example:
        >>> whole(7.0), whole(np.float32(3)), whole(-1), whole(0.5), whole(True), whole("7")
        (7, 3, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    if not 0 <= value < most or value != int(value):
        return None
    return int(value)
