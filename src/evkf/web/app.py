"""The app: put together from parts, each with its routes, behind one guard."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response, WebSocket
from fastapi.responses import JSONResponse

from evkf.live.desk import Action
from evkf.live.messages import FrameError
from evkf.web.access import Access, Why
from evkf.web.clients import Client, Crowd, Parting, parting_of
from evkf.web.gateway import Gateway
from evkf.web.guard import Guard, peer
from evkf.web.link import Link
from evkf.web.metrics import TYPE, Figure, render
from evkf.web.pages import Pages
from evkf.web.refusals import Refusals
from evkf.web.shown import Shown
from evkf.web.static import page_files, page_routes

LONGEST, BODY_S = 1 << 16, 10.0
"""Bytes of an action, and seconds that it has to arrive."""

UNASKED = Parting(1008, "nothing is to be sent here", Why.UNASKED)


class Part(NamedTuple):
    """Some routes of the app."""

    router: APIRouter
    readable: Sequence[str] = ()
    """Paths that can be looked at without a token, on loopback. Of all others it is needed."""
    public: Sequence[str] = ()
    """Paths of files that tell nothing of the session: for these it is needed nowhere."""


def build(
    parts: Iterable[Part], token: str, loopback: bool, names: Iterable[str], refusals: Refusals
) -> Guard:
    """The app.

    Args:
        parts: What it is made of.
        token: Of the session.
        loopback: Whether only this machine can reach it.
        names: Under which others know this machine.
        refusals: Told of everyone who is refused.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    readable, public = [], []
    for part in parts:
        app.include_router(part.router)
        readable += part.readable
        public += part.public
    return Guard(app, Access(token, loopback, names, readable, public), refusals)


def estimating(crowd: Crowd, hello: Any) -> Part:
    """Estimates, as they are published.

    Args:
        crowd: Who is sent them.
        hello: What describes the stream, for JSON.
    """
    router, greeting = APIRouter(), json.dumps(hello)

    @router.websocket("/estimates")
    async def estimates(websocket: WebSocket) -> None:
        async def read(_: Client) -> Parting | None:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return parting_of(message)
            return UNASKED

        await crowd.attend(websocket, read, greeting)

    return Part(router, ("/estimates",))


def watching(
    shown: Shown,
    crowd: Crowd,
    gateway: Gateway,
    refusals: Refusals,
    hello: Any,
    viewers: Crowd,
) -> Part:
    """Metrics, health and status.

    Args:
        shown: What the session shows.
        crowd: Who is sent its estimates; for their figures.
        gateway: For its figures.
        refusals: For theirs.
        hello: What describes the stream, for JSON.
        viewers: Who looks at the page; for their figures.
    """
    router = APIRouter()

    @router.get("/metrics")
    async def metrics() -> Response:
        own = _figures(shown, crowd, gateway, refusals, viewers)
        return Response(render([*shown.figures, *own]), media_type=TYPE)

    @router.get("/health")
    async def health() -> Response:
        phase = None if shown.report is None else shown.report["phase"]
        said = {"healthy": shown.healthy, "phase": phase, "age_s": shown.age}
        return JSONResponse(said, 200 if shown.healthy else 503)

    @router.get("/status")
    async def status() -> Response:
        return JSONResponse({"stream": hello, **shown.plain})

    return Part(router, ("/metrics", "/health", "/status"))


def paging(pages: Pages) -> Part:
    """The page, and what it is sent."""
    router = APIRouter()

    @router.websocket("/page")
    async def page(websocket: WebSocket) -> None:
        await pages.attend(websocket)

    files, paths = page_routes(page_files())
    router.include_router(files)
    return Part(router, ("/page",), paths)


def sending(gateway: Gateway, link: Link) -> Part:
    """Frames to the session."""
    router = APIRouter()

    @router.websocket("/frames")
    async def frames(websocket: WebSocket) -> None:
        await gateway.attend(websocket, link)

    return Part(router)


class Unable(NamedTuple):
    """Why what is asked for cannot be."""

    status: int
    """409 where it never can, 503 where it may later."""
    text: str


def acting(hand_on: Callable[[Action], Unable | None], refusals: Refusals) -> Part:
    """What the operator asks for.

    Args:
        hand_on: Told what is asked for; says why that cannot be, or nothing.
        refusals: Told of what is refused.
    """
    router = APIRouter()

    def refuse(request: Request, status: int, text: str) -> Response:
        refusals.note(Why.ACTION, peer(request.scope), text)
        return JSONResponse({"refused": Why.ACTION, "text": text}, status)

    @router.post("/actions")
    async def actions(request: Request) -> Response:
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > LONGEST:
                        return refuse(request, 413, f"more than {LONGEST} bytes")
        except TimeoutError:
            return refuse(request, 408, f"more than {BODY_S:.0f} s")
        try:
            action = Action.decode(bytes(body))
        except FrameError as error:
            return refuse(request, 422, error.message)
        if unable := hand_on(action):
            return refuse(request, *unable)
        return JSONResponse({"asked": action.ask}, 202)

    return Part(router)


def _figures(
    shown: Shown, crowd: Crowd, gateway: Gateway, refusals: Refusals, viewers: Crowd
) -> list[Figure]:
    counter, gauge = "counter", "gauge"
    crowds = {"estimates": crowd, "frames": gateway.senders, "page": viewers}
    present = [({"kind": kind}, len(each)) for kind, each in crowds.items()]
    refused = [({"reason": why.value}, refusals.counts[why]) for why in Why]
    dropped = sum(each.dropped for each in crowds.values())
    return [
        Figure("evkf_web_clients", gauge, "Connected now.", present),
        Figure("evkf_web_frames_total", counter, "Frames handed on.", [({}, gateway.frames)]),
        Figure("evkf_web_estimates_total", counter, "Estimates shown.", [({}, shown.estimates)]),
        Figure(
            "evkf_web_missed_estimates", gauge, "Not shown for want of room.", [({}, shown.missed)]
        ),
        Figure("evkf_web_sent_total", counter, "Messages put out.", [({}, crowd.served)]),
        Figure(
            "evkf_web_dropped_messages_total",
            counter,
            "Messages that clients too slow for them did not get.",
            [({}, dropped)],
        ),
        Figure("evkf_web_refusals_total", counter, "Refused, or sent away.", refused),
    ]
