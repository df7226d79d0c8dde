"""ZeroMQ: frames in through a ROUTER, estimates out through a PUB, and the sender's side of it.

Frames from a DEALER are answered. Nothing here waits for a peer: to one that does not read,
answers and estimates are left out.
"""

import contextlib
import time
from collections import OrderedDict, deque
from typing import Any

from evkf.errors import InputError
from evkf.live.addresses import check_zmq
from evkf.live.answers import Ack, Estimate, Refusal, decode_answer
from evkf.live.frames import Frame, encode, encode_end

try:
    import zmq
    from zmq.utils.monitor import parse_monitor_message
except ImportError as error:
    raise ImportError('ZeroMQ needs pyzmq: pip install "evkf[live]"') from error

HIGH_WATER, LARGEST = 4096, 1 << 20
"""Messages that may wait in a socket, and bytes of one: a peer that sends more is cut off."""

CONNECT_S, AGAIN_S = 1.0, 0.1
"""Seconds that a connection may take, for which a new sender waits, and until another is tried when
one was refused. Later it sends when it can, in `send` and `read`."""

UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
DOWN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED

RESEND_S, SELDOM_S = 2.0, 60.0
"""After so long without an acknowledgement, what was not acknowledged is sent again; twice as long
after every time, up to the second."""


class ZmqSource:
    """Frames from any number of senders.

    Args:
        address: To bind, such as tcp://127.0.0.1:5555; port 0 takes a free one.
        open_to_all: Whether the address may be one that other machines reach.

    Attributes:
        address: Where it is bound.
        gone: Never: other senders may come.
        odd: Nothing: what is wrong with frames, the session counts.
    """

    gone = False

    def __init__(self, address: str, open_to_all: bool = False):
        check_zmq(address, open_to_all)
        self.odd: dict[str, int] = {}
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
        # A sender whose connection died unnoticed comes again under its name; else it is not heard.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.LINGER, 500)
        self.address = _bind(self._context, self._socket, address)

    def receive(self, timeout: float, most: int) -> list[tuple[Any, bytes]]:
        """Messages that are there, each with who sent it; waits for the first so many seconds."""
        found: list[tuple[Any, bytes]] = []
        if not self._socket.poll(int(timeout * 1000)):
            return found
        while len(found) < most:
            try:
                peer, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            # A frame is one part; of anything else the decoder says what is wrong.
            found.append((peer, parts[-1] if len(parts) == 1 else b"".join(parts)))
        return found

    def answer(self, peer: Any, data: bytes) -> None:
        """Send something back; to a peer that is gone or does not read, it is left out."""
        if peer is None:
            return
        with contextlib.suppress(zmq.Again, zmq.ZMQError):
            self._socket.send_multipart([peer, data], zmq.NOBLOCK)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()


class ZmqSink:
    """Estimates for any number of subscribers; one that is slow misses some.

    Args:
        address: To bind; port 0 takes a free one.
        open_to_all: Whether the address may be one that other machines reach.

    Attributes:
        address: Where it is bound.
    """

    def __init__(self, address: str, open_to_all: bool = False):
        check_zmq(address, open_to_all)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self.address = _bind(self._context, self._socket, address)

    def publish(self, estimate: Estimate) -> None:
        """Send an estimate."""
        self._socket.send(estimate.encode(), zmq.NOBLOCK)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()


class ZmqSender:
    """A rig's side: sends bins, keeps them until they are acknowledged, and sends them again.

    Args:
        address: Of a session's source.
        keep: Bins that are kept at most; `send` waits when so many are not acknowledged.
        name: Under which the session knows the sender.

    Attributes:
        acknowledged: Number of the last bin that is durable; -1 if there is none.
        refusals: Frames that were refused, the last thousand.

    Example:
        >>> import numpy as np
        >>> source = ZmqSource("tcp://127.0.0.1:0")
        >>> sender = ZmqSender(source.address)
        >>> sender.send(Frame(0, np.array([1, 0, 2], np.uint8)))
        >>> [(peer, data)] = source.receive(timeout=5.0, most=10)
        >>> source.answer(peer, Ack(0).encode())
        >>> sender.read(timeout=5.0)
        [Ack(seq=0)]
        >>> sender.unacknowledged
        0
        >>> sender.close(); source.close()
    """

    def __init__(self, address: str, keep: int = 100_000, name: bytes | None = None):
        self._address, self._name = address, name
        self._context = zmq.Context()
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._unsent: deque[int] = deque()
        self._keep, self._heard, self._patience = keep, time.monotonic(), RESEND_S
        self.acknowledged, self.refusals = -1, []
        self._connect()
        until = time.monotonic() + CONNECT_S
        while not self._up and time.monotonic() < until:
            self._monitor.poll(10)
            self._look()

    def _connect(self) -> None:
        """One socket for one connection: over another, what the session missed comes first."""
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        # Nothing is queued for a session that is away, and none is connected to unnoticed.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        if self._name is not None:
            self._socket.setsockopt(zmq.IDENTITY, self._name)
        self._monitor = self._socket.get_monitor_socket(UP | DOWN)
        self._socket.connect(self._address)
        self._up, self._again = False, time.monotonic() + CONNECT_S
        self._unsent = deque(self._kept)

    def _disconnect(self, linger_ms: int = 0) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger_ms)

    def _look(self) -> None:
        """See what became of the connection, and try another if there is none."""
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if event & UP:
                self._up, self._heard, self._patience = True, time.monotonic(), RESEND_S
            elif self._up:
                self._up, self._again = False, 0.0
            else:
                self._again = min(self._again, time.monotonic() + AGAIN_S)
        if not self._up and time.monotonic() > self._again:
            self._disconnect()
            self._connect()

    @property
    def unacknowledged(self) -> int:
        """Bins that were sent and are not known to be durable."""
        return len(self._kept)

    def send(self, frame: Frame) -> None:
        """Send a bin, after those that are still to be sent."""
        while len(self._kept) >= self._keep:
            self.read(timeout=0.1)
        if not self._kept:
            self._heard = time.monotonic()
        self._kept[frame.seq] = encode(frame)
        self._unsent.append(frame.seq)
        self._flush()

    def send_raw(self, data: bytes) -> None:
        """Send anything, once, after the bins that are still to be sent; waits for a session."""
        while not self._try(data):
            self._socket.poll(10, zmq.POLLOUT)

    def _try(self, data: bytes) -> bool:
        self._flush()
        if not self._up or self._unsent:
            return False
        with contextlib.suppress(zmq.Again):
            self._socket.send(data, zmq.NOBLOCK)
            return True
        return False

    def end(self, seq: int, timeout: float = 10.0) -> bool:
        """Say that no bin follows, when all are acknowledged; whether it was said, in that time."""
        until = time.monotonic() + timeout
        while self._kept or not self._try(encode_end(seq)):
            if time.monotonic() >= until:
                return False
            self.read(timeout=0.05)
        return True

    def _flush(self) -> None:
        """Send what is to be sent, in order, as far as the socket takes it."""
        self._look()
        while self._up and self._unsent:
            data = self._kept.get(self._unsent[0])
            try:
                if data is not None:
                    self._socket.send(data, zmq.NOBLOCK)
            except zmq.Again:
                return
            self._unsent.popleft()

    def read(self, timeout: float = 0.0) -> list[Ack | Refusal | Estimate]:
        """Answers that are there; waits for the first so many seconds."""
        found, until = [], time.monotonic() + timeout
        while not found:
            left = max(until - time.monotonic(), 0.0)
            # Not for long: where the connection is gone, another must be tried.
            while self._socket.poll(0 if found else int(min(left, AGAIN_S) * 1000)):
                answer = decode_answer(self._socket.recv())
                found.append(answer)
                self._heed(answer)
            if left <= AGAIN_S:
                break
            self._flush()
        if self._kept and time.monotonic() - self._heard > self._patience:
            self._heard, self._unsent = time.monotonic(), deque(self._kept)
            self._patience = min(2 * self._patience, SELDOM_S)
        self._flush()
        return found

    def _heed(self, answer: Ack | Refusal | Estimate) -> None:
        if isinstance(answer, Ack):
            self._heard, self._patience = time.monotonic(), RESEND_S
            self.acknowledged = max(self.acknowledged, answer.seq)
            while self._kept and (first := next(iter(self._kept))) <= answer.seq:
                del self._kept[first]
        elif isinstance(answer, Refusal):
            self.refusals = [*self.refusals[-999:], answer]
            if answer.seq is not None:
                self._kept.pop(answer.seq, None)

    def close(self) -> None:
        """Close the socket."""
        self._disconnect(linger_ms=500)
        self._context.term()


class ZmqReader:
    """A subscriber's side: estimates as they are published.

    Args:
        address: Of a session's sink.
    """

    def __init__(self, address: str):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(address)

    def read(self, timeout: float = 0.0) -> list[Estimate]:
        """Estimates that are there; waits for the first so many seconds."""
        found = []
        while self._socket.poll(0 if found else int(timeout * 1000)):
            found.append(Estimate.decode(self._socket.recv()))
        return found

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(linger=0)
        self._context.term()


def check_free(address: str) -> None:
    """Refuse an address that cannot be bound now."""
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    _bind(context, socket, address)
    socket.close(linger=0)
    context.term()


def _bind(context: Any, socket: Any, address: str) -> str:
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        context.term()
        remedy = "name a free one, such as tcp://127.0.0.1:5555"
        raise InputError(f"cannot bind {address!r}: {error}", "address", remedy) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
