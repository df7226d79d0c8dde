"""Connections, as uvicorn has them, with limits: on how many there are, and on their patience."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from evkf.web.access import Why
from evkf.web.refusals import Refusals

MOST = 128
"""Connections of all kinds."""

REQUEST_S = 5.0
"""Seconds that a connection has to ask for something."""

STALL_S, LEAST = 10.0, 1 << 14
"""Seconds in which one that is sent an answer must read so many bytes of it."""

LINGER_S, QUIET_S = 10.0, 0.3
"""Seconds that a peer has to read the last that is sent to it, and that it has read it after if it
sends nothing."""


class Door(H11Protocol):
    """A connection; one that asks for nothing, or does not read what it asked for, is closed.

    Args:
        refusals: Told when there are too many.
        rest: For uvicorn.
    """

    def __init__(self, refusals: Refusals, **rest: Any):
        super().__init__(**rest)
        self._refusals = refusals
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            self._refusals.note(Why.CROWDED, str((self.client or "?")[0]), "too many connections")
            transport.abort()
        self._wait()

    def _wait(self) -> None:
        self._stop()
        self._timer = self.loop.call_later(REQUEST_S, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        """Let go of it, unless it waits for us."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def pause_writing(self) -> None:
        """From now on it must read on."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size() + LEAST)

    def _watch(self, before: int) -> None:
        """Let go of it unless it has read some of what waited before."""
        self._stop()
        left = self.transport.get_write_buffer_size()
        if left > before - LEAST:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(STALL_S, self._watch, left)

    def resume_writing(self) -> None:
        """It reads; what it asks for next has its time again."""
        super().resume_writing()
        self._wait()

    def on_response_complete(self) -> None:
        """It has so long for the next request, once it has read this answer."""
        super().on_response_complete()
        if not self.flow.write_paused:
            self._wait()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """From now on it is a WebSocket's."""
        self._stop()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self._stop()


class Socket(WebSocketsSansIOProtocol):
    """A WebSocket; a peer that does not read to the end does not hold it open.

    One that sends something too large is told so, and what it goes on to send is passed over: were
    the connection closed at once, it would often not get to know why. One that we do not read from,
    since the session is behind, need not answer us.
    """

    def __init__(self, *args: Any, **rest: Any):
        super().__init__(*args, **rest)
        self._heard = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Read what comes, unless it is past mending."""
        self._heard = self.loop.time()
        if self.conn.parser_exc is None:
            super().data_received(data)
        else:
            self._close_soon()

    def _close_soon(self) -> None:
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(QUIET_S, self.transport.close)

    def handle_parser_exception(self) -> None:
        """It is past mending."""
        close = self.conn.close_sent
        code, reason = (1006, "") if close is None else (close.code, close.reason)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.resume_reading()
        self._close_soon()

    async def receive(self) -> Any:
        """What has come; if nothing has, more is read from now on."""
        if self.read_paused:
            self._heard = self.loop.time()
        return await super().receive()

    async def send(self, message: Any) -> None:
        """Send what the app says; farewells do not wait until the rest is read."""
        if message["type"] == "websocket.close":
            self.writable.set()
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            # Refused with all due form, which else is logged as a fault of the app.
            self.handshake_complete = True

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """All is said; what is still to be read has its time."""
        super().on_task_complete(task)
        self.loop.call_later(LINGER_S, self.transport.abort)

    def keepalive_timeout(self) -> None:
        """The peer does not answer; unless its answer waits to be read, behind what it sent."""
        patience = self.ping_timeout or 0.0
        if self.read_paused or self.loop.time() - self._heard < patience:
            self.pong_timer = self.loop.call_later(patience, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self.loop.call_later(LINGER_S, self.transport.abort)
