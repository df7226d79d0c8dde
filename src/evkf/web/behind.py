"""The web process's side of the process behind it: begun when somebody looks, asked, heard."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evkf.live.pipes import pair
from evkf.web.link import Link

TRIES, AGAIN_S = 3, 30.0
"""It is begun so often at most, and so long after the last time."""


class Behind:
    """Says what was learned.

    Args:
        folder: Of the session.
        take: Told every message that comes.
    """

    def __init__(self, folder: Path, take: Callable[[bytes], None]):
        self._folder, self._take = folder, take
        self._process: subprocess.Popen | None = None
        self._link: Link | None = None
        self._tries, self._begun = 0, -AGAIN_S
        self._asked: list[dict[str, Any]] = []

    def ask(self, planes: list[dict[str, Any]]) -> None:
        """Say which planes are wanted; in the loop that runs."""
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            if self._tries == TRIES or time.monotonic() < self._begun + AGAIN_S:
                return
            self._begin()
        assert self._link is not None
        if planes != self._asked and self._link.send_now(json.dumps(planes).encode()):
            self._asked = planes

    def _begin(self) -> None:
        self._tries, self._begun = self._tries + 1, time.monotonic()
        own, other = pair()
        command = [sys.executable, "-m", "evkf.web.background", str(self._folder)]
        with other:
            self._process = subprocess.Popen(
                [*command, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )
        self._link, self._asked = Link(own, self._take), []
        self._link.open()

    def close(self) -> None:
        """End it."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._link = None
