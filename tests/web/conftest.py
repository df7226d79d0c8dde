"""The browser that tests of the page share."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.web.browsing import FLAGS, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a screen."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (found := chromium()) is None:
        pytest.skip("there is no browser: install Debian's chromium")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield running
        running.close()
