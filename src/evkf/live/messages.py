"""What all messages share: why they are refused, the error that says so, and the checksum."""

import struct
import zlib
from enum import StrEnum
from typing import Any

from evkf.errors import EvkfError

CHECKSUM = struct.Struct("<I")

LARGEST = 2**62
"""No number of a bin, and no value, may be beyond it."""


class Code(StrEnum):
    """Why a frame is refused; `text` says it in a line.

    Example:
        >>> Code("bad_mask").text
        'padding bits of the mask are set'
    """

    text: str

    WRONG_TYPE = "wrong_type", "not contiguous bytes"
    TOO_SHORT = "too_short", "shorter than a header and a checksum"
    TOO_LONG = "too_long", "longer than any frame of this session"
    BAD_MAGIC = "bad_magic", "does not begin as a frame does"
    BAD_VERSION = "bad_version", "of a version that is not known"
    BAD_KIND = "bad_kind", "of a kind that is not known"
    BAD_DTYPE = "bad_dtype", "values of a type that is not known"
    BAD_FLAGS = "bad_flags", "flags that are not known"
    WRONG_CHANNELS = "wrong_channels", "another number of channels than the session has"
    WRONG_INPUTS = "wrong_inputs", "another number of inputs than the session has"
    WRONG_LENGTH = "wrong_length", "longer or shorter than its header says"
    BAD_CHECKSUM = "bad_checksum", "damaged on the way"
    BAD_MASK = "bad_mask", "padding bits of the mask are set"
    NOT_FINITE = "not_finite", "a value or an input is infinite or not a number"
    NEGATIVE = "negative", "a count below zero"
    FRACTIONAL = "fractional", "a count that is not whole"
    TOO_LARGE = "too_large", "a number that is too large"
    BAD_TEXT = "bad_text", "text that is not UTF-8"

    def __new__(cls, value: str, text: str) -> "Code":
        code = str.__new__(cls, value)
        code._value_, code.text = value, text
        return code


class FrameError(EvkfError, ValueError):
    """Bytes that are not a frame, or one that this session cannot take.

    Attributes:
        code: Why, one of `Code`.
        message: The same in words, with what was found.
        seq: Number of the bin, where the header can be read and the checksum holds; else None.

    Example:
        >>> raise FrameError(Code.NEGATIVE, "channel 3 is -1.0", 17)
        Traceback (most recent call last):
        ...
        evkf.live.messages.FrameError: negative: channel 3 is -1.0 (bin 17)
    """

    def __init__(self, code: Code, message: str, seq: int | None = None):
        self.code, self.message, self.seq = code, message, seq
        super().__init__(f"{code}: {message}" + ("" if seq is None else f" (bin {seq})"))

    def __reduce__(self) -> tuple:
        return type(self), (self.code, self.message, self.seq)


def seal(body: bytes) -> bytes:
    """A message with its checksum at the end."""
    return body + CHECKSUM.pack(zlib.crc32(body))


def sound(view: memoryview) -> bool:
    """Whether the checksum at the end of a message holds."""
    return zlib.crc32(view[: -CHECKSUM.size]) == CHECKSUM.unpack(view[-CHECKSUM.size :])[0]


def bytes_of(data: Any) -> memoryview:
    """The bytes of a message, not copied."""
    try:
        view = memoryview(data)
        if view.format == "B" and view.ndim == 1 and view.c_contiguous:
            return view
        return view.cast("B")
    except (TypeError, ValueError):
        what = f"{type(data).__name__} in place of contiguous bytes"
        raise FrameError(Code.WRONG_TYPE, what) from None
