"""The time that a bin leaves: whether something may begin in it."""

import numpy as np

KEPT = 256
"""Durations whose 99th percentile is taken."""

RETRY_NS = 1_000_000_000
"""What did not fit for so long has the longer half of its durations forgotten: the machine may have
been busy when they were measured, and soon it is tried again."""


class Budget:
    """Says whether a piece of work fits into the time left, by how long it took before.

    Args:
        durations_ns: Of rehearsals.

    Example:
        >>> budget = Budget([1_000_000] * 100)
        >>> budget.fits(left_ns=2_000_000, now_ns=0), budget.fits(left_ns=500_000, now_ns=0)
        (True, False)
        >>> budget.spent(3_000_000), budget.spent(3_000_000)
        (None, None)
        >>> budget.p99_ns
        3000000
    """

    def __init__(self, durations_ns: list[int]):
        self._kept = [int(each) for each in durations_ns[-KEPT:]]
        self._at = 0
        self._refused_ns: int | None = None
        self._reckon()

    def _reckon(self) -> None:
        """The value that at most one in a hundred exceed."""
        ordered = sorted(self._kept)
        self.p99_ns = ordered[-1 - len(ordered) // 100] if ordered else 0

    def fits(self, left_ns: int, now_ns: int) -> bool:
        """Whether it may begin with so much time left."""
        if self.p99_ns <= left_ns:
            self._refused_ns = None
            return True
        if self._refused_ns is None:
            self._refused_ns = now_ns
        elif now_ns - self._refused_ns > RETRY_NS:
            self._kept = sorted(self._kept)[: len(self._kept) // 2]
            self._at = 0
            self._refused_ns = now_ns
            self._reckon()
        return False

    def spent(self, duration_ns: int) -> None:
        """Be told how long it took."""
        if len(self._kept) < KEPT:
            self._kept.append(duration_ns)
        else:
            self._kept[self._at] = duration_ns
            self._at = (self._at + 1) % KEPT
        # Sorting costs more than the work may take: at once when it grew, else now and then.
        if duration_ns > self.p99_ns or self._at % 32 == 0:
            self._reckon()


class Latencies:
    """How long things took, in classes of 2 %: constant memory, quantiles at any time.

    Example:
        >>> latencies = Latencies()
        >>> for duration in [1_000] * 99 + [5_000_000]:
        ...     latencies.add(duration)
        >>> round(latencies.quantile(0.5) / 1e3, 2), round(latencies.quantile(0.999) / 1e6)
        (1.0, 5)
    """

    _PER_OCTAVE = 32
    _LEAST = 1_000

    def __init__(self) -> None:
        edges = self._LEAST * 2 ** (np.arange(32 * self._PER_OCTAVE) / self._PER_OCTAVE)
        self._edges = edges.astype(np.int64)
        self._counts = np.zeros(len(edges) + 1, np.int64)
        self.num, self.worst = 0, 0

    def add(self, duration_ns: int) -> None:
        """Count one."""
        self._counts[self._edges.searchsorted(duration_ns)] += 1
        self.num += 1
        self.worst = max(self.worst, duration_ns)

    def quantile(self, share: float) -> int:
        """Nanoseconds that so large a share did not exceed; 0 of none."""
        if not self.num:
            return 0
        place = int(np.searchsorted(np.cumsum(self._counts), share * self.num))
        return min(int(self._edges[min(place, len(self._edges) - 1)]), self.worst)
