"""What the web process makes of what it is shown, and of whom it refuses, without any socket."""

import json

import pytest

from evkf.live.ports import Phase, Report
from evkf.web.access import Why
from evkf.web.clients import LARGE
from evkf.web.gateway import TEXT, read_message
from evkf.web.refusals import EVERY_S, LINES, Measured, Refusals
from evkf.web.shown import STALE_S, Shown
from tests.web.kit import REPORT, estimate


class Clock:
    """Seconds, as the test has them."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def report(taken: int) -> bytes:
    return json.dumps(REPORT._replace(taken=taken).plain).encode()


def test_estimates_for_which_there_was_no_room_are_counted():
    seen: list[bytes] = []
    shown = Shown(seen.append)
    data = [estimate(seq).encode() for seq in range(40)]
    # What came before this process began is not missed.
    for each in data[:10]:
        shown.take(each)
    shown.take(report(taken=500))
    for each in data[10:30]:
        shown.take(each)
    shown.take(report(taken=520))
    assert shown.missed == 0
    for each in data[35:]:
        shown.take(each)
    shown.take(report(taken=530))
    assert shown.missed == 5
    assert seen == data[:30] + data[35:]
    assert shown.estimates == 35


def test_the_estimate_that_a_resumed_session_repeats_hides_no_miss():
    shown = Shown(lambda data: None)
    shown.take(json.dumps(Report.starting("programs are compiled").plain).encode())
    for seq in (99, 100):
        shown.take(estimate(seq).encode())
    shown.take(report(taken=1))
    assert shown.missed == 0
    shown.take(report(taken=2))
    assert shown.missed == 1


def test_a_session_that_does_not_report_is_not_well():
    clock = Clock()
    shown = Shown(lambda data: None, clock)
    assert not shown.healthy
    shown.take(json.dumps(Report.starting("programs are compiled").plain).encode())
    clock.now += 10 * STALE_S
    assert (shown.healthy, shown.live, shown.closed) == (False, True, False)
    shown.take(report(taken=1))
    assert shown.healthy
    clock.now += STALE_S
    assert (shown.healthy, shown.live) == (False, False)
    shown.take(json.dumps(REPORT._replace(phase=Phase.FAILED).plain).encode())
    assert not shown.healthy
    assert (shown.age, shown.closed) == (0, False)
    shown.take(json.dumps(REPORT._replace(phase=Phase.CLOSED).plain).encode())
    assert (shown.live, shown.closed) == (False, True)


def test_a_flood_of_refusals_is_counted_but_not_logged_and_hides_no_other():
    clock, lines = Clock(), []
    refusals = Refusals(Measured(lines.append, clock))
    for _ in range(10_000):
        refusals.note(Why.TOKEN, "10.0.0.9", "a wrong token")
    refusals.note(Why.HOST, "10.0.0.8", "not a name")
    assert len(lines) == LINES + 1
    assert "10.0.0.8" in lines[-1]
    assert refusals.counts == {Why.TOKEN: 10_000, Why.HOST: 1}
    clock.now += EVERY_S
    refusals.note(Why.TOKEN, "10.0.0.9", "a wrong token")
    assert lines[-2:] == [
        f"{10_000 - LINES} lines of token were left out",
        "refused 10.0.0.9 (token): a wrong token",
    ]


@pytest.mark.parametrize(
    ("message", "due"),
    [
        ({"type": "websocket.receive", "bytes": b"a"}, b"a"),
        ({"type": "websocket.receive", "bytes": b"a", "text": None}, b"a"),
        ({"type": "websocket.receive", "text": "a"}, TEXT),
        ({"type": "websocket.receive", "bytes": None, "text": ""}, TEXT),
        ({"type": "websocket.receive"}, TEXT),
        ({"type": "websocket.disconnect", "code": 1009}, LARGE),
        ({"type": "websocket.disconnect", "code": 1000}, None),
        ({"type": "websocket.disconnect"}, None),
    ],
)
def test_messages_as_the_server_hands_them_on(message: dict, due: object):
    assert read_message(message) == due
