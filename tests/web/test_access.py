"""Who may do what: tokens, hosts, origins, addresses, before any connection is made."""

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest

from evkf.errors import InputError
from evkf.live.addresses import check_zmq, is_loopback
from evkf.live.zeromq import ZmqSink, ZmqSource
from evkf.web.access import Access, Place, Tls, Why, check_tls, keep_token, listen, read_token
from evkf.web.guard import Guard
from evkf.web.refusals import Refusals

SECRET = "ab" * 32
BEARER = (b"authorization", b"Bearer " + SECRET.encode())
LOCAL = Access(SECRET, True, [], ["/metrics", "/estimates"])
WIDE = Access(SECRET, False, ["lab-pc", "lab-pc.example.org"], ["/metrics", "/estimates"])


def scope(path: str = "/metrics", host: bytes = b"localhost:8765", **more: object) -> dict:
    headers = [(b"host", host), *more.pop("headers", [])]
    server = ("127.0.0.1", 8765)
    known = {"type": "http", "method": "GET", "path": path, "scheme": "http", "server": server}
    return known | {"headers": headers} | more


def why(access: Access, asked: dict) -> Why | None:
    denied = access.judge(asked)
    return None if denied is None else denied.why


@pytest.mark.parametrize("host", [b"localhost", b"LOCALHOST:1", b"127.0.0.1:8765", b"127.0.0.1"])
def test_this_machine_is_asked_for_by_its_name(host: bytes):
    assert why(LOCAL, scope(host=host)) is None


@pytest.mark.parametrize(
    "host",
    [
        b"example.com",
        b"localhost.example.com",
        b"127.0.0.1.example.com",
        b"127.0.0.2",
        b"0.0.0.0",
        b"[::1]",
        b"localhost@example.com",
        b"localhost/",
        b"localhost:8765:1",
        b"2130706433",
        b"",
        b"\xff",
        b"lab-pc",
    ],
)
def test_other_names_are_refused(host: bytes):
    assert why(LOCAL, scope(host=host, headers=[BEARER])) == Why.HOST


def test_a_request_has_one_host():
    assert why(LOCAL, scope() | {"headers": []}) == Why.HOST
    assert why(LOCAL, scope(headers=[(b"host", b"localhost:8765")])) == Why.HOST
    assert why(LOCAL, scope(headers=[(b"Host", b"example.com")])) == Why.HOST


def test_other_machines_know_it_by_name_or_by_the_address_they_reached():
    reached = {"server": ("::ffff:10.0.0.7", 8765), "headers": [BEARER]}
    known = [b"lab-pc:8765", b"LAB-PC.example.org", b"10.0.0.7:8765"]
    assert [why(WIDE, scope() | reached | {"headers": [(b"host", h), BEARER]}) for h in known] == [
        None
    ] * 3
    other = {"headers": [(b"host", b"10.0.0.8"), BEARER]}
    assert why(WIDE, scope() | reached | other) == Why.HOST


@pytest.mark.parametrize(
    "origin",
    [
        b"http://example.com",
        b"http://localhost:9999",
        b"https://localhost:8765",
        b"http://127.0.0.1:8765",
        b"http://localhost",
        b"null",
        b"",
        b"\xff\xfe",
    ],
)
def test_pages_of_others_are_refused_even_with_the_token(origin: bytes):
    asked = scope(headers=[(b"origin", origin), BEARER])
    assert why(LOCAL, asked) == Why.ORIGIN
    assert why(LOCAL, asked | {"type": "websocket", "scheme": "ws"}) == Why.ORIGIN


def test_our_own_page_is_not_refused():
    own = [(b"origin", b"http://localhost:8765")]
    assert why(LOCAL, scope(headers=own)) is None
    assert why(LOCAL, scope(headers=own, type="websocket", scheme="ws")) is None
    assert why(LOCAL, scope(headers=own, type="websocket", scheme="wss")) == Why.ORIGIN
    assert why(LOCAL, scope(headers=[*own, (b"origin", b"http://example.com")])) == Why.ORIGIN
    # Through a tunnel, the port is another.
    tunnel = [(b"origin", b"http://localhost:9000")]
    assert why(LOCAL, scope(host=b"localhost:9000", headers=tunnel)) is None


@pytest.mark.parametrize("path", ["/actions", "/frames", "/", "/metrics/", "//metrics", "/nowhere"])
def test_what_is_not_readable_needs_the_token(path: str):
    assert why(LOCAL, scope(path)) == Why.TOKEN
    assert why(LOCAL, scope(path, headers=[BEARER])) is None


def test_changes_need_the_token():
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "get"):
        assert why(LOCAL, scope(method=method)) == Why.TOKEN


def test_from_other_machines_everything_needs_the_token():
    assert why(WIDE, scope()) == Why.TOKEN
    assert why(WIDE, scope("/estimates", type="websocket", scheme="ws")) == Why.TOKEN
    assert why(WIDE, scope(headers=[BEARER])) is None


@pytest.mark.parametrize(
    "said",
    [
        b"Bearer " + b"ba" * 32,
        b"Bearer " + SECRET[:-1].encode(),
        b"Bearer " + SECRET.encode() + b"0",
        b"Bearer",
        b"Bearer ",
        b"Basic " + SECRET.encode(),
        SECRET.encode(),
        b"",
        b"Bearer \xff\xfe",
    ],
)
def test_a_wrong_token_is_refused_even_where_none_is_needed(said: bytes):
    headers = [(b"authorization", said)]
    assert why(LOCAL, scope(headers=headers)) == Why.TOKEN
    assert why(LOCAL, scope(headers=[BEARER, *headers])) == Why.TOKEN


def test_a_browser_sends_the_token_as_a_subprotocol():
    asked = scope("/frames", type="websocket", scheme="ws")
    right = ["evkf", f"evkf.token.{SECRET}"]
    assert why(LOCAL, asked | {"subprotocols": right}) is None
    for wrong in (["evkf"], ["evkf", "evkf.token."], [f"evkf.token.{SECRET}é"]):
        assert why(LOCAL, asked | {"subprotocols": wrong}) == Why.TOKEN


def test_a_token_in_the_address_does_not_count():
    assert why(LOCAL, scope("/actions", query_string=f"token={SECRET}".encode())) == Why.TOKEN


def test_a_token_is_kept_for_its_owner(tmp_path: Path):
    before = os.umask(0)
    try:
        path = keep_token(tmp_path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    secret = read_token(path)
    assert len(bytes.fromhex(secret)) == 32
    assert keep_token(tmp_path) == path
    assert read_token(path) == secret
    other = tmp_path / "other"
    other.mkdir()
    assert read_token(keep_token(other)) != secret


def test_a_token_that_others_know_is_not_used(tmp_path: Path):
    path = keep_token(tmp_path)
    path.chmod(0o640)
    with pytest.raises(InputError, match="others can read"):
        keep_token(tmp_path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(InputError, match="not a token"):
        keep_token(tmp_path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="no token"):
        keep_token(tmp_path)


def test_a_token_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = keep_token(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(InputError, match="another user"):
        keep_token(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match="cannot write the token of the page: Read-only"):
        keep_token(tmp_path)


@pytest.mark.parametrize("text", ["", "8765:", "host", "h:70000", "a:b:1", "-1", "1.2.3.4:x"])
def test_addresses_that_are_none(text: str):
    with pytest.raises(InputError, match="HOST:PORT"):
        Place.read(text)


def test_a_port_in_use_is_told_of():
    taken = listen(Place("127.0.0.1", 0))
    with taken, pytest.raises(InputError, match="cannot listen"):
        listen(Place("127.0.0.1", taken.getsockname()[1]))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "lab-pc", "169.254.0.1"])
def test_other_machines_are_not_listened_to_in_the_clear(host: str):
    with pytest.raises(InputError, match="--no-tls"):
        check_tls(Place(host, 1), None, without=False)
    check_tls(Place(host, 1), None, without=True)


def test_a_certificate_must_be_one(tmp_path: Path):
    file = tmp_path / "a.pem"
    file.write_text("nonsense")
    for files in (Tls(str(file), str(file)), Tls(str(tmp_path / "b.pem"), str(file))):
        with pytest.raises(InputError, match="PEM"):
            check_tls(Place("127.0.0.1", 1), files, without=False)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://*:5556",
        "tcp://0.0.0.0:1",
        "tcp://[::]:1",
        "tcp://eth0:1",
        "tcp://10.0.0.7:*",
        "udp://x",
    ],
)
def test_zeromq_listens_to_this_machine_alone(address: str):
    with pytest.raises(InputError, match="--open"):
        check_zmq(address)
    assert check_zmq(address, open_to_all=True) == address
    for kind in (ZmqSource, ZmqSink):
        with pytest.raises(InputError, match="--open"):
            kind(address)


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:0", "tcp://[::1]:5", "ipc:///tmp/a", "tcp://lo:*"]
)
def test_zeromq_on_this_machine_is_not_refused(address: str):
    assert check_zmq(address) == address


def test_zeromq_opens_if_told():
    sink = ZmqSink("tcp://*:0", open_to_all=True)
    sink.close()


def test_loopback_is_what_ends_here():
    inside = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "LocalHost"]
    assert all(map(is_loopback, inside))
    outside = ["::ffff:10.0.0.1", "", "localhost.example.com", "fe80::1", "127.0.0.1.example.com"]
    assert not any(map(is_loopback, outside))


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("10.0.0.7", "10.0.0.7")]
)
def test_a_browser_that_uses_another_name_is_told_where_the_page_is(host: str, shown: str):
    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    guard = Guard(None, LOCAL, Refusals(lambda *_: None))
    for kind in (b"text/html,*/*", b"application/json"):
        headers = [(b"accept", kind)]
        asked = scope("/", b"vm:8765", headers=headers, server=(host, 8800))
        asyncio.run(guard(asked, None, send))
    page, program = sent[1]["body"].decode(), json.loads(sent[3]["body"])
    here, tunnel = f"open http://{shown}:8800/.", f"ssh -L 8800:{shown}:8800 MACHINE"
    others = "http://localhost:8800/", "--web", "--tls-cert", "--no-tls", "#token="
    for words in (here, tunnel, *others):
        assert words in page
    assert (sent[0]["status"], sent[2]["status"]) == (403, 403)
    assert program["refused"] == "host"
