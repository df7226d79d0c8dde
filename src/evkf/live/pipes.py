"""A source and a sender on one machine: a pair of sockets, for a rig in its own process."""

import contextlib
import multiprocessing
import select
import socket
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from evkf.live.answers import Estimate
from evkf.live.machine import aside

ROOM = 1 << 22
"""Bytes that may wait in a socket, if the system allows as much."""


PEER = "pipe"
"""Who sends: there is only one."""


class PipeSource:
    """Frames from the other end of a pair of sockets.

    Args:
        own: This end.
        ready: Sent to the other end before anything else, and once frames are asked for.

    Attributes:
        gone: Whether the other end is closed.
        odd: Nothing: what is wrong with frames, the session counts.

    Example:
        >>> own, other = pair()
        >>> _ = other.send(b"a frame")
        >>> source = PipeSource(own)
        >>> source.receive(timeout=1.0, most=10)
        [('pipe', b'a frame')]
        >>> source.answer("pipe", b"an answer")
        >>> other.recv(100)
        b'an answer'
        >>> other.close(); source.close()
    """

    def __init__(self, own: socket.socket, ready: bytes = b""):
        self._own, self._ready = own, ready
        self._own.setblocking(False)
        self._poll = select.poll()
        self._poll.register(own, select.POLLIN)
        self.gone = False
        self.odd: dict[str, int] = {}

    def receive(self, timeout: float, most: int) -> list[tuple[Any, bytes]]:
        """Messages that are there; waits for the first so many seconds."""
        found: list[tuple[Any, bytes]] = []
        if self._ready:
            self._say_ready()
        if self.gone or not self._poll.poll(timeout * 1000):
            return found
        while len(found) < most:
            try:
                data = self._own.recv(ROOM)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            if not data:
                self.gone = True
                break
            found.append((PEER, data))
        return found

    def answer(self, peer: Any, data: bytes) -> None:
        """Send something back; if there is no room for it, it is left out."""
        if self._ready:
            self._say_ready()
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._own.send(data)

    def _say_ready(self) -> None:
        ready, self._ready = self._ready, b""
        self.answer(PEER, ready)

    def close(self) -> None:
        """Close this end."""
        self._own.close()


class PipeSender:
    """The other end: sends frames, and reads what comes back.

    Args:
        own: This end.
    """

    def __init__(self, own: socket.socket):
        self._own = own

    def send(self, data: bytes) -> None:
        """Send a frame; waits while there is no room."""
        self._own.send(data)

    def read(self, timeout: float | None = 0.0) -> list[bytes]:
        """Answers that are there; waits for the first so many seconds, with None for ever."""
        found = []
        while select.select([self._own], [], [], 0 if found else timeout)[0]:
            data = self._own.recv(ROOM)
            if not data:
                raise ConnectionError("the other end is closed")
            found.append(data)
        return found

    def close(self) -> None:
        """Close this end."""
        self._own.close()


class Callback:
    """A sink that calls a function with every estimate, in the thread of the session.

    Args:
        function: Should be quick: the session waits for it.
    """

    def __init__(self, function: Callable[[Estimate], Any]):
        self._function = function

    def publish(self, estimate: Estimate) -> None:
        """Hand on an estimate."""
        self._function(estimate)

    def close(self) -> None:
        """Nothing is open."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that keep messages whole."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
    return ends


def beside(
    name: str, main: Callable[..., None], ends: tuple[socket.socket, ...], *rest: Any
) -> BaseProcess:
    """Call a function in a process of its own, which ends with this one.

    It begins at the priority of ordinary processes, whatever that of the caller is.

    Args:
        name: Of the process.
        main: What it calls.
        ends: Of pairs of sockets, which are handed over: first arguments of the function.
        rest: Its other arguments.
    """
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=main, args=(*ends, *rest), name=name, daemon=True)
    with aside():
        process.start()
    for end in ends:
        end.close()
    return process
