"""The closed loop of a session: from an estimate to a command, and from what was on to an input.

A command goes into the journal first. The thread that writes the journal sends it when it is
durable, so that neither learning nor the disk is in the way, and only if it is still fresh.
"""

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evkf.learning import LearnerState
from evkf.live.answers import Estimate, Flags
from evkf.live.control import Controller
from evkf.live.desk import Ask
from evkf.live.engine import Engine
from evkf.live.guard import HOLD, Command, Output, State, Word, say
from evkf.live.journal import Journal
from evkf.live.limits import Delivered, readable
from evkf.live.ports import Phase
from evkf.live.records import Kind, encode_words
from evkf.live.warden import AGAIN_S, keep_stop
from evkf.model import Model
from evkf.types import Status

SOUND = 5
"""Estimates without doubt, one after the other, after which stimulation is armed."""

POOR = 2
"""Estimates in a row that rest on a prediction alone, which is too many."""

OVERRUN = 0.5
"""Share of a bin that a controller may take."""

LEAK = 2e-4
"""How fast, in seconds a second, a sender's clock may go wrong without being taken for delay."""

GONE = "gone"
"""State of a guard whose end is closed."""

ANSWER_S = 0.5
"""Seconds that the end of a session waits to hear that nothing is on."""


class Closed(NamedTuple):
    """What closes the loop of a session.

    Attributes:
        controller: Gives the commands; it is the guard that keeps them to limits.
        own: End of a pair of sockets whose other is the guard's.
    """

    controller: Controller
    own: socket.socket


class Loop:
    """The closed loop of a session.

    Args:
        closed: Controller, and the way to the guard.
        engine: Of the session; its dynamics have an input for every channel.
        period: Seconds from one bin to the next.
        journal: That of the session, to which it begins to write; it is told of what is durable.
        folder: Of the session: a stop is kept there if no guard is left to do it.
        log: Told a line for every change of state.

    Attributes:
        values: The input of the last bin, as it was written down.
        state: Of the guard, as far as it was heard; None before it is.
        why: The reason for it, or for what keeps it from being armed.
    """

    def __init__(
        self,
        closed: Closed,
        engine: Engine,
        period: float,
        journal: Journal,
        folder: Path,
        log: Callable[[str], None],
    ):
        self._controller, self._own = closed
        self._num, self._dtype = engine.num_inputs, engine.dtype
        self._journal, self._folder, self._log = journal, folder, log
        self._clock = time.monotonic_ns  # the guard's
        self._period, self._hold = int(period * 1e9), int(HOLD * period * 1e9)
        self._delivered = Delivered(self._num, 10 * self._period)
        self._own.setblocking(False)
        self.state: str | None = None
        self.why = "the guard has not been heard"
        self._seq = -1
        self._sound = self._poor = 0
        self._asked = Word.HALT
        self._stop: str | None = None
        """Why the operator wants a stop, until the guard says that there is one."""
        self._offset: int | None = None
        self._sent_ns = 0
        self._before: tuple[bytes, bytes] | None = None
        # The newest model that the controller has not been told of, and gradient steps behind it.
        self._tell_model = getattr(self._controller, "model_changed", None)
        self._news: deque[Model] = deque(maxlen=1)
        self._steps = engine.steps
        # Commands that are not durable yet, with their place in the journal.
        self._lock = threading.Lock()
        self._pending: deque[tuple[int, Command, bytes]] = deque()
        self.values = np.zeros(self._num, self._dtype)
        self._write_input()
        journal.on_durable = self._send_durable

    def input(self, now_ns: int) -> np.ndarray:
        """What was on during the bin that ends now, on average; it is written down."""
        self._hear()
        mean = self._delivered.mean(now_ns - self._period, now_ns).astype(self._dtype)
        if mean.tobytes() != self.values.tobytes():
            self.values = mean
            self._write_input()
        return self.values

    def _write_input(self) -> None:
        self._journal.append(Kind.INPUT, encode_words(values=self.values.tolist()))

    def after(self, estimate: Estimate, number: int, phase: Phase, behind: int = 0) -> None:
        """Make a command of an estimate, or end stimulation if that is not to be trusted.

        Args:
            estimate: Just published.
            number: Bins since the stream began.
            phase: Of the session.
            behind: Frames that had come when the bin was taken in, and are newer.
        """
        self._seq = estimate.seq
        self._hear()
        if self._stop is not None and self.state != GONE:
            self._insist()
            return
        back = self._ran_back(estimate)
        born_ns = estimate.received_ns - max(self._delay(estimate), behind * self._period)
        if doubt := back or self._doubt(estimate, phase, born_ns):
            self._halt(doubt)
        elif self.state == State.ARMED:
            self._command(estimate, number, born_ns + self._hold)
        elif self.state == State.HELD:
            self._sound += 1
            if self._sound >= SOUND:
                self._sound = 0
                self._say(Word.ARM, f"{SOUND} sound estimates")

    def _doubt(self, estimate: Estimate, phase: Phase, born_ns: int) -> str | None:
        """Why an estimate is not to be acted upon."""
        if phase != Phase.READY:
            return f"the session is {phase}"
        known = estimate.mean, estimate.cov, estimate.rate, estimate.ahead, estimate.ahead_var
        if not all(np.isfinite(part).all() for part in known):
            return "the estimate is not finite"
        before, self._before = self._before, (estimate.mean.tobytes(), estimate.cov.tobytes())
        if before == self._before:
            return "the estimate is frozen"
        weak = Status.FELL_BACK | Status.CAPPED
        bad = Flags.BRIDGED in estimate.flags or estimate.status & weak
        self._poor = self._poor + 1 if bad else 0
        if self._poor >= POOR:
            return f"{self._poor} bins were lost, or their updates failed"
        age = self._clock() - born_ns
        return f"the estimate is {age / 1e6:.1f} ms old" if age >= self._hold else None

    def _ran_back(self, estimate: Estimate) -> str | None:
        """Whether the sender's clock ran back, which no delay does; delays are measured anew."""
        if not estimate.sent_ns or Flags.BRIDGED in estimate.flags:
            return None
        back, self._sent_ns = self._sent_ns - estimate.sent_ns, estimate.sent_ns
        if back <= 0:
            return None
        self._offset = None
        return f"the sender's clock ran back by {back / 1e9:.3f} s or more"

    def _delay(self, estimate: Estimate) -> int:
        """How much longer than others the bin was on its way, in nanoseconds."""
        if not estimate.sent_ns:
            return 0
        offset = estimate.received_ns - estimate.sent_ns
        before = offset if self._offset is None else self._offset + int(LEAK * self._period)
        self._offset = min(before, offset)
        return offset - self._offset

    def _command(self, estimate: Estimate, number: int, expires_ns: int) -> None:
        begin = self._clock()
        try:
            wanted = self._controller.command(estimate, self.values)
        except Exception as error:
            self._halt(f"the controller failed: {type(error).__name__}: {error}")
            return
        now = self._clock()
        read = readable(wanted, self._num)
        if read is None:
            self._halt(f"the controller gave no {self._num} finite numbers")
        elif self._period and now - begin > OVERRUN * self._period:
            self._halt(f"the controller took {(now - begin) / 1e6:.1f} ms")
        else:
            command = Command(number, estimate.seq, expires_ns, tuple(read.tolist()))
            data = command.encode()
            with self._lock:
                position = self._journal.append(Kind.COMMAND, data)
                self._pending.append((position, command, data))

    def _send_durable(self, _position: int) -> None:
        """In the thread that writes the journal: send the newest command that it has."""
        with self._lock:
            newest = None
            while self._pending and self._journal.durable_through(self._pending[0][0]):
                newest = self._pending.popleft()
            if newest is not None and self._clock() < newest[1].expires_ns:
                self._send(newest[2])

    def _halt(self, why: str) -> None:
        self._sound = 0
        if self.state == State.HELD:
            self.why = why
        if self.state == State.ARMED or self._asked != Word.HALT:
            self._say(Word.HALT, why)

    def _say(self, word: Word, why: str) -> None:
        with self._lock:
            self._pending.clear()
            self._asked = word
            self._send(say(word, why))

    def _send(self, data: bytes) -> None:
        # A guard that does not read ends stimulation by itself; one that is gone has.
        with contextlib.suppress(OSError):
            self._own.send(data)

    def ask(self, ask: Ask, text: str = "") -> None:
        """What the operator wants: a stop, or it lifted."""
        if ask == Ask.STOP:
            self._stop = f"the operator {text}".rstrip()
            self._insist()
        elif ask == Ask.ARM:
            self._offset = self._stop = None
            self._say(Word.LIFT, f"the operator {text}".rstrip())

    def _insist(self) -> None:
        """Tell the guard to stop: there may be no room for it now, or no guard any more."""
        assert self._stop is not None
        if self.state != GONE:
            self._say(Word.STOP, self._stop)
        else:
            # A disk may hang, and filtering must not.
            threading.Thread(target=self._keep, args=(self._stop,), daemon=True).start()

    def _keep(self, why: str) -> None:
        """Leave a stop on the disk, however long that takes, unless it is lifted meanwhile."""
        while self._stop is why:
            if keep_stop(self._folder, why):
                self._stop = None
            else:
                time.sleep(AGAIN_S)

    def offer(self, known: LearnerState) -> None:
        """In the thread that keeps checkpoints: what is known at one, for the controller."""
        if self._tell_model is not None and int(known.steps) != self._steps:
            self._steps = int(known.steps)
            self._news.append(known.model)

    @property
    def has_news(self) -> bool:
        """Whether the model has been learned on, and the controller is to be told."""
        return bool(self._news)

    def tell_controller(self) -> None:
        """Hand the newest model to the controller."""
        assert self._tell_model is not None
        try:
            self._tell_model(self._news.pop())
        except Exception as error:
            self._halt(f"the controller failed at a new model: {type(error).__name__}: {error}")

    def _hear(self) -> None:
        """What the guard has told since."""
        with contextlib.suppress(BlockingIOError):
            while self.state != GONE:
                try:
                    data = self._own.recv(1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    now = self._clock()
                    self._delivered.add(now, now, [0.0] * self._num)
                    self._change(GONE, "the guard has ended: nothing stimulates any more")
                    if self._stop is not None:
                        self._insist()
                    return
                output = Output.decode(data)
                self._delivered.add(output.at_ns, output.until_ns, output.values)
                if output.state == State.STOPPED:
                    self._stop = None
                if output.state != self.state:
                    self._change(output.state, output.why)
                elif output.state == State.HELD:
                    # It was not armed, and says why.
                    self.why = output.why

    def _change(self, state: str, why: str) -> None:
        self._sound, self.state, self.why = 0, state, why
        if state != State.ARMED:
            self._asked = Word.HALT
            with self._lock:
                self._pending.clear()
        self._journal.append(Kind.LOOP, encode_words(state=state, why=why, seq=self._seq))
        self._log(f"stimulation is {state}: {why}")

    @property
    def told(self) -> str:
        """State and reason, for people."""
        return f"{self.state or 'starting'}: {self.why}"

    def close(self) -> None:
        """End stimulation, and the guard with it; how that ended is written down."""
        if self._stop is None:
            self._say(Word.HALT, "the session ends")
        else:
            self._insist()
        until = time.monotonic() + ANSWER_S
        while self.state in (None, State.ARMED) and (left := until - time.monotonic()) > 0:
            select.select([self._own], [], [], left)
            self._hear()
        if self.state in (None, State.ARMED):
            why = "the session ends; the guard does not answer, and is cut off"
            self._change(GONE, why)
        if self._stop is not None:
            keep_stop(self._folder, self._stop)
        self._own.close()
