"""The session as a file: one at a time, and why there is none."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

from evkf.live.desk import Action, Ask
from evkf.web.download import BEGUN, Download
from evkf.web.serve import _to_session


def test_who_asks_while_a_file_is_written_is_told_to_wait(tmp_path: Path):
    async def twice() -> list:
        download, first = Download(tmp_path), asyncio.Event()

        async def write(target: Path) -> str:
            await first.wait()
            return "no room"

        download._write = write
        asked = asyncio.create_task(download.give())
        await asyncio.sleep(0)
        busy = await download.give()
        first.set()
        return [busy, await asked, await download.give()]

    answers = [(each.status_code, json.loads(each.body)) for each in asyncio.run(twice())]
    assert [code for code, _ in answers] == [503, 500, 500]
    assert answers[0][1]["refused"] == "busy"
    assert answers[1][1] == {"refused": "export", "text": "no room"}
    assert not list(tmp_path.glob(f"{BEGUN}*"))


def test_a_session_that_does_not_listen_refuses_what_is_asked_for():
    sent = []
    desk = SimpleNamespace(send_now=lambda data: sent.append(data) or len(sent) == 1)
    action = Action(Ask.MARK, "light")
    assert _to_session(desk, None, action) is None
    refused = _to_session(desk, None, action)
    assert refused == (503, "the session does not listen")
