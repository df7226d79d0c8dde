"""Plain pyzmq at both ends of a session: odd messages and good frames in, estimates out."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import zmq
from bad_frames import SMALL, sealed
from live_fuzz import MUTATIONS, pool, resident

from evkf.live.answers import Ack, Estimate, Flags, Refusal, decode_answer
from evkf.live.frames import Decoder, End, Frame, encode
from evkf.live.messages import FrameError
from evkf.live.zeromq import ZmqSink, ZmqSource

BATCH = 256
WAIT_S = 60.0
LOOPBACK = "tcp://127.0.0.1:0"


def odd_parts(seed: int) -> Iterator[list[bytes]]:
    """Fuzzed frames, half of them with a checksum that holds, some in several parts."""
    rng, good = random.Random(seed), pool(SMALL, np.random.default_rng(seed))
    while True:
        data = bytes(rng.choice(MUTATIONS)(bytearray(rng.choice(good)), rng, rng.choice(good)))
        data = sealed(data[:-4]) if rng.random() < 0.5 else data
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 0, 1, 4))))
        yield [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


class Joined:
    """A source, and a plain DEALER that sends to it."""

    def __init__(self) -> None:
        self.source, self._context = ZmqSource(LOOPBACK), zmq.Context()
        self.dealer = self._context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.RCVTIMEO, int(1e3 * WAIT_S))
        self.dealer.connect(self.source.address)

    def take(self, num: int) -> list[tuple[Any, bytes]]:
        """So many messages that came."""
        got, until = [], time.monotonic() + WAIT_S
        while len(got) < num and time.monotonic() < until:
            got += self.source.receive(0.1, num - len(got))
        return got

    def close(self) -> None:
        """Close both."""
        self.dealer.close(linger=0)
        self._context.term()
        self.source.close()


def fuzz_zmq(num: int) -> dict[str, Any]:
    """Odd messages by a real socket: each must come out whole, and be answered once."""
    joined, decoder, made = Joined(), Decoder(*SMALL), odd_parts(0)
    crashes, wrong, worst, settled = [], 0, 0.0, 0
    seen: Counter[str] = Counter()
    for begin in range(0, num, BATCH):
        if begin >= num // 10 and not settled:
            settled = resident()
        messages = [next(made) for _ in range(min(BATCH, num - begin))]
        since = time.perf_counter()
        for parts in messages:
            joined.dealer.send_multipart(parts)
        got = joined.take(len(messages))
        wrong += [b"".join(parts) for parts in messages] != [data for _, data in got]
        for who, data in got:
            try:
                said: Ack | Refusal = Ack(decoder.decode(data).seq)
            except FrameError as error:
                said = Refusal(error.code, error.seq, error.message)
            except Exception as error:
                crashes.append(f"{data.hex()}: {error!r}")
                said = Refusal("crash", None, "")
            joined.source.answer(who, said.encode())
        for _ in got:
            seen[type(decode_answer(joined.dealer.recv())).__name__] += 1
        worst = max(worst, time.perf_counter() - since)
    joined.close()
    row = {"what": "ZeroMQ", "num": num, "crashes": len(crashes), "wrong": wrong}
    row |= {"slowest_ms": round(worst * 1e3, 2), "growth": resident() - settled}
    print(row, dict(seen), *crashes[:3], sep="\n")
    return row


def peer_zmq(num: int) -> dict[str, Any]:
    """Good frames in and estimates out, by plain sockets: exact, or not."""
    rng, joined, decoder = np.random.default_rng(5), Joined(), Decoder(*SMALL)
    frames = []
    for seq in range(num):
        mask = rng.random(SMALL.channels) < 0.9
        u = rng.normal(size=SMALL.inputs) if SMALL.inputs else None
        y = rng.poisson(2.0, SMALL.channels).astype(np.uint8)
        frames.append(Frame(seq, y, mask, u, seq == 0, int(rng.integers(2**60))))
    exact = True
    for begin in range(0, num, BATCH):
        sent = frames[begin : begin + BATCH]
        for frame in sent:
            joined.dealer.send(encode(frame))
        got = [decoder.decode(data) for _, data in joined.take(len(sent))]
        exact &= len(got) == len(sent) and all(map(_same, got, sent))
    joined.close()
    return {"frames": num, **_out(num, rng), "exact_in": exact}


def _same(got: Frame | End, sent: Frame) -> bool:
    assert sent.mask is not None
    if not isinstance(got, Frame) or got.mask is None or (got.u is None) != (sent.u is None):
        return False
    inputs = got.u is None or sent.u is None or np.array_equal(got.u, sent.u.astype(got.u.dtype))
    plain = (got.seq, got.fresh, got.sent_ns) == (sent.seq, sent.fresh, sent.sent_ns)
    values = np.array_equal(got.y[sent.mask], sent.y[sent.mask])
    return bool(plain and inputs and values and np.array_equal(got.mask, sent.mask))


def _out(num: int, rng: np.random.Generator) -> dict[str, Any]:
    """Estimates to a plain SUB."""
    sink, context = ZmqSink(LOOPBACK), zmq.Context()
    reader = context.socket(zmq.SUB)
    reader.setsockopt(zmq.SUBSCRIBE, b"")
    reader.connect(sink.address)
    said = []
    for seq in range(num):
        parts = rng.normal(size=3), rng.normal(size=(3, 3)), rng.random(20), rng.normal(), 0
        ahead = rng.normal(size=(5, 3)), rng.random((5, 3))
        times = rng.integers(2**60, size=3).tolist()
        said.append(Estimate(seq, Flags.NOTHING, *parts, *ahead, *times))
    # A subscriber is not there at once.
    while not reader.poll(10):
        sink.publish(said[0])
    got, exact = 0, True
    for begin in range(1, num, BATCH):
        for each in said[begin : begin + BATCH]:
            sink.publish(each)
        while reader.poll(100):
            data = reader.recv()
            back = Estimate.decode(data)
            got = max(got, back.seq)
            exact &= data == said[back.seq].encode()
            exact &= all(map(np.array_equal, back, said[back.seq]))
    reader.close(linger=0)
    context.term()
    sink.close()
    return {"estimates": got + 1, "exact_out": exact and got == num - 1}
