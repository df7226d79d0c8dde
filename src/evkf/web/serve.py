"""The web process of a session: it serves what it is shown, and hands on what it is sent.

python -m evkf.web.serve, with `Settings` in JSON on standard input.
"""

import asyncio
import functools
import json
import logging
import os
import socket
import ssl
import sys
import time
from pathlib import Path

import uvicorn

from evkf.web.access import read_token
from evkf.web.app import acting, build, sending, watching
from evkf.web.clients import ROOM, Crowd
from evkf.web.doors import Door, Socket
from evkf.web.gateway import Gateway
from evkf.web.link import Link
from evkf.web.refusals import Measured, Refusals
from evkf.web.settings import Settings
from evkf.web.shown import Shown

NICENESS = 5
"""The session comes first."""

LARGEST, LARGEST_HEADER = 1 << 20, 1 << 14
"""Bytes of a message, and of what a request begins with."""

PING_S = 20.0
"""Seconds between signs of life that a WebSocket must give, and that it has for one."""

DRAIN_S = 3.0
"""Seconds that clients have for the last messages of a session."""


async def serve(settings: Settings, log: Measured) -> None:
    """Serve until the session ends."""
    refusals = Refusals(log)
    crowd = Crowd(refusals, room=settings.room or ROOM)
    gateway, shown = Gateway(refusals), Shown(crowd.put)
    desk = Link(socket.socket(fileno=settings.desk), shown.take)
    links, parts = [desk], [acting(desk, refusals)]
    parts.append(watching(shown, crowd, gateway, refusals, settings.hello))
    if settings.frames is not None:
        frames = Link(socket.socket(fileno=settings.frames), gateway.senders.put)
        links.append(frames)
        parts.append(sending(gateway, frames))
    token = read_token(Path(settings.token))
    app = build(parts, token, settings.loopback, settings.names, refusals)
    server = uvicorn.Server(_config(app, settings, refusals))
    for link in links:
        link.open()
    listener = socket.socket(fileno=settings.listener)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    ending = asyncio.ensure_future(_end(links, [crowd, gateway.senders]))
    await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving


async def _end(links: list[Link], crowds: list[Crowd]) -> None:
    """Wait for the end of the session, and until clients know of it."""
    for link in links:
        await link.ended.wait()
    for crowd in crowds:
        crowd.finish()
    until = time.monotonic() + DRAIN_S
    while any(map(len, crowds)) and time.monotonic() < until:
        await asyncio.sleep(0.02)


def _config(app: object, settings: Settings, refusals: Refusals) -> uvicorn.Config:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=functools.partial(Door, refusals),  # type: ignore[arg-type]
        ws=Socket,
        ws_max_size=LARGEST,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        h11_max_incomplete_event_size=LARGEST_HEADER,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Whoever is behind a proxy has the token, or nothing: what it says of others counts not.
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    config.load()
    if settings.tls is not None:
        config.ssl = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        config.ssl.load_cert_chain(*settings.tls)
    return config


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Be the web process."""
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(NICENESS)
    settings = Settings(**json.load(sys.stdin))
    log = Measured(_say)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[log])
    asyncio.run(serve(settings, log))


if __name__ == "__main__":
    main()
