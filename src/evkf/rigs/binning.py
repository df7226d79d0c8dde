"""Spikes to bins by the sample clock of their source, in whole numbers: nothing drifts."""

import math
from fractions import Fraction

import numpy as np

from evkf.errors import InputError
from evkf.live.frames import Frame
from evkf.numerics.checks import check_whole

QUIET_S = 2.0
"""A source of which nothing was seen for longer has not been silent, it was away."""


def exact(number: float | Fraction, where: str) -> Fraction:
    """A number above zero as it is written in decimals.

    Example:
        >>> exact(0.01, "width"), exact(24414.0625, "rate")
        (Fraction(1, 100), Fraction(390625, 16))
    """
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{number}", where, "pass a number above zero")
    return number if isinstance(number, Fraction) else Fraction(repr(float(number)))


class Binner:
    """Counts spikes in bins; a bin comes out when its time has passed.

    Bin k of a source covers the samples from k w up to, not including, (k + 1) w, where w is the
    width in samples, whole or not. The first that comes out is the first whole one. Times only say
    which sample; when a bin comes out is up to what is `seen`.

    Args:
        num_units: Channels of a bin.
        width: Of a bin, seconds.
        rate: Samples a second.
        lateness: Seconds after its end that a bin waits for spikes that come out of order.
        first: Number of the first bin.
        since_ns: End of the bin before it on the source's clock, if that is known: bins between
            are left out, and their numbers with them.

    Attributes:
        late: Spikes that came after their bin had come out.
        early: Spikes before the first bin.
        late_blanks: Blanking windows that came after a bin of theirs had come out.
        lost: Bins left out, because the source was away.
        anew: Whether the source's clock was before `since_ns` at the first sample.

    Example:
        >>> binner = Binner(num_units=2, width=0.01, rate=30_000, lateness=0.0)
        >>> _ = binner.seen(0)
        >>> for unit, sample in ((0, 10), (1, 299), (1, 300)):
        ...     binner.spike(unit, sample)
        >>> [(frame.seq, frame.y.tolist(), frame.sent_ns) for frame in binner.seen(600)]
        [(0, [1, 1], 10000000), (1, [0, 1], 20000000)]
    """

    def __init__(
        self,
        num_units: int,
        width: float | Fraction,
        rate: float | Fraction,
        lateness: float = 0.0,
        first: int = 0,
        since_ns: int = 0,
    ):
        check_whole(num_units, 1, "num_units")
        self.num_units, self.rate = num_units, exact(rate, "rate")
        # Ticks: whole parts of a sample, as small as bins need.
        self._bin, self._tick = (exact(width, "width") * self.rate).as_integer_ratio()
        self._wait = round(lateness * self.rate * self._tick)
        self._quiet = max(round(QUIET_S * self.rate) * self._tick, 2 * self._bin)
        self._per_ns = self.rate * self._tick / 10**9
        self._seq, self._since = first, round(since_ns * self._per_ns) if since_ns else None
        self._begin: int | None = None
        """Of the next bin to come out, in ticks that no step disturbs."""
        self._first = self._shift = self._known = 0
        self._shifts: list[tuple[int, int]] = []
        self._counts: dict[int, np.ndarray] = {}
        self._windows: list[tuple[int, int]] = []
        """Whole bins that are masked: begin of the first, end of the last; none overlap."""
        self.late = self.early = self.late_blanks = self.lost = 0
        self.anew = False

    def spike(self, unit: int, sample: int) -> None:
        """Take a spike."""
        at = self._start(sample)
        assert self._begin is not None
        index = (at - self._begin) // self._bin
        if index < 0:
            if at < self._first:
                self.early += 1
            else:
                self.late += 1
            return
        begin = self._begin + index * self._bin
        if begin not in self._counts:
            self._counts[begin] = np.zeros(self.num_units, np.int32)
        self._counts[begin][unit] += 1

    def blank(self, begin: int, end: int) -> None:
        """Mask all bins that hold samples from `begin` to `end`, both included."""
        first, last = self._start(max(begin, 0)), self._start(end)
        assert self._begin is not None
        self.late_blanks += self._first <= first < self._begin
        self._cover(first, last)

    def _cover(self, first: int, last: int) -> None:
        """Mask the bins from one time to another. Windows that meet become one: however many come,
        there are no more than bins.
        """
        assert self._begin is not None
        if last < self._begin:
            return
        begin = self._begin + (first - self._begin) // self._bin * self._bin
        end = self._begin + ((last - self._begin) // self._bin + 1) * self._bin
        apart = []
        for each in self._windows:
            if each[1] < begin or end < each[0]:
                apart.append(each)
            else:
                begin, end = min(begin, each[0]), max(end, each[1])
        self._windows = [*apart, (begin, end)]

    def seen(self, sample: int, away: bool = False) -> list[Frame]:
        """Bins that are over, now that the source's clock is known to have come to a sample.

        Args:
            sample: The sample.
            away: Whether the source was away, not silent, since the last that was seen.
        """
        at = self._start(sample)
        if at <= self._known:
            return []
        found = self._skip(at) if away or at - self._known > self._quiet else []
        self._known = at
        return found + self._take_out(at - self._wait)

    def step(self, samples: int) -> None:
        """The source's clock has jumped by so many samples: bins go on as if it had not."""
        if self._begin is None:
            return
        self._shifts.append((self._known, self._shift))
        self._shift -= samples * self._tick

    def _start(self, sample: int) -> int:
        """A sample in ticks that no step disturbs; the first decides where bins begin."""
        at = sample * self._tick + self._shift
        if self._begin is None:
            since = self._since
            if since is not None and at < since - self._bin - self._wait:
                self.anew, since = True, None
            begin = since or 0
            # The first bin none of whose samples is before this one.
            ahead = max((at - self._tick - begin) // self._bin + 1, 0)
            if since is not None:
                self._seq += ahead
                self.lost += ahead
            self._begin = self._first = begin + ahead * self._bin
            self._known = at
        return at

    def _skip(self, at: int) -> list[Frame]:
        """Leave out the bins of a time in which the source was away; those at its ends, which are
        not whole, are masked.
        """
        assert self._begin is not None
        self._cover(self._known + 1, at)
        found = self._take_out(self._known + self._bin)
        away = (at - self._begin) // self._bin
        self.lost += away
        self._seq += away
        self._begin += away * self._bin
        for begin in [begin for begin in self._counts if begin < self._begin]:
            self.late += int(self._counts.pop(begin).sum())
        return found

    def _take_out(self, until: int) -> list[Frame]:
        """Bins that end by a time."""
        assert self._begin is not None
        found = []
        while self._begin + self._bin <= until:
            end = self._begin + self._bin
            y = self._counts.pop(self._begin, None)
            y = np.zeros(self.num_units, np.int32) if y is None else y
            found.append(Frame(self._seq, y, self._mask(end), sent_ns=self._ns(end)))
            self._seq, self._begin = self._seq + 1, end
        return found

    def _mask(self, end: int) -> np.ndarray | None:
        """Which channels were observed in the bin that ends then."""
        masked = any(first < end <= last for first, last in self._windows)
        self._windows = [each for each in self._windows if each[1] > end]
        return np.zeros(self.num_units, bool) if masked else None

    def _ns(self, end: int) -> int:
        """A time on the source's clock, as that was then."""
        shift = self._shift
        while self._shifts and end > self._shifts[0][0]:
            self._shifts.pop(0)
        if self._shifts:
            shift = self._shifts[0][1]
        return round((end - shift) / self._per_ns)
