"""A web process on loopback and those who speak to it, with the session played by the test."""

import json
import math
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from websockets.exceptions import InvalidStatus

from evkf.live.answers import Ack, Refusal, decode_answer
from evkf.live.desk import Action, Ask
from evkf.web import doors
from evkf.web.clients import MOST
from evkf.web.process import LOG, WebProcess
from tests.web.kit import (
    PATIENCE_S,
    REPORT,
    ask,
    bearer,
    estimate,
    join,
    parted,
    served,
    token,
    until,
    watch,
)

ROOM = 1 << 18


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    with served(tmp_path_factory.mktemp("session"), room=ROOM) as found:
        yield found


def figures(web: WebProcess) -> dict[str, float]:
    """Every figure of the metrics, if they are well formed."""
    answer = ask(web, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    name, typed, found = r"[a-z_][a-z0-9_]*", {}, {}
    for line in answer.text.splitlines():
        if line.startswith("# HELP"):
            assert re.fullmatch(rf"# HELP {name} \S.*", line)
        elif line.startswith("# TYPE"):
            _, _, named, kind = line.split()
            assert kind in ("counter", "gauge")
            assert named not in typed
            typed[named] = kind
        else:
            sample = re.fullmatch(rf'(({name})(?:{{{name}="[^"]*"}})?) (\S+)', line)
            assert sample is not None, line
            assert sample[2] in typed
            assert sample[1] not in found
            found[sample[1]] = float(sample[3])
    return found


def refused(web: WebProcess, why: str) -> float:
    return figures(web)[f'evkf_web_refusals_total{{reason="{why}"}}']


def logged(web: WebProcess, words: str) -> bool:
    return words in (web.token.parent / LOG).read_text()


def received(web: WebProcess) -> list[bytes]:
    assert web.source is not None
    return [data for _, data in web.source.receive(0.01, 100)]


def test_estimates_come_out_as_they_were_published(web: WebProcess):
    with watch(web) as one, watch(web) as other:
        said = [estimate(seq) for seq in range(200)]
        for each in said:
            web.desk.publish(each)
        for client in (one, other):
            assert [client.recv(PATIENCE_S) for _ in said] == [each.encode() for each in said]


def test_frames_are_handed_on_and_answers_come_back(web: WebProcess):
    assert web.source is not None
    with join(web, "/frames", trusted=True) as sender:
        frames = [bytes([number]) * (1 + number * 1000) for number in range(100)]
        for frame in frames:
            sender.send(frame)
        found: list[bytes] = []
        until(lambda: found.extend(received(web)) or len(found) == len(frames))
        assert found == frames
        web.source.answer("pipe", Ack(7).encode())
        web.source.answer("pipe", Refusal("negative", 8, "no").encode())
        said = [decode_answer(sender.recv(PATIENCE_S)) for _ in range(2)]
        assert said == [Ack(7), Refusal("negative", 8, "no")]


def test_an_empty_frame_is_answered_and_does_not_end_the_session(web: WebProcess):
    assert web.source is not None
    with join(web, "/frames", trusted=True) as sender:
        sender.send(b"")
        assert decode_answer(sender.recv(PATIENCE_S)).code == "too_short"
        sender.send(b"still here")
        assert until(lambda: received(web)) == [b"still here"]
        assert not web.source.gone


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/metrics", {"Host": "example.com"}, 403),
        ("/metrics", {"Origin": "http://example.com"}, 403),
        ("/metrics", {"Authorization": "Bearer nonsense"}, 401),
        ("/actions", {}, 401),
        ("/nowhere", {}, 401),
        ("/docs", {}, 401),
        ("/openapi.json", {}, 401),
    ],
)
def test_requests_that_are_refused(web: WebProcess, path: str, headers: dict, status: int):
    answer = ask(web, path, headers=headers)
    assert answer.status_code == status
    assert answer.json()["refused"] in ("host", "origin", "token")
    assert "access-control-allow-origin" not in answer.headers
    assert logged(web, answer.json()["text"])


@pytest.mark.parametrize("path", ["/frames", "/estimates"])
@pytest.mark.parametrize(
    ("headers", "status", "why"),
    [
        ({"Host": "example.com"}, 403, "host"),
        ({"Origin": "http://example.com"}, 403, "origin"),
        ({"Origin": "null"}, 403, "origin"),
        ({"Authorization": "Bearer " + "0" * 64}, 401, "token"),
    ],
)
def test_sockets_that_are_refused(web: WebProcess, path: str, headers: dict, status: int, why: str):
    before = refused(web, why)
    # The client sends a Host of its own: the first is the one that is looked at.
    with _connected(web) as raw:
        head = {"Host": _host(web), **headers}
        lines = [f"GET {path} HTTP/1.1", *(f"{key}: {value}" for key, value in head.items())]
        lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
        raw.sendall("\r\n".join(lines).encode())
        assert raw.recv(1000).startswith(f"HTTP/1.1 {status} ".encode())
    assert refused(web, why) == before + 1


def _host(web: WebProcess) -> str:
    return web.address.partition("://")[2]


def _place(web: WebProcess) -> tuple[str, int]:
    host, _, port = _host(web).partition(":")
    return host, int(port)


def test_a_sender_needs_the_token_on_loopback_too(web: WebProcess):
    for more in ({}, {"subprotocols": ["evkf", "evkf.token.00"]}):
        with pytest.raises(InvalidStatus) as error, join(web, "/frames", **more):
            pass
        assert error.value.response.status_code == 401
    with pytest.raises(InvalidStatus), join(web, f"/frames?token={token(web)}"):
        pass


def test_a_browser_sends_the_token_as_a_subprotocol_and_does_not_get_it_back(web: WebProcess):
    with join(web, "/frames", subprotocols=["evkf", f"evkf.token.{token(web)}"]) as sender:
        assert sender.subprotocol == "evkf"
        sender.send(b"a frame")
        assert until(lambda: received(web)) == [b"a frame"]


def test_a_second_sender_is_refused(web: WebProcess):
    with join(web, "/frames", trusted=True) as first:
        with join(web, "/frames", trusted=True) as second:
            assert parted(second) == (1013, "another sender is connected; one at a time")
        first.send(b"first")
        assert until(lambda: received(web)) == [b"first"]
    until(lambda: figures(web)['evkf_web_clients{kind="frames"}'] == 0)
    with join(web, "/frames", trusted=True) as third:
        third.send(b"third")
        assert until(lambda: received(web)) == [b"third"]


@pytest.mark.parametrize("text", ["", "a frame", "eVKF" * 100])
def test_text_for_binary_is_refused(web: WebProcess, text: str):
    before = refused(web, "text")
    with join(web, "/frames", trusted=True) as sender:
        sender.send(text)
        assert parted(sender) == (1003, "text, where binary frames are due")
    assert refused(web, "text") == before + 1
    assert logged(web, "text, where binary frames are due")
    assert received(web) == []


def test_what_is_over_a_mebibyte_is_refused(web: WebProcess):
    before = refused(web, "large")
    with join(web, "/frames", trusted=True) as sender:
        sender.send(bytes((1 << 20) + 1))
        assert parted(sender)[0] == 1009
    with join(web, "/frames", trusted=True) as sender:
        sender.send([bytes(1 << 19)] * 3)
        assert parted(sender)[0] == 1009
    until(lambda: refused(web, "large") == before + 2)
    assert logged(web, "a message that is too large")
    assert received(web) == []


def test_who_only_listens_is_not_listened_to(web: WebProcess):
    for message in ("text", b"binary"):
        with watch(web) as client:
            client.send(message)
            assert parted(client)[0] == 1008
    with watch(web) as client:
        client.send(bytes((1 << 20) + 1))
        assert parted(client)[0] == 1009


def test_a_slow_client_is_dropped_and_another_gets_everything(web: WebProcess):
    before = refused(web, "slow")
    said, got = [], []
    with watch(web, max_queue=1) as slow, watch(web) as quick:

        def publish(num: int) -> None:
            for _ in range(num):
                said.append(estimate(len(said), num=4000).encode())
                web.desk._send(said[-1])
                got.append(quick.recv(PATIENCE_S))

        # What the system buffers for one that does not read must be full first.
        until(lambda: publish(100) or refused(web, "slow") == before + 1)
        assert parted(slow) == (1013, "too slow: messages were waiting for you")
        publish(100)
        assert got == said
    assert figures(web)["evkf_web_dropped_messages_total"] > 0


def test_there_are_only_so_many_clients(web: WebProcess):
    until(lambda: figures(web)['evkf_web_clients{kind="estimates"}'] == 0)
    with ExitStack() as clients:
        for _ in range(MOST):
            clients.enter_context(watch(web))
        assert figures(web)['evkf_web_clients{kind="estimates"}'] == MOST
        with join(web, "/estimates") as late:
            assert parted(late) == (1013, "too many are connected")
    until(lambda: figures(web)['evkf_web_clients{kind="estimates"}'] == 0)
    with watch(web):
        pass


def test_there_are_only_so_many_connections_and_those_that_ask_for_nothing_are_closed(
    web: WebProcess,
):
    before = refused(web, "crowded")
    with ExitStack() as opened, watch(web) as client:
        idle = [opened.enter_context(_connected(web)) for _ in range(doors.MOST)]
        assert idle[-1].recv(1) == b""
        web.desk.publish(estimate(1))
        assert client.recv(PATIENCE_S) == estimate(1).encode()
        assert idle[0].recv(1) == b""
        until(lambda: refused(web, "crowded") > before)


def _connected(web: WebProcess) -> socket.socket:
    return socket.create_connection(_place(web), PATIENCE_S)


def test_actions_reach_the_session(web: WebProcess):
    asked = [{"ask": "freeze"}, {"ask": "mark", "text": "light on"}]
    for each in asked:
        answer = ask(web, "/actions", "POST", json=each, headers=bearer(web))
        assert (answer.status_code, answer.json()) == (202, {"asked": each["ask"]})
    assert web.desk.actions() == [Action(Ask.FREEZE), Action(Ask.MARK, "light on")]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"nonsense", 422),
        (b"{}", 422),
        (b"[]", 422),
        (b'{"ask": "explode"}', 422),
        (b'{"ask": "mark", "text": 7}', 422),
        (b'{"ask": "mark", "text": "' + b"a" * 1001 + b'"}', 422),
        (b"[" * 60_000, 422),
        (b"\xff" * 100, 422),
        (bytes(1 << 20), 413),
    ],
)
def test_what_is_no_action_is_refused(web: WebProcess, body: bytes, status: int):
    answer = ask(web, "/actions", "POST", content=body, headers=bearer(web))
    assert answer.status_code == status
    assert answer.json()["refused"] == "action"
    assert web.desk.actions() == []


def test_figures_are_those_of_the_report(web: WebProcess):
    web.desk.tell(REPORT)
    until(lambda: "evkf_bins_total" in figures(web))
    found = figures(web)
    due = {
        "evkf_bins_total": 1234,
        "evkf_bins_per_second": 99.5,
        'evkf_latency_seconds{quantile="0.5"}': 2e-4,
        'evkf_latency_seconds{quantile="0.999"}': 9e-4,
        "evkf_frames_lost_total": 10,
        "evkf_frames_late_total": 2,
        "evkf_frames_duplicates_total": 5,
        "evkf_frames_reordered_total": 3,
        "evkf_frames_refused_total": 7,
        'evkf_source_odd_total{what="unknown_unit"}': 4,
        "evkf_backlog_frames": 4,
        "evkf_learned_total": 800,
        "evkf_elbo_nats": -12.25,
        "evkf_acknowledged_bin": 1233,
        "evkf_exposure_seconds": 0.0125,
        "evkf_frozen": 0,
        'evkf_phase{phase="ready"}': 1,
        'evkf_phase{phase="degraded"}': 0,
    }
    assert {name: found[name] for name in due} == due
    assert found["evkf_report_age_seconds"] < PATIENCE_S


def test_health_and_status(web: WebProcess):
    web.desk.tell(REPORT)
    until(lambda: ask(web, "/health").status_code == 200)
    status = ask(web, "/status").json()
    assert status["report"]["counters"] == REPORT.plain["counters"]
    assert status["stream"]["session"] == "a1b2"
    assert status["stream"]["channels"] == ["u7", "u9", "u11"]
    web.desk.tell(REPORT._replace(phase="degraded", why="no space", elbo=math.nan))
    until(lambda: ask(web, "/health").status_code == 503)
    status = ask(web, "/status")
    found = json.loads(status.text, parse_constant=lambda name: pytest.fail(name))
    assert found["report"]["elbo"] is None
    assert math.isnan(figures(web)["evkf_elbo_nats"])


def test_nonsense_in_place_of_requests_breaks_nothing(web: WebProcess):
    hello = b"\x16\x03\x01\x02\x00" * 20
    for data in (hello, b"GET / HTTP/9\r\n\r\n", bytes(9999), b"GET / HTTP/1.1\r\n\r\n"):
        with _connected(web) as raw:
            raw.sendall(data)
            assert raw.recv(1 << 16).startswith(b"HTTP/1.1 4")
    assert ask(web, "/metrics").status_code == 200
    assert not logged(web, "Traceback")
