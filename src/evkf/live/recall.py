"""A session computed again from its journal: to go on after a crash, or to see that it agrees."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evkf.live.desk import Ask
from evkf.live.engine import Engine, Latent
from evkf.live.frames import Decoder, Frame
from evkf.live.order import LARGEST_GAP
from evkf.live.ports import Due
from evkf.live.records import Bin, Kind, LearnRecord, Lost, Step, decode
from evkf.live.segments import HOLE, Record, end_of, read

Keep = Callable[[int, Frame | None, Latent], None]
Progress = Callable[[int, int], None]

SHOWN = 10
"""Disagreements that are told of."""

EVERY = 100
"""Records from one word on how far it is to the next."""


class Agreement(NamedTuple):
    """How what was computed again compares with what the journal says."""

    bins: int
    lost: int
    learned: int
    compared: int
    """Bins whose result the journal holds."""
    differ: tuple[str, ...]
    """The first that are not the same to the last bit."""
    holes: int
    """Stretches of records that could not be kept."""


def records(journal: Path, progress: Progress | None = None, first: int = 0) -> Iterator[Record]:
    """Records of a journal, and words on how many of how many have been taken.

    Args:
        journal: Its folder.
        progress: Told how many records were taken, and how many there were at the beginning.
        first: Position to begin at.
    """
    if progress is None:
        yield from read(journal, first=first)
        return
    end = end_of(journal)
    for record in read(journal, first=first):
        if record.position % EVERY == 0:
            progress(record.position, end)
        yield record
    progress(end, end)


class Player:
    """Takes records of a journal in their order, and does again what they tell of.

    Args:
        engine: At the state that the first record found.
        counts: Whether observations are counts.
        due: What the next bin was to be then.
        keep: Told of every bin: its number, its frame if it was not lost, and what came of it.

    Attributes:
        due: What the next bin is to be.
        latent: The last.
    """

    def __init__(self, engine: Engine, counts: bool, due: Due = Due(), keep: Keep | None = None):  # noqa: B008
        self.engine, self.due = engine, due
        self.latent: Latent | None = None
        # Where a controller gives the inputs, frames have none.
        self._decoders = {
            controlled: Decoder(engine.num_channels, inputs, counts, engine.dtype)
            for controlled, inputs in ((False, engine.num_inputs), (True, 0))
        }
        self._keep = keep
        self._bins = self._lost = self._learned = self._compared = self._holes = 0
        self._differ: list[str] = []

    def play(self, records: Iterable[Record]) -> None:
        """Take records."""
        for record in records:
            if record.kind == HOLE:
                self._holes += 1
                continue
            self._take(record)

    def _take(self, record: Record) -> None:
        kind = record.kind
        if kind == Kind.BIN:
            self._observe(decode(kind, record.payload))
        elif kind == Kind.LOST:
            lost: Lost = decode(kind, record.payload)
            for seq in range(lost.first, lost.first + lost.num):
                self._pass_over(seq)
        elif kind == Kind.STEP:
            self._compare(decode(kind, record.payload))
        elif kind == Kind.LEARN:
            self._learn(decode(kind, record.payload))
        elif kind == Kind.RESTART:
            seq = decode(kind, record.payload)["seq"]
            self.due = self.due._replace(seq=seq, fresh=True, sent_ns=0)
        elif kind == Kind.INPUT:
            self.due = self.due._replace(input=decode(kind, record.payload)["values"])
        elif kind == Kind.ACTION:
            ask = decode(kind, record.payload)["ask"]
            if ask in (Ask.FREEZE, Ask.THAW):
                self.due = self.due._replace(frozen=ask == Ask.FREEZE)
        elif kind == Kind.END:
            self.due = self.due._replace(ended=True)

    def _observe(self, bin: Bin) -> None:
        frame = self._decoders[self.due.input is not None].decode(bin.frame)
        assert isinstance(frame, Frame)
        # Only a hole in the journal leaves bins out; what they held is not known.
        if not 0 <= frame.seq - self.due.seq <= LARGEST_GAP:
            self.due = self.due._replace(seq=frame.seq, fresh=True, sent_ns=0)
        while self.due.seq < frame.seq:
            self._pass_over(self.due.seq)
        fresh = frame.fresh or self.due.fresh
        u = frame.u if self.due.input is None else self._input()
        latent = self.engine.observe(frame.y, frame.mask, u, fresh)
        sent_ns = max(self.due.sent_ns, frame.sent_ns)
        self.due = self.due._replace(seq=frame.seq + 1, fresh=False, sent_ns=sent_ns)
        self._done(frame.seq, frame._replace(fresh=fresh), latent)

    def _pass_over(self, seq: int) -> None:
        self._lost += 1
        self.due = self.due._replace(seq=seq + 1)
        self._done(seq, None, self.engine.bridge(self._input()))

    def _input(self) -> np.ndarray | None:
        """What a controller gave, if there is one."""
        given = self.due.input
        return None if given is None else np.array(given, self.engine.dtype)

    def _done(self, seq: int, frame: Frame | None, latent: Latent) -> None:
        self.latent = latent
        self._bins += 1
        if self._keep is not None:
            self._keep(seq, frame, latent)

    def _compare(self, said: Step) -> None:
        self._compared += 1
        found = None if self.latent is None else Step.of(self.due.seq - 1, self.latent)
        if found is None or found.encode() != said.encode():
            self._tell(f"bin {said.seq}: {_what(found, said)}")

    def _learn(self, said: LearnRecord) -> None:
        found = self.engine.learn()
        self._learned += 1
        again = LearnRecord(self.engine.bins, found, said.key)
        if again.encode() != said.encode():
            self._tell(f"learning after {said.bin} bins: other steps or windows")

    def _tell(self, words: str) -> None:
        if len(self._differ) < SHOWN:
            self._differ.append(words)

    @property
    def agreement(self) -> Agreement:
        """How all that was taken compares."""
        counts = self._bins, self._lost, self._learned, self._compared
        return Agreement(*counts, tuple(self._differ), self._holes)


def _what(found: Step | None, said: Step) -> str:
    if found is None or found.seq != said.seq:
        return "not the bin that is due"
    if found.mean.tobytes() != said.mean.tobytes():
        return f"mean {found.mean}, not {said.mean}"
    return "another variance, covariance, rate or bound"
