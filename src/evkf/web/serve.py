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
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from evkf.live.desk import Action, Ask
from evkf.live.plan import JOURNAL
from evkf.web.access import read_token
from evkf.web.app import Part, Unable, acting, build, estimating, paging, sending, watching
from evkf.web.clients import DIED, OVER, ROOM, Crowd
from evkf.web.doors import Door, Socket
from evkf.web.download import Download
from evkf.web.following import Following
from evkf.web.gateway import Gateway
from evkf.web.link import Link
from evkf.web.pages import Pages
from evkf.web.playing import Playing
from evkf.web.reel import Screen, State
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

UNABLE = {
    Ask.STOP: "nothing stimulates in this session",
    Ask.ARM: "nothing stimulates in this session",
    Ask.SPEED: "the pace of its bins is that of the rig",
    Ask.RESET: "the pace of its bins is that of the rig",
}
"""Why a session cannot do what is asked."""


async def serve(settings: Settings, log: Measured) -> None:
    """Serve until the session ends; where a journal is shown, until this process is told to end."""
    refusals = Refusals(log)
    crowd, viewers = (Crowd(refusals, room=settings.room or ROOM) for _ in range(2))
    gateway, feed = Gateway(refusals), _feed(settings)
    shown = _shown(crowd, feed)
    links: list[Link] = []
    parts = [watching(shown, crowd, gateway, refusals, settings.hello, viewers)]
    if settings.desk is not None:
        desk = Link(socket.socket(fileno=settings.desk), shown.take)
        links.append(desk)
        can = None if feed is None else Screen.read(settings.screen).can
        parts.append(acting(lambda action: _to_session(desk, can, action), refusals))
        parts.append(estimating(crowd, settings.hello))
    elif isinstance(feed, Playing):
        parts.append(acting(lambda action: _to_journal(feed, action), refusals))
    if settings.frames is not None:
        frames = Link(socket.socket(fileno=settings.frames), gateway.senders.put)
        links.append(frames)
        parts.append(sending(gateway, frames))
    ways: list[asyncio.Future] = []
    pages = None
    if feed is not None:
        folder, screen = Path(settings.folder or ""), Screen.read(settings.screen)
        pages = Pages(screen, feed, folder, viewers, lambda: _state(shown, feed))
        parts += [paging(pages), Part(Download(folder).routes())]
        ways.append(asyncio.ensure_future(pages.run()))
    token = read_token(Path(settings.token))
    app = build(parts, token, settings.loopback, settings.names, refusals)
    server = uvicorn.Server(_config(app, settings, refusals))
    for link in links:
        link.open()
    listener = socket.socket(fileno=settings.listener)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    if links:
        crowds = [crowd, viewers, gateway.senders]
        ways.append(asyncio.ensure_future(_end(links, server, shown, crowds, pages)))
    await asyncio.wait([serving, *ways], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving
    for way in ways:
        way.cancel()
    for ended in await asyncio.gather(*ways, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


def _feed(settings: Settings) -> Following | Playing | None:
    """Where the bins of the page come from; None if there is no page."""
    if settings.folder is None:
        return None
    screen, journal = Screen.read(settings.screen), Path(settings.folder) / JOURNAL
    if settings.desk is None:
        return Playing(screen, journal, settings.grows)
    return Following(screen, journal)


def _shown(crowd: Crowd, feed: Following | Playing | None) -> Shown:
    """What is shown of the session goes to its clients, and to the page."""
    if not isinstance(feed, Following):
        return Shown(crowd.put, reports=feed is None)

    def publish(data: bytes) -> None:
        crowd.put(data)
        feed.take(data)

    return Shown(publish, tell=lambda report: feed.reel.tell("report", report))


def _to_session(desk: Link, can: Sequence[str] | None, action: Action) -> Unable | None:
    """Hand on what is asked for, if the session can do it; with no page, it is not known what."""
    if can is not None and action.ask not in can:
        return Unable(409, UNABLE.get(action.ask, f"this session cannot {action.ask}"))
    return None if desk.send_now(action.encode()) else Unable(503, "the session does not listen")


def _to_journal(feed: Playing, action: Action) -> Unable | None:
    why = feed.ask(action)
    return Unable(409, why) if why else None


def _state(shown: Shown, feed: Following | Playing) -> State:
    """What the page is told when it changes."""
    if isinstance(feed, Playing):
        return State(feed.live, "", feed.speed)
    return State(shown.live, "" if shown.report is None else shown.report["why"], feed.speed)


async def _end(
    links: list[Link],
    server: uvicorn.Server,
    shown: Shown,
    crowds: list[Crowd],
    pages: Pages | None,
) -> None:
    """Wait for the end of the session, and until clients know of it."""
    for link in links:
        await link.ended.wait()
    # The session may be taken up again at once, and wants to listen here then.
    for each in getattr(server, "servers", ()):
        each.close()
    if pages is not None:
        pages.flush()
    for crowd in crowds:
        crowd.finish(OVER if shown.closed else DIED)
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


def say(line: str) -> None:
    """Log a line."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Be the web process."""
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(NICENESS)
    settings = Settings(**json.load(sys.stdin))
    log = Measured(say)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[log])
    asyncio.run(serve(settings, log))


if __name__ == "__main__":
    main()
