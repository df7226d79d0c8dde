"""A terminal is told what its numbers are of."""

import json

import pytest
from rich.console import Console

from evkf.live.ports import Phase, Report
from evkf.live.status import line, table


def report(bins: int, taken: int) -> dict:
    made = Report.starting("")._replace(phase=Phase.READY, bins=bins, taken=taken, learned=20)
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
