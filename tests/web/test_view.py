"""The page's end of a web process: what it is sent, what it may ask for, what is refused."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from evkf.live.desk import Action, Ask
from evkf.live.journal import Journal
from evkf.live.plan import JOURNAL, Plan
from evkf.live.records import Kind, encode_words
from evkf.web.access import Place
from evkf.web.packing import unpack
from evkf.web.process import LOG, WebProcess, page_address
from evkf.web.static import LONG, SHORT, page_files, page_routes
from tests.web.kit import HELLO, PATIENCE_S, REPORT, ask, bearer, estimate, join, parted, until
from tests.web.test_reel import SCREEN as BARE
from tests.web.test_reel import counts_of, write

BOKEH = "/bokeh/bokeh.min.js"
SCREEN = BARE._replace(can=("mark", "speed", "reset"))


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    folder = tmp_path_factory.mktemp("session")
    left = [folder / name for name in (".download-999999999-x", ".download-1-x")]
    for each in left:
        each.mkdir()
    found = WebProcess(Place("127.0.0.1", 0), folder, HELLO, screen=SCREEN)
    yield found
    found.close()


def messages(client: ClientConnection) -> Iterator[tuple[dict, dict]]:
    """What a page is sent; greetings have no arrays."""
    while True:
        data = client.recv(PATIENCE_S)
        yield (json.loads(data), {}) if isinstance(data, str) else unpack(data)


def last_bin(client: ClientConnection, seq: int) -> list[tuple[dict, dict]]:
    """Messages of bins, up to one with a certain bin."""
    found = []
    for header, arrays in messages(client):
        if header["kind"] == "bins" and header["first"] is not None:
            found.append((header, arrays))
            if header["last"] == seq:
                return found
    raise AssertionError("it never came")


def test_a_page_is_sent_what_the_session_publishes(web: WebProcess):
    folder = web.token.parent / JOURNAL
    journal = Journal.open(folder, "process-crash")
    with join(web, "/page") as client:
        hello = json.loads(client.recv(PATIENCE_S))
        assert (hello["session"], hello["live"], hello["mode"]) == ("a1b2", True, "live")
        header, arrays = unpack(client.recv(PATIENCE_S))
        assert (header["first"], arrays["mean"].shape) == (None, (0, 2))
        web.desk.tell(REPORT)
        # Until it has noticed that somebody looks, nothing is gathered.
        seq = -1
        for seq in range(2000):
            web.desk.publish(estimate(seq))
            write(journal, seq)
            journal.wait(journal.position, timeout=10)
            try:
                data = client.recv(0.02)
            except TimeoutError:
                continue
            if not isinstance(data, str) and len(unpack(data)[1]["time"]):
                break
        first = unpack(data)[0]["last"] + 1
        more = range(seq + 1, seq + 50)
        for seq in more:
            web.desk.publish(estimate(seq))
            write(journal, seq)
        journal.append(Kind.ACTION, encode_words(ask="mark", text="light on", seq=seq))
        found = last_bin(client, seq)
        assert found[0][0]["first"] == first
        mean = np.concatenate([arrays["mean"] for _, arrays in found])
        np.testing.assert_array_equal(mean, [estimate(each).mean for each in range(first, seq + 1)])
        counts = np.concatenate([arrays["counts"] for _, arrays in found])
        assert counts.tolist() == [counts_of(each) for each in range(first, seq + 1)]
        web.desk.tell(REPORT)
        header = next(header for header, _ in messages(client) if header.get("report"))
        assert header["report"] == json.loads(json.dumps(REPORT.plain))
    with join(web, "/page") as late:
        assert json.loads(late.recv(PATIENCE_S))["kind"] == "hello"
        header, arrays = unpack(late.recv(PATIENCE_S))
        assert header["last"] == seq
        assert header["marks"] == [{"seq": seq, "text": "light on"}]
        np.testing.assert_array_equal(arrays["mean"][-1], estimate(seq).mean)
    journal.close()


@pytest.mark.parametrize("text", ["nonsense", '{"plane": [0, 9]}', '{"plane": "all"}', b"\x00\x01"])
def test_who_asks_for_nonsense_is_sent_away(web: WebProcess, text: str | bytes):
    with join(web, "/page") as client:
        client.send('{"plane": [1, 0]}')
        client.send(text)
        assert parted(client) == (1008, "not a question of the page")
    with join(web, "/page") as client:
        assert json.loads(client.recv(PATIENCE_S))["session"] == "a1b2"
    log = web.token.parent / LOG
    until(lambda: "not a question of the page" in log.read_text())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://example.com"}, 403),
        ({"Host": "example.com"}, 403),
        ({"Authorization": "Bearer wrong"}, 401),
    ],
)
def test_strangers_get_no_page(web: WebProcess, headers: dict, status: int):
    assert ask(web, BOKEH, headers=headers).status_code == status
    if "Host" not in headers:
        with pytest.raises(InvalidStatus) as refused, join(web, "/page", headers=headers):
            pass
        assert refused.value.response.status_code == status


def test_scripts_are_served_from_here_and_kept(web: WebProcess):
    answer = ask(web, BOKEH)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["cache-control"] == SHORT
    kept = [path for path, file in page_files().items() if file.kept == LONG]
    path = next(path for path in kept if path.endswith("/bokeh.min.js"))
    answer = ask(web, path)
    assert answer.headers["cache-control"] == LONG
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    for missing in ("/bokeh/../serve.py", "/bokeh/bokeh.js", "/static/x"):
        assert ask(web, missing).status_code in (401, 404)


def test_a_page_names_the_version_of_its_scripts(tmp_path: Path):
    (tmp_path / "index.html").write_text('<script src="bokeh/bokeh.min.js"></script>')
    (tmp_path / "main.js").write_text("1")
    (tmp_path / "notes.txt").write_text("not for others")
    files = page_files(tmp_path)
    _, paths = page_routes(files)
    assert {"/", "/main.js"} <= set(paths)
    assert "/notes.txt" not in paths
    script = str(files["/"].content).split('"')[1]
    assert script.startswith("bokeh/3.")
    assert files[f"/{script}"].kept == LONG


def test_speed_and_reset_are_asked_for_with_the_token(web: WebProcess):
    for said, status in (({"ask": "speed", "text": "2"}, 202), ({"ask": "speed"}, 422)):
        answer = ask(web, "/actions", "POST", json=said, headers=bearer(web))
        assert answer.status_code == status
    assert ask(web, "/actions", "POST", json={"ask": "reset"}).status_code == 401
    assert until(web.desk.actions) == [Action(Ask.SPEED, "2")]


@pytest.mark.parametrize(
    ("asked", "words"), [("stop", "nothing stimulates"), ("freeze", "cannot freeze")]
)
def test_what_the_session_cannot_do_is_refused_and_not_handed_on(
    web: WebProcess, asked: str, words: str
):
    answer = ask(web, "/actions", "POST", json={"ask": asked}, headers=bearer(web))
    assert answer.status_code == 409
    assert words in answer.json()["text"]
    assert web.desk.actions() == []


def test_what_a_dead_process_left_is_removed_and_a_running_one_s_is_not(web: WebProcess):
    ask(web, "/health")
    assert [path.name for path in web.token.parent.glob(".download-*")] == [".download-1-x"]


def test_a_download_needs_the_token_and_says_what_is_wrong(web: WebProcess):
    assert ask(web, "/download.nwb").status_code == 401
    answer = ask(web, "/download.nwb", headers=bearer(web))
    assert answer.status_code == 500
    assert "no session" in answer.json()["text"]
    assert len(list(web.token.parent.glob(".download-*"))) == 1


def test_the_address_of_the_page_opens_it(web: WebProcess):
    address = page_address(web.address, web.token)
    assert address.startswith(f"{web.address}/#token=")
    assert address.endswith(web.token.read_text().strip())


def test_a_finished_session_is_viewed_to_its_last_bin(tmp_path: Path):
    Plan("rig", 0.01, channels=3, id="a1b2").write(tmp_path)
    journal = Journal.open(tmp_path / JOURNAL, "process-crash")
    for seq in range(120):
        write(journal, seq)
    journal.close()
    command = [sys.executable, "-m", "evkf", "view", str(tmp_path), "--speed", "20"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        address, token = process.stdout.readline().split()[-1].split("/#token=")
        where = address.replace("http", "ws") + "/page"
        with connect(where, proxy=None, open_timeout=PATIENCE_S) as client:
            hello = json.loads(client.recv(PATIENCE_S))
            assert (hello["mode"], hello["can"]) == ("view", ["download", "speed", "reset"])
            found = last_bin(client, 119)
            mean = np.concatenate([arrays["mean"] for _, arrays in found])
            np.testing.assert_array_equal(mean, [estimate(seq).mean for seq in range(120)])
            while (header := next(messages(client))[0]).get("report", {}).get("phase") != "closed":
                assert header["kind"] in ("bins", "field")
        assert (tmp_path / "token").read_text().strip() == token
        health = httpx.get(f"{address}/health", trust_env=False)
        assert health.status_code == 200
        assert health.json() == {"healthy": True, "phase": None, "age_s": None}
        estimates, given = (
            where.replace("/page", "/estimates"),
            {"Authorization": f"Bearer {token}"},
        )
        with (
            pytest.raises(InvalidStatus),
            connect(estimates, proxy=None, additional_headers=given),
        ):
            pass
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, said) == (0, "")


def test_a_view_is_for_this_machine_alone(tmp_path: Path):
    Plan("rig", 0.01, channels=3).write(tmp_path)
    command = [sys.executable, "-m", "evkf", "view", str(tmp_path), "--web", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "can be reached from other machines" in done.stderr
