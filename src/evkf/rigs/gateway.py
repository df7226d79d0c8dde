"""What all gateways share: the process they run in, what they are told, and what they note.

A gateway speaks to a rig in a process of its own and sends plain frames to the session over a pair
of sockets. Nothing foreign runs in the session's process, and nothing there can take it down.
"""

import importlib.util
import multiprocessing
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from evkf.errors import EvkfError, InputError
from evkf.live.frames import Frame, encode
from evkf.live.machine import aside
from evkf.live.pipes import PipeSender
from evkf.live.run import Logger
from evkf.rigs.clock import Flag, Kind

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

    def count(self, code: str, text: str, num: int = 1) -> None:
        """Count so many of a kind."""
        before = self.counts[code]
        self.counts[code] = now = before + num
        if len(str(now)) > len(str(before)) or not before:
            many = f" ({now} so far)" if now > 1 else ""
            self.tell(f"{code}: {text[:SHORT]}{many}")

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


def _main(run: Run, own: socket.socket, setup: Setup) -> None:
    sender = PipeSender(own)
    say = partial(print, file=sys.stderr, flush=True)
    notes = Notes(say if setup.log is None else Logger(setup.log, say))
    try:
        run(setup, sender, notes)
    except (KeyboardInterrupt, ConnectionError):
        # The session is gone, or an interrupt of the terminal ends both.
        pass
    except EvkfError as error:
        notes.tell(str(error))
        # The thread that writes it ends with the process.
        time.sleep(0.5)
    finally:
        sender.close()


def start(run: Run, own: socket.socket, setup: Setup) -> BaseProcess:
    """Run a gateway in a process of its own, which ends with this one.

    Args:
        run: What it does.
        own: End of a pair of sockets, which is handed over.
        setup: What it is told.
    """
    return spawn(_main, own, run, own, setup)


def spawn(main: Callable[..., None], own: socket.socket, *args: Any) -> BaseProcess:
    """Call a function in a process of its own, and hand it an end of a pair of sockets."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=main, args=args, name="evkf-gateway", daemon=True)
    with aside():
        process.start()
    own.close()
    return process


def need(module: str, what: str, extra: str) -> None:
    """Refuse to go on without an optional package, which is not imported."""
    if importlib.util.find_spec(module) is None:
        raise InputError(
            f"{what} needs {module}", "this installation", f'pip install "evkf[{extra}]"'
        )
