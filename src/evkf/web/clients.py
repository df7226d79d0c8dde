"""Those who are sent messages, each from a queue of its own: who does not read is sent away."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from fastapi import WebSocket, WebSocketDisconnect
from starlette.websockets import WebSocketState

from evkf.web.access import PROTOCOL, Why
from evkf.web.guard import peer
from evkf.web.refusals import Refusals

ROOM = 8 << 20
"""Bytes that may wait for one client, besides those that its connection holds."""

MOST = 32
"""Clients of a kind."""

OVERHEAD = 100
"""Bytes that an object takes beside its content: many small messages fill the room too."""

GONE = (WebSocketDisconnect, RuntimeError, OSError)
"""What may be raised when one sends to a client that is gone."""

CLOSE_S = 2.0
"""Seconds that a client has to take in that it is sent away."""


class Parting(NamedTuple):
    """Why a connection is ended by us."""

    code: int
    """Of WebSocket."""
    text: str
    why: Why | None = None
    """Of those who are at fault."""


SLOW = Parting(1013, "too slow: messages were waiting for you", Why.SLOW)
OVER = Parting(1001, "the session has ended")
DIED = Parting(4000, "the engine has died")
CROWDED = Parting(1013, "too many are connected", Why.CROWDED)
LARGE = Parting(1009, "a message that is too large", Why.LARGE)


def parting_of(message: Mapping[str, Any]) -> Parting | None:
    """Why a connection has ended, if that was our doing; None if the client left.

    Example:
        >>> parting_of({"type": "websocket.disconnect", "code": 1009}).text
        'a message that is too large'
    """
    return LARGE if message.get("code") == LARGE.code else None


class Client:
    """One that is sent messages.

    Args:
        room: Bytes that may wait.

    Attributes:
        dropped: Messages that it was not sent.
    """

    def __init__(self, room: int = ROOM):
        self._waiting: deque[bytes | str] = deque()
        self._room, self._bytes = room, 0
        self._wake, self._slow = asyncio.Event(), asyncio.Event()
        self._over: Parting | None = None
        self.dropped = 0

    def put(self, data: bytes | str) -> None:
        """Have a message sent; if there is no room for it, this client is sent away."""
        self._bytes += len(data) + OVERHEAD
        if self._slow.is_set() or self._bytes > self._room:
            self.dropped += 1 + len(self._waiting)
            self._waiting.clear()
            self._slow.set()
        else:
            self._waiting.append(data)
            self._wake.set()

    def finish(self, why: Parting) -> None:
        """Nothing comes any more."""
        self._over = why
        self._wake.set()

    async def pour(self, send: Callable[[Any], Awaitable[None]]) -> Parting:
        """Send what waits, and what comes, to the end."""
        while True:
            while self._waiting:
                data = self._waiting.popleft()
                self._bytes -= len(data) + OVERHEAD
                await send(data)
            if self._over is not None:
                return self._over
            self._wake.clear()
            await self._wake.wait()

    async def lag(self) -> Parting:
        """Wait until it is too slow."""
        await self._slow.wait()
        return SLOW


class Crowd:
    """All clients of a kind.

    Args:
        refusals: Told of those who are sent away.
        most: Of them at once.
        room: Bytes that may wait for each.

    Attributes:
        served: Messages handed to clients.
        dropped: Messages that a client was not sent since it was too slow.
    """

    def __init__(self, refusals: Refusals, most: int = MOST, room: int = ROOM):
        self._refusals, self._most, self._room = refusals, most, room
        self._members: set[Client] = set()
        self._over: Parting | None = None
        self.served = self.dropped = 0

    def __len__(self) -> int:
        return len(self._members)

    def put(self, data: bytes | str) -> None:
        """Have a message sent to everybody."""
        for client in self._members:
            client.put(data)
        self.served += len(self._members)

    def finish(self, why: Parting) -> None:
        """Nothing comes any more; they are sent what waits, and then away."""
        self._over = why
        for client in self._members:
            client.finish(why)

    async def attend(
        self,
        websocket: WebSocket,
        read: Callable[[Client], Coroutine[Any, Any, Parting | None]],
        greeting: str | None = None,
        crowded: Parting = CROWDED,
    ) -> None:
        """Take a client in, and see to it until it leaves or is sent away.

        Args:
            websocket: Not yet accepted.
            read: Reads what it sends; ends when it leaves, or with why it is sent away.
            greeting: Sent first.
            crowded: Told to it if there are too many.
        """
        with contextlib.suppress(*GONE):
            ours = PROTOCOL in websocket.scope["subprotocols"]
            await websocket.accept(subprotocol=PROTOCOL if ours else None)
            parting = crowded
            if len(self._members) < self._most:
                parting = await self._serve(websocket, read, greeting)
            if parting is not None and parting.why is not None:
                self._refusals.note(parting.why, peer(websocket.scope), parting.text)
            if parting is not None and websocket.client_state == WebSocketState.CONNECTED:
                async with asyncio.timeout(CLOSE_S):
                    await websocket.close(parting.code, parting.text)

    async def _serve(
        self,
        websocket: WebSocket,
        read: Callable[[Client], Coroutine[Any, Any, Parting | None]],
        greeting: str | None,
    ) -> Parting | None:
        client = Client(self._room)

        async def send(data: Any) -> None:
            text = isinstance(data, str)
            await (websocket.send_text(data) if text else websocket.send_bytes(data))

        self._members.add(client)
        if self._over is not None:
            client.finish(self._over)
        try:
            if greeting is not None:
                await websocket.send_text(greeting)
            return await _first(read(client), client.pour(send), client.lag())
        finally:
            self._members.discard(client)
            self.dropped += client.dropped


async def _first(*ways: Coroutine[Any, Any, Parting | None]) -> Parting | None:
    """What ends first; the others are given up."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next(task for task in tasks if task in done).result()
