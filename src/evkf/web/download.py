"""The session as a file: written by a process of its own, sent, and removed."""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, JSONResponse
from starlette.background import BackgroundTask

NAME = "download.nwb"
BEGUN = ".download-"
"""Folders begin so in which a file is written; the number of the process follows."""


class Download:
    """Writes a session as NWB when it is asked for, once at a time.

    Args:
        folder: Of the session.
    """

    def __init__(self, folder: Path):
        self._folder, self._busy = folder, False
        for left in folder.glob(f"{BEGUN}*"):
            if not _runs(left.name.removeprefix(BEGUN).partition("-")[0]):
                shutil.rmtree(left, ignore_errors=True)

    async def give(self) -> Response:
        """The file, when it is written."""
        if self._busy:
            text = "a file is being written already; ask again when it is done"
            return JSONResponse({"refused": "busy", "text": text}, 503)
        own = f"{BEGUN}{os.getpid()}-"
        made = tempfile.TemporaryDirectory(dir=self._folder, prefix=own)
        self._busy = True
        target = Path(made.name) / f"{self._folder.resolve().name}.nwb"
        try:
            why = await self._write(target)
        except BaseException:
            made.cleanup()
            raise
        finally:
            self._busy = False
        if why:
            made.cleanup()
            return JSONResponse({"refused": "export", "text": why}, 500)
        kind = "application/x-hdf5"
        after = BackgroundTask(made.cleanup)
        return FileResponse(target, media_type=kind, filename=target.name, background=after)

    async def _write(self, target: Path) -> str:
        """Have it written; why that failed, if it did."""
        command = ["-m", "evkf", "export", str(self._folder), "--out", str(target), "--quiet"]
        process = await asyncio.create_subprocess_exec(
            "nice",
            "-n",
            "10",
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await process.communicate()
        except BaseException:
            process.kill()
            raise
        lines = said.decode(errors="replace").strip().splitlines() or ["it ended without a word"]
        return "" if process.returncode == 0 else lines[-1][:500]

    def routes(self) -> APIRouter:
        """Where it is asked for."""
        router = APIRouter()
        router.add_api_route(f"/{NAME}", self.give, response_model=None)
        return router


def _runs(number: str) -> bool:
    """Whether a process with this number does; not this one, which has only begun."""
    if not number.isdigit() or int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
