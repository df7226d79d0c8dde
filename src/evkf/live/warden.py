"""The process of a guard: it alone talks to the stimulator, and outlives whatever the session does.

The session's end of a pair of sockets and a door for the operator lead to it. When the session's
end closes, for whatever reason, the output is zero at once.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from evkf.errors import InputError
from evkf.live.control import load
from evkf.live.disk import DISK
from evkf.live.guard import Guard, Output, State, Word
from evkf.live.limits import Limits
from evkf.live.machine import PRIORITY, become_real_time, undisturbed
from evkf.live.pipes import beside
from evkf.live.plan import PLAN
from evkf.live.slack import Budget

DOOR, STOPPED = "guard", "stopped"
"""Names in the folder of a session: the operator's way in, and a file that is there while a stop
holds."""

LONGEST = 1 << 16
"""Bytes of a message."""

ANSWER_S = 2.0
"""Seconds within which a guard answers; one that does not is ended."""

TIDY_NS, TIDYING_NS = 5_000_000_000, 1_000_000
"""Time between collections of garbage, and what the first is taken to take."""

AGAIN_S = 0.2
"""Seconds between attempts to leave a stop on a disk that refuses."""


class Stimulator(Protocol):
    """What a guard hands its output to. It must fall to zero when it is closed, or when whatever
    leads to it is gone, and should after `until_ns` if nothing follows.
    """

    def apply(self, output: Output) -> None:
        """Have these values on from now; it must not wait."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class PipeStimulator:
    """One at the other end of a pair of sockets, which is told every output as JSON.

    Args:
        own: This end.
    """

    def __init__(self, own: socket.socket):
        self._own = own

    def apply(self, output: Output) -> None:
        """Tell it; that there is no room is an error."""
        self._own.send(output.encode(), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close this end."""
        self._own.close()


class Warden:
    """Runs a guard.

    Args:
        guard: What decides.
        own: End of a pair of sockets whose other is the session's.
        folder: Of the session.
        stimulator: Told every output.
    """

    def __init__(self, guard: Guard, own: socket.socket, folder: Path, stimulator: Stimulator):
        self._guard, self._own, self._stimulator = guard, own, stimulator
        self._folder, self._marker = folder, folder / STOPPED
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _address(folder) as where:
            Path(where).unlink(missing_ok=True)
            self._door.bind(where)
            os.chmod(where, 0o600)
        self._door.listen()
        self._visitors: list[socket.socket] = []
        self._kept: bool | None = None
        """Whether the disk has a stop; None if that is not known."""
        self._broken = False
        self._tidying, self._tidied_ns = Budget([TIDYING_NS]), time.monotonic_ns()

    def run(self) -> None:
        """Until the session is gone."""
        try:
            if self._guard.state != State.STOPPED and self._marker.exists():
                # Somebody stopped it before the door was there.
                why = self._marker.read_text(encoding="utf-8").strip()
                self._guard.obey(Word.STOP, why, time.monotonic_ns())
            self._apply(self._guard.now(time.monotonic_ns()))
            while not self._broken and self._turn():
                pass
        finally:
            # It is ending: nothing may cut short how.
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            now_ns = time.monotonic_ns()
            if self._guard.state != State.STOPPED:
                self._guard.obey(Word.HALT, "the session is gone", now_ns)
            with contextlib.suppress(Exception):
                self._stimulator.apply(self._guard.now(now_ns))
            with contextlib.suppress(Exception):
                self._stimulator.close()
            if self._guard.state == State.STOPPED:
                self._keep()
            for each in (self._own, self._door, *self._visitors):
                each.close()

    def _turn(self) -> bool:
        """Wait for something to do, and do it; false when the session is gone."""
        until, there = self._guard.until_ns, True
        left = None if until is None else max(until - time.monotonic_ns(), 0) / 1e9
        if self._guard.state == State.STOPPED and not self._kept:
            left = AGAIN_S
        ends = [self._own, self._door, *self._visitors]
        ready = select.select(ends, [], [], left)[0]
        # The session first: what the operator says now is newer than what it said.
        if self._own in ready:
            there = self._hear()
        for end in ready:
            if end is self._door:
                self._visitors.append(self._door.accept()[0])
            elif end is not self._own:
                self._serve(end)
        self._apply(self._guard.tick(time.monotonic_ns()))
        self._keep()
        self._tidy()
        return there

    def _tidy(self) -> None:
        """Collect garbage now and then, while nothing is on or well before what is on ends."""
        now_ns, until_ns = time.monotonic_ns(), self._guard.until_ns
        if now_ns - self._tidied_ns < TIDY_NS:
            return
        if until_ns is None or self._tidying.fits((until_ns - now_ns) // 2, now_ns):
            gc.collect()
            self._tidied_ns = time.monotonic_ns()
            self._tidying.spent(self._tidied_ns - now_ns)

    def _hear(self) -> bool:
        """What the session says; false when its end is closed."""
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    data = self._own.recv(LONGEST, socket.MSG_DONTWAIT)
                except ConnectionError:
                    data = b""
                if not data:
                    return False
                self._apply(self._guard.heed(data, time.monotonic_ns()))
        return True

    def _serve(self, visitor: socket.socket) -> None:
        """What an operator says: a word, or anything else to be told what is on."""
        with contextlib.suppress(OSError):
            data, now_ns = visitor.recv(LONGEST, socket.MSG_DONTWAIT), time.monotonic_ns()
            if data in (Word.STOP.encode(), Word.LIFT.encode()):
                self._apply(self._guard.obey(Word(data.decode()), "the operator", now_ns))
            visitor.send(self._guard.now(now_ns).encode(), socket.MSG_DONTWAIT)
        self._visitors.remove(visitor)
        visitor.close()

    def _apply(self, output: Output | None) -> None:
        if output is None:
            return
        try:
            self._stimulator.apply(output)
        except Exception as error:
            why = f"the stimulator failed: {type(error).__name__}: {error}"
            output = self._guard.obey(Word.STOP, why, time.monotonic_ns())
            assert output is not None
            try:
                self._stimulator.apply(output)
            except Exception:
                # It cannot be told to end: the connection to it must, and with it this process.
                self._broken = True
        with contextlib.suppress(OSError):
            self._own.send(output.encode(), socket.MSG_DONTWAIT)
        self._keep()

    def _keep(self) -> None:
        """Leave a stop for whoever takes up the session, last: a disk may be slow. One that refuses
        is asked again, while nothing is on; that a stop was lifted it is told once.
        """
        stopped = self._guard.state == State.STOPPED
        if stopped == self._kept:
            return
        if stopped:
            self._kept = keep_stop(self._folder, self._guard.now(time.monotonic_ns()).why)
        else:
            self._kept = False
            with contextlib.suppress(OSError):
                self._marker.unlink(missing_ok=True)


def keep_stop(folder: Path, why: str) -> bool:
    """Leave a stop in a folder, for whoever takes up the session; whether the disk has it."""
    try:
        with (folder / STOPPED).open("w", encoding="utf-8", errors="replace") as file:
            file.write(why + "\n")
            file.flush()
            os.fsync(file.fileno())
        DISK.sync_folder(folder)
    except OSError:
        return False
    return True


def _main(
    own: socket.socket,
    folder: Path,
    limits: Limits,
    period: float,
    stimulator: Stimulator | str,
    real_time: bool,
) -> None:
    # An interrupt of the terminal is the session's, whose end is this one's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    marker = folder / STOPPED
    why = marker.read_text(encoding="utf-8").strip() if marker.exists() else None
    made = load(stimulator)() if isinstance(stimulator, str) else stimulator
    guard = Guard(limits, period, time.monotonic_ns(), why)
    warden = Warden(guard, own, folder, made)
    if real_time:
        become_real_time(PRIORITY + 1)
    with undisturbed():
        warden.run()


def _leave(*_: Any) -> None:
    raise SystemExit(0)


def start_guard(
    own: socket.socket,
    folder: Path,
    limits: Limits,
    period: float,
    stimulator: Stimulator | str,
    real_time: bool = False,
) -> BaseProcess:
    """Run a guard in a process of its own, which ends with the session.

    Args:
        own: End of a pair of sockets, which is handed over.
        folder: Of the session.
        limits: For every channel.
        period: Seconds from one bin to the next.
        stimulator: What it drives, or "MODULE:NAME" of what makes it there.
        real_time: Whether to take real-time priority, above the session's.
    """
    told = folder.resolve(), limits, period, stimulator, real_time
    process = beside("evkf-guard", _main, (own,), *told)
    if not isinstance(stimulator, str):
        stimulator.close()
    return process


def tell_guard(folder: Path, word: Word | None = None) -> Output | None:
    """Tell the guard of a session something, past the session: that may hang, or be stopped.

    Args:
        folder: Of the session.
        word: `Word.STOP`, or `Word.LIFT`; None asks only.

    Returns:
        What is on now; None if the guard did not answer to a stop, and was ended for it.

    Raises:
        InputError: If there is no guard, or it does not answer to anything else.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as way, _address(folder) as where:
        way.settimeout(ANSWER_S)
        # The guard first: a disk that hangs must not be in the way of it.
        nobody = _knock(way, where)
        if nobody and word == Word.STOP and (folder / PLAN).exists():
            # One that is only just beginning looks for this after its door is there.
            keep_stop(folder, "the operator")
            nobody = _knock(way, where)
        if nobody:
            remedy = f"check that this is the session's folder, with its {PLAN}; if something is "
            remedy += "still on, use the switch at the stimulator"
            if (folder / STOPPED).exists():
                remedy += "; a session that begins there is stopped until `evkf arm` while it runs"
            raise InputError(f"no guard ({nobody})", str(folder), remedy)
        try:
            way.send((word or "state").encode())
            return Output.decode(way.recv(LONGEST))
        except (OSError, json.JSONDecodeError):
            if word != Word.STOP:
                remedy = "`evkf stop` ends one that does not"
                raise InputError("a guard that does not answer", str(folder), remedy) from None
            who = way.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            with contextlib.suppress(ProcessLookupError):
                os.kill(struct.unpack("3i", who)[0], signal.SIGKILL)
            keep_stop(folder, "the guard did not answer")
            return None


def _knock(way: socket.socket, where: str) -> OSError | None:
    """Connect; why not, if nobody is there."""
    try:
        way.connect(where)
    except OSError as error:
        return error
    return None


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Where the door of a folder is; paths of sockets are short, so that it goes by a handle."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{DOOR}"
    finally:
        os.close(handle)
