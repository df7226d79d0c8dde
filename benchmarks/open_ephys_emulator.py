"""An emulator of Open Ephys' ZMQ Interface plugin: the same sockets, parts, fields and numbers.

Data go out by PUB on a port, heartbeats are answered by REP on the next; whoever did not send one
for five seconds is dead. Envelopes end in a zero, headers are JSON without one, numbers of messages
count all types together, and `timestamp` is the wall clock in milliseconds.
"""

import json
import struct
import threading
import time
from typing import Any

import numpy as np
import zmq

DEAD_S = 5.0
WAVEFORM = np.linspace(-50, 50, 40, dtype="<f4").tobytes()


def message(
    envelope: str, number: int, kind: str, fields: dict[str, Any], data: bytes
) -> list[bytes]:
    """The parts of a message."""
    header: dict[str, Any] = {"message_num": number, "type": kind}
    header["spike" if kind == "spike" else "content"] = fields
    if kind != "spike":
        header["data_size"] = len(data)
    header["timestamp"] = int(time.time() * 1000)
    parts = [envelope.encode() + b"\0", json.dumps(header).encode()]
    return [*parts, data] if data else parts


def spike(
    number: int, electrode: str, sample: int, sorted_id: int = 0, stream: str = "probe"
) -> list[bytes]:
    """A spike of one channel, 40 samples long."""
    fields = {"stream": stream, "source_node": 105, "electrode": electrode, "sample_num": sample}
    fields |= {"num_channels": 1, "num_samples": 40, "sorted_id": sorted_id, "threshold": [-50.0]}
    return message("EVENT", number, "spike", fields, WAVEFORM)


def ttl(number: int, line: int, state: int, sample: int, stream: str = "probe") -> list[bytes]:
    """A digital line that changes."""
    fields = {"stream": stream, "source_node": 100, "type": 3, "sample_num": sample}
    return message(
        "EVENT", number, "event", fields, struct.pack("<BBQ", line, state, state << line)
    )


def continuous(
    number: int, sample: int, num: int, rate: float = 30000.0, stream: str = "probe"
) -> list[bytes]:
    """A buffer of one channel."""
    fields = {"stream": stream, "channel_num": 0, "num_samples": num, "sample_num": sample}
    fields["sample_rate"] = rate
    return message("DATA", number, "data", fields, bytes(4 * num))


class Emulator:
    """The plugin.

    Attributes:
        address: Where data are published; heartbeats go one port above.
        seen: When each application was heard last, by its uuid.
    """

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._publish, self._listen, port = self._bind()
        self.address = f"tcp://127.0.0.1:{port}"
        self.number, self.seen, self._over = 0, {}, False
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _bind(self) -> tuple[zmq.Socket, zmq.Socket, int]:
        for _ in range(100):
            publish, listen = self._context.socket(zmq.PUB), self._context.socket(zmq.REP)
            publish.setsockopt(zmq.SNDHWM, 0)
            port = publish.bind_to_random_port("tcp://127.0.0.1")
            try:
                listen.bind(f"tcp://127.0.0.1:{port + 1}")
            except zmq.ZMQError:
                publish.close(linger=0)
                listen.close(linger=0)
                continue
            return publish, listen, port
        raise RuntimeError("no two free ports side by side")

    def _answer(self) -> None:
        while not self._over:
            if not self._listen.poll(20):
                continue
            try:
                said = json.loads(self._listen.recv())
                self.seen[said["uuid"]] = time.monotonic()
                self._listen.send(b"heartbeat received")
            except ValueError:
                self._listen.send(b"JSON message could not be read")

    @property
    def alive(self) -> int:
        """Applications that were heard lately."""
        return sum(time.monotonic() - at < DEAD_S for at in list(self.seen.values()))

    def wait(self, timeout: float = 30.0) -> None:
        """Until someone listens; the heartbeat comes by another socket, so a little longer."""
        until = time.monotonic() + timeout
        while not self.alive and time.monotonic() < until:
            time.sleep(0.01)
        assert self.alive, "nobody listens"
        time.sleep(0.3)

    def send(self, parts: list[bytes]) -> None:
        """Send anything, without a number of its own."""
        self._publish.send_multipart(parts)

    def _next(self) -> int:
        self.number += 1
        return self.number

    def spike(self, electrode: str, sample: int, sorted_id: int = 0) -> None:
        """Send a spike."""
        self.send(spike(self._next(), electrode, sample, sorted_id))

    def ttl(self, line: int, state: int, sample: int) -> None:
        """Send a change of a line."""
        self.send(ttl(self._next(), line, state, sample))

    def continuous(self, sample: int, num: int, rate: float = 30000.0) -> None:
        """Send a buffer."""
        self.send(continuous(self._next(), sample, num, rate))

    def lose(self, num: int) -> None:
        """Messages that nobody gets."""
        self.number += num

    def close(self) -> None:
        """Close all."""
        self._over = True
        self._thread.join()
        self._publish.close(linger=0)
        self._listen.close(linger=0)
        self._context.term()
