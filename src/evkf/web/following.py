"""What the page is shown of a session that runs: its estimates, with what its journal adds."""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from evkf.live.answers import Estimate, Flags
from evkf.live.desk import Ask
from evkf.live.follow import Follower
from evkf.live.records import Bin, Kind, decode
from evkf.live.segments import Record
from evkf.web.reel import MOST, Reel, Screen
from evkf.web.rows import UNSEEN, number_of, of_estimate, seen

HOLD_S = 0.5
"""Seconds that an estimate waits for its bin to be found in the journal, which comes later."""

BEHIND = 1 << 23
"""Bytes of the journal, more than which are passed over rather than read."""

KEPT = 4 * MOST
"""Frames that wait for their estimate."""


class Following:
    """Joins estimates with the bins that they are of.

    Args:
        screen: What is shown.
        journal: Folder of the journal.
        clock: Seconds.

    Attributes:
        reel: What came of it.
        speed: Of the source, if it can be changed.
        wanted: Whether anybody looks; else nothing is read or kept.
    """

    def __init__(self, screen: Screen, journal: Path, clock: Callable[[], float] = time.monotonic):
        self._screen, self._clock = screen, clock
        self._follower = Follower(journal)
        self._waiting: deque[tuple[float, float, bytes]] = deque(maxlen=MOST)
        self._frames: dict[int, bytes] = {}
        self._last = -1
        self.reel, self.speed = Reel(screen), screen.speed
        self.wanted = False

    def take(self, data: bytes) -> None:
        """An estimate, as it travels."""
        seq = Estimate.number(data)
        if seq == self._last:
            # A session that is taken up again tells of its last bin once more.
            return
        self._last = seq
        # Whether anybody looks or not: who comes later is told the right time.
        shown = self.reel.time(seq)
        if self.wanted:
            self.reel.skip(len(self._waiting) == MOST)
            self._waiting.append((self._clock(), shown, data))

    def begin(self) -> None:
        """Somebody looks: go on from what is newest. It may take a moment."""
        self._waiting.clear()
        self._frames.clear()
        self._catch_up()

    def rest(self) -> None:
        """Nobody looks any more: what was gathered will be old when somebody does."""
        self.reel.forget()

    def _catch_up(self) -> None:
        """Leave out bins, but not what the newest segment of the journal says was asked for."""
        for record in self._follower.skip((Kind.BEGIN, Kind.ACTION, Kind.RESTART)):
            self._heed(record)

    def _heed(self, record: Record) -> None:
        if record.kind == Kind.BEGIN:
            # A session that is taken up again has the speed of its plan.
            self.speed = self._screen.speed
        elif record.kind == Kind.RESTART:
            self.reel.number_anew()
        elif record.kind == Kind.ACTION:
            said = decode(record.kind, record.payload)
            if said["ask"] == Ask.MARK:
                self.reel.mark(said["seq"], said["text"])
            elif said["ask"] == Ask.SPEED:
                self.speed = float(said["text"])

    def turn(self) -> None:
        """Read what is new in the journal, and see which estimates are complete."""
        if self._follower.behind > BEHIND:
            self._catch_up()
        for record in self._follower.read():
            if record.kind == Kind.BIN:
                frame = Bin.decode(record.payload).frame
                self._frames[number_of(frame)] = frame
            else:
                self._heed(record)
        if len(self._frames) > KEPT:
            for seq in list(self._frames)[:-KEPT]:
                del self._frames[seq]
        late = self._clock() - HOLD_S
        while self._waiting:
            since, shown, data = self._waiting[0]
            said = Estimate.decode(data)
            frame = self._frames.pop(said.seq, None)
            if frame is None and since > late and not said.flags & Flags.BRIDGED:
                break
            self._waiting.popleft()
            self._show(said, shown, frame)

    def _show(self, said: Estimate, shown: float, frame: bytes | None) -> None:
        if frame is None:
            counts = np.full(self._screen.channels, UNSEEN, np.uint8)
        else:
            counts = seen(frame, self._screen.counts)
        self.reel.add(of_estimate(said, shown, counts))
