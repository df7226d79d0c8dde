"""Those who look at the page: what is gathered for them, and what is not when nobody looks."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from evkf.live.answers import Flags
from evkf.web import pages
from evkf.web.clients import Client, Crowd
from evkf.web.following import Following
from evkf.web.packing import unpack
from evkf.web.reel import State
from evkf.web.refusals import Refusals
from tests.web.kit import estimate
from tests.web.test_reel import SCREEN


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_what_was_gathered_is_forgotten_when_nobody_looks_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pages, "LINGER_S", 0.1)
    feed, crowd = Following(SCREEN, tmp_path / "none"), Crowd(Refusals(lambda kind, line: None))
    shown = pages.Pages(SCREEN, feed, tmp_path, crowd, lambda: State(True, "", None))

    def take(seq: int) -> None:
        feed.take(estimate(seq)._replace(flags=Flags.BRIDGED).encode())

    def recent() -> list[float]:
        return unpack(feed.reel.recent())[1]["time"].tolist()

    async def look() -> None:
        running = asyncio.ensure_future(shown.run())
        crowd._members.add(Client())
        await until(lambda: feed.wanted)
        await asyncio.sleep(3 * pages.PERIOD_S)
        take(0)
        await until(lambda: recent() == [0.0])
        crowd._members.clear()
        await until(lambda: not feed.wanted)
        assert recent() == []
        take(1)
        take(2)
        crowd._members.add(Client())
        await until(lambda: feed.wanted)
        await asyncio.sleep(3 * pages.PERIOD_S)
        take(3)
        await until(lambda: recent() == [0.03])
        running.cancel()

    asyncio.run(look())
