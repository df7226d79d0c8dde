"""The web process and its session: real bins from end to end, death and return, encryption."""

import json
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection

from evkf.cli.wiring import open_source, open_web
from evkf.live.answers import Ack, Estimate, Refusal, decode_answer
from evkf.live.desk import Desk
from evkf.live.engine import Costs, Engine
from evkf.live.frames import Frame, encode, encode_end
from evkf.live.pipes import Callback, pair
from evkf.live.plan import LOG, Plan, build, parts
from evkf.live.ports import Due, Phase
from evkf.live.records import Kind, decode
from evkf.live.rig import rig_counts, rig_model
from evkf.live.run import Logger, open_session
from evkf.live.segments import read
from evkf.web.access import Tls
from tests.quick import quick_compilation  # noqa: F401
from tests.web.kit import (
    PATIENCE_S,
    REPORT,
    ask,
    bearer,
    estimate,
    join,
    parted,
    served,
    until,
    watch,
)

N, BINS = 8, 60
PLAN = Plan(
    "websocket",
    0.01,
    channels=N,
    num_windows=2,
    window=4,
    speed=0.05,
    horizon=2,
    id="f00d",
    web="127.0.0.1:0",
)
COSTS = Costs(1e-4, 1e-4, 1e-4, 1e-4, 1.0)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build(PLAN, parts(PLAN, Path()))


def answers(sender: ClientConnection, last: Ack) -> list:
    """What a sender is told, up to an acknowledgement."""
    said = [decode_answer(sender.recv(PATIENCE_S))]
    while said[-1] != last:
        said.append(decode_answer(sender.recv(PATIENCE_S)))
    return said


def test_a_session_over_the_web_from_end_to_end(tmp_path: Path, engine: Engine):
    PLAN.write(tmp_path)
    made = parts(PLAN, tmp_path)
    web = open_web(PLAN, tmp_path, made, print)
    assert web is not None
    source, _ = open_source(PLAN, tmp_path, made, Due(), web)
    published: list[Estimate] = []
    start = engine.state
    session = open_session(
        tmp_path,
        PLAN,
        engine,
        COSTS,
        True,
        source,
        [Callback(published.append), web.desk],
        tell=web.desk.tell,
        actions=web.desk.actions,
    )
    reports = []
    runs = threading.Thread(target=lambda: reports.append(session.run()))
    runs.start()
    counts = rig_counts(rig_model(2, N, 0.01), BINS)
    times = [10**18 + 7 * seq**2 for seq in range(BINS)]
    with join(web, "/estimates") as client, join(web, "/frames", trusted=True) as sender:
        hello = json.loads(client.recv(PATIENCE_S))
        assert (hello["session"], hello["horizon"], hello["bin_width"]) == ("f00d", 2, 0.01)
        assert (hello["latents"], len(hello["channels"])) == (["z0", "z1"], N)
        for seq in range(BINS // 2):
            sender.send(encode(Frame(seq, counts[seq], sent_ns=times[seq])))
        answers(sender, Ack(BINS // 2 - 1))
        for asked in ({"ask": "freeze"}, {"ask": "mark", "text": "light on"}):
            answer = ask(web, "/actions", "POST", json=asked, headers=bearer(web))
            assert answer.status_code == 202
        until(lambda: session.report().frozen)
        sender.send(b"nonsense")
        for seq in range(BINS // 2, BINS):
            sender.send(encode(Frame(seq, counts[seq], sent_ns=times[seq])))
        sender.send(encode_end(BINS))
        said = answers(sender, Ack(BINS - 1))
        assert [each.code for each in said if isinstance(each, Refusal)] == ["too_short"]
        got = [client.recv(PATIENCE_S) for _ in range(BINS)]
        runs.join(PATIENCE_S)
        assert parted(client) == (1001, "the session has ended")
        assert parted(sender) == (1001, "the session has ended")
    web.close()
    assert web.process is not None
    assert web.process.returncode == 0
    assert reports[0].phase == Phase.CLOSED
    assert got == [each.encode() for each in published]
    assert [Estimate.decode(data).sent_ns for data in got] == times
    engine.state = start
    latent = engine.observe(counts[0].astype(engine.dtype), None, None, False)
    np.testing.assert_array_equal(Estimate.decode(got[0]).mean, latent.mean)
    np.testing.assert_array_equal(Estimate.decode(got[0]).ahead, latent.ahead)
    marks = [
        decode(record.kind, record.payload)
        for record in read(tmp_path / "journal")
        if record.kind == Kind.ACTION
    ]
    assert [mark["ask"] for mark in marks] == ["freeze", "mark"]
    assert marks[1]["text"] == "light on"


@pytest.mark.parametrize(
    ("phase", "told"),
    [
        (Phase.CLOSED, (1001, "the session has ended")),
        (Phase.READY, (4000, "the engine has died")),
    ],
)
def test_clients_are_told_whether_the_session_has_ended_or_died(
    tmp_path: Path, phase: Phase, told: tuple[int, str]
):
    with served(tmp_path) as web, watch(web) as client:
        web.desk.tell(REPORT._replace(phase=phase))
        web.close()
        assert parted(client) == told


def test_a_last_report_for_which_there_was_no_room_is_told_when_there_is():
    own, other = pair()
    desk, data = Desk(own), bytes(1 << 16)
    while desk._send(data):
        pass
    desk.tell(REPORT._replace(phase=Phase.CLOSED))
    closing = threading.Thread(target=desk.close)
    closing.start()
    with other:
        while (said := other.recv(1 << 17)) == data:
            pass
        closing.join()
        assert json.loads(said)["phase"] == "closed"


def test_a_process_that_dies_is_replaced_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("evkf.web.process.RESTARTS", 1)
    monkeypatch.setattr("evkf.web.process.WAIT_S", 0.1)
    log = Logger(tmp_path / LOG)
    with served(tmp_path, log=log) as web:
        assert web.source is not None
        assert web.process is not None or until(lambda: web.process)
        with watch(web):
            first = web.process
            first.kill()
        until(lambda: web.process is not first)
        # The session's side: nothing is gone, nothing waits.
        assert web.source.receive(0.01, 10) == []
        assert not web.source.gone
        with watch(web) as client, join(web, "/frames", trusted=True) as sender:
            web.desk.publish(estimate(7))
            while (data := client.recv(PATIENCE_S)) != estimate(7).encode():
                assert Estimate.decode(data)
            sender.send(b"a frame")
            assert until(lambda: web.source.receive(0.01, 10)) == [("pipe", b"a frame")]
            web.process.kill()
        until(lambda: "goes on without it" in (tmp_path / LOG).read_text())
        for seq in range(20_000):
            web.desk.publish(estimate(seq))
        assert web.source.receive(0.01, 10) == []
        assert not web.source.gone
    assert "it is started again" in (tmp_path / LOG).read_text()


def test_other_machines_need_encryption_and_the_token(tmp_path: Path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    files = [tmp_path / "cert.pem", tmp_path / "key.pem"]
    made = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    out = ["-out", str(files[0]), "-keyout", str(files[1]), "-days", "2"]
    subprocess.run(["openssl", "req", *made, *names, *out], check=True, capture_output=True)
    trusts = ssl.create_default_context(cafile=str(files[0]))
    with served(tmp_path, "0.0.0.0", tls=Tls(*map(str, files))) as web:
        web.address = web.address.replace("0.0.0.0", "localhost")
        assert web.address.startswith("https://")
        for path in ("/metrics", "/health", "/status", "/actions", "/"):
            assert ask(web, path, verify=trusts).status_code == 401
        assert ask(web, "/metrics", headers=bearer(web), verify=trusts).status_code == 200
        foreign = bearer(web) | {"Host": "example.com"}
        assert ask(web, "/metrics", headers=foreign, verify=trusts).status_code == 403
        with pytest.raises(InvalidStatus), join(web, "/estimates", ssl=trusts):
            pass
        with watch(web, trusted=True, ssl=trusts) as client:
            web.desk.publish(estimate(3))
            assert client.recv(PATIENCE_S) == estimate(3).encode()
        plain = web.address.replace("https", "http") + "/metrics"
        with pytest.raises(httpx.TransportError):
            httpx.get(plain, headers=bearer(web), timeout=PATIENCE_S, trust_env=False)
