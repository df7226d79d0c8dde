"""What every request passes first: it is judged, and refused before anything else looks at it."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from evkf.web.access import HOST, Access, Denied, Place, Why
from evkf.web.refusals import Refusals

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = [
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]
"""Of every answer, unless it says otherwise: pages of others neither embed nor read it, and
nothing keeps it."""


class Guard:
    """An ASGI app that hands on what may be handed on.

    Args:
        app: What it guards.
        access: Who may do what.
        refusals: Told of the others.
    """

    def __init__(self, app: App, access: Access, refusals: Refusals):
        self._app, self._access, self._refusals = app, access, refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge a request, and answer it or hand it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        denied = self._access.judge(scope)
        if denied is None:
            await self._app(scope, receive, _with_headers(send))
            return
        self._refusals.note(denied.why, peer(scope), denied.text)
        await _answer(scope, send, denied)


def peer(scope: Scope) -> str:
    """Who asks, for a log."""
    return str((scope.get("client") or ["somebody"])[0])


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = list(message.get("headers", ()))
            named = {name.lower() for name, _ in own}
            message["headers"] = own + [each for each in HEADERS if each[0] not in named]
        await send(message)

    return sending


async def _answer(scope: Scope, send: Send, denied: Denied) -> None:
    body, kind = json.dumps({"refused": denied.why, "text": denied.text}), b"application/json"
    if denied.why == Why.HOST and _is_browser(scope):
        body, kind = _where_to(scope), b"text/plain; charset=utf-8"
    data = body.encode()
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(data))]
    if denied.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    way = "http.response"
    if scope["type"] == "websocket":
        way = "websocket.http.response"
        if way not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1008})
            return
    start = {"type": f"{way}.start", "status": denied.status, "headers": [*headers, *HEADERS]}
    await send(start)
    await send({"type": f"{way}.body", "body": data})


def _is_browser(scope: Scope) -> bool:
    """Whether somebody asks for a page, to read it."""
    accepted = [value for name, value in scope["headers"] if name.lower() == b"accept"]
    return scope["type"] == "http" and any(b"text/html" in value for value in accepted)


def _where_to(scope: Scope) -> str:
    """How to come to the page, for one who asked for it by a name that is not known here."""
    host, port = scope.get("server") or (HOST, 8765)
    address = Place(host, port).url(port, scope["scheme"] == "https")
    scheme, at = address.split("://")
    # A tunnel ends at another address than the one that is listened at; localhost is known always.
    return (
        "This session does not answer to the name in the address that you opened.\n"
        "Whichever you open instead, keep its last part, #token=…\n\n"
        f"On the machine that it runs on, open {address}/.\n"
        f"From another machine, run ssh -L {port}:{at} MACHINE there, and open "
        f"{scheme}://localhost:{port}/.\n"
        f"To let others reach it by name, begin or resume it with --web MACHINE:{port} and "
        "a certificate,\n--tls-cert and --tls-key, or on a network that you trust with --no-tls "
        "(docs/security.md).\n"
    )
