"""Open Ephys in: spikes and TTL events of its ZMQ Interface plugin, as bins.

Continuous data are not used but for their time: where it comes, bins need not wait for spikes.
"""

import json
import time
import uuid
from typing import Any

from evkf.errors import InputError
from evkf.live.frames import Frame
from evkf.live.pipes import PipeSender
from evkf.rigs.ephys_messages import Buffer, Edge, Message, Spike, decode
from evkf.rigs.gateway import Notes, RigError, Setup, heed, send
from evkf.rigs.intake import Intake, Moment

BEAT_S, LOST_S = 2.0, 5.0
"""Seconds between heartbeats, and without an answer until the plugin is asked anew."""

LARGEST_MESSAGE = 1 << 24
"""Bytes."""

MOST, HIGH_WATER = 1000, 100_000
"""Messages that are taken at once, and that may wait."""

LARGEST_S = 4e9
"""Seconds that no clock shows."""

ANEW = 1_000_000
"""Numbers of messages that differ by more than that are not of one stretch."""


class OpenEphys:
    """Messages of the plugin in, bins out; it does no input or output of its own.

    A spike belongs to the unit that is called as its electrode is, or `ELECTRODE#ID` with the
    number that a sorter gave it.

    Args:
        setup: What the gateway was told.
        notes: Told of what is odd.
    """

    def __init__(self, setup: Setup, notes: Notes):
        self._setup, self._notes = setup, notes
        self._units = {name: index for index, name in enumerate(setup.units)}
        self._number: int | None = None
        self._stream = ""
        self._lost = 0
        self._rate = 0.0
        self.intake: Intake | None = None
        if setup.sample_rate is not None:
            self._begin(setup.sample_rate)

    def _begin(self, rate: float) -> None:
        self.intake = Intake(self._setup, rate, self._notes)
        self._rate = rate

    def take(self, parts: list[bytes], host_ns: int) -> list[Frame]:
        """A message, and when it came; bins that are over then."""
        try:
            message = decode(parts)
            self._follow(message.number)
            moment = self._moment(message)
        except RigError as error:
            self._notes.refuse(error)
            return []
        if moment is None or self.intake is None:
            return []
        moment, self._lost = moment._replace(lost=self._lost), 0
        return self.intake.take(moment, host_ns)

    def idle(self, host_ns: int) -> list[Frame]:
        """Bins that are over although nothing came."""
        return [] if self.intake is None else self.intake.idle(host_ns)

    def _follow(self, number: int | None) -> None:
        """Count what is missing by the numbers of messages, which all types share."""
        if number is None:
            raise RigError("bad_number", "no message_num")
        last, self._number = self._number, number
        if last is None or number == last + 1:
            return
        if last < number <= last + ANEW:
            missing = number - last - 1
            self._lost += missing
            text = "messages missing; bins that they may belong to are masked"
            self._notes.count("lost_message", text, missing)
        else:
            self._notes.count("anew", f"messages are numbered on from {number}, not {last + 1}")

    def _moment(self, message: Message) -> Moment | None:
        """What a message says of bins; None if that is nothing."""
        what = message.what
        if what is None:
            return None
        if not self._stream:
            self._stream = message.stream
        if message.stream != self._stream:
            raise RigError("other_stream", f"{message.stream!r}, bins are of {self._stream!r}")
        if what.sample > LARGEST_S * (self._rate or 1.0):
            raise RigError("bad_sample", f"sample_num is {what.sample}")
        if isinstance(what, Buffer):
            if self.intake is None:
                self._begin(what.rate)
            elif what.rate != self._rate:
                text = f"{what.rate} samples a second, bins were begun with {self._rate}"
                raise RigError("other_rate", text)
            assert self.intake is not None
            self.intake.paced = True
            return Moment(what.sample)
        if self.intake is None:
            text = "no continuous data came yet that tell it; set it with --sample-rate"
            raise RigError("no_sample_rate", text)
        return self._of(what)

    def _of(self, what: Spike | Edge) -> Moment:
        """What a spike or an edge says of bins."""
        if isinstance(what, Edge):
            line, width = self._setup.blank or (None, 0.0)
            return Moment(what.sample, blank=round(width * self._rate) if what.line == line else 0)
        sorted_name = f"{what.electrode}#{what.sorted_id}"
        unit = self._units.get(sorted_name, self._units.get(what.electrode))
        if unit is None:
            # Its time is as good as any.
            self._notes.count("unknown_unit", f"{sorted_name} is none of the model's units")
        return Moment(what.sample, unit)


def run(setup: Setup, sender: PipeSender, notes: Notes) -> None:
    """Take in what the plugin publishes, until the session is gone."""
    import zmq

    context = zmq.Context()
    published = context.socket(zmq.SUB)
    published.setsockopt(zmq.RCVHWM, HIGH_WATER)
    published.setsockopt(zmq.MAXMSGSIZE, LARGEST_MESSAGE)
    published.setsockopt(zmq.SUBSCRIBE, b"")
    published.connect(setup.address)
    heart = Heart(context, listening(setup.address), notes)
    rig = OpenEphys(setup, notes)
    notes.tell(f"open-ephys: listening to {setup.address}")
    try:
        while True:
            looked = time.monotonic_ns()
            if not published.poll(5):
                # What had come by then has been seen; a process held up later is not silence.
                send(sender, rig.idle(looked))
            for _ in range(MOST):
                try:
                    parts = published.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                send(sender, rig.take(parts, time.monotonic_ns()))
            heart.beat(time.monotonic())
            heed(sender, notes)
    finally:
        heart.close()
        published.close(linger=0)
        context.term()


def listening(address: str) -> str:
    """Where the plugin wants heartbeats: one port above that of its data.

    Example:
        >>> listening("tcp://127.0.0.1:5556")
        'tcp://127.0.0.1:5557'
    """
    host, _, port = address.rpartition(":")
    if not (host.startswith("tcp://") and port.isdecimal() and 0 < int(port) < 65535):
        raise InputError(repr(address), "--address", "pass one such as tcp://127.0.0.1:5556")
    return f"{host}:{int(port) + 1}"


class Heart:
    """Tells the plugin that someone listens, and notes when it does not answer.

    Args:
        context: Of ZeroMQ.
        address: Where to.
        notes: Told when it stops answering, and when it does again.
    """

    def __init__(self, context: Any, address: str, notes: Notes):
        self._context, self._address, self._notes = context, address, notes
        who = {"application": "evkf", "uuid": str(uuid.uuid4()), "type": "heartbeat"}
        self._beat = json.dumps(who).encode()
        self._socket = self._connect()
        self._sent, self._waits, self._answers = -BEAT_S, False, True

    def _connect(self) -> Any:
        import zmq

        asked = self._context.socket(zmq.REQ)
        asked.connect(self._address)
        return asked

    def beat(self, now: float) -> None:
        """Do what is due at a time, in seconds."""
        if self._waits and self._socket.poll(0):
            self._socket.recv_multipart()
            self._waits = False
            if not self._answers:
                self._notes.tell("open-ephys: the plugin answers again")
            self._answers = True
        if self._waits and now - self._sent > LOST_S:
            # A socket that waits for an answer cannot ask again; another can.
            self._socket.close(linger=0)
            self._socket, self._waits = self._connect(), False
            if self._answers:
                self._notes.tell(f"open-ephys: no answer from {self._address}")
            self._answers = False
        if not self._waits and now - self._sent >= BEAT_S:
            self._socket.send(self._beat)
            self._sent, self._waits = now, True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(linger=0)
