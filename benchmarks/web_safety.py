"""The web process under fire: a million fuzzed frames, broken protocols, and all that is refused.

They go through what reads messages in the gateway and the session; some thousands more through real
sockets, where every one must come out as it went in and be answered. Nothing may crash, no
message may take over a second, memory must not grow; whoever has the wrong token, Host or Origin,
sends too much, or text for binary, is refused, logged and counted; and a web process that is
stopped does not hold up the session.

    python benchmarks/web_safety.py [--quick] [--json FILE]
"""

import argparse
import base64
import contextlib
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from bad_frames import SESSIONS, SMALL
from closing import close
from live_fuzz import resident
from web_kit import Made, Served, broken_request, broken_socket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from evkf.live.answers import Estimate, Flags, Refusal, decode_answer
from evkf.live.desk import Action
from evkf.live.frames import Decoder
from evkf.live.messages import FrameError
from evkf.web.access import Access, Denied
from evkf.web.clients import Parting
from evkf.web.gateway import read_message
from evkf.web.process import LOG

FULL, QUICK = 1_000_000, 100_000
SENT, SENT_QUICK = 100_000, 20_000
"""Frames through a real socket."""
RAW, RAW_QUICK = 4000, 800
"""Connections with a broken protocol."""

GROWTH = 8e6
"""Bytes by which resident memory may grow after the first tenth."""

HANG_S = 1.0
PUBLISH_MS = 1.0
"""Longest that the session may take to publish to a web process that is stopped, at p99."""

BATCH = 32


def fuzz(num: int) -> dict[str, Any]:
    """Messages as the server hands them to the gateway, and what the session makes of them."""
    made, decoders = Made(), [Decoder(*session) for session in SESSIONS]
    access = Access("ab" * 32, True, [], ["/metrics"])
    seen: Counter[str] = Counter()
    crashes, worst, settled = [], 0.0, 0
    for i in range(num):
        if i == num // 10:
            settled = resident()
        at, kind = made.rng.randrange(len(SESSIONS)), made.rng.random()
        data = made.frame(at) if kind < 0.95 else made.other()
        begin = time.perf_counter()
        try:
            if kind < 0.95:
                text = kind < 0.02
                body = {"text": data.decode("latin-1")} if text else {"bytes": data}
                seen[_gateway({"type": "websocket.receive", **body}, decoders[at])] += 1
            elif kind < 0.98:
                seen[_action(data)] += 1
            else:
                seen[_header(access, data)] += 1
        except Exception as error:
            crashes.append(f"{data.hex()}: {error!r}")
        worst = max(worst, time.perf_counter() - begin)
    grown = resident() - settled
    return {"messages": num, "crashes": crashes[:5], "worst_s": worst, "grown": grown, "seen": seen}


def _gateway(message: dict[str, Any], decoder: Decoder) -> str:
    said = read_message(message)
    if not isinstance(said, bytes):
        assert isinstance(said, Refusal | Parting)
        return f"answered {said.code}"
    try:
        return type(decoder.decode(said)).__name__
    except FrameError as error:
        return error.code


def _action(data: bytes) -> str:
    try:
        return f"action {Action.decode(data).ask}"
    except FrameError:
        return "no action"


def _header(access: Access, data: bytes) -> str:
    """Fuzzed values where a request has its host, origin and token."""
    headers = [(b"host", b"localhost"), (b"origin", b"http://localhost"), (b"authorization", data)]
    at = len(data) % 3
    headers[at] = (headers[at][0], data)
    scope = {"type": "http", "method": "GET", "path": "/metrics", "scheme": "http"}
    denied = access.judge(scope | {"headers": headers, "server": ("127.0.0.1", 80)})
    assert isinstance(denied, Denied)
    return f"denied {denied.why}"


def fuzz_socket(served: Served, num: int) -> dict[str, Any]:
    """Frames through a real socket: each comes out as it went in, and is answered once."""
    made, at = Made(1), SESSIONS.index(SMALL)
    wrong, worst, settled, answers = 0, 0.0, 0, Counter()
    served.got.clear()
    with served.join("/frames", additional_headers=served.headers) as client:
        for begin in range(0, num, BATCH):
            if begin >= num // 10 and not settled:
                settled = served.resident
            frames = [made.frame(at) for _ in range(min(BATCH, num - begin))]
            since = time.perf_counter()
            for frame in frames:
                client.send(frame)
            for _ in frames:
                answers[type(decode_answer(client.recv(timeout=60))).__name__] += 1
            worst = max(worst, time.perf_counter() - since)
            due = [frame for frame in frames if frame]
            found = [served.got.popleft() for _ in due]
            wrong += sum(one != other for one, other in zip(due, found, strict=True))
            if begin // BATCH % 50 == 0:
                worst = max(worst, served.health())
    grown = served.resident - settled
    return {"frames": num, "wrong": wrong, "worst_s": worst, "grown": grown, "answers": answers}


def fuzz_protocol(served: Served, num: int) -> dict[str, Any]:
    """Connections whose bytes are neither HTTP nor WebSocket, or hardly."""
    rng, worst, settled = random.Random(2), 0.0, 0
    key = base64.b64encode(rng.randbytes(16)).decode()
    lines = [
        "GET /frames HTTP/1.1",
        "Host: {}:{}".format(*served.place),
        f"Authorization: {served.headers['Authorization']}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
    ]
    hello = "\r\n".join([*lines, "", ""]).encode()
    for i in range(num):
        if i == num // 10:
            settled = served.resident
        upgraded = rng.random() < 0.7
        data = broken_socket(rng) if upgraded else broken_request(rng, hello)
        since = time.perf_counter()
        with contextlib.suppress(OSError), socket.create_connection(served.place, 60) as raw:
            raw.settimeout(60)
            if upgraded:
                raw.sendall(hello)
                raw.recv(4096)
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(1 << 16):
                pass
        worst = max(worst, time.perf_counter() - since)
        if i % 50 == 0:
            worst = max(worst, served.health())
    return {"connections": num, "worst_s": worst, "grown": served.resident - settled}


def check_refusals(served: Served) -> list[str]:
    """Who must be refused, is: with the code that is due, counted and logged."""
    before, missed, token = served.refusals(), [], served.headers
    origin = {"Origin": "http://example.com"}
    due: Counter[str] = Counter()

    def status(path: str, headers: dict[str, str], wanted: int, why: str) -> None:
        due[why] += 2
        found = httpx.get(f"{served.web.address}{path}", headers=headers, trust_env=False)
        if found.status_code != wanted:
            missed.append(f"{why}: {path} was answered {found.status_code}, not {wanted}")
        name = f"ws://{headers.get('Host', 'localhost')}{path}"
        rest = {key: value for key, value in headers.items() if key != "Host"}
        with (
            contextlib.suppress(InvalidStatus),
            connect(
                name,
                sock=socket.create_connection(served.place, 60),
                additional_headers=rest,
                proxy=None,
            ),
        ):
            missed.append(f"{why}: a WebSocket to {path} was accepted")

    def parting(messages: list[Any], code: int, why: str) -> None:
        due[why] += 1
        with served.join("/frames", additional_headers=token) as client:
            try:
                client.send(messages[0] if len(messages) == 1 else messages)
                while True:
                    client.recv(timeout=60)
            except ConnectionClosed as closed:
                found = None if closed.rcvd is None else closed.rcvd.code
                if found != code:
                    missed.append(f"{why}: closed with {found}, not {code}")

    status("/frames", {}, 401, "token")
    status("/frames", {"Authorization": "Bearer " + "0" * 64}, 401, "token")
    status("/metrics", {"Authorization": "Bearer x"}, 401, "token")
    status("/frames", {**token, "Host": "example.com"}, 403, "host")
    status("/metrics", {"Host": "example.com"}, 403, "host")
    status("/frames", {**token, **origin}, 403, "origin")
    status("/metrics", origin, 403, "origin")
    parting(["text"], 1003, "text")
    parting([bytes((1 << 20) + 1)], 1009, "large")
    parting([bytes(1 << 19), bytes(1 << 19), b"1"], 1009, "large")
    after, log = served.refusals(), (served.folder / LOG).read_text()
    for why, num in due.items():
        if after[why] - before[why] != num:
            missed.append(f"{why}: counted {after[why] - before[why]:.0f}, not {num}")
        if f"({why})" not in log:
            missed.append(f"{why}: not logged")
    return missed


def publish_stopped(served: Served, num: int = 20_000) -> float:
    """Milliseconds at p99 to publish an estimate while the web process is stopped."""
    latent = np.zeros(10), np.eye(10), np.ones(200), 0.0, 0, np.zeros((5, 10)), np.zeros((5, 10))
    estimate, spent = Estimate(0, Flags.NOTHING, *latent, 0, 0, 0), []
    assert served.web.process is not None
    served.web.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(num):
            begin = time.perf_counter()
            served.web.desk.publish(estimate)
            spent.append(time.perf_counter() - begin)
    finally:
        served.web.process.send_signal(signal.SIGCONT)
    return float(np.quantile(spent, 0.99)) * 1e3


def judged(found: dict[str, dict[str, Any]], stopped_ms: float) -> list[str]:
    """What fell short."""
    missed = [f"crashed: {each}" for each in found["decoding"]["crashes"]]
    for name, part in found.items():
        if part["worst_s"] > HANG_S:
            missed.append(f"{name}: a message took {part['worst_s']:.2f} s")
        if part["grown"] > GROWTH:
            missed.append(f"{name}: memory grew by {part['grown'] / 1e6:.1f} MB")
    if found["socket"]["wrong"]:
        missed.append(f"{found['socket']['wrong']} frames came out as others")
    if stopped_ms > PUBLISH_MS:
        missed.append(f"publishing to a stopped process took {stopped_ms:.2f} ms")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} messages, not {FULL:,}")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    quick = options.quick
    found = {"decoding": fuzz(QUICK if quick else FULL)}
    print(", ".join(f"{what} {num}" for what, num in found["decoding"]["seen"].most_common()))
    with tempfile.TemporaryDirectory() as folder:
        served = Served(Path(folder))
        process = served.web.process
        try:
            found["socket"] = fuzz_socket(served, SENT_QUICK if quick else SENT)
            found["protocol"] = fuzz_protocol(served, RAW_QUICK if quick else RAW)
            missed = check_refusals(served)
            stopped = publish_stopped(served)
            missed += judged(found, stopped)
            alive = served.web.process is process and process is not None and process.poll() is None
            if not alive or "Traceback" in (Path(folder) / LOG).read_text():
                missed.append("the web process crashed")
        finally:
            served.close()
    total = found["decoding"]["messages"] + found["socket"]["frames"]
    worst = max(part["worst_s"] for part in found.values())
    grown = max(part["grown"] for part in found.values())
    print(f"{found['socket']['frames']} frames by socket: {dict(found['socket']['answers'])}")
    print(f"{found['protocol']['connections']} broken connections")
    print(f"publishing to a stopped process: {stopped:.3f} ms at p99")
    print(f"{total} frames: worst {worst:.3f} s, memory grew by {grown / 1e6:.1f} MB")
    return close({**found, "stopped_ms": stopped, "refusals": missed}, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
