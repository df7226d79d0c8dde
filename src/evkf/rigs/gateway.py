"""What all gateways share: the process they run in, what they are told, and what they note.

A gateway speaks to a rig in a process of its own and sends plain frames to the session over a pair
of sockets. Nothing foreign runs in the session's process, and nothing there can take it down.
"""

import contextlib
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from evkf.errors import EvkfError, InputError
from evkf.live.frames import HEADER, Frame, encode
from evkf.live.machine import aside
from evkf.live.pipes import PEER, PipeSender, PipeSource, beside, pair
from evkf.live.run import Logger
from evkf.rigs.clock import Flag, Kind

AGAIN_S, END_S = 5.0, 10.0
"""Seconds from one start of a gateway to the next, and that it has to end."""

UP, GAVE_UP, NOTED = b"+", b"?", b"#"
"""What a gateway says when its process has started, and what precedes the reason that it gives up
for, and its counts of what is odd; no frame begins so."""

NOTED_S = 1.0
"""Seconds from one time that a session is told such counts to the next."""

SHORT = 200
"""Characters of what a peer sent that are repeated in a note."""


class Setup(NamedTuple):
    """What a gateway is told; all of it plain values.

    Attributes:
        units: Names of the channels of a bin, in their order.
        bin_width: Seconds.
        counts: Whether the values of a bin are counts.
        first: Number of the bin that is due.
        since_ns: End of the bin before it on the source's clock; 0 if that is not known.
        address: Of Open Ephys: where its plugin publishes.
        stream: Of Lab Streaming Layer: name of the stream.
        sample_rate: Of Open Ephys: samples a second; None waits for continuous data to tell.
        lateness: Seconds after its end that a bin waits for spikes out of order.
        silence: Seconds without a message after which a source is silent: bins go on by the clock
            of this machine.
        blank: Of Open Ephys: line of TTL events, and seconds before and after each of its edges
            that are masked.
        log: File that notes are written to, besides the terminal.
    """

    units: tuple[str, ...]
    bin_width: float
    counts: bool = True
    first: int = 0
    since_ns: int = 0
    address: str = ""
    stream: str = ""
    sample_rate: float | None = None
    lateness: float = 0.025
    silence: float = 0.1
    blank: tuple[int, float] | None = None
    log: Path | None = None


class RigError(EvkfError):
    """A message of a rig that cannot be used; the stream goes on without it.

    Attributes:
        code: Why, in a word.
    """

    def __init__(self, code: str, message: str):
        self.code = code
        super().__init__(f"{code}: {message[:SHORT]}")

    def __reduce__(self) -> tuple:
        return type(self), (self.code, str(self).removeprefix(f"{self.code}: "))


class Notes:
    """Counts what is odd, and tells of the first, the tenth, the hundredth, and so on.

    Args:
        tell: Told a line.

    Attributes:
        counts: How often, by the word.

    Example:
        >>> notes = Notes(print)
        >>> for unit in range(12):
        ...     notes.count("unknown_unit", f"unit {unit}")
        unknown_unit: unit 0
        unknown_unit: unit 9 (10 so far)
        >>> notes.counts["unknown_unit"]
        12
    """

    def __init__(self, tell: Callable[[str], None]):
        self.tell, self.counts = tell, Counter[str]()
        self._passed, self._due = 0, 0.0

    def count(self, code: str, text: str, num: int = 1) -> None:
        """Count so many of a kind."""
        before = self.counts[code]
        self.counts[code] = now = before + num
        if len(str(now)) > len(str(before)) or not before:
            many = f" ({now} so far)" if now > 1 else ""
            self.tell(f"{code}: {text[:SHORT]}{many}")

    def pass_on(self, sender: PipeSender, last: bool = False) -> None:
        """Tell the session what was counted, if that is more than it knows, now and then."""
        total, now = self.counts.total(), time.monotonic()
        if total > self._passed and (last or now >= self._due):
            self._passed, self._due = total, now + NOTED_S
            sender.send(NOTED + json.dumps(self.counts).encode())

    def flag(self, flag: Flag) -> None:
        """Tell of what a clock did; strays are counted."""
        if flag.kind == Kind.STRAY:
            self.count("stray", flag.text, round(flag.size))
        else:
            self.tell(f"clock: {flag.text}")

    def refuse(self, error: RigError) -> None:
        """Count a message that cannot be used."""
        self.count(error.code, str(error).removeprefix(f"{error.code}: "))


Run = Callable[[Setup, PipeSender, Notes], None]


def send(sender: PipeSender, frames: Iterable[Frame]) -> None:
    """Hand bins to the session."""
    for frame in frames:
        sender.send(encode(frame))


def heed(sender: PipeSender, notes: Notes) -> None:
    """Notice that the session is gone, and tell it what is odd.

    Raises:
        ConnectionError: It is gone.
    """
    sender.read()
    notes.pass_on(sender)


def notes_of(setup: Setup) -> Notes:
    """Notes to the terminal, and to the log."""
    say = partial(print, file=sys.stderr, flush=True)
    return Notes(say if setup.log is None else Logger(setup.log, say))


def _main(own: socket.socket, run: Run, setup: Setup) -> None:
    sender, notes = PipeSender(own), notes_of(setup)
    try:
        sender.send(UP)
        # It starts while programs are compiled, and waits until bins are asked for.
        first, since_ns = json.loads(sender.read(timeout=None)[0])
        run(setup._replace(first=first, since_ns=since_ns), sender, notes)
    except (KeyboardInterrupt, ConnectionError):
        # The session is gone, or an interrupt of the terminal ends both.
        pass
    except InputError as error:
        words = error.what, error.where, error.remedy
        with contextlib.suppress(ConnectionError):
            notes.pass_on(sender, last=True)
            sender.send(GAVE_UP + json.dumps(words).encode())
    finally:
        sender.close()


class RigSource:
    """Frames of a gateway in a process of its own, which is begun again when it crashes.

    One that gives up, because it cannot do what it is told, is not: the session fails. It speaks to
    the rig from when frames are first asked for; before, it only starts.

    Args:
        run: What the gateway does.
        setup: What it is told.

    Attributes:
        gone: Whether it has ended.
        odd: What its gateways noted, by the word.
    """

    def __init__(self, run: Run, setup: Setup):
        self._run, self._setup, self.gone = run, setup, False
        self._last = self._why = b""
        self.odd, self._before = Counter[str](), Counter[str]()
        with aside():
            self._notes = notes_of(setup)
        self._begin()

    def _begin(self) -> None:
        own, other = pair()
        self._pipe, self._begun, self._asked = PipeSource(own), time.monotonic(), False
        self._process = beside("evkf-gateway", _main, (other,), self._run, self._setup)

    def due(self, first: int, since_ns: int) -> None:
        """Say which bin is due, before any is asked for, and when the one before it ended."""
        self._setup = self._setup._replace(first=first, since_ns=since_ns)

    def wait_until_up(self) -> None:
        """Wait until its process has started, or has failed to; before any frame is asked for."""
        while not self._pipe.receive(0.1, 1) and not self._pipe.gone:
            pass

    def receive(self, timeout: float, most: int) -> list[tuple[Any, bytes]]:
        """Messages that are there; waits for the first so many seconds.

        Raises:
            InputError: The gateway cannot do what it is told.
        """
        if not self._asked:
            self._asked = True
            setup = self._setup
            self._pipe.answer(PEER, json.dumps([setup.first, setup.since_ns]).encode())
        found = self._pipe.receive(timeout, most)
        if found and found[0][1] == UP:
            del found[0]
        noted = [data for _, data in found if data.startswith(NOTED)]
        if noted:
            found = [each for each in found if not each[1].startswith(NOTED)]
            self.odd = self._before + Counter(json.loads(noted[-1].removeprefix(NOTED)))
        if found and found[-1][1].startswith(GAVE_UP):
            self._why = found.pop()[1].removeprefix(GAVE_UP)
        if found:
            self._last = found[-1][1]
        elif self._why:
            raise InputError(*json.loads(self._why))
        elif self._pipe.gone:
            self._look_after(timeout)
        return found

    def _look_after(self, timeout: float) -> None:
        if self._process.is_alive() or time.monotonic() - self._begun < AGAIN_S:
            time.sleep(timeout)
        elif self._process.exitcode == 0:
            self.gone = True
        else:
            code = self._process.exitcode
            self._notes.tell(
                f"the gateway ended with code {code}, see the terminal; it is started again"
            )
            self._pipe.close()
            self._before = self.odd
            if self._last:
                *_, seq, sent_ns, _, _ = HEADER.unpack_from(self._last)
                self.due(seq + 1, sent_ns)
            self._begin()

    def answer(self, peer: Any, data: bytes) -> None:
        """Nothing: a rig cannot send again."""

    def close(self) -> None:
        """Have the gateway end."""
        self._pipe.close()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
