"""Frames from a WebSocket to the session, and its answers back."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import WebSocket

from evkf.live.answers import Refusal
from evkf.live.messages import Code
from evkf.web.access import Why
from evkf.web.clients import Client, Crowd, Parting, parting_of
from evkf.web.link import Link
from evkf.web.refusals import Refusals

TEXT = Parting(1003, "text, where binary frames are due", Why.TEXT)
SECOND = Parting(1013, "another sender is connected; one at a time", Why.SECOND)
EMPTY = Refusal(Code.TOO_SHORT, None, "an empty message")
HUGE = Refusal(Code.TOO_LONG, None, "longer than any frame of a session can be")
AT_ONCE = 32
"""Frames that are handed on before others have their turn."""


def read_message(message: Mapping[str, Any]) -> bytes | Refusal | Parting | None:
    """What came in: a frame to hand on, what to answer, why to part; None if the sender left.

    Example:
        >>> read_message({"type": "websocket.receive", "bytes": b"a frame"})
        b'a frame'
        >>> read_message({"type": "websocket.receive", "bytes": b""}).code
        <Code.TOO_SHORT: 'too_short'>
        >>> read_message({"type": "websocket.receive", "text": "a frame"}).code
        1003
    """
    if message["type"] == "websocket.disconnect":
        return parting_of(message)
    data = message.get("bytes")
    if data is None:
        return TEXT
    # To the session, nothing at all would mean that nothing comes any more.
    return data or EMPTY


class Gateway:
    """Hands frames to the session, of one sender at a time.

    Args:
        refusals: Told of those who are sent away.

    Attributes:
        senders: Whoever sends.
        frames: How many were handed on.
    """

    def __init__(self, refusals: Refusals):
        self._refusals = refusals
        self.senders = Crowd(refusals, most=1)
        self.frames = 0

    async def attend(self, websocket: WebSocket, link: Link) -> None:
        """See to a sender, until it leaves or is sent away."""

        async def read(client: Client) -> Parting | None:
            while True:
                said = read_message(await websocket.receive())
                if said is None or isinstance(said, Parting):
                    return said
                if isinstance(said, bytes):
                    self.frames += 1
                    if self.frames % AT_ONCE == 0:
                        await asyncio.sleep(0)
                    said = None if await link.send(said) else HUGE
                if said is not None:
                    self._refusals.note(Why.FRAME, "the sender", said.text)
                    client.put(said.encode())

        await self.senders.attend(websocket, read, crowded=SECOND)
