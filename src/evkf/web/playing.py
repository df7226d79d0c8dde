"""What the page is shown of a journal: it is played from its first bin, or still grows."""

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evkf.data.storage import read_meta
from evkf.errors import InputError
from evkf.live.answers import Flags
from evkf.live.desk import Action, Ask
from evkf.live.follow import Follower
from evkf.live.journal import is_written
from evkf.live.order import Counters
from evkf.live.plan import CHECKPOINTS
from evkf.live.ports import Due, Phase, Report
from evkf.live.records import Bin, Kind, Step, decode
from evkf.live.segments import Record
from evkf.web.following import BEHIND
from evkf.web.reel import MOST, Reel, Screen
from evkf.web.rows import UNSEEN, of_step, seen

BLOCK = 1 << 18
"""Bytes that are read at a time."""

LATE_S, AT_ONCE = 0.5, 2 * MOST
"""Seconds and bins behind, from which on it goes on from where it is rather than catch up: no turn
takes longer, at whatever speed."""

QUIET_S = 2.0
"""A session that has written nothing for so long may have died."""

TELL_S = 0.5
"""Seconds between reports."""


class Playing:
    """Plays a journal at the pace it was written at, or shows what is added to it.

    Args:
        screen: What is shown.
        journal: Folder of the journal.
        grows: Whether a session writes to it: then what is new is shown, at its own pace.
        clock: Seconds.

    Attributes:
        reel: What came of it.
        speed: How many times faster than it was recorded.
        ended: Whether the last bin was shown.
        live: Whether the session that writes to it is there.
        wanted: Whether anybody looks; it stands still otherwise.
    """

    def __init__(
        self,
        screen: Screen,
        journal: Path,
        grows: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._screen, self._grows, self._clock = screen, grows, clock
        self._journal, self._follower = journal, Follower(journal)
        self.speed = screen.speed or 1.0
        self.reel, self.wanted, self.live = Reel(screen), False, True
        self._rewind()
        self._heard = clock()

    def _rewind(self) -> None:
        self._records: deque[Record] = deque()
        self._follower.rewind()
        self.reel.clear()
        self._bin: bytes | None = None
        self._learned_since = self.ended = False
        self._shown = self._learned = self._lost = self._refused = 0
        self._phase, self._why, self._frozen = str(Phase.STARTING), "", False
        self._since, self._base = self._clock(), 0
        self._told, self._told_shown = -TELL_S, 0

    def begin(self) -> None:
        """Go on: of a journal that grows, from what is newest."""
        self._since, self._base = self._clock(), self._shown
        if self._grows:
            if self._phase == Phase.STARTING:
                self._phase, self._why = Phase.READY, "shown from its journal"
            self._frozen = self._was_frozen()
            self._catch_up()

    def rest(self) -> None:
        """Nobody looks any more: what grows will be old when somebody does."""
        if self._grows:
            self.reel.clear()

    def _catch_up(self) -> None:
        """Leave out what came, but not what its newest segment says of the session."""
        for record in self._follower.skip((Kind.PHASE, Kind.ACTION, Kind.RESTART)):
            self._take(record)

    def _was_frozen(self) -> bool:
        """Whether learning was frozen at the newest checkpoint: that may be long ago."""
        files = sorted((self._journal.parent / CHECKPOINTS).glob("[0-9]*.safetensors"))
        with contextlib.suppress(OSError, InputError, LookupError, TypeError, ValueError):
            return Due(*json.loads(read_meta(files[-1])["metadata"]["due"])).frozen
        return False

    def ask(self, action: Action) -> str:
        """Do what is asked for; why that cannot be, or nothing."""
        if self._grows or action.ask not in (Ask.SPEED, Ask.RESET):
            return "this is a journal; ask the session itself"
        if action.ask == Ask.RESET:
            self._rewind()
        else:
            self.speed = float(action.text)
            self._since, self._base = self._clock(), self._shown
        return ""

    def turn(self) -> None:
        """Show what is due."""
        now = self._clock()
        if self._grows:
            self._grow(now)
        else:
            self._play(now)
        if now - self._told >= TELL_S:
            self.reel.tell("report", self._report(now))
            self._told, self._told_shown = now, self._shown

    def _grow(self, now: float) -> None:
        if self._follower.behind > BEHIND:
            self._catch_up()
        records = self._follower.read(BLOCK)
        for record in records:
            self._take(record)
        if records:
            self._heard, self.live = now, True
        elif self.live and now - self._heard > QUIET_S:
            # Asked only as long as it is there: to ask is to hold the lock, were it not.
            self._heard, self.live = now, is_written(self._journal)

    def _play(self, now: float) -> None:
        pace = self.speed / self._screen.bin_width
        due = self._base + int((now - self._since) * pace)
        most = max(min(int(LATE_S * pace), AT_ONCE), 1)
        if due - self._shown > most:
            due = self._shown + most
            self._since, self._base = now, due
        while self._shown < due:
            if not self._records:
                self._records.extend(self._follower.read(BLOCK))
            if not self._records:
                break
            self._take(self._records.popleft())
        if self._shown < due and not self.ended:
            self.ended, self._told = True, -TELL_S
            self._phase, self._why = Phase.CLOSED, "all of the journal was shown"

    def _take(self, record: Record) -> None:
        kind = record.kind
        if kind == Kind.STEP:
            self._show(decode(kind, record.payload))
            return
        if kind == Kind.BIN:
            self._bin = Bin.decode(record.payload).frame
        elif kind == Kind.LEARN:
            self._learned += 1
            self._learned_since = True
        elif kind == Kind.REFUSED:
            self._refused += 1
        elif kind == Kind.RESTART:
            self.reel.number_anew()
        elif kind in (Kind.PHASE, Kind.ACTION):
            self._hear(decode(kind, record.payload))

    def _hear(self, said: dict[str, Any]) -> None:
        if "phase" in said:
            self._phase, self._why = said["phase"], said["why"]
        elif said["ask"] == Ask.MARK:
            self.reel.mark(said["seq"], said["text"])
        elif said["ask"] in (Ask.FREEZE, Ask.THAW):
            self._frozen = said["ask"] == Ask.FREEZE

    def _show(self, step: Step) -> None:
        flags = Flags.LEARNED if self._learned_since else Flags.NOTHING
        if self._bin is None:
            flags |= Flags.BRIDGED
            self._lost += 1
            counts = np.full(self._screen.channels, UNSEEN, np.uint8)
        else:
            counts = seen(self._bin, self._screen.counts)
        self.reel.add(of_step(step, self.reel.time(step.seq), flags, counts))
        self._shown += 1
        self._bin, self._learned_since = None, False

    def _report(self, now: float) -> dict[str, Any]:
        last = self.reel.last
        elapsed = max(now - self._told, 1e-3)
        report = Report(
            phase=Phase(self._phase),
            why=self._why,
            bins=self._shown,
            taken=self._shown,
            rate=(self._shown - self._told_shown) / elapsed,
            latency_ns=(0, 0, 0, 0),
            counters=Counters(lost=self._lost),
            refused=self._refused,
            backlog=0,
            learned=self._learned,
            elbo=np.nan if last is None else last.elbo,
            acknowledged=-1 if last is None else last.seq,
            exposure_ms=np.nan,
            frozen=self._frozen,
            odd={},
        )
        return report.plain | {"latency_ns": [None] * 4, "odd": None}
