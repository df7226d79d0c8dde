"""The web process's end of a pair of sockets, read and written by its event loop."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable

from evkf.live.pipes import ROOM

AT_ONCE = 256
"""Messages that are read before others have their turn."""


class Link:
    """An end of a pair of sockets.

    Args:
        own: This end.
        take: Called with every message that comes.

    Attributes:
        ended: Set when the other end is closed, and all that came before has been read.
    """

    def __init__(self, own: socket.socket, take: Callable[[bytes], None]):
        self._own, self._take = own, take
        self._own.setblocking(False)
        self._buffer = bytearray(ROOM)
        self.ended = asyncio.Event()

    def open(self) -> None:
        """Read from now on, in the loop that runs."""
        asyncio.get_running_loop().add_reader(self._own, self._read)

    def _read(self) -> None:
        for _ in range(AT_ONCE):
            try:
                num = self._own.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError:
                num = 0
            if not num:
                self.close()
                return
            self._take(bytes(memoryview(self._buffer)[:num]))

    def send_now(self, data: bytes) -> bool:
        """Send a message; whether there was room for it."""
        try:
            self._own.send(data)
        except OSError:
            return False
        return True

    async def send(self, data: bytes) -> bool:
        """Send a message, when there is room; false if there can never be. One at a time, please:
        who waits here for room is the only one.
        """
        try:
            await asyncio.get_running_loop().sock_sendall(self._own, data)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                self.close()
            return False
        return True

    def close(self) -> None:
        """Read no more."""
        if not self.ended.is_set():
            with contextlib.suppress(OSError, ValueError):
                asyncio.get_running_loop().remove_reader(self._own)
            self._own.close()
            self.ended.set()
