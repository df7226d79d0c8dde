"""A session as a recording: its bins, what came of them, and what the operator marked."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evkf.analysis.estimates import Estimates
from evkf.data import Annotations, Mark, Recording
from evkf.errors import InputError
from evkf.live.desk import Ask
from evkf.live.engine import Latent
from evkf.live.frames import Frame
from evkf.live.plan import JOURNAL, Parts, Plan, build
from evkf.live.recall import Player, Progress, records
from evkf.live.records import Bin, Kind, decode
from evkf.live.segments import Record


class Exported(NamedTuple):
    """What a session comes to.

    Attributes:
        recording: Its bins; those that were lost are masked.
        estimates: Latents, one-step predictions and bounds.
        notes: Stamps of bins on the clock of their source, marks of the operator by the time of the
            recording, and the time of second 0 by the clock on the wall, if known.
    """

    recording: Recording
    estimates: Estimates
    notes: Annotations


class _Kept:
    """What is kept of a session while it is computed again."""

    def __init__(self, bin_width: float):
        self._width = bin_width
        self.places: list[int] = []
        """Of the bins in time, counted in bins from second 0."""
        self.frames: list[Frame | None] = []
        self.latents: list[Latent] = []
        self.marks: list[Mark] = []
        self.zero_ns: int | None = None
        """When second 0 was, by the clock on the wall."""
        self._ahead_ns, self._seq = 0, -1

    def keep(self, seq: int, frame: Frame | None, latent: Latent) -> None:
        """A bin that was computed."""
        self.places.append(self._place(seq))
        self._seq = seq
        self.frames.append(frame)
        self.latents.append(latent)

    def _place(self, seq: int) -> int:
        """Of the bin that has this number: numbers may begin anew, time does not."""
        last = self.places[-1] if self.places else -1
        return last + max(seq - self._seq, 1)

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """Records, each handed on when those before it have been taken."""
        for record in records:
            if record.kind == Kind.BEGIN:
                words = decode(record.kind, record.payload)
                self._ahead_ns = words["wall_ns"] - words["monotonic_ns"]
            elif record.kind == Kind.ACTION:
                words = decode(record.kind, record.payload)
                if words["ask"] == Ask.MARK:
                    self.marks.append(Mark(self._width * self._place(words["seq"]), words["text"]))
            yield record
            if record.kind == Kind.BIN and self.zero_ns is None:
                bin: Bin = decode(record.kind, record.payload)
                since = round(self._width * (self.places[-1] + 1) * 1e9)
                self.zero_ns = bin.received_ns + self._ahead_ns - since


def recall_recording(
    folder: Path, plan: Plan, made: Parts, progress: Progress | None = None
) -> Exported:
    """Compute a session again from its journal.

    Args:
        folder: Of the session.
        plan: Its plan.
        made: What its engine is built from.
        progress: Told how many records of its journal, of how many, have been taken.
    """
    kept, engine = _Kept(plan.bin_width), build(plan, made)
    taken = kept.watch(records(folder / JOURNAL, progress))
    Player(engine, made.counts, keep=kept.keep).play(taken)
    num = len(kept.places)
    if not num:
        raise InputError("a session without bins", str(folder), "name another")
    shape = num, engine.num_channels
    counts, masks = np.zeros(shape, np.int64 if made.counts else float), np.zeros(shape, bool)
    fresh, sent_ns = np.zeros(num, bool), np.zeros(num, np.int64)
    for i, frame in enumerate(kept.frames):
        if frame is not None:
            counts[i], fresh[i], sent_ns[i] = frame.y, frame.fresh, frame.sent_ns
            masks[i] = True if frame.mask is None else frame.mask
    starts = np.flatnonzero(fresh | (np.arange(num) == 0))
    recording = Recording(
        counts,
        plan.bin_width,
        lengths=tuple(np.diff(starts, append=num).tolist()),
        start_times=plan.bin_width * np.asarray(kept.places, float)[starts],
        masks=masks,
        units={"id": np.asarray(made.units)},
        source=str(folder),
    )
    began = None if kept.zero_ns is None else datetime.fromtimestamp(kept.zero_ns / 1e9, UTC)
    source_times = np.where(sent_ns == 0, np.nan, sent_ns / 1e9)
    ahead = np.stack([latent.rate for latent in kept.latents])
    estimates = Estimates(
        np.stack([latent.mean for latent in kept.latents]),
        np.stack([latent.cov for latent in kept.latents]),
        np.array([latent.elbo for latent in kept.latents]),
        predicted=np.concatenate([ahead[:1], ahead[:-1]]),
        signals=not made.counts,
    )
    notes = Annotations(source_times=source_times, marks=tuple(kept.marks), began=began)
    return Exported(recording, estimates, notes)
