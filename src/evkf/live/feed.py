"""Bins of a recording sent at the pace of a rig, from a process of its own."""

import socket
import time
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

import numpy as np

from evkf.live.answers import Ack, decode_answer
from evkf.live.desk import Action, Ask
from evkf.live.frames import Frame, encode, encode_end
from evkf.live.pipes import PipeSender, beside

DRAIN_S = 15.0
"""Seconds to wait for the last acknowledgement."""

READY = b"ready"
"""What the process that sends waits for: it may be started while programs are still compiled."""


class Tape(NamedTuple):
    """What is sent: the bins of a recording, over and over if more are asked for."""

    counts: np.ndarray
    """(bins, channels)."""
    fresh: np.ndarray
    """True where a trial begins, (bins,)."""
    masks: np.ndarray | None = None
    """True where observed, (bins, channels)."""

    def frame(self, seq: int, begun: int = 0) -> Frame:
        """The bin of a number; the tape begins with bin `begun`."""
        at = (seq - begun) % len(self.counts)
        mask = None if self.masks is None or self.masks[at].all() else self.masks[at]
        # Asked to begin again, it does so with a trial.
        fresh = bool(self.fresh[at]) or seq == begun > 0
        return Frame(seq, self.counts[at], mask, None, fresh, time.monotonic_ns())


class Sender(Protocol):
    """Where frames go, and where answers come from."""

    def send(self, data: bytes) -> None:
        """Send a frame."""
        ...

    def read(self, timeout: float = 0.0) -> list[bytes]:
        """Answers that are there."""
        ...


def pace(
    sender: Sender,
    tape: Tape,
    period: float,
    num: int | None,
    first: int = 0,
    width: float = 0.0,
) -> int:
    """Send bins, one a period, then the end; the number of the last that was acknowledged.

    Args:
        sender: Where to.
        tape: What.
        period: Seconds from one to the next; 0 sends as fast as they are taken.
        num: How many; None never ends.
        first: Number of the first.
        width: Seconds of a bin, for an operator who asks for another speed.
    """
    clock, seq, acknowledged = _Clock(first, period), first, first - 1
    while num is None or seq < first + num:
        clock.wait(seq)
        sender.send(encode(tape.frame(seq, clock.begun)))
        for answer in sender.read():
            if answer[:1] == b"{":
                clock.do(Action.decode(answer), seq + 1, width)
            else:
                acknowledged = _heard(answer, acknowledged)
        seq += 1
    sender.send(encode_end(seq))
    until = time.monotonic() + DRAIN_S
    while acknowledged < seq - 1 and time.monotonic() < until:
        for answer in sender.read(timeout=0.1):
            acknowledged = _heard(answer, acknowledged)
    return acknowledged


class _Clock:
    """When bins are due, and which of the tape they are."""

    def __init__(self, first: int, period: float):
        self._since, self._first, self._period = time.perf_counter(), first, period
        self.begun = 0

    def wait(self, seq: int) -> None:
        due = self._since + (seq - self._first) * self._period
        ahead = due - time.perf_counter() if self._period else 0.0
        if ahead > 0:
            time.sleep(ahead)

    def do(self, action: Action, seq: int, width: float) -> None:
        """What the operator asks for, from a bin on."""
        if action.ask == Ask.RESET:
            self.begun = seq
        elif action.ask == Ask.SPEED:
            self._period = width / float(action.text)
            self._since, self._first = time.perf_counter() + self._period, seq


def _heard(answer: bytes, acknowledged: int) -> int:
    if answer[:1] == b"{":
        return acknowledged
    said = decode_answer(answer)
    return max(acknowledged, said.seq) if isinstance(said, Ack) else acknowledged


def _main(own: socket.socket, tape: Tape, width: float, *rest: Any) -> None:
    sender = PipeSender(own)
    try:
        # It comes first, or nothing does because the other end was closed.
        if own.recv(len(READY)) == READY:
            pace(sender, tape, *rest, width=width)
    except (KeyboardInterrupt, ConnectionError):
        # Whoever listens is gone, or an interrupt of the terminal ends both.
        pass
    finally:
        sender.close()


def start_feed(
    own: socket.socket,
    tape: Tape,
    period: float,
    num: int | None,
    first: int = 0,
    width: float = 0.0,
) -> BaseProcess:
    """Pace a tape in a process of its own, which ends with this one; it waits to hear `READY`.

    Args:
        own: End of a pair of sockets, which is handed over.
        tape: What is sent.
        period: Seconds from one bin to the next; 0 sends as fast as they are taken.
        num: How many bins; None never ends.
        first: Number of the first.
        width: Seconds of a bin, for an operator who asks for another speed.
    """
    return beside("evkf-feed", _main, (own,), tape, width or period, period, num, first)
