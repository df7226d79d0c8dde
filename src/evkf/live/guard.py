"""What stands between a session and a stimulator: limits, a watchdog, and a stop that holds.

It knows no clock, file or socket: times come with the calls. `warden` runs it in a process.
"""

import json
from enum import StrEnum
from typing import Any, NamedTuple

from evkf.live.limits import Limiter, Limits, readable

HOLD = 1.5
"""Bins from when a bin came in to the end of the command made of it, unless another follows.
Noticing takes time too: whatever goes wrong, what is on ends within two bins.
"""


class State(StrEnum):
    """What a guard lets through."""

    HELD = "held"
    """Nothing, until the session arms it, which it does when its estimates are sound."""
    ARMED = "armed"
    """Commands, within the limits."""
    STOPPED = "stopped"
    """Nothing, until the operator lifts the stop."""


class Word(StrEnum):
    """What a guard is told besides commands."""

    ARM = "arm"
    """By the session: take commands again, if there is no stop."""
    HALT = "halt"
    """By the session: zero, until it arms again."""
    STOP = "stop"
    """By the operator, or for them: zero, until they lift it."""
    LIFT = "lift"
    """By the operator: no stop any more; the session may arm."""


class Command(NamedTuple):
    """What a session wants to be on. The same bytes are kept in its journal and sent.

    Example:
        >>> Command(7, 6, 1_000, (0.5, 0.0)).encode()
        b'{"number": 7, "seq": 6, "expires_ns": 1000, "values": [0.5, 0.0]}'
    """

    number: int
    """It rises over the whole session, whatever interrupts it."""
    seq: int
    """Number of the bin that it was made of."""
    expires_ns: int
    """On the clock of this machine since it was started, `time.monotonic_ns`."""
    values: tuple[float, ...]
    """One a channel."""

    def encode(self) -> bytes:
        """As it is kept, and as it travels."""
        return json.dumps(self._asdict()).encode()


def say(word: Word, why: str = "") -> bytes:
    """A word as it travels."""
    return json.dumps({"word": word, "why": why}).encode()


class Output(NamedTuple):
    """What is on, and why; told to the stimulator and to the session.

    Example:
        >>> Output.decode(Output(State.HELD, -1, (0.0,), 10, 10, "it begins").encode()).why
        'it begins'
    """

    state: State
    number: int
    """Of the last command; -1 if there was none."""
    values: tuple[float, ...]
    at_ns: int
    until_ns: int
    """When it ends unless something else is told before: a stimulator that can should see to it
    itself."""
    why: str

    def encode(self) -> bytes:
        """As it travels."""
        return json.dumps(self._asdict()).encode()

    @staticmethod
    def decode(data: bytes) -> "Output":
        """From what travelled."""
        said = json.loads(data)
        return Output(**said | {"state": State(said["state"]), "values": tuple(said["values"])})


class Guard:
    """Decides what is on, given what it is told and when.

    What was on before it began is not known, and counts as charge: it is not armed before that has
    passed out of the window.

    Args:
        limits: For every channel.
        period: Seconds from one bin to the next.
        begun_ns: When it begins; nothing is on then.
        stopped: Why it begins stopped, if it does.

    Attributes:
        state: What it lets through.
        until_ns: When `tick` is to be called at the latest; None if nothing is awaited.

    Example:
        >>> guard = Guard(Limits([1.0], [1000.0], [10.0]), period=0.01, begun_ns=-1_000_000_000)
        >>> _ = guard.heed(say(Word.ARM), 0)
        >>> guard.heed(Command(1, 0, 12_000_000, (0.5,)).encode(), 1_000_000).values
        (0.5,)
        >>> guard.tick(11_000_000) is None
        True
        >>> guard.tick(12_000_000)[:3]
        (<State.HELD: 'held'>, 1, (0.0,))
    """

    def __init__(self, limits: Limits, period: float, begun_ns: int, stopped: str | None = None):
        self._limiter = Limiter(limits, period, HOLD * period)
        self._ready_ns = begun_ns + int(limits.window * 1e9)
        self._hold_ns = int(HOLD * period * 1e9)
        self._number, self._now_ns = -1, -(1 << 62)
        self.until_ns: int | None = None
        self.state = State.HELD if stopped is None else State.STOPPED
        self._values, self._why = (0.0,) * self._limiter.num, stopped or "it begins"

    def heed(self, data: bytes, now_ns: int) -> Output | None:
        """Take what the session says; what is to be on now, if something changed."""
        now_ns = self._later(now_ns)
        ended = self.tick(now_ns)
        try:
            said = json.loads(data)
            if "word" in said:
                return self.obey(Word(said["word"]), str(said.get("why", "")), now_ns) or ended
            given = Command(**said)
            number, expires_ns = int(given.number), int(given.expires_ns)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return self._fall("a message that cannot be read", now_ns) or ended
        return self._take(number, expires_ns, given.values, now_ns) or ended

    def obey(self, word: Word, why: str, now_ns: int) -> Output | None:
        """Take a word of the session or the operator; what is to be on now, if that changed."""
        now_ns = self._later(now_ns)
        if word == Word.STOP:
            return self._rest(State.STOPPED, why or "stopped", now_ns)
        if word == Word.LIFT and self.state == State.STOPPED:
            return self._rest(State.HELD, why or "the stop is lifted", now_ns)
        if word == Word.HALT:
            return self._fall(why, now_ns)
        if word == Word.ARM and self.state == State.HELD:
            if (left := self._ready_ns - now_ns) > 0:
                self._why = f"what was on before counts as charge for {left / 1e9:.1f} s more"
                return self.now(now_ns)
            # Nothing is on yet: the first command may take a little longer.
            self.state, self._why, self.until_ns = State.ARMED, why, now_ns + 2 * self._hold_ns
            return self.now(now_ns)
        return None

    def _take(self, number: int, expires_ns: int, values: Any, now_ns: int) -> Output | None:
        if number <= self._number:
            return None
        self._number = number
        if self.state != State.ARMED or expires_ns <= now_ns:
            return None
        read = readable(values, self._limiter.num)
        if read is None:
            return self._fall("a command that is not finite, or not of this stimulator", now_ns)
        self._values = tuple(self._limiter.limit(read, now_ns).tolist())
        self._why, self.until_ns = "", min(expires_ns, now_ns + self._hold_ns)
        return self.now(now_ns)

    def tick(self, now_ns: int) -> Output | None:
        """See whether what is on has to end."""
        now_ns = self._later(now_ns)
        if self.until_ns is None or now_ns < self.until_ns:
            return None
        return self._fall("no fresh command", now_ns)

    def _fall(self, why: str, now_ns: int) -> Output | None:
        return self._rest(State.HELD, why, now_ns) if self.state == State.ARMED else None

    def _rest(self, state: State, why: str, now_ns: int) -> Output:
        self._limiter.rest(now_ns)
        self.state, self._why, self.until_ns = state, why, None
        self._values = (0.0,) * self._limiter.num
        return self.now(now_ns)

    def now(self, now_ns: int) -> Output:
        """What is on now."""
        now_ns = self._later(now_ns)
        until_ns = now_ns if self.until_ns is None else self.until_ns
        return Output(self.state, self._number, self._values, now_ns, until_ns, self._why)

    def _later(self, now_ns: int) -> int:
        """The time, which does not go back."""
        self._now_ns = max(now_ns, self._now_ns)
        return self._now_ns
