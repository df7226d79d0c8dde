"""The clock of a source as its messages show it: how it drifts, and where it jumps.

A message tells a time on the source's clock, and arrives at a time on the host's. It may arrive
late, never early: the smallest differences between the two, second by second, lie on a line, which
is the relation of the clocks.
"""

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

SECOND = 1_000_000_000
"""In nanoseconds, as all times here are."""

BLOCK_NS, BLOCKS, LEAST_BLOCKS = SECOND, 60, 20
"""The smallest difference of every block is kept, of so many blocks; drift is known from the
second number on, before it is taken for none."""

SETTLE_NS = SECOND // 2
"""What waited when the first message came may come all at once; so early only a jump of more than a
second is one."""

JITTER_NS = SECOND // 20
"""Messages may come so much later than usual; beyond, something has happened to a clock."""

CONFIRM, CONFIRM_NS, LAG_NS = 3, SECOND // 10, SECOND // 2
"""So many messages over so long a time confirm a jump; a lag is taken for lasting after longer."""

MOST_HELD = 2000
"""Messages that wait for a jump to be confirmed."""

TELL_PPM = 50.0
"""A drift beyond this is told of."""


class Kind(StrEnum):
    """What can be told of a clock."""

    STEP = "step"
    """The source's clock jumped; the host's did not."""
    GAP = "gap"
    """Nothing came for long, and both clocks went on."""
    LAG = "lag"
    """Messages come later than they did, and the source's clock did not jump."""
    DRIFT = "drift"
    """The source's clock runs fast or slow."""
    STRAY = "stray"
    """Messages of the future, which others do not confirm; they were left out."""


class Flag(NamedTuple):
    """Something to be told of a clock.

    Example:
        >>> Flag(Kind.STEP, -1.0, 5 * SECOND).text
        "the source's clock stepped by -1.000 s at 5.000 s; bins go on without a gap"
    """

    kind: Kind
    size: float
    """Seconds; of a drift parts in a million; of strays how many."""
    source_ns: int
    """Where on the source's clock, after a jump."""

    @property
    def text(self) -> str:
        """The same in words."""
        at = f"at {self.source_ns / SECOND:.3f} s"
        return {
            Kind.STEP: f"the source's clock stepped by {self.size:+.3f} s {at}; "
            "bins go on without a gap",
            Kind.GAP: f"nothing came for {self.size:.3f} s before {at[3:]}; those bins are lost",
            Kind.LAG: f"messages come {self.size:.3f} s later than before, {at}",
            Kind.DRIFT: f"the source's clock runs {abs(self.size):.0f} ppm "
            f"{'fast' if self.size > 0 else 'slow'}",
            Kind.STRAY: f"{self.size:.0f} messages of the future left out {at}",
        }[self.kind]


class Step(NamedTuple):
    """The source's clock jumped; what follows is on the new clock."""

    size_ns: int
    """Negative if it jumped back."""


class _Held(NamedTuple):
    source: int
    host: int
    item: Any
    off: int


class Clock:
    """Relates the clock of a source to that of this machine.

    Args:
        tell: Told of what is to be known.
        quiet_ns: After longer without messages it is told that some are missing.

    Example:
        >>> clock = Clock(lambda flag: print(flag.text))
        >>> for i in range(100):
        ...     _ = clock.take(i * SECOND // 100, 7 * SECOND + i * SECOND // 100)
        >>> clock.to_source(8 * SECOND)
        1000000000
        >>> jumped = [clock.take(3 * SECOND + i * SECOND // 50, 8 * SECOND + i * SECOND // 50, i)
        ...     for i in range(6)]
        the source's clock stepped by +2.000 s at 3.100 s; bins go on without a gap
        >>> jumped[-2:]
        [[], [Step(size_ns=2000000000), 0, 1, 2, 3, 4, 5]]
    """

    def __init__(self, tell: Callable[[Flag], None], quiet_ns: int = 2 * SECOND):
        self._tell, self._quiet = tell, quiet_ns
        self._begun: int | None = None
        self._base = self._floor = 0
        self._slope, self._told_ppm = 0.0, 0.0
        # Smallest differences so far: when, and how much beyond the first.
        self._blocks: deque[tuple[int, int]] = deque(maxlen=BLOCKS)
        self._block: tuple[int, int] = (0, 0)
        self._block_end = self._last = self._last_host = 0
        self._held: list[_Held] = []
        self._lagging: list[tuple[int, int]] = []

    @property
    def drift_ppm(self) -> float:
        """How much faster than the host's the source's clock runs, parts in a million."""
        return -self._slope * 1e6

    def doubtful(self, host: int) -> bool:
        """Whether a jump waits to be confirmed, and has not done so for long."""
        return bool(self._held) and host - self._held[0].host < SECOND

    def to_source(self, host: int) -> int:
        """What the source's clock shows when the host's shows that, by the quickest messages."""
        return host - self._base - self._expected(host)

    def _expected(self, host: int) -> int:
        """The smallest difference at a time, beyond the first."""
        return self._floor + round(self._slope * (host - (self._begun or 0)))

    def take(self, source: int, host: int, item: Any = None) -> list[Any]:
        """Take a message.

        Args:
            source: Its time on the source's clock, nanoseconds.
            host: When it arrived on the host's.
            item: What it carries.

        Returns:
            Items that can be relied on, in order: this one, those that waited, or none yet; a
            `Step` comes before the items on the new clock.
        """
        if self._begun is None:
            self._begun, self._base = host, host - source
            self._block, self._block_end = (host, 0), host + BLOCK_NS
            self._last, self._last_host = source, host
        off = host - source - self._base - self._expected(host)
        settling = host - self._begun < SETTLE_NS and abs(source - self._last) < SECOND
        if settling or -JITTER_NS <= off <= JITTER_NS:
            return self._agree(source, host, item)
        if off > 0 and source >= self._last - JITTER_NS:
            return self._lag(source, host, item, off)
        return self._doubt(_Held(source, host, item, off))

    def _agree(self, source: int, host: int, item: Any) -> list[Any]:
        held = self._let_go(source)
        self._lagging.clear()
        self._hear(source, host)
        self._learn(source, host)
        return [*held, item]

    def _hear(self, source: int, host: int) -> None:
        silent = source - self._last
        if silent > self._quiet and host - self._last_host > self._quiet:
            self._tell(Flag(Kind.GAP, silent / SECOND, source))
        self._last, self._last_host = max(self._last, source), host

    def _learn(self, source: int, host: int) -> None:
        """Learn from when a message came."""
        difference = host - source - self._base
        if host >= self._block_end:
            self._blocks.append(self._block)
            self._block, self._block_end = (host, difference), host + BLOCK_NS
            self._fit()
        elif difference < self._block[1]:
            self._block = (host, difference)
        self._floor = min(self._floor, difference - round(self._slope * (host - self._began)))

    @property
    def _began(self) -> int:
        assert self._begun is not None
        return self._begun

    def _fit(self) -> None:
        """The line below the differences: the median of all slopes, then as high as it can be."""
        at, difference = np.array(self._blocks, dtype=np.float64).T
        at -= self._began
        if len(at) >= LEAST_BLOCKS:
            i, j = np.triu_indices(len(at), 1)
            self._slope = float(np.median((difference[j] - difference[i]) / (at[j] - at[i])))
        self._floor = round(float(np.min(difference - self._slope * at)))
        ppm = self.drift_ppm
        changed = abs(ppm) > TELL_PPM and abs(ppm - self._told_ppm) > TELL_PPM
        if changed:
            self._told_ppm = ppm
            self._tell(Flag(Kind.DRIFT, ppm, self._last))

    def _lag(self, source: int, host: int, item: Any, off: int) -> list[Any]:
        """It comes late, but follows what came before: its time holds."""
        held = self._let_go(source)
        self._lagging.append((host, off))
        if host - self._lagging[0][0] >= LAG_NS and len(self._lagging) >= CONFIRM:
            least = min(each for _, each in self._lagging)
            self._tell(Flag(Kind.LAG, least / SECOND, source))
            self._move(least)
        elif len(self._lagging) > MOST_HELD:
            del self._lagging[1 : MOST_HELD // 2]
        self._hear(source, host)
        return [*held, item]

    def _doubt(self, new: _Held) -> list[Any]:
        """Its time does not fit; it does when others say the same for long enough."""
        self._lagging.clear()
        self._held.append(new)
        if len(self._held) > MOST_HELD:
            self._tell(Flag(Kind.STRAY, len(self._held), new.source))
            self._held = []
        if not self._held or new.host - self._held[0].host < CONFIRM_NS:
            return []
        same = [each for each in self._held if abs(each.off - new.off) <= JITTER_NS]
        if len(same) >= CONFIRM and new.host - same[0].host >= CONFIRM_NS:
            strays = len(self._held) - len(same)
            if strays:
                self._tell(Flag(Kind.STRAY, strays, new.source))
            off = min(each.off for each in same)
            self._move(off)
            self._held, self._last, self._last_host = [], new.source, new.host
            self._tell(Flag(Kind.STEP, -off / SECOND, new.source))
            for each in same:
                self._learn(each.source, each.host)
            return [Step(-off), *(each.item for each in same)]
        return []

    def _let_go(self, source: int) -> list[Any]:
        """Items that waited for a jump that was none: of the past they are good, if late."""
        if not self._held:
            return []
        held, self._held = self._held, []
        late = [each.item for each in held if each.off > 0]
        if len(late) < len(held):
            self._tell(Flag(Kind.STRAY, len(held) - len(late), source))
        return late

    def _move(self, by: int) -> None:
        """All differences are so much larger from now on; by how much exactly will be seen."""
        self._floor += by
        self._block = (self._block[0], self._block[1] + by)
        self._blocks.clear()
        self._lagging.clear()
