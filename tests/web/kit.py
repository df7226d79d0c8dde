"""What tests of the web process share: one that runs, and those who speak to it."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from evkf.live.answers import Estimate, Flags
from evkf.live.order import Counters
from evkf.live.ports import Phase, Report
from evkf.web.access import Place
from evkf.web.process import WebProcess
from evkf.web.settings import describe_stream

HELLO = describe_stream("a1b2", 2, ["u7", "u9", "u11"], 0.01, horizon=1)
PATIENCE_S = 60.0


def until(condition: Callable[[], Any]) -> Any:
    """What a condition gives, once it gives something."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("it never came true")


@contextmanager
def served(folder: Path, host: str = "127.0.0.1", **more: Any) -> Iterator[WebProcess]:
    """A web process, for a session that is played by the test."""
    web = WebProcess(Place(host, 0), folder, HELLO, True, **more)
    try:
        yield web
    finally:
        web.close()


def token(web: WebProcess) -> str:
    """Its secret."""
    return web.token.read_text().strip()


def bearer(web: WebProcess) -> dict[str, str]:
    """Headers with the token."""
    return {"Authorization": f"Bearer {token(web)}"}


def ask(web: WebProcess, path: str, method: str = "GET", **more: Any) -> httpx.Response:
    """Ask it for something."""
    return httpx.request(method, web.address + path, timeout=PATIENCE_S, trust_env=False, **more)


def join(web: WebProcess, path: str, trusted: bool = False, **more: Any) -> ClientConnection:
    """A WebSocket to it."""
    address = web.address.replace("http", "ws", 1) + path
    headers = more.pop("headers", {}) | (bearer(web) if trusted else {})
    wait = {"open_timeout": PATIENCE_S, "close_timeout": PATIENCE_S, "proxy": None}
    return connect(address, additional_headers=headers, **wait, **more)


@contextmanager
def watch(web: WebProcess, **more: Any) -> Iterator[ClientConnection]:
    """A client that is sent estimates from now on."""
    with join(web, "/estimates", **more) as client:
        assert json.loads(client.recv(PATIENCE_S)) == HELLO
        yield client


def parted(client: ClientConnection) -> tuple[int, str]:
    """Code and reason with which a client is sent away; what it is sent before is passed over."""
    said = None
    try:
        while True:
            client.recv(PATIENCE_S)
    except ConnectionClosed as closed:
        said = closed.rcvd
    assert said is not None
    return said.code, said.reason


def estimate(seq: int, num: int = 3) -> Estimate:
    """Of some numbers that are all different."""
    values = np.random.default_rng(seq).normal(size=10 + num)
    mean, cov, ahead = values[:2], values[2:6].reshape(2, 2), values[6:10].reshape(2, 1, 2)
    latent = mean, cov, values[10:], float(values[0]), 3, *ahead
    return Estimate(seq, Flags.NOT_DURABLE, *latent, 10**18 + seq, seq + 1, seq + 2)


REPORT = Report(
    phase=Phase.READY,
    why="",
    bins=1234,
    taken=1000,
    rate=99.5,
    latency_ns=(200_000, 400_000, 900_000, 5_000_000),
    counters=Counters(1010, 990, 5, 2, 3, 10, 1),
    refused=7,
    backlog=4,
    learned=800,
    elbo=-12.25,
    acknowledged=1233,
    exposure_ms=12.5,
    frozen=False,
    odd={"unknown_unit": 4},
)
