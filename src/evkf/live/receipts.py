"""What a sender is told of its bins: up to where they are durable."""

from collections import deque
from typing import Any


class Receipts:
    """Bins that are not durable yet, and who is to be told when they are.

    Args:
        due: Number of the bin that is due; those before it are durable.

    Attributes:
        last: Number of the last bin that is durable; -1 if there is none.

    Example:
        >>> receipts = Receipts(due=0)
        >>> receipts.expect(position=4, seq=0, peer="rig")
        >>> receipts.take(settled=4), receipts.take(settled=5), receipts.take(settled=6)
        (None, ('rig', 0), None)
        >>> receipts.repeat("rig")
        >>> receipts.take(settled=6)
        ('rig', 0)
    """

    def __init__(self, due: int):
        self.last = due - 1
        self._pending: deque[tuple[int, int, bool]] = deque()
        self._peer: Any = None
        self._owed = False

    def __len__(self) -> int:
        """How many are not durable yet."""
        return len(self._pending)

    def expect(self, position: int, seq: int, peer: Any) -> None:
        """A bin was appended to the journal.

        Args:
            position: Of its record.
            seq: Its number.
            peer: Who sent it; None of a bin that was lost.
        """
        self._pending.append((position, seq, peer is not None))
        self._peer = self._peer if peer is None else peer

    def repeat(self, peer: Any) -> None:
        """Someone sent again what was taken: it has not heard."""
        self._peer, self._owed = peer, True

    def forget(self) -> None:
        """The sender began anew with lower numbers: what is known of the old ones would be taken
        for the new.
        """
        self._pending.clear()
        self.last, self._owed = -1, False

    def take(self, settled: int) -> tuple[Any, int] | None:
        """Who is to be told now, the one heard last, and of which bin; None if nobody is.

        Args:
            settled: All records of the journal below this position are durable.
        """
        while self._pending and self._pending[0][0] < settled:
            _, self.last, was_sent = self._pending.popleft()
            self._owed |= was_sent
        owed, self._owed = self._owed, False
        return (self._peer, self.last) if owed and self.last >= 0 else None
