"""The order of bins: what comes late, twice or not at all, and what is to be done about it."""

from array import array
from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple

from evkf.errors import EvkfError, InputError
from evkf.numerics.checks import check_whole

LARGEST_GAP = 10_000
"""Bins that may be missing in a row."""

REMEMBERED = 1_000_000
"""Stretches of lost bins that are remembered, to tell late bins from duplicates."""


class OrderError(EvkfError):
    """A bin that the order cannot take.

    Attributes:
        code: "jump": too far ahead of what was expected. A session has two more: "anew" of a bin
            that its sender numbers from the first again, "behind" of an end before what is due.
        message: The same in words.
        seq: Number of the bin.
    """

    def __init__(self, code: str, message: str, seq: int):
        self.code, self.message, self.seq = code, message, seq
        super().__init__(f"{code}: {message} (bin {seq})")

    def __reduce__(self) -> tuple:
        return type(self), (self.code, self.message, self.seq)


class Ready(NamedTuple):
    """A bin whose turn it is."""

    seq: int
    item: Any
    """What was pushed; None if the bin is lost and to be bridged."""


class Counters(NamedTuple):
    """What came of the bins so far.

    `received` is `delivered + duplicates + late` and those that wait. Without restarts, `delivered
    + lost` bins have had their turn.
    """

    received: int = 0
    """Bins pushed, less those that were refused as jumps."""
    delivered: int = 0
    """Bins handed on with their item."""
    duplicates: int = 0
    """Bins that had been delivered, or waited already."""
    late: int = 0
    """Bins that had been given up as lost."""
    reordered: int = 0
    """Bins taken that came after one with a higher number."""
    lost: int = 0
    """Bins given up, handed on as None."""
    restarts: int = 0


class Order:
    """Hands bins on in the order of their numbers, each once, without gaps.

    It knows no clock: times come with the calls.

    Args:
        window: A missing bin is given up when one that is so many ahead, or more, is there. 1
            waits for none.
        start: Number of the first bin. Those before it count as delivered.
        patience_ns: `expire` gives up what a bin has waited for so long.
        largest_gap: A bin further ahead than that of the next expected one is refused.

    Attributes:
        next: Number of the bin whose turn is next.

    Example:
        >>> order = Order(window=3)
        >>> order.push(0, "a", now_ns=0)
        [Ready(seq=0, item='a')]
        >>> order.push(2, "c", now_ns=1), order.push(3, "d", now_ns=2)
        ([], [])
        >>> order.push(4, "e", now_ns=3)[:2]
        [Ready(seq=1, item=None), Ready(seq=2, item='c')]
        >>> order.counters.lost, order.next
        (1, 5)
    """

    def __init__(
        self,
        window: int,
        start: int = 0,
        patience_ns: int = 100_000_000,
        largest_gap: int = LARGEST_GAP,
    ):
        check_whole(window, 1, "window")
        check_whole(start, 0, "start")
        check_whole(patience_ns, 0, "patience_ns")
        check_whole(largest_gap, window, "largest_gap")
        self.window, self.patience_ns, self.largest_gap = window, patience_ns, largest_gap
        self.next = start
        self._highest = start - 1
        # Items are kept with their time; a refused bin as None: nothing to deliver, or wait for.
        self._waiting: dict[int, tuple[Any, int] | None] = {}
        self._lost = _Stretches()
        self._received = self._delivered = self._duplicates = self._late = 0
        self._reordered = self._num_lost = self._restarts = 0

    @property
    def counters(self) -> Counters:
        """What came of the bins so far."""
        taken = (self._received, self._delivered, self._duplicates, self._late)
        return Counters(*taken, self._reordered, self._num_lost, self._restarts)

    @property
    def waiting(self) -> int:
        """Bins that wait for an earlier one."""
        return sum(kept is not None for kept in self._waiting.values())

    def push(self, seq: int, item: Any, now_ns: int) -> list[Ready]:
        """Take a bin.

        Args:
            seq: Its number.
            item: Anything but None.
            now_ns: When it came.

        Returns:
            Bins whose turn it is now.

        Raises:
            OrderError: If it is more than `largest_gap` ahead. Nothing has changed then: go on, or
                `restart` there and push again.
        """
        if item is None:
            raise InputError("None", "item", "pass the bin; `lose` tells of those that failed")
        self._check(seq)
        self._received += 1
        if seq < self.next:
            if seq in self._lost:
                self._late += 1
            else:
                self._duplicates += 1
            return []
        if self._waiting.get(seq) is not None:
            self._duplicates += 1
            return []
        self._reordered += seq < self._highest
        if seq == self.next and not self._waiting:
            self._highest = max(seq, self._highest)
            self.next += 1
            self._delivered += 1
            return [Ready(seq, item)]
        return self._arrive(seq, (item, now_ns))

    def lose(self, seq: int) -> list[Ready]:
        """Be told that the frame of a bin came but was refused: it is not waited for.

        If a good one comes before its turn, that is taken. It does nothing for bins that have had
        their turn, or wait.

        Returns:
            Bins whose turn it is now.

        Raises:
            OrderError: If it is more than `largest_gap` ahead.
        """
        self._check(seq)
        if seq < self.next or seq in self._waiting:
            return []
        return self._arrive(seq, None)

    def expire(self, now_ns: int) -> list[Ready]:
        """Give up all gaps before bins that have waited for `patience_ns`, or longer."""
        if not self._waiting:
            return []
        due = now_ns - self.patience_ns
        old = (seq for seq, kept in self._waiting.items() if kept is not None and kept[1] <= due)
        return self._advance(max(old, default=self.next))

    def flush(self, end: int | None = None) -> list[Ready]:
        """Give up all gaps, at the end of a stream.

        Args:
            end: Number of the bin after the last, if it is known: bins missing before it are given
                up too.

        Raises:
            OrderError: If the end is more than `largest_gap` ahead. Nothing has changed then.
        """
        if end is not None:
            self._check(end)
        return self._advance(max(max(self._waiting, default=-1) + 1, end or 0))

    def restart(self, seq: int) -> list[Ready]:
        """Begin anew at a number, after a jump or a new start of the sender.

        What waits is handed on first, as by `flush`. Numbers that are jumped over are not bridged,
        and not counted as lost; bins that come for them are late.
        """
        check_whole(seq, 0, "seq")
        ready = self.flush()
        self._lost.cut(seq)
        self._lost.add(self.next, seq)
        self.next, self._highest = seq, seq - 1
        self._restarts += 1
        return ready

    def _check(self, seq: int) -> None:
        if seq - self.next > self.largest_gap:
            what = f"{seq - self.next} bins ahead of {self.next}, at most {self.largest_gap} may be"
            raise OrderError("jump", what, seq)

    def _arrive(self, seq: int, kept: tuple[Any, int] | None) -> list[Ready]:
        self._waiting[seq] = kept
        self._highest = max(seq, self._highest)
        return self._advance(self._highest - self.window + 1)

    def _advance(self, until: int) -> list[Ready]:
        """Bins before a number, there or not, and those that follow without a gap."""
        ready = []
        while self.next < until or self.next in self._waiting:
            kept = self._waiting.pop(self.next, None)
            if kept is None:
                self._lost.add(self.next, self.next + 1)
                self._num_lost += 1
            else:
                self._delivered += 1
            ready.append(Ready(self.next, None if kept is None else kept[0]))
            self.next += 1
        return ready


class _Stretches:
    """Numbers that only grow, kept as stretches of neighbours; the oldest are forgotten."""

    def __init__(self) -> None:
        self._starts, self._ends = array("Q"), array("Q")

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self._starts, seq) - 1
        return at >= 0 and seq < self._ends[at]

    def add(self, start: int, end: int) -> None:
        """Numbers from `start` to before `end`; none if that is not after it."""
        if start >= end:
            return
        if self._ends and self._ends[-1] == start:
            self._ends[-1] = end
            return
        self._starts.append(start)
        self._ends.append(end)
        if len(self._starts) > REMEMBERED:
            # Many at once, since those that stay are moved.
            del self._starts[: REMEMBERED // 10], self._ends[: REMEMBERED // 10]

    def cut(self, seq: int) -> None:
        """Forget this number and those above."""
        at = bisect_left(self._starts, seq)
        del self._starts[at:], self._ends[at:]
        if self._ends and self._ends[-1] > seq:
            self._ends[-1] = seq
