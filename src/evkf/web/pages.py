"""Those who look at the page, and the messages they are sent."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fastapi import WebSocket

from evkf.web.access import Why
from evkf.web.behind import Behind
from evkf.web.clients import Client, Crowd, Parting, parting_of
from evkf.web.packing import pack, unpack
from evkf.web.reel import Reel, Screen, State

PERIOD_S = 1 / 30
"""Seconds between messages."""

RETRY_S = 5.0
"""Seconds after which what failed is tried again."""

LINGER_S = 30.0
"""Seconds after the last one has left, for which bins are still gathered."""

ASK_S = 1.0
"""Seconds between questions to the process behind."""

MALFORMED = Parting(1008, "not a question of the page", Why.TEXT)


class Feed(Protocol):
    """Where bins come from."""

    reel: Reel
    wanted: bool
    """Whether anybody looks."""

    def begin(self) -> None:
        """Go on from what is newest; in whichever thread."""
        ...

    def rest(self) -> None:
        """Nobody looks any more."""
        ...

    def turn(self) -> None:
        """See what is new."""
        ...


Plane = tuple[int, int]
"""Two latents."""


def read_question(text: str, latents: int) -> Plane:
    """What a page asks for: a plane; the other latents are held at the current mean.

    Raises:
        ValueError: If it is no question.

    Example:
        >>> read_question('{"plane": [2, 0]}', 3)
        (2, 0)
        >>> read_question('{"plane": [0, 0]}', 3)
        Traceback (most recent call last):
        ...
        ValueError: not two latents: [0, 0]
    """
    said = json.loads(text)
    if not isinstance(said, dict) or set(said) != {"plane"}:
        raise ValueError("not a question")
    plane = said["plane"]
    places = plane if isinstance(plane, list) else []
    fit = all(type(i) is int and 0 <= i < latents for i in places)
    if not fit or len(places) != 2 or places[0] == places[1]:
        raise ValueError(f"not two latents: {plane}")
    return places[0], places[1]


class Pages:
    """Those who look at the page, and what they are sent.

    Args:
        screen: What is shown.
        feed: Where bins come from.
        folder: Of the session, for what was learned.
        crowd: Who looks.
        state: What may have changed.
    """

    def __init__(
        self,
        screen: Screen,
        feed: Feed,
        folder: Path,
        crowd: Crowd,
        state: Callable[[], State],
    ):
        self._screen, self._feed, self._crowd, self._state = screen, feed, crowd, state
        self._wanted: dict[Client, Plane] = {}
        self._fields: dict[Plane, tuple[float, bytes]] = {}
        self._behind = Behind(folder, self._hear)
        self._told = state()
        self._asked = 0.0

    async def attend(self, websocket: WebSocket) -> None:
        """See to one who looks."""

        async def read(client: Client) -> Parting | None:
            self._welcome(client)
            try:
                while True:
                    message = await websocket.receive()
                    if message["type"] == "websocket.disconnect":
                        return parting_of(message)
                    try:
                        asked = read_question(message.get("text") or "", self._screen.latents)
                    except (ValueError, TypeError, RecursionError, OverflowError):
                        return MALFORMED
                    self._show_plane(client, asked)
                    self._asked = 0.0
            finally:
                self._wanted.pop(client, None)

        await self._crowd.attend(websocket, read)

    def _welcome(self, client: Client) -> None:
        client.put(self._screen.hello(self._state()))
        client.put(self._feed.reel.recent())
        if self._screen.latents > 1:
            self._show_plane(client, (0, 1))

    def _show_plane(self, client: Client, plane: Plane) -> None:
        self._wanted[client] = plane
        if known := self._fields.get(plane):
            heard, data = known
            client.put(older(data, time.monotonic() - heard))

    def _hear(self, data: bytes) -> None:
        """What the process behind says."""
        if data[:1] == b"{":
            self._feed.reel.tell("evidence", json.loads(data)["evidence"])
            return
        plane = tuple(unpack(data)[0]["plane"])
        self._fields[plane] = time.monotonic(), data
        for client, wanted in self._wanted.items():
            if wanted == plane:
                client.put(data)

    async def run(self) -> None:
        """Send what is new, at most thirty times a second."""
        left = -LINGER_S
        awake = False
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                now = time.monotonic()
                left = now if len(self._crowd) else left
                if now - left > LINGER_S:
                    if awake:
                        awake = self._wake(False)
                        self._feed.rest()
                    continue
                try:
                    if not awake:
                        awake = self._wake(True)
                        await asyncio.to_thread(self._feed.begin)
                    self._turn(now)
                except Exception as error:
                    # The page may fail, by a disk that does; what else is served must not.
                    print(f"the page: {type(error).__name__}: {error}", file=sys.stderr)
                    awake = self._wake(False)
                    await asyncio.sleep(RETRY_S)
        finally:
            self._behind.close()

    def _wake(self, wanted: bool) -> bool:
        self._feed.wanted = wanted
        return wanted

    def flush(self) -> None:
        """Send what is new now: it is the last."""
        if self._feed.wanted:
            self._turn(time.monotonic())

    def _turn(self, now: float) -> None:
        self._feed.turn()
        if (told := self._state()) != self._told:
            self._told = told
            self._crowd.put(self._screen.hello(told))
        if message := self._feed.reel.message():
            self._crowd.put(message)
        # Before the first bin there is nothing to read, not even a plan.
        if now - self._asked > ASK_S and self._wanted and self._feed.reel.last is not None:
            self._asked = now
            self._behind.ask(self._questions())

    def _questions(self) -> list[dict[str, Any]]:
        last = self._feed.reel.last
        assert last is not None
        mean = last.mean.tolist()
        return [{"plane": plane, "at": mean} for plane in sorted(set(self._wanted.values()))]


def older(data: bytes, seconds: float) -> bytes:
    """The message of a field, so much later than when it was new."""
    header, arrays = unpack(data)
    return pack(header | {"seconds_old": header["seconds_old"] + seconds}, arrays)
