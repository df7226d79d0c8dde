"""Messages of the ZMQ Interface plugin of Open Ephys.

A message has three parts: an envelope (DATA, EVENT or PARAM, with a zero at the end), a header in
JSON, and bytes: of a TTL event the line, its state and all lines; of a spike its waveform.
"""

import json
from typing import Any, NamedTuple

from evkf.rigs.gateway import SHORT, RigError
from evkf.rigs.intake import whole

LONGEST_HEADER = 1 << 16
"""Bytes."""

TTL = 3
"""Type of an event of a digital line."""


class Spike(NamedTuple):
    """A spike that the plugin sent."""

    sample: int
    electrode: str
    sorted_id: int
    """0 if it was not sorted."""


class Edge(NamedTuple):
    """A digital line that changed."""

    sample: int
    line: int


class Buffer(NamedTuple):
    """Continuous data of a channel, without the data."""

    sample: int
    """After the last."""
    rate: float


class Message(NamedTuple):
    """What the plugin sent."""

    number: int | None
    """Of all its messages, if it has one."""
    stream: str
    what: Spike | Edge | Buffer | None
    """None if it is nothing that bins need."""


def decode(parts: list[bytes]) -> Message:
    """Read a message.

    Raises:
        RigError: If it is none; nothing else is raised, whatever the bytes.

    Example:
        >>> spike = {"stream": "probe", "electrode": "Electrode 1", "sample_num": 900}
        >>> header = {"message_num": 5, "type": "spike", "spike": spike}
        >>> decode([b"EVENT\\0", json.dumps(header).encode(), bytes(160)]).what
        Spike(sample=900, electrode='Electrode 1', sorted_id=0)
    """
    if not 2 <= len(parts) <= 3:
        raise RigError("bad_parts", f"{len(parts)} parts, a message has 2 or 3")
    envelope = bytes(parts[0]).rstrip(b"\0")
    if envelope not in (b"DATA", b"EVENT", b"SPIKE", b"PARAM"):
        raise RigError("bad_envelope", f"{envelope[:20]!r} in place of DATA, EVENT or PARAM")
    header = _header(parts[1])
    kind = header.get("type")
    where = header.get("spike" if kind == "spike" else "content")
    if not isinstance(kind, str) or kind not in ("spike", "event", "data", "param"):
        raise RigError("bad_type", f"{kind!r} in place of spike, event, data or param")
    if not isinstance(where, dict):
        raise RigError("no_content", f"a message of type {kind} without fields")
    number = whole(header.get("message_num", header.get("message_no")), 2**62)
    stream = where.get("stream")
    reader = {"spike": _spike, "event": _event, "data": _data}.get(kind)
    what = None if reader is None else reader(where, parts[2] if len(parts) > 2 else b"")
    return Message(number, stream if isinstance(stream, str) else "", what)


def _header(data: bytes) -> dict[str, Any]:
    if len(data) > LONGEST_HEADER:
        raise RigError("long_header", f"{len(data)} bytes, {LONGEST_HEADER} at most")
    try:
        header = json.loads(bytes(data).rstrip(b"\0"))
    except (ValueError, RecursionError) as error:
        raise RigError("bad_json", f"{type(error).__name__}: {error}") from None
    if not isinstance(header, dict):
        raise RigError("bad_json", f"{type(header).__name__} in place of an object")
    return header


def _sample(fields: dict[str, Any]) -> int:
    sample = whole(fields.get("sample_num"))
    if sample is None:
        raise RigError("bad_sample", f"sample_num is {fields.get('sample_num')!r:.50}")
    return sample


def _spike(fields: dict[str, Any], _: bytes) -> Spike:
    electrode, sorted_id = fields.get("electrode"), whole(fields.get("sorted_id", 0))
    if not isinstance(electrode, str | int) or sorted_id is None or len(str(electrode)) > SHORT:
        what = f"electrode {electrode!r:.50}, sorted_id {fields.get('sorted_id')!r:.50}"
        raise RigError("bad_unit", what)
    return Spike(_sample(fields), str(electrode), sorted_id)


def _event(fields: dict[str, Any], data: bytes) -> Edge | None:
    kind = fields.get("type")
    if kind != TTL and not (isinstance(kind, str) and kind.upper() == "TTL"):
        return None
    if len(data) < 2:
        raise RigError("bad_event", f"{len(data)} bytes with a TTL event, 10 are due")
    return Edge(_sample(fields), data[0])


def _data(fields: dict[str, Any], _: bytes) -> Buffer:
    num, rate = whole(fields.get("num_samples"), 2**31), fields.get("sample_rate")
    if isinstance(rate, int | float) and num is not None and 1 <= rate <= 1e7:
        return Buffer(_sample(fields) + num, float(rate))
    what = f"num_samples {fields.get('num_samples')!r:.50}, sample_rate {rate!r:.50}"
    raise RigError("bad_data", what)
