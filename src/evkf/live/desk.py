"""The operator's desk: a process that is shown a session, and hands on what the operator asks for.

The session's end never waits. Estimates travel as they do elsewhere, reports and actions as JSON.
"""

import contextlib
import json
import math
import socket
from enum import StrEnum
from typing import NamedTuple

from evkf.live.answers import Estimate
from evkf.live.messages import Code, FrameError
from evkf.live.ports import Report

LONGEST = 1000
"""Characters of what an operator writes."""

SLOWEST, FASTEST = 0.01, 100.0
"""Speeds that can be asked for."""

LAST_S = 1.0
"""Seconds that the last report of a session waits for room."""


class Ask(StrEnum):
    """What an operator can ask of a session."""

    FREEZE = "freeze"
    """Do not learn."""
    THAW = "thaw"
    """Learn again."""
    MARK = "mark"
    """Write an event into the journal."""
    SAVE = "save"
    """Keep a checkpoint now."""
    STOP = "stop"
    """End stimulation, until it is armed."""
    ARM = "arm"
    """Lift a stop: stimulation goes on when estimates are sound."""
    SPEED = "speed"
    """Send bins faster or slower; of a rig or a replay of our own."""
    RESET = "reset"
    """Begin again with the first bin, as a new trial; likewise."""


class Action(NamedTuple):
    """What an operator asked for.

    Example:
        >>> Action.decode(Action(Ask.MARK, "light on").encode())
        Action(ask=<Ask.MARK: 'mark'>, text='light on')
    """

    ask: Ask
    text: str = ""
    """Of an event; or the speed, as a number."""

    def encode(self) -> bytes:
        """As it travels."""
        return json.dumps(self._asdict()).encode()

    @staticmethod
    def decode(data: bytes | str) -> "Action":
        """From what travelled; raises `FrameError` if that is not one."""
        try:
            said = json.loads(data)
            asked, text = said["ask"], said.get("text", "")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            what = 'not an action: send one such as {"ask": "mark", "text": "a drop"}'
            raise FrameError(Code.BAD_TEXT, what) from None
        if asked not in list(Ask):
            known = ", ".join(Ask)
            what = f"unknown ask {str(asked)[: LONGEST // 2]!r}: choose one of {known}"
            raise FrameError(Code.BAD_TEXT, what[:LONGEST])
        action = Action(Ask(asked), text)
        if not isinstance(action.text, str) or len(action.text) > LONGEST:
            raise FrameError(Code.BAD_TEXT, f"text must be of at most {LONGEST} characters")
        if action.ask == Ask.SPEED and not SLOWEST <= _number(action.text) <= FASTEST:
            raise FrameError(Code.BAD_TEXT, f"text must be a speed from {SLOWEST} to {FASTEST}")
        return action


class Desk:
    """A session's end of a pair of sockets; the other end is a process that shows what it is told.

    Args:
        own: This end.

    Example:
        >>> from evkf.live.pipes import pair
        >>> own, other = pair()
        >>> _ = other.send(Action(Ask.FREEZE).encode()), other.send(b"nonsense")
        >>> desk = Desk(own)
        >>> desk.actions(), desk.actions()
        ([Action(ask=<Ask.FREEZE: 'freeze'>, text='')], [])
        >>> desk.close(); other.close()
    """

    def __init__(self, own: socket.socket):
        self._own = own
        self._own.setblocking(False)
        self._left = b""

    def publish(self, estimate: Estimate) -> None:
        """Show an estimate, unless there is no room for it."""
        self._send(estimate.encode())

    def tell(self, report: Report) -> None:
        """Show a report, unless there is no room for it; the last is shown at the end then."""
        data = json.dumps(report.plain).encode()
        self._left = b"" if self._send(data) else data

    def actions(self) -> list[Action]:
        """What was asked for since the last call; what is no action is passed over."""
        found = []
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := self._own.recv(1 << 16):
                with contextlib.suppress(FrameError):
                    found.append(Action.decode(data))
        return found

    def _send(self, data: bytes) -> bool:
        with contextlib.suppress(OSError):
            self._own.send(data)
            return True
        return False

    def close(self) -> None:
        """Close this end."""
        if self._left:
            with contextlib.suppress(OSError):
                self._own.settimeout(LAST_S)
                self._own.send(self._left)
        self._left = b""
        self._own.close()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
