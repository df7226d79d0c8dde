"""A rig that responds to stimulation, in a process of its own: spikes out, stimulation in."""

import contextlib
import select
import signal
import socket
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evkf.live.frames import Frame, encode, encode_end
from evkf.live.guard import Output
from evkf.live.limits import Delivered
from evkf.live.machine import become_real_time
from evkf.live.pipes import beside
from evkf.live.rig import Subject, rig_model
from evkf.numerics.jax_config import low_latency

DRAIN_S = 10.0
"""Seconds to wait, after the last bin, for both ends to be closed."""


class Heard(NamedTuple):
    """What a stimulator was told, and when it heard, by its own clock."""

    at_ns: int
    output: Output


class Course:
    """A simulated rig at its pace, and what it knows of itself.

    Args:
        subject: The neurons.
        frames: Where bins go.
        stimulation: Where outputs of a guard come from.
        period: Seconds from one bin to the next.
        inputs: Channels of stimulation.
        first: Number of the first bin.
        keeps: Whether to keep what happens; it grows with every bin.

    Attributes:
        states: True states, one a bin.
        inputs: What was on in it.
        times: When it ended, by this clock.
        heard: What it was told.
    """

    def __init__(
        self,
        subject: Subject,
        frames: socket.socket,
        stimulation: socket.socket,
        period: float,
        inputs: int,
        first: int = 0,
        keeps: bool = True,
    ):
        self._keeps = keeps
        self._subject, self._frames, self._period = subject, frames, int(period * 1e9)
        self._stimulation: socket.socket | None = stimulation
        self._num, self._first = inputs, first
        self._delivered = Delivered(inputs, 10 * self._period)
        self.states: list[np.ndarray] = []
        self.inputs: list[np.ndarray] = []
        self.times: list[int] = []
        self.heard: list[Heard] = []
        # Compiled before the clock runs.
        subject.step(np.zeros(inputs))

    def run(self, num: int | None) -> None:
        """Send so many bins and the end, or until nobody listens; None never ends."""
        begin, seq = time.monotonic_ns(), self._first
        with contextlib.suppress(ConnectionError):
            while num is None or seq < self._first + num:
                end = begin + (seq - self._first + 1) * self._period
                self._hear_until(end)
                self._bin(seq, end)
                seq += 1
            self._frames.send(encode_end(seq))
            self._hear_until(time.monotonic_ns() + int(DRAIN_S * 1e9))
        # Whoever listened is gone; what ends stimulation is still heard.
        while self._stimulation and select.select([self._stimulation], [], [], DRAIN_S)[0]:
            self._hear()

    def _bin(self, seq: int, end: int) -> None:
        on = self._delivered.mean(end - self._period, end)
        counts = self._subject.step(on)
        if self._keeps:
            self.states.append(self._subject.z)
            self.inputs.append(on)
            self.times.append(time.monotonic_ns())
        fresh = seq == self._first
        self._frames.send(encode(Frame(seq, counts, fresh=fresh, sent_ns=time.monotonic_ns())))

    def _hear_until(self, end_ns: int) -> None:
        """Hear what is told until a time comes."""
        while (left := end_ns - time.monotonic_ns()) > 0:
            ways = [self._frames, *([self._stimulation] if self._stimulation else [])]
            ready = select.select(ways, [], [], left / 1e9)[0]
            if self._frames in ready and not self._frames.recv(1 << 16):
                raise ConnectionError("the session is gone")
            if self._stimulation in ready:
                self._hear()

    def _hear(self) -> None:
        assert self._stimulation is not None
        try:
            data = self._stimulation.recv(1 << 16)
        except ConnectionError:
            data = b""
        now = time.monotonic_ns()
        if data:
            output = Output.decode(data)
            if self._keeps:
                self.heard.append(Heard(now, output))
            self._delivered.add(now, output.until_ns, output.values)
        else:
            # Whoever stimulated is gone: that is the end of it.
            self._delivered.add(now, now, np.zeros(self._num).tolist())
            self._stimulation.close()
            self._stimulation = None

    def save(self, file: Path) -> None:
        """Write what it knows of itself."""
        outputs = [each.output for each in self.heard]
        np.savez(
            file,
            states=np.array(self.states),
            inputs=np.array(self.inputs),
            times=np.array(self.times),
            heard=np.array([each.at_ns for each in self.heard], np.int64),
            numbers=np.array([each.number for each in outputs], np.int64),
            untils=np.array([each.until_ns for each in outputs], np.int64),
            values=np.array([each.values for each in outputs]).reshape(-1, self._num),
        )


def respond(
    frames: socket.socket,
    stimulation: socket.socket,
    sizes: tuple[int, int, float, int],
    period: float,
    num: int | None,
    first: int,
    truth: Path | None,
    real_time: bool,
) -> None:
    """Be the rig that `start_subject` starts; takes what that does."""
    # An interrupt of the terminal is the session's, whose end is this one's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    low_latency()
    latents, seed = sizes[0], sizes[3]
    subject = Subject(rig_model(*sizes, stimulated=True), seed + first)
    kept = truth is not None
    course = Course(subject, frames, stimulation, period, latents, first, keeps=kept)
    if real_time:
        become_real_time()
    course.run(num)
    if truth is not None:
        course.save(truth)


def start_subject(
    frames: socket.socket,
    stimulation: socket.socket,
    sizes: tuple[int, int, float, int],
    period: float,
    num: int | None = None,
    first: int = 0,
    truth: Path | None = None,
    real_time: bool = False,
) -> BaseProcess:
    """Run a rig that responds in a process of its own, which ends with the session.

    Args:
        frames: End of a pair of sockets that bins go to, which is handed over.
        stimulation: That of a guard's `PipeStimulator`, likewise.
        sizes: Latents, channels, width of a bin and seed, as `rig_model` takes them.
        period: Seconds from one bin to the next.
        num: How many bins; None never ends.
        first: Number of the first.
        truth: File that it writes what it knows of itself to, in the end.
        real_time: Whether to take real-time priority.
    """
    ends, told = (frames, stimulation), (sizes, period, num, first, truth, real_time)
    return beside("evkf-rig", respond, ends, *told)
