"""Make the pictures of the page in docs/img/: a session is run, and looked at in a browser.

    python docs/screenshots.py [--fake] [--seconds 60]

A real session runs on the simulated rig. With --fake it is played by the server of the tests,
which takes no time to compile or to learn.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.web.browsing import FLAGS, Running, chromium, played  # noqa: E402

IMAGES = ROOT / "docs" / "img"
WAIT_S = 600.0
"""Seconds that a session may take until there is all to see."""


class Shot(NamedTuple):
    """A picture."""

    name: str
    theme: str
    width: int
    height: int


SHOTS = [
    Shot("page_light", "light", 1280, 800),
    Shot("page_dark", "dark", 1280, 800),
    Shot("page_projector", "light", 1920, 1080),
]


@contextlib.contextmanager
def real(seconds: float) -> Iterator[str]:
    """Address of the page of a session on the simulated rig, which has learned for so long."""
    with tempfile.TemporaryDirectory() as made:
        folder = str(Path(made) / "session")
        session = Running("live", folder, "--neurons", "60", "--web", "127.0.0.1:0", "--overload")
        try:
            address = session.address()
            time.sleep(seconds)
            yield address
        finally:
            session.end()


def watch(page: Page, condition: str) -> None:
    """Look at the page until something holds there."""
    end = time.monotonic() + WAIT_S
    while not page.evaluate(f"Boolean(window.evkf?.store && {condition})"):
        if time.monotonic() > end:
            raise SystemExit(f"the page never had {condition}")
        page.wait_for_timeout(200)


def take(page: Page, shot: Shot) -> Path:
    """Take a picture of what there is to see."""
    page.set_viewport_size({"width": shot.width, "height": shot.height})
    page.emulate_media(color_scheme=shot.theme)  # type: ignore[arg-type]
    page.wait_for_timeout(2000)
    path = IMAGES / f"{shot.name}.png"
    page.screenshot(path=path)
    return path


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fake", action="store_true", help="a played session, not a real one")
    parser.add_argument("--seconds", type=float, default=60.0, help="to learn before")
    asked = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    session = played() if asked.fake else real(asked.seconds)
    with sync_playwright() as playwright, session as address:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        # Fields and evidence are computed only while somebody looks.
        page = browser.new_page()
        page.goto(address)
        watch(page, "evkf.store.versions.field > 2 && evkf.store.evidence.seen > 12")
        for shot in SHOTS:
            print(take(page, shot).relative_to(ROOT))
        browser.close()


if __name__ == "__main__":
    main()
