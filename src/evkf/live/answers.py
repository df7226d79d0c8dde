"""What a session sends: acknowledgements, refusals and estimates, little-endian.

`docs/live_protocol.md` has the layouts byte by byte.
"""

import struct
from collections.abc import Callable
from enum import IntFlag
from typing import Any, NamedTuple

import numpy as np

from evkf.errors import InputError
from evkf.live.messages import CHECKSUM, Code, FrameError, bytes_of, seal, sound

VERSION = 1
KNOWN = 1
"""Flag of a refusal: the number of the bin is known."""

LONGEST_CODE, LONGEST_TEXT = 32, 1000
"""Bytes of a refusal's code and text; longer texts are cut."""

_ACK = struct.Struct("<4sB3sQ")
_REFUSAL = struct.Struct("<4sBBBBQI")
_ESTIMATE = struct.Struct("<4sBBHQqqqdIII")

Data = bytes | bytearray | memoryview


class Flags(IntFlag):
    """What is to be known about an estimate.

    Attributes:
        BRIDGED: Nothing was observed in the bin: it was lost, refused or masked, and the estimate
            is the prediction.
        NOT_DURABLE: The bin was not yet durable when the estimate was published.
        LEARNED: The model has learned since the estimate before.
    """

    NOTHING = 0
    BRIDGED = 1
    NOT_DURABLE = 2
    LEARNED = 4


ALL = Flags.BRIDGED | Flags.NOT_DURABLE | Flags.LEARNED


class Ack(NamedTuple):
    """Every bin up to and including `seq` is durable.

    Example:
        >>> Ack.decode(Ack(41).encode())
        Ack(seq=41)
    """

    seq: int

    def encode(self) -> bytes:
        """As it travels."""
        return seal(_pack(_ACK, b"eVKA", VERSION, bytes(3), self.seq))

    @staticmethod
    def decode(data: Data) -> "Ack":
        """From what travelled; raises `FrameError` if that is not one."""
        _, (zeros, seq) = _opened(data, b"eVKA", _ACK, lambda *_: 0)
        if zeros != bytes(3):
            raise FrameError(Code.BAD_FLAGS, f"{zeros!r} in place of zeros", seq)
        return Ack(seq)


class Refusal(NamedTuple):
    """A frame was not taken.

    Example:
        >>> Refusal.decode(Refusal("negative", 17, "channel 3 is -1.0").encode())
        Refusal(code='negative', seq=17, text='channel 3 is -1.0')
    """

    code: str
    """Why: one of `evkf.live.frames.Code`, or of the session's own."""
    seq: int | None
    """Number of the bin, if it is known."""
    text: str
    """The same in words."""

    def encode(self) -> bytes:
        """As it travels."""
        code = self.code.encode()
        if not (code and len(code) <= LONGEST_CODE and code.isascii()):
            raise InputError(f"code {self.code!r}", "code", f"pass 1 to {LONGEST_CODE} letters")
        text = self.text.encode(errors="replace")
        if len(text) > LONGEST_TEXT:
            text = text[:LONGEST_TEXT].decode(errors="ignore").encode()
        flags, seq = (0, 0) if self.seq is None else (KNOWN, self.seq)
        head = _pack(_REFUSAL, b"eVKR", VERSION, flags, len(code), 0, seq, len(text))
        return seal(head + code + text)

    @staticmethod
    def decode(data: Data) -> "Refusal":
        """From what travelled; raises `FrameError` if that is not one."""
        body, fields = _opened(data, b"eVKR", _REFUSAL, lambda *head: head[1] + head[4])
        flags, split, zero, seq, _ = fields
        if flags > KNOWN or zero or (seq and not flags):
            raise FrameError(Code.BAD_FLAGS, f"flags {flags:#04x} {zero:#04x}, bin {seq}")
        body = bytes(body)
        try:
            code, text = body[:split].decode("ascii"), body[split:].decode()
        except UnicodeDecodeError as error:
            raise FrameError(Code.BAD_TEXT, str(error), seq if flags else None) from None
        return Refusal(code, seq if flags else None, text)


class Estimate(NamedTuple):
    """The belief after a bin. Arrays travel in float64, as they are.

    Example:
        >>> latent = np.zeros(2), np.eye(2), np.ones(3), -1.5, 0, np.ones((5, 2)), np.ones((5, 2))
        >>> back = Estimate.decode(Estimate(7, Flags.BRIDGED, *latent, 5, 10, 20).encode())
        >>> back.flags, back.mean.tolist(), back.cov.shape, back.elbo, back.ahead.shape
        (<Flags.BRIDGED: 1>, [0.0, 0.0], (2, 2), -1.5, (5, 2))
        >>> Estimate.number(back.encode())
        7
    """

    seq: int
    flags: Flags
    mean: np.ndarray
    """Of the latent state, (L,)."""
    cov: np.ndarray
    """(L, L)."""
    rate: np.ndarray
    """Expected value of every channel in the next bin, (N,)."""
    elbo: float
    status: int
    """Bits of `evkf.types.Status`."""
    ahead: np.ndarray
    """Means of the state in the next H bins, (H, L); H is 0 where no forecast was asked for."""
    ahead_var: np.ndarray
    """Their variances, (H, L)."""
    sent_ns: int
    """Of the bin's frame, on the sender's clock; of a bin that was lost, a bin after the one
    before. 0 if that is not known."""
    received_ns: int
    """When the bin came in, on the session's clock."""
    published_ns: int

    def encode(self) -> bytes:
        """As it travels."""
        given = self.mean, self.cov, self.rate, self.ahead, self.ahead_var
        arrays = [np.asarray(part, "<f8") for part in given]
        shapes = [array.shape for array in arrays]
        L, N, H = arrays[0].size, arrays[2].size, len(arrays[3])
        if shapes != [(L,), (L, L), (N,), (H, L), (H, L)]:
            remedy = "pass (L,), (L, L), (N,), (H, L) and (H, L)"
            raise InputError(f"shapes {shapes}", "mean, cov, rate, ahead, ahead_var", remedy)
        times = self.sent_ns, self.received_ns, self.published_ns
        numbers = (self.flags, self.status, self.seq, *times, self.elbo, L, N, H)
        head = _pack(_ESTIMATE, b"eVKE", VERSION, *numbers)
        return seal(b"".join((head, *(array.tobytes() for array in arrays))))

    @staticmethod
    def decode(data: Data) -> "Estimate":
        """From what travelled; raises `FrameError` if that is not one."""
        body, fields = _opened(data, b"eVKE", _ESTIMATE, _size_of_arrays)
        flags, status, seq, *times, elbo, L, N, H = fields
        if flags not in range(ALL + 1):
            raise FrameError(Code.BAD_FLAGS, f"flags {flags:#04x}", seq)
        values = np.frombuffer(body, "<f8").astype(np.float64)
        mean, cov, rate, ahead, var = np.split(values, np.cumsum([L, L * L, N, H * L]))
        latent = mean, cov.reshape(L, L), rate, elbo, status, ahead.reshape(H, L), var.reshape(H, L)
        return Estimate(seq, Flags(flags), *latent, *times)

    @staticmethod
    def number(data: Data) -> int:
        """Of its bin, from what travelled; nothing else is looked at."""
        return _ESTIMATE.unpack_from(data)[4]


def decode_answer(data: Data) -> Ack | Refusal | Estimate:
    """Whatever a session sent.

    Raises:
        FrameError: If it is none of the three.

    Example:
        >>> decode_answer(Ack(41).encode())
        Ack(seq=41)
    """
    magic = bytes(bytes_of(data)[:4])
    if magic == b"eVKR":
        return Refusal.decode(data)
    return Estimate.decode(data) if magic == b"eVKE" else Ack.decode(data)


def _pack(header: struct.Struct, *values: object) -> bytes:
    try:
        return header.pack(*values)
    except struct.error as error:
        what = ", ".join(map(str, values[2:]))
        raise InputError(what, "an answer", f"pass numbers that fit: {error}") from None


def _size_of_arrays(*head: Any) -> int:
    L, N, H = head[-3:]
    return 8 * (L + L * L + N + 2 * H * L)


def _opened(
    data: Data, magic: bytes, header: struct.Struct, rest: Callable[..., int]
) -> tuple[memoryview, tuple]:
    """What follows the header, and the header's fields after the version; `rest` says from those
    how many bytes must follow.
    """
    view = bytes_of(data)
    least = header.size + CHECKSUM.size
    if len(view) < least:
        raise FrameError(Code.TOO_SHORT, f"{len(view)} bytes, {least} or more are due")
    found, version, *fields = header.unpack_from(view)
    if found != magic:
        raise FrameError(Code.BAD_MAGIC, f"begins with {found!r}, not {magic!r}")
    if version != VERSION:
        raise FrameError(Code.BAD_VERSION, f"version {version}, known is {VERSION}")
    due = least + rest(*fields)
    if len(view) != due:
        raise FrameError(Code.WRONG_LENGTH, f"{len(view)} bytes, {due} by its header")
    if not sound(view):
        raise FrameError(Code.BAD_CHECKSUM, "the checksum does not hold")
    return view[header.size : -CHECKSUM.size], tuple(fields)
