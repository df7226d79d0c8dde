"""What stimulation may never exceed, what keeps it there, and what was on when.

Nothing here knows a clock: times come with the calls.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evkf.errors import InputError

SLOTS = 100
"""Parts of a window in which charge is counted together."""

SAFETY = 1e-9
"""Share of the charge that rounding may cost."""

LARGEST = 1e12
"""Of any limit."""

LEAST_WINDOW = 1e-3
"""Seconds that charge is limited over."""


class Limits(NamedTuple):
    """What a stimulator may never be asked to exceed, a number for every channel.

    Attributes:
        amplitude: Largest absolute value.
        rate: Largest change a second, taken from one command to the next and of at most a bin.
            What ends stimulation is exempt: zero is always allowed.
        charge: Largest integral of the absolute value over any `window` seconds.
        window: Seconds.
    """

    amplitude: Sequence[float]
    rate: Sequence[float]
    charge: Sequence[float]
    window: float = 1.0

    def check(self, num: int) -> "Limits":
        """These, if they are numbers for so many channels.

        Example:
            >>> Limits([1.0], [5.0], [0.5]).check(1).window
            1.0
            >>> Limits([float("inf")], [5.0], [0.5]).check(1)
            Traceback (most recent call last):
            ...
            evkf.errors.InputError: amplitude of [inf] (in limits): pass 1, from 0 to 1e+12
        """
        for name in ("amplitude", "rate", "charge"):
            given = getattr(self, name)
            if len(given) != num or not all(0 <= each <= LARGEST for each in given):
                remedy = f"pass {num}, from 0 to {LARGEST:g}"
                raise InputError(f"{name} of {list(given)}", "limits", remedy)
        if not (math.isfinite(self.window) and self.window >= LEAST_WINDOW):
            remedy = f"pass {LEAST_WINDOW} s or more"
            raise InputError(f"window of {self.window} s", "limits", remedy)
        return self


def readable(values: Any, num: int) -> np.ndarray | None:
    """So many finite numbers, or None if they are anything else.

    Example:
        >>> readable([0.5, 1], 2), readable([0.5, float("nan")], 2), readable("much", 2)
        (array([0.5, 1. ]), None, None)
    """
    try:
        read = np.asarray(values)
        if read.shape != (num,) or read.dtype.kind not in "buif":
            return None
        read = read.astype(np.float64)
    except Exception:
        # Whatever a controller returned, it can be as strange as it likes.
        return None
    return read if np.isfinite(read).all() else None


class Limiter:
    """Lets through what the limits allow; what comes out never exceeds them, whatever goes in.

    What comes out is to be on until the next call, but for `hold` at most; if that call is late, it
    was on until then. Where the charge that is left asks for less than the rate allows to go down
    to, a channel goes to zero.

    Args:
        limits: For every channel.
        period: Seconds from one command to the next.
        hold: Seconds after which an output is to end in any case.

    Example:
        >>> limiter = Limiter(Limits([1.0], [20.0], [5.0]), period=0.01, hold=0.015)
        >>> [limiter.limit([9.0], now_ns).tolist() for now_ns in (0, 10_000_000, 20_000_000)]
        [[0.2], [0.4], [0.6]]
        >>> limiter.limit([float("nan")], 30_000_000)
        array([0.])
    """

    def __init__(self, limits: Limits, period: float, hold: float):
        self.num = len(limits.amplitude)
        limits.check(self.num)
        self._amplitude, self._rate, charge = (np.array(each, float) for each in limits[:3])
        self._charge = charge * (1 - SAFETY)
        self._period_ns, self._hold_ns = int(period * 1e9), int(hold * 1e9)
        self._window_ns = int(limits.window * 1e9)
        self._slot_ns = -(-self._window_ns // SLOTS)
        self._now_ns: int | None = None
        self._out = np.zeros(self.num)
        # Charge by slot: when it began, when it ended, how much. More slots than a window has.
        self._begins = [-(1 << 62)] * (SLOTS + 3)
        self._ends = np.full(SLOTS + 3, -(1 << 62), np.int64)
        self._charges, self._at = np.zeros((SLOTS + 3, self.num)), 0

    def limit(self, values: Any, now_ns: int) -> np.ndarray:
        """What may go out now; zero for what is not so many finite numbers."""
        passed = self._advance(now_ns)
        before = self._out
        wanted = readable(values, self.num)
        if wanted is None:
            self._out = np.zeros(self.num)
            return self._out.copy()
        wanted = np.clip(wanted, -self._amplitude, self._amplitude)
        step = self._rate * (min(passed, self._period_ns) * 1e-9)
        new = np.clip(wanted, before - step, before + step)
        new = np.where(np.abs(new - before) > step, np.nextafter(new, before), new)
        room = np.maximum(self._charge - self._used(), 0) / max(self._hold_ns * 1e-9, 1e-9)
        new = np.clip(new, -room, room)
        self._out = np.where(np.abs(new - before) > step, 0.0, new)
        return self._out.copy()

    def rest(self, now_ns: int) -> None:
        """Be told that nothing is on from now."""
        self._advance(now_ns)
        self._out = np.zeros(self.num)

    def _advance(self, now_ns: int) -> int:
        """Count what was on until now; nanoseconds since the last call, a bin before the first."""
        last = self._now_ns
        if last is None:
            self._now_ns = now_ns
            return self._period_ns
        now_ns = max(now_ns, last)
        if now_ns > last and self._out.any():
            self._count(max(last, now_ns - self._window_ns), now_ns)
        if now_ns >= last + self._hold_ns:
            self._out = np.zeros(self.num)
        self._now_ns = now_ns
        return now_ns - last

    def _count(self, begin: int, end: int) -> None:
        if begin - self._begins[self._at] >= self._slot_ns:
            self._at = (self._at + 1) % len(self._begins)
            self._begins[self._at], self._charges[self._at] = begin, 0.0
        self._ends[self._at] = end
        self._charges[self._at] += np.abs(self._out) * ((end - begin) * 1e-9)

    def _used(self) -> np.ndarray:
        """Charge of the window that ends now, or a little more."""
        assert self._now_ns is not None
        return self._charges[self._ends > self._now_ns - self._window_ns].sum(axis=0)


class Delivered:
    """What was on, and when: its mean over any time that is not long ago.

    Args:
        num: Channels.
        kept_ns: How far back a mean may reach.

    Example:
        >>> delivered = Delivered(1, kept_ns=100)
        >>> delivered.add(0, 50, [1.0]), delivered.add(20, 30, [2.0])
        (None, None)
        >>> delivered.mean(10, 40)  # 1 for 10, 2 for 10, then nothing
        array([1.])
    """

    def __init__(self, num: int, kept_ns: int):
        self._num, self._kept_ns = num, kept_ns
        self._parts: deque[tuple[int, int, np.ndarray]] = deque()

    def add(self, at_ns: int, until_ns: int, values: Sequence[float]) -> None:
        """Be told what is on from a time on, until another unless something else follows."""
        while len(self._parts) > 1 and self._parts[1][0] < at_ns - self._kept_ns:
            self._parts.popleft()
        self._parts.append((at_ns, until_ns, np.asarray(values, float)))

    def mean(self, begin_ns: int, end_ns: int) -> np.ndarray:
        """Over a time; of no time, what is on at its end."""
        total, length = np.zeros(self._num), max(end_ns - begin_ns, 1)
        begin_ns = end_ns - length
        stop = end_ns
        for at, until, values in reversed(self._parts):
            on = min(stop, until) - max(at, begin_ns)
            if on > 0:
                total += values * (on / length)
            stop = min(stop, at)
            if stop <= begin_ns:
                break
        return total
