"""What checks of the web process share: fuzzed messages, and a session that answers them."""

import os
import random
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from bad_frames import SESSIONS, SMALL, sealed
from live_fuzz import MUTATIONS, pool
from websockets.sync.client import connect

from evkf.live.answers import Ack, Refusal
from evkf.live.desk import Action, Ask
from evkf.live.frames import Decoder
from evkf.live.messages import FrameError
from evkf.live.pipes import PipeSource
from evkf.web.access import Place
from evkf.web.process import WebProcess
from evkf.web.settings import describe_stream

ACTIONS = [Action(ask, "light on").encode() for ask in Ask]


class Made:
    """Fuzzed frames, one after another."""

    def __init__(self, seed: int = 0):
        self.rng = random.Random(seed)
        self._pools = [pool(session, np.random.default_rng(seed)) for session in SESSIONS]

    def frame(self, at: int) -> bytes:
        """One of a session; half of them with a checksum that holds."""
        pool, rng = self._pools[at], self.rng
        data = bytes(rng.choice(MUTATIONS)(bytearray(rng.choice(pool)), rng, rng.choice(pool)))
        return sealed(data[:-4]) if rng.random() < 0.5 else data

    def other(self) -> bytes:
        """Bytes of something else that is sent to us."""
        data = bytearray(self.rng.choice(ACTIONS))
        return bytes(self.rng.choice(MUTATIONS)(data, self.rng, self.rng.choice(ACTIONS)))


def broken_socket(rng: random.Random) -> bytes:
    """What a broken WebSocket sends: wrong lengths, codes, masks, fragments."""
    sent = []
    for _ in range(rng.randint(1, 5)):
        size = rng.choice((0, 1, 36, 125, 126, 127, 300))
        length = rng.choice((size, size, rng.randrange(128)))
        head = bytes([rng.randrange(256), (rng.random() < 0.8) * 128 | length & 127])
        if length > 125:
            head += rng.randbytes(2 if length == 126 else 8)
        sent.append(head + rng.randbytes(4 + size))
    return b"".join(sent)


def broken_request(rng: random.Random, hello: bytes) -> bytes:
    """A request with something wrong in it."""
    change = rng.choice(MUTATIONS)
    return bytes(change(bytearray(hello), rng, rng.randbytes(50)))


class Served:
    """A web process, and a session that answers every frame it gets."""

    def __init__(self, folder: Path):
        hello = describe_stream("fuzzed", 2, [str(n) for n in range(SMALL.channels)], 0.01)
        self.folder = folder
        self.web = WebProcess(Place("127.0.0.1", 0), folder, hello, takes_frames=True)
        self.headers = {"Authorization": f"Bearer {self.web.token.read_text().strip()}"}
        self.sockets = self.web.address.replace("http", "ws", 1)
        host, _, port = self.web.address.partition("://")[2].partition(":")
        self.place = host, int(port)
        self.got: deque[bytes] = deque()
        self._over = threading.Event()
        self._session = threading.Thread(target=self._answer)
        self._session.start()
        self.health()

    def _answer(self) -> None:
        source, decoder = self.web.source, Decoder(*SMALL)
        assert isinstance(source, PipeSource)
        while not self._over.is_set() and not source.gone:
            for peer, data in source.receive(0.05, 4096):
                self.got.append(data)
                try:
                    said: Ack | Refusal = Ack(decoder.decode(data).seq)
                except FrameError as error:
                    said = Refusal(error.code, error.seq, error.message)
                source.answer(peer, said.encode())

    def health(self) -> float:
        """Seconds that it takes to answer."""
        begin = time.perf_counter()
        httpx.get(f"{self.web.address}/health", timeout=60, trust_env=False)
        return time.perf_counter() - begin

    @property
    def resident(self) -> int:
        """Memory that the process takes, in bytes; 0 where the system does not say."""
        assert self.web.process is not None
        try:
            pages = Path(f"/proc/{self.web.process.pid}/statm").read_text().split()[1]
        except OSError:
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def join(self, path: str, **more: Any) -> Any:
        """A WebSocket to it."""
        return connect(self.sockets + path, open_timeout=60, proxy=None, **more)

    def refusals(self) -> dict[str, float]:
        """Counts of its metrics."""
        text = httpx.get(f"{self.web.address}/metrics", timeout=60, trust_env=False).text
        lines = [line for line in text.splitlines() if line.startswith("evkf_web_refusals_total")]
        return {line.split('"')[1]: float(line.split()[-1]) for line in lines}

    def close(self) -> None:
        """End both."""
        self._over.set()
        self._session.join()
        self.web.close()
