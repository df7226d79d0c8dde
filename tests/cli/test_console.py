"""What commands say while they work."""

import io

import pytest
from rich.console import Console

from evkf.cli import console
from evkf.cli.console import progress_bar


def said(**options) -> str:
    file = io.StringIO()
    with progress_bar(Console(file=file, **options), "fitting") as tell:
        for done in (1, 2):
            tell(done, 2)
        tell(3)
    return file.getvalue()


def test_a_pipe_gets_a_line_now_and_then(monkeypatch):
    assert said() == ""  # nothing of what is soon done
    monkeypatch.setattr(console, "LINE_S", 0.0)
    assert said() == "fitting: 1 of 2\nfitting: 3\n"  # what is done is said by what follows
    assert said(quiet=True) == ""


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_terminal_gets_a_bar(monkeypatch, seconds):
    monkeypatch.setattr(console, "LINE_S", seconds)
    drawn = said(force_terminal=True)
    assert "fitting" in drawn
    assert "1 of 2" not in drawn
