"""What the page is shown of a session: recent bins, and messages of those that are new."""

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from evkf.web.packing import finite
from evkf.web.rows import Row, pack_rows

MOST = 500
"""Bins of a message; where more are new, the older are left out."""

RECENT, RECENT_BYTES = 1000, 1 << 21
"""Bins that one who comes later is shown, and bytes of their counts."""

MARKS = 100
"""Events that one who comes later is shown."""

GAP = 1000
"""A bin whose number is so much ahead of the last is not taken for the one after a gap."""


class State(NamedTuple):
    """What may change.

    Attributes:
        live: Whether the session is there, and reports.
        why: Why it is in the state that it is in.
        speed: Of its source, if that can be changed.
    """

    live: bool
    why: str
    speed: float | None


class Screen(NamedTuple):
    """What does not change from bin to bin.

    Attributes:
        session: Name of the session, the same wherever its folder is.
        source: Where its bins come from.
        bin_width: Seconds.
        latents: How many.
        units: Names of the channels.
        horizon: Bins that are looked ahead.
        counts: Whether channels are counts.
        has_truth: Whether the true dynamics are known.
        can: What can be asked for.
        speed: Of the source, if it can be changed.
        mode: "live", or "view" of a journal.
        folder: Of the session, as its command was given it: what people know it by.
    """

    session: str
    source: str
    bin_width: float
    latents: int
    units: tuple[str, ...]
    horizon: int
    counts: bool
    has_truth: bool
    can: tuple[str, ...]
    speed: float | None = None
    mode: str = "live"
    folder: str = ""

    @property
    def channels(self) -> int:
        """How many."""
        return len(self.units)

    @staticmethod
    def read(plain: Mapping[str, Any]) -> "Screen":
        """From plain values, as JSON has them."""
        lists = {"units": tuple(plain["units"]), "can": tuple(plain["can"])}
        return Screen(**{**plain, **lists})

    def hello(self, state: State) -> str:
        """What the page is told first, and when it changes."""
        labels = [f"z{index}" for index in range(self.latents)]
        more = {"channels": self.channels, "labels": labels}
        return json.dumps({"kind": "hello", **self._asdict(), **more, **state._asdict()})


class Reel:
    """Recent bins.

    Args:
        screen: What they are of.

    Attributes:
        last: The last bin.

    Example:
        >>> import numpy as np
        >>> from evkf.live.records import Step
        >>> from evkf.web.packing import unpack
        >>> from evkf.web.rows import of_step
        >>> reel = Reel(Screen("a1", "rig", 0.01, 2, ("u0",), 0, True, False, ()))
        >>> for seq in range(3):
        ...     step = Step(seq, 0, -1.0, np.zeros(2), np.ones(2), 0)
        ...     reel.add(of_step(step, reel.time(seq), 0, np.zeros(1, np.uint8)))
        >>> header, arrays = unpack(reel.message())
        >>> header["first"], arrays["time"].tolist(), reel.message()
        (0, [0.0, 0.01, 0.02], None)
    """

    def __init__(self, screen: Screen):
        self._screen = screen
        num = min(RECENT, max(RECENT_BYTES // max(screen.channels, 1), 1))
        self._recent: deque[Row] = deque(maxlen=num)
        self._new: list[Row] = []
        self._said: dict[str, Any] = {}
        self._known: dict[str, Any] = {}
        self._marks: deque[dict[str, Any]] = deque(maxlen=MARKS)
        self._skipped, self._offset = 0, 0.0
        self._seq: int | None = None
        self.last: Row | None = None

    def time(self, seq: int) -> float:
        """Seconds since the first bin: numbers may begin anew, time does not."""
        width = self._screen.bin_width
        if self._seq is not None and not 0 < seq - self._seq < GAP:
            self._offset += (self._seq + 1 - seq) * width
        self._seq = seq
        return round(seq * width + self._offset, 9)

    def add(self, row: Row) -> None:
        """A bin is new."""
        self._new.append(row)
        self._recent.append(row)
        self.last = row

    def skip(self, num: int) -> None:
        """Bins were left out to keep up."""
        self._skipped += num

    def mark(self, seq: int, text: str) -> None:
        """An event was marked."""
        self._marks.append({"seq": seq, "text": text})
        self._said.setdefault("marks", []).append(self._marks[-1])

    def number_anew(self) -> None:
        """Bins go on from another number, among which what was marked before has no place."""
        self._marks.clear()
        self._said.pop("marks", None)

    def tell(self, name: str, what: Any) -> None:
        """A report, or evidence."""
        self._said[name] = self._known[name] = finite(what)

    def forget(self) -> None:
        """What is kept is no longer recent; time goes on."""
        self._recent.clear()
        self._new, self._skipped = [], 0
        self.number_anew()

    def clear(self) -> None:
        """Begin anew."""
        self.forget()
        self._seq, self._offset = None, 0.0

    def message(self) -> bytes | None:
        """What is new since the last call; None if nothing is."""
        if not (self._new or self._said):
            return None
        rows, said = self._new[-MOST:], {"marks": [], **self._said}
        said["skipped"] = self._skipped + len(self._new) - len(rows)
        self._new, self._said, self._skipped = [], {}, 0
        return pack_rows(rows, self._screen.latents, self._screen.channels, said)

    def recent(self) -> bytes:
        """For one who comes later."""
        said = {"marks": list(self._marks), "skipped": 0, **self._known}
        rows = list(self._recent)[: len(self._recent) - len(self._new)]
        return pack_rows(rows, self._screen.latents, self._screen.channels, said)
