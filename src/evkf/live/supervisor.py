"""Several sessions on one machine: a process each, taken up again from its journal when it dies.

A session is described by a file NAME.toml, options of `evkf live`, and lives in the folder NAME
beside it. The sessions know nothing of one another.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from evkf.errors import InputError
from evkf.live.plan import LOG, PLAN
from evkf.live.ports import Phase

SOON_S, SELDOM_S, STEADY_S = 0.5, 30.0, 15.0
"""A session that died is taken up again so soon; twice as long after every time it did not live
for the third once it was ready, up to the second."""

BAD_INPUT = 2
"""Exit code of what cannot be mended by trying again."""

READY = f"-> {Phase.READY}".encode()
"""In the log of a session that has begun to take in bins; its other processes write there too."""

STOP_S = 20.0
"""Seconds for all sessions to end when they are told to."""

TIED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGTERM
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes what it is given, and is told to end when who started it does, however that is."""


class Fate(StrEnum):
    """What has become of a session."""

    RUNS = "runs"
    WAITS = "waits"
    """It died, and is taken up again in a moment."""
    ENDED = "ended"
    """Its stream ended."""
    REFUSED = "refused"
    """What it was given is wrong: see its log."""


Start = Callable[[Path, bool], subprocess.Popen]
"""Starts the session that a file describes; true if it is to be taken up again."""


class Charge:
    """One session.

    Args:
        file: Its description.
        start: Starts its process.
        log: Told a line of all that happens to it.
        clock: Seconds.

    Attributes:
        name: Of the session.
        fate: What has become of it.
        deaths: How often it died.
    """

    def __init__(
        self,
        file: Path,
        start: Start,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.file, self.name, self._start, self._log, self._clock = (
            file,
            file.stem,
            start,
            log,
            clock,
        )
        self.fate, self.deaths = Fate.WAITS, 0
        self.process: subprocess.Popen | None = None
        self._patience, self._again, self._begun = SOON_S, clock(), 0.0
        self._ready: float | None = None
        self._said = 0

    def look(self) -> None:
        """See whether it lives, and start it if it is time to."""
        if self.fate == Fate.RUNS:
            assert self.process is not None
            code = self.process.poll()
            if code is not None:
                self._bury(code)
            elif self._ready is None and READY in _read(self._log_file, self._said):
                self._ready = self._clock()
        elif self.fate == Fate.WAITS and self._clock() >= self._again:
            self._begun, self._ready = self._clock(), None
            self._said = _size(self._log_file)
            try:
                known = self._has_begun
                self.process = self._start(self.file, known)
            except OSError as error:
                self._die(f"could not be started ({error})")
                return
            self.fate = Fate.RUNS
            how = "resumed" if known else "begun"
            self._log(f"{self.name}: {how}, process {self.process.pid}, log {log_of(self.file)}")

    @property
    def _has_begun(self) -> bool:
        return (folder_of(self.file) / PLAN).exists()

    @property
    def _log_file(self) -> Path:
        return folder_of(self.file) / LOG

    def _bury(self, code: int) -> None:
        try:
            known = self._has_begun
        except OSError:
            known = True  # its disk fails: to try again does no harm
        # What is wrong with one that had begun may pass: a busy port, a lock, a full disk.
        if code == 0 or (code == BAD_INPUT and not known):
            self.fate = Fate.REFUSED if code else Fate.ENDED
            self._log(f"{self.name}: {self.fate}{f', see {log_of(self.file)}' if code else ''}")
            return
        self._die(f"died by {_signal(-code)}" if code < 0 else f"ended with code {code}")

    def _die(self, how: str) -> None:
        now = self._clock()
        lived = now - self._begun
        self.deaths += 1
        if self._ready is not None and now - self._ready > STEADY_S:
            self._patience = SOON_S
        self.fate, self._again = Fate.WAITS, now + self._patience
        self._log(f"{self.name}: {how} after {lived:.1f} s, again in {self._patience:g} s")
        self._patience = min(2 * self._patience, SELDOM_S)

    def stop(self) -> None:
        """Ask its process to end."""
        if self.fate == Fate.RUNS and self.process is not None:
            self.process.terminate()
        elif self.fate == Fate.WAITS:
            self.fate = Fate.ENDED


class Supervisor:
    """Keeps sessions running.

    Args:
        folder: That has a file NAME.toml for every session.
        log: Told a line of all that happens.
        start: Starts the process of a session.

    Attributes:
        charges: The sessions.
    """

    def __init__(self, folder: Path, log: Callable[[str], None], start: Start | None = None):
        files = sorted(folder.glob("*.toml"))
        if not files:
            remedy = "put a file NAME.toml there for every session, with options of `evkf live`"
            raise InputError("no session", str(folder), remedy)
        self.charges = [Charge(file, start or start_session, log) for file in files]

    def run(self, stop: Callable[[], bool], every: float = 0.1) -> None:
        """Until all sessions have ended, or `stop` says so; then all are ended."""
        try:
            while not stop() and any(self._busy(charge) for charge in self.charges):
                for charge in self.charges:
                    charge.look()
                time.sleep(every)
        finally:
            self._end()

    @staticmethod
    def _busy(charge: Charge) -> bool:
        return charge.fate in (Fate.RUNS, Fate.WAITS)

    def _end(self) -> None:
        for charge in self.charges:
            charge.stop()
        until = time.monotonic() + STOP_S
        for charge in self.charges:
            if charge.process is None:
                continue
            try:
                charge.process.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                charge.process.kill()
                charge.process.wait()


def _signal(number: int) -> str:
    """Its name, if it has one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _size(file: Path) -> int:
    """Bytes of a file; none if it is not there yet, or cannot be looked at."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _read(file: Path, begin: int) -> bytes:
    """What a file has from there on; nothing if it cannot be read."""
    try:
        with file.open("rb") as handle:
            handle.seek(begin)
            return handle.read()
    except OSError:
        return b""


def folder_of(file: Path) -> Path:
    """Of the session that a file describes."""
    return file.with_suffix("")


def log_of(file: Path) -> Path:
    """Where what its process says is kept."""
    return file.with_suffix(".log")


def command_of(file: Path, known: bool) -> Sequence[str]:
    """What begins a session, or takes it up again.

    Example:
        >>> command_of(Path("rigs/left.toml"), known=False)[3:]
        ['live', 'rigs/left', '--config', 'rigs/left.toml']
        >>> command_of(Path("rigs/left.toml"), known=True)[3:]
        ['resume', 'rigs/left']
    """
    how = ["resume", str(folder_of(file))]
    if not known:
        how = ["live", str(folder_of(file)), "--config", str(file)]
    return [sys.executable, "-m", "evkf", *how]


def _open_log(file: Path) -> BinaryIO:
    """For us alone: with a page, a session prints its token."""
    handle = os.open(log_of(file), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.fchmod(handle, 0o600)
    return os.fdopen(handle, "ab")


def start_session(file: Path, known: bool) -> subprocess.Popen:
    """Start the process of a session, tied to this one."""
    with _open_log(file) as log:
        return subprocess.Popen(
            [sys.executable, "-S", "-c", TIED, str(os.getpid()), *command_of(file, known)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
