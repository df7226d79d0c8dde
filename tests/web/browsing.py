"""The page in a browser: what tests, measurements and pictures of it share."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu"]
PATIENCE_MS = 30_000
START_S = 300.0
"""Seconds that a session may take to begin, compiling included."""

ADDRESS = re.compile(r"http://[\d.:]+/#token=[0-9a-f]+")

Page = Any


def chromium() -> str | None:
    """Debian's Chromium, if there is one."""
    return next((path for path in BROWSERS if Path(path).exists()), None)


class opened:
    """A tab, which must not raise errors."""

    def __init__(
        self, browser: Any, address: str, width: int = 1280, height: int = 800, **more: Any
    ):
        viewport = {"width": width, "height": height}
        self._context = browser.new_context(viewport=viewport, **more)
        self._address, self._errors = address, []

    def __enter__(self) -> Page:
        page = self._context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self._errors.append(str(error)))
        page.goto(self._address)
        return page

    def __exit__(self, *_: object) -> None:
        self._context.close()
        assert not self._errors


def wait(condition: Callable[[], Any], seconds: float = PATIENCE_MS / 1000) -> Any:
    """What a condition gives, once it gives something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it never came true")


def until(
    page: Page, condition: str, given: Any = None, seconds: float = PATIENCE_MS / 1000
) -> None:
    """Wait until something holds in the page, which lets no text be run as a script."""
    wait(lambda: page.evaluate(condition, given), seconds)


def moving(page: Page, seconds: float = PATIENCE_MS / 1000) -> None:
    """Wait until bins are drawn."""
    until(page, "window.evkf?.frames > 3", seconds=seconds)


def says(page: Page, words: str, seconds: float = PATIENCE_MS / 1000) -> None:
    """Wait until the page says something in plain words."""
    condition = "words => document.getElementById('connection').textContent.includes(words)"
    until(page, condition, words, seconds)


def value(page: Page, name: str) -> str:
    """All digits of a number that is shown."""
    return page.get_attribute(f"#{name}", "data-value")


@contextmanager
def played(**session: Any) -> Iterator[str]:
    """Address of a page whose session is played by a process of its own.

    Args:
        session: As `tests.web.fake_page.FakePage` takes it.
    """
    command = [sys.executable, "-m", "tests.web.fake_page", json.dumps(session)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


class Running:
    """A command that runs a real session with a page, in a process of its own.

    Args:
        command: Of `evkf`.
        environment: Of the process.

    Attributes:
        begun: When, by `time.monotonic`.
    """

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None):
        self.begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evkf", *command],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            # What it starts is ended with it.
            start_new_session=True,
        )

    def address(self) -> str:
        """Of the page, with the token, as it is printed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := ADDRESS.search(line):
                return found[0]
        raise AssertionError("the session did not begin")

    def kill(self) -> None:
        """End the session's process, and nothing else, as the kernel would."""
        self._process.kill()
        self._close()

    def end(self) -> None:
        """Ask it to end in good order, and see to it that all of it does."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_MS / 1000)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._close()

    def _close(self) -> None:
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]
