"""What a session writes into its journal: a record for all that its result depends on.

Given these records, the session can be computed anew, bit for bit. `docs/live_protocol.md` has the
layouts byte by byte.
"""

import json
import struct
import zlib
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from evkf.errors import EvkfError
from evkf.live.engine import Latent, Learned


class Kind(IntEnum):
    """Kinds of records; those below 8 belong to the journal itself."""

    BEGIN = 8
    """A process took up the session: its configuration and versions."""
    BIN = 9
    """A bin was taken in: when, and its frame as it came."""
    LOST = 10
    """Bins were bridged."""
    STEP = 11
    """What the filter made of a bin."""
    LEARN = 12
    """Gradient steps were taken."""
    REFUSED = 13
    """A frame was quarantined."""
    PHASE = 14
    """The session went into another state."""
    RESTART = 15
    """The sender jumped, and bins go on from another number."""
    END = 16
    """The stream ended."""
    ACTION = 17
    """The operator asked for something."""
    COMMAND = 18
    """A controller's command, as it is sent once this record is durable."""
    INPUT = 19
    """The input of the bins that follow, where a controller gives it."""
    LOOP = 20
    """Stimulation was armed, held or stopped, and why."""


class RecordError(EvkfError):
    """A record of the journal that cannot be understood."""


class Bin(NamedTuple):
    """A bin that was taken in."""

    received_ns: int
    """On the clock of the session."""
    frame: bytes

    def encode(self) -> bytes:
        """As it is kept."""
        return _BIN.pack(self.received_ns) + self.frame

    @staticmethod
    def decode(payload: bytes) -> "Bin":
        """From what was kept."""
        return Bin(_BIN.unpack_from(payload)[0], payload[_BIN.size :])


class Lost(NamedTuple):
    """Bins that were bridged: the first, and how many."""

    first: int
    num: int

    def encode(self) -> bytes:
        """As it is kept."""
        return _PAIR.pack(*self)

    @staticmethod
    def decode(payload: bytes) -> "Lost":
        """From what was kept."""
        return Lost(*_PAIR.unpack(payload))


class Step(NamedTuple):
    """What the filter made of a bin: enough to tell whether it is computed again."""

    seq: int
    status: int
    elbo: float
    mean: np.ndarray
    var: np.ndarray
    checksum: int
    """Of the covariance and the rates."""

    @staticmethod
    def of(seq: int, latent: Latent) -> "Step":
        """Of what was computed."""
        checksum = zlib.crc32(latent.rate.tobytes(), zlib.crc32(latent.cov.tobytes()))
        var = np.ascontiguousarray(latent.cov.diagonal())
        return Step(seq, latent.status, latent.elbo, latent.mean, var, checksum)

    def encode(self) -> bytes:
        """As it is kept."""
        wide = self.mean.itemsize
        head = _STEP.pack(self.seq, self.status, self.elbo, self.checksum, len(self.mean), wide)
        return head + self.mean.tobytes() + self.var.tobytes()

    @staticmethod
    def decode(payload: bytes) -> "Step":
        """From what was kept."""
        seq, status, elbo, checksum, num, wide = _STEP.unpack_from(payload)
        numbers = np.frombuffer(payload, f"<f{wide}", 2 * num, _STEP.size)
        return Step(seq, status, elbo, numbers[:num], numbers[num:], checksum)


class LearnRecord(NamedTuple):
    """A decision to learn, and what came of it."""

    bin: int
    """After so many bins."""
    learned: Learned
    key: np.ndarray
    """The randomness that the stream began with."""

    def encode(self) -> bytes:
        """As it is kept."""
        steps, windows, skipped = self.learned
        head = _LEARN.pack(self.bin, steps, skipped, len(self.key), len(windows))
        return head + self.key.astype("<u4").tobytes() + windows.astype("<i4").tobytes()

    @staticmethod
    def decode(payload: bytes) -> "LearnRecord":
        """From what was kept."""
        bin, steps, skipped, num_key, num = _LEARN.unpack_from(payload)
        key = np.frombuffer(payload, "<u4", num_key, _LEARN.size)
        windows = np.frombuffer(payload, "<i4", num, _LEARN.size + key.nbytes)
        return LearnRecord(bin, Learned(steps, windows, bool(skipped)), key)


class Refused(NamedTuple):
    """A frame that was quarantined."""

    code: str
    text: str
    frame: bytes
    """Its first bytes."""

    def encode(self) -> bytes:
        """As it is kept."""
        code, text = self.code.encode(), self.text.encode(errors="replace")
        return _REFUSED.pack(len(code), len(text)) + code + text + self.frame

    @staticmethod
    def decode(payload: bytes) -> "Refused":
        """From what was kept."""
        num_code, num_text = _REFUSED.unpack_from(payload)
        text_at = _REFUSED.size + num_code
        frame_at = text_at + num_text
        code, text = payload[_REFUSED.size : text_at], payload[text_at:frame_at]
        return Refused(code.decode(), text.decode(), payload[frame_at:])


def encode_words(**words: Any) -> bytes:
    """What is told in JSON: BEGIN, PHASE, RESTART, END, ACTION, INPUT and LOOP; and COMMAND."""
    return json.dumps(words).encode()


def decode_words(payload: bytes) -> dict[str, Any]:
    """From what was kept."""
    return json.loads(payload)


_BIN = struct.Struct("<q")
_PAIR = struct.Struct("<QQ")
_STEP = struct.Struct("<QIdIHH")
_LEARN = struct.Struct("<QQBHI")
_REFUSED = struct.Struct("<HI")

_DECODERS = {
    Kind.BIN: Bin.decode,
    Kind.LOST: Lost.decode,
    Kind.STEP: Step.decode,
    Kind.LEARN: LearnRecord.decode,
    Kind.REFUSED: Refused.decode,
}


def decode(kind: int, payload: bytes) -> Any:
    """A record's content.

    Raises:
        RecordError: If it is none that a session writes.

    Example:
        >>> decode(Kind.LOST, Lost(7, 2).encode())
        Lost(first=7, num=2)
        >>> decode(Kind.PHASE, encode_words(phase="ready"))
        {'phase': 'ready'}
    """
    try:
        return _DECODERS.get(Kind(kind), decode_words)(payload)
    except (ValueError, struct.error) as error:
        raise RecordError(f"a record of kind {kind} and {len(payload)} bytes: {error}") from None
