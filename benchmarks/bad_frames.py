"""Frames that a live session must refuse, by name, and a plain reference that reads any frame."""

import binascii
import math
import struct
from typing import Any, NamedTuple

import numpy as np

from evkf.live.answers import Estimate, Flags
from evkf.live.frames import End, Frame

TYPES = {1: "B", 2: "H", 3: "i", 4: "f", 5: "d"}

Verdict = tuple[str, int | None] | Frame | End


class Session(NamedTuple):
    """What a decoder is made for."""

    channels: int
    inputs: int
    counts: bool = True
    dtype: type = np.float64


SMALL = Session(13, 2)
SESSIONS = (
    Session(1, 0),
    SMALL,
    Session(64, 0, False, np.float32),
    Session(200, 1, True, np.float32),
)


def sealed(body: bytes) -> bytes:
    """With a checksum that holds."""
    return body + struct.pack("<I", binascii.crc32(body))


def header(**changed: Any) -> bytes:
    """The header of bin 7 of the small session, with some fields changed."""
    fields = {"magic": b"eVKF", "version": 1, "kind": 1, "type": 1, "flags": 0, "seq": 7}
    fields |= {"sent": 5, "channels": SMALL.channels, "inputs": SMALL.inputs} | changed
    return struct.pack("<4sBBBBQqII", *fields.values())


def message(
    values: dict[int, float] | None = None,
    type: int = 1,
    body: bytes | None = None,
    u: tuple[float, ...] = (0.5, -0.5),
    **changed: Any,
) -> bytes:
    """The whole bin, of ones but for the values given."""
    ones = {**dict.fromkeys(range(SMALL.channels), 1), **(values or {})}
    if body is None:
        body = struct.pack(f"<{len(ones)}{TYPES[type]}", *ones.values())
    return sealed(header(type=type, **changed) + body + struct.pack(f"<{len(u)}d", *u))


def flipped(data: bytes, at: int) -> bytes:
    """With one bit of a byte turned over."""
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


def named() -> dict[str, tuple[Any, str, int | None]]:
    """Bad frames of the small session, each with the code and number it must be refused with."""
    good, other = message(), message(seq=8)
    end = {"kind": 2, "type": 0, "channels": 0, "inputs": 0}
    latent = np.ones(2), np.eye(2), np.ones(3), 0.0, 0, np.ones((0, 2)), np.ones((0, 2))
    about = Estimate(7, Flags.NOTHING, *latent, 0, 0, 0).encode()
    signalling = struct.pack("<12f", *[1] * 12) + b"\1\0\xa0\x7f"
    ones, no = bytes([1] * 13), None
    return {
        "nothing at all": (b"", "too_short", no),
        "one byte": (b"e", "too_short", no),
        "header alone": (good[:32], "too_short", no),
        "one byte above the largest": (good + bytes(159 - len(good)), "too_long", no),
        "ten megabytes": (good + bytes(10_000_000), "too_long", no),
        "text": ("bin 7", "wrong_type", no),
        "None": (None, "wrong_type", no),
        "list of numbers": ([1, 2, 3], "wrong_type", no),
        "bytes that are not contiguous": (memoryview(good)[::2], "wrong_type", no),
        "zeros": (bytes(65), "bad_magic", no),
        "magic in other letters": (message(magic=b"EVKF"), "bad_magic", no),
        "an estimate": (about, "bad_magic", no),
        "version 0": (message(version=0), "bad_version", no),
        "version 2": (message(version=2), "bad_version", no),
        "kind 0": (message(kind=0), "bad_kind", 7),
        "kind 3": (message(kind=3), "bad_kind", 7),
        "type 0": (sealed(header(type=0) + good[32:-4]), "bad_dtype", 7),
        "type 6": (sealed(header(type=6) + good[32:-4]), "bad_dtype", 7),
        "type 6, damaged too": (header(type=6) + good[32:], "bad_dtype", no),
        "flag that is not known": (message(flags=4), "bad_flags", 7),
        "all flags": (message(flags=255), "bad_flags", 7),
        "12 channels": (message(channels=12, body=bytes(12)), "wrong_channels", 7),
        "14 channels": (message(channels=14, body=bytes(14)), "wrong_channels", 7),
        "no channels": (message(channels=0, body=b""), "wrong_channels", 7),
        "four thousand million channels": (message(channels=2**32 - 1), "wrong_channels", 7),
        "no inputs": (message(inputs=0, u=()), "wrong_inputs", 7),
        "three inputs": (message(inputs=3, u=(0, 0, 0)), "wrong_inputs", 7),
        "end with a type": (sealed(header(**end | {"type": 1})), "bad_dtype", 7),
        "end with flags": (sealed(header(**end | {"flags": 1})), "bad_flags", 7),
        "end with channels": (sealed(header(**end | {"channels": 13}) + ones), "wrong_channels", 7),
        "end with more behind": (sealed(header(**end) + bytes(8)), "wrong_length", 7),
        "last byte missing": (good[:-1], "wrong_length", no),
        "checksum missing": (good[:-4], "wrong_length", no),
        "first half": (good[:40], "wrong_length", no),
        "one byte more": (good + b"\0", "wrong_length", no),
        "two frames in one": (good + other, "wrong_length", no),
        "values of another width": (message(type=2, body=bytes(13)), "wrong_length", 7),
        "mask missing": (message(flags=2), "wrong_length", 7),
        "mask not announced": (message(body=ones + b"\xff\x1f"), "wrong_length", 7),
        "checksum of zeros": (good[:-4] + bytes(4), "bad_checksum", no),
        "checksum of another frame": (good[:-4] + other[-4:], "bad_checksum", no),
        "bit of the number flipped": (flipped(good, 8), "bad_checksum", no),
        "bit of a value flipped": (flipped(good, 35), "bad_checksum", no),
        "first bit of padding": (message(body=ones + b"\xff\x3f", flags=2), "bad_mask", 7),
        "last bit of padding": (message(body=ones + b"\xff\x9f", flags=2), "bad_mask", 7),
        "NaN in float32": (message({3: math.nan}, 4), "not_finite", 7),
        "NaN in float64": (message({3: math.nan}, 5), "not_finite", 7),
        "signalling NaN": (message(type=4, body=signalling), "not_finite", 7),
        "infinite": (message({0: math.inf}, 4), "not_finite", 7),
        "minus infinite": (message({12: -math.inf}, 5), "not_finite", 7),
        "input NaN": (message(u=(0, math.nan)), "not_finite", 7),
        "input infinite": (message(u=(-math.inf, 0)), "not_finite", 7),
        "negative int32": (message({3: -1}, 3), "negative", 7),
        "negative float32": (message({3: -2.0}, 4), "negative", 7),
        "hardly negative": (message({3: -5e-324}, 5), "negative", 7),
        "half a spike": (message({3: 0.5}, 4), "fractional", 7),
        "hardly a fraction": (message({3: 5e-324}, 5), "fractional", 7),
        "hardly above one": (message({3: 1 + 2**-52}, 5), "fractional", 7),
        "count of 1e19": (message({3: 1e19}, 5), "too_large", 7),
        "largest float32": (message({3: 3.4028234e38}, 4), "too_large", 7),
        "input of 1e300": (message(u=(0, 1e300)), "too_large", 7),
        "number beyond 2^62": (message(seq=2**62 + 1), "too_large", no),
        "largest number": (message(seq=2**64 - 1), "too_large", no),
    }


def expected(session: Session, data: bytes) -> Verdict:
    """What a message must come out as: a frame, or a code and the number of the bin."""
    N, U = session.channels, session.inputs
    if not 36 <= len(data) <= 36 + 8 * N + (N + 7) // 8 + 8 * U:
        return "too_short" if len(data) < 36 else "too_long", None
    holds = binascii.crc32(data[:-4]) == int.from_bytes(data[-4:], "little")
    magic, version, kind, type, flags, seq, sent, *sizes = struct.unpack("<4sBBBBQqII", data[:32])
    known = seq if holds and seq <= 2**62 else None
    if magic != b"eVKF" or version != 1:
        return "bad_magic" if magic != b"eVKF" else "bad_version", None
    due, types, most = ([N, U], range(1, 6), 3) if kind == 1 else ([0, 0], range(1), 0)
    width = struct.calcsize(TYPES[type]) if type in TYPES else 0
    split = 32 + due[0] * width
    masked = split + (N + 7) // 8 * (flags >> 1 & 1)
    for code, fails in (
        ("bad_kind", kind not in (1, 2)),
        ("bad_dtype", type not in types),
        ("bad_flags", flags > most),
        ("wrong_channels", sizes[0] != due[0]),
        ("wrong_inputs", sizes[1] != due[1]),
        ("wrong_length", len(data) != masked + 8 * due[1] + 4),
        ("bad_checksum", not holds),
        ("too_large", seq > 2**62),
    ):
        if fails:
            return code, known
    if kind == 2:
        return End(seq)
    bits = int.from_bytes(data[split:masked], "little") if flags & 2 else 2**N - 1
    mask = [bool(bits >> n & 1) for n in range(N)]
    sent_values = struct.unpack(f"<{N}{TYPES[type]}", data[32:split])
    y = [float(value) if seen else 0.0 for value, seen in zip(sent_values, mask, strict=True)]
    u = list(struct.unpack(f"<{U}d", data[masked:-4]))
    code = "bad_mask" if bits >> N else fault(y, session.counts, session.dtype) or fault(u)
    if code:
        return code, seq
    arrays = np.array(y, session.dtype), np.array(mask) if flags & 2 else None
    return Frame(seq, *arrays, np.array(u, session.dtype) if U else None, bool(flags & 1), sent)


def fault(values: list[float], counts: bool = False, dtype: type = np.float64) -> str | None:
    """What is wrong with values, if anything is."""
    if not all(map(math.isfinite, values)):
        return "not_finite"
    if counts and min(values) < 0:
        return "negative"
    if counts and any(value % 1 for value in values):
        return "fractional"
    if any(abs(value) > 2**62 for value in values):
        return "too_large"
    return "too_large" if counts and any(float(dtype(value)) != value for value in values) else None
