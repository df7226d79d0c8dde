"""A terminal is told what its numbers are of."""

import json
from typing import Any

import pytest
from rich.console import Console

from evkf.live.ports import Phase, Report
from evkf.live.status import line, table


def report(bins: int, taken: int, **more: Any) -> dict:
    made = Report.starting("")._replace(phase=Phase.READY, bins=bins, taken=taken, learned=20)
    made = made._replace(**more)
    return json.loads(json.dumps(made.plain))


@pytest.mark.parametrize("begun", [0, 60])
def test_counts_of_a_resumed_session_are_told_as_such(begun: int) -> None:
    told = report(bins=begun + 40, taken=40)
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table(told))
    for text in (line(told), shown.get()):
        assert "50" in text
        assert ("since the resume" in text) == (begun > 0)


def test_what_the_source_noted_is_told() -> None:
    odd = {"bad_value": 1001, "unknown_unit": 3}
    for told in (report(40, 40, odd=odd), report(0, 0, odd=odd)):
        console = Console(width=120)
        with console.capture() as shown:
            console.print(table(told))
        for text in (line(told), shown.get()):
            assert "at the source 1001 bad_value, 3 unknown_unit" in text
    assert "at the source" not in line(report(40, 40))


def test_a_session_that_ended_without_bins_says_so() -> None:
    assert line(report(0, 0)) == "ready: no bins yet"
    assert line(report(0, 0, phase=Phase.CLOSED)) == "closed: no bins came"
    assert line(report(40, 0, phase=Phase.CLOSED)) == "closed: no bins came since the resume"
