"""Connections with little patience: who holds one without need, and who does not."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI, Response, WebSocket
from starlette.websockets import WebSocketDisconnect
from websockets.sync.client import connect

from evkf.web import doors, serve
from evkf.web.access import Place, listen
from evkf.web.refusals import Refusals
from evkf.web.settings import Settings

LARGE = 64 << 20
"""Bytes that no system buffers for one who does not read."""

PATIENCE_S = 30.0
SETTINGS = Settings(0, None, None, "", True, [], None, None)


class Opened:
    """A server in a thread.

    Attributes:
        port: Where it is.
        busy: While it is set, messages of WebSockets are not taken.
        server: Of uvicorn.
    """

    def __init__(self) -> None:
        listener = listen(Place("127.0.0.1", 0))
        self.port, self.busy = listener.getsockname()[1], threading.Event()
        config = serve._config(self._app(), SETTINGS, Refusals(lambda kind, line: None))
        self.server = uvicorn.Server(config)
        run = lambda: asyncio.run(self.server.serve(sockets=[listener]))  # noqa: E731
        self._thread = threading.Thread(target=run)
        self._thread.start()
        self.wait(lambda: self.server.started)

    def wait(self, condition) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/large")
        async def large() -> Response:
            return Response(bytes(LARGE))

        @app.get("/small")
        async def small() -> Response:
            return Response(b"small")

        @app.websocket("/frames")
        async def frames(websocket: WebSocket) -> None:
            await websocket.accept()
            with contextlib.suppress(WebSocketDisconnect):
                while data := await websocket.receive_bytes():
                    while self.busy.is_set():
                        await asyncio.sleep(0.01)
                    await websocket.send_bytes(data)

        return app

    def ask(self, path: str, *more: str) -> socket.socket:
        found = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", *more, "", ""]
        found.sendall("\r\n".join(lines).encode())
        return found

    def close(self) -> None:
        self.busy.clear()
        self.server.should_exit = True
        self._thread.join()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    monkeypatch.setattr(doors, "REQUEST_S", 0.5)
    monkeypatch.setattr(doors, "STALL_S", 0.5)
    monkeypatch.setattr(serve, "PING_S", 0.3)
    found = Opened()
    yield found
    found.close()


def test_who_does_not_read_its_answer_does_not_hold_a_place(opened: Opened):
    with opened.ask("/large"):
        opened.wait(lambda: opened.connections == 1)
        opened.wait(lambda: opened.connections == 0)


def test_who_reads_slowly_gets_all_of_it(opened: Opened):
    with opened.ask("/large") as client:
        left = LARGE
        begin = time.monotonic()
        while left > 0:
            data = client.recv(8 << 20)
            assert data
            left -= len(data)
            if time.monotonic() - begin < 4 * doors.STALL_S:
                time.sleep(0.05)


def test_who_asks_for_nothing_after_an_answer_is_let_go(opened: Opened):
    with opened.ask("/small") as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        opened.wait(lambda: opened.connections == 0)


def test_a_sender_that_has_to_wait_is_not_taken_for_dead(opened: Opened):
    with connect(f"ws://127.0.0.1:{opened.port}/frames", proxy=None) as sender:
        sender.send(b"first")
        assert sender.recv(PATIENCE_S) == b"first"
        opened.busy.set()
        for number in range(20):
            sender.send(b"%d" % number)
        time.sleep(5 * serve.PING_S)
        opened.busy.clear()
        assert [sender.recv(PATIENCE_S) for _ in range(20)] == [b"%d" % n for n in range(20)]


def test_a_peer_that_is_gone_is_noticed(opened: Opened):
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    with opened.ask("/frames", upgrade, key) as silent:
        assert silent.recv(1000).startswith(b"HTTP/1.1 101")
        assert opened.connections == 1
        opened.wait(lambda: opened.connections == 0)
