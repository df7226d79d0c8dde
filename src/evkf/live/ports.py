"""What a session is connected to, how it is run, and what it tells of itself."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from evkf.live.answers import Estimate
from evkf.live.engine import Engine
from evkf.live.order import Counters


class Phase(StrEnum):
    """States of a session; `docs/live_protocol.md` says what they mean and how they change."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"
    CLOSED = "closed"


class Source(Protocol):
    """Where frames come from, and answers go to."""

    gone: bool
    """Whether nothing can come any more."""

    @property
    def odd(self) -> Mapping[str, int]:
        """How often it noted what, by the word; `docs/rig.md` lists them."""
        ...

    def receive(self, timeout: float, most: int) -> list[tuple[Any, bytes]]:
        """Messages that are there, each with who sent it; waits for the first so many seconds."""
        ...

    def answer(self, peer: Any, data: bytes) -> None:
        """Send something back; it never waits."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Sink(Protocol):
    """Where estimates go."""

    def publish(self, estimate: Estimate) -> None:
        """Hand on an estimate; it never waits."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Due(NamedTuple):
    """What the next bin will be.

    Attributes:
        seq: Its number.
        fresh: Whether it begins a trial, whatever it says itself.
        sent_ns: When the last one was sent, on the sender's clock; 0 if that is not known.
        frozen: Whether the operator has learning frozen.
        input: Its input, where a controller gives it; None where frames do.
        ended: Whether there is none: the stream has ended.
    """

    seq: int = 0
    fresh: bool = False
    sent_ns: int = 0
    frozen: bool = False
    input: Sequence[float] | None = None
    ended: bool = False


class Saver(Protocol):
    """Keeps checkpoints, in a thread of its own."""

    def save(self, engine: Engine, position: int, due: Due) -> bool:
        """Keep what the engine knows after the records below a position; whether it was begun."""
        ...

    def close(self) -> None:
        """Finish what was begun."""
        ...


class Settings(NamedTuple):
    """How a session is run.

    Attributes:
        period: Seconds from one bin to the next; 0 if they come as fast as they are taken, which
            leaves no time to learn.
        reorder: A missing bin is given up when one so many ahead is there.
        patience: Seconds after which it is given up in any case.
        learn: Whether it learns.
        backlog: Most frames that are taken from the source at once; the rest wait there.
        checkpoint_every: Seconds between checkpoints.
        paced: Seconds of a bin of a source that does what the operator asks of its pace; 0 of
            one that does not.
    """

    period: float
    reorder: int = 8
    patience: float = 0.1
    learn: bool = True
    backlog: int = 4096
    checkpoint_every: float = 30.0
    paced: float = 0.0


class Report(NamedTuple):
    """What there is to tell of a session at a moment."""

    phase: Phase
    why: str
    bins: int
    """Since the stream began."""
    taken: int
    """Since this process took it up."""
    rate: float
    """Bins a second since the last report."""
    latency_ns: tuple[int, int, int, int]
    """From taken in to published: median, 99th, 99.9th percentile, worst."""
    counters: Counters
    refused: int
    backlog: int
    """Most frames found waiting at once since the last report."""
    learned: int
    """Of those taken, after how many it learned."""
    elbo: float
    """Of the last bin."""
    acknowledged: int
    """Number of the last bin that is durable; -1 if there is none."""
    exposure_ms: float
    """Longest time from taken in to durable."""
    frozen: bool
    """Whether the operator has learning frozen."""
    odd: Mapping[str, int]
    """What the source noted, by the word."""
    stimulation: str = ""
    """Whether it is armed, held or stopped, and why; empty where nothing stimulates."""

    @staticmethod
    def starting(why: str) -> "Report":
        """Of a session before its first bin."""
        counts = {"rate": 0.0, "latency_ns": (0, 0, 0, 0), "counters": Counters(), "refused": 0}
        counts |= {"backlog": 0, "learned": 0, "elbo": math.nan, "acknowledged": -1}
        return Report(Phase.STARTING, why, 0, 0, **counts, exposure_ms=0.0, frozen=False, odd={})

    @property
    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict() | {"counters": self.counters._asdict(), "odd": dict(self.odd)}
