"""The wire format of a bin: header, values, mask, inputs and a checksum, little-endian.

`docs/live_protocol.md` has the layout byte by byte.
"""

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from evkf.errors import InputError
from evkf.live.messages import CHECKSUM, LARGEST, Code, FrameError, bytes_of, seal, sound
from evkf.numerics.checks import check_whole

MAGIC, VERSION = b"eVKF", 1
BIN, END = 1, 2
FRESH, MASKED = 1, 2
HEADER = struct.Struct("<4sBBBBQqII")
LEAST = HEADER.size + CHECKSUM.size
"""Bytes of the shortest frame."""

WIRE = dict(enumerate(map(np.dtype, ("u1", "<u2", "<i4", "<f4", "<f8")), start=1))
"""Types that values travel in, by their code."""


class Frame(NamedTuple):
    """One bin."""

    seq: int
    """Its number; the bins of a session are numbered without gaps."""
    y: np.ndarray
    """One value a channel."""
    mask: np.ndarray | None = None
    """True where a channel was observed; None if all were."""
    u: np.ndarray | None = None
    """Inputs to the dynamics, if there are any."""
    fresh: bool = False
    """Whether it is the first of a trial."""
    sent_ns: int = 0
    """When it was sent, on the sender's clock; 0 if that is not known."""


class End(NamedTuple):
    """No bin comes any more."""

    seq: int
    """Number of the bin after the last."""


def encode(frame: Frame, dtype: DTypeLike | None = None) -> bytes:
    """A bin as it travels.

    Args:
        frame: The bin. Values that are masked are sent as 0, whatever they are.
        dtype: Type that values travel in: uint8, uint16, int32, float32 or float64. None takes
            that of `y`, or of these the first that holds every value. Whole numbers are never
            rounded to fit; others are, to float32.

    Raises:
        InputError: If it cannot be sent so.

    Example:
        >>> encode(Frame(7, np.array([0, 2, 1])))[8:16].hex()
        '0700000000000000'
    """
    values, mask = _read_values(frame.y, frame.mask)
    code, sent = _as_sent(values, dtype)
    parts = [b"", sent.tobytes()]
    if mask is not None:
        parts.append(np.packbits(mask, bitorder="little").tobytes())
    u = np.zeros(0) if frame.u is None else np.asarray(frame.u)
    if u.ndim != 1 or u.dtype.kind not in "buif" or not np.all(np.abs(u) <= LARGEST):
        raise InputError(f"inputs {u}", "u", "pass finite numbers, one an input")
    parts.append(u.astype("<f8").tobytes())
    flags = (FRESH if frame.fresh else 0) | (0 if mask is None else MASKED)
    head = (MAGIC, VERSION, BIN, code, flags, _read_seq(frame.seq), frame.sent_ns)
    try:
        parts[0] = HEADER.pack(*head, len(values), len(u))
    except struct.error:
        what = f"sent_ns = {frame.sent_ns!r}"
        raise InputError(what, "sent_ns", "pass whole nanoseconds, in 64 bits") from None
    return seal(b"".join(parts))


def encode_end(seq: int) -> bytes:
    """The end of a stream as it travels.

    Args:
        seq: Number of the bin after the last.

    Example:
        >>> Decoder(3).decode(encode_end(100))
        End(seq=100)
    """
    return seal(HEADER.pack(MAGIC, VERSION, END, 0, 0, _read_seq(seq), 0, 0, 0))


class _Layout(NamedTuple):
    """Where the parts of a frame are, by its first eight bytes."""

    shape: tuple[int, int, int]
    """Channels, inputs, bytes."""
    wire: np.dtype
    """Type of the values."""
    bits: np.dtype
    """Unsigned integers of that width."""
    top: int
    """Counts whose bits are at most this are not negative, finite, and held exactly."""
    mask_at: int
    inputs_at: int
    fresh: bool


class Decoder:
    """Reads the frames of a session.

    Frames come out whole and correct, or as a `FrameError`; nothing else is raised, whatever the
    bytes. Arrays that come out are copies: the buffer may be used again.

    Args:
        num_channels: Values of every bin.
        num_inputs: Inputs of every bin.
        counts: Whether values are counts: negative and fractional ones are refused then, and
            those that `dtype` cannot hold exactly. Other values are rounded to it.
        dtype: float32 or float64, for values and inputs that come out. Inputs are rounded to it.

    Attributes:
        largest: Bytes of the longest frame of this session. Longer ones are not looked at.

    Example:
        >>> decoder = Decoder(num_channels=3, dtype=np.float32)
        >>> frame = decoder.decode(encode(Frame(7, np.array([0, 2, 1], np.uint8), fresh=True)))
        >>> frame.seq, frame.y.tolist(), frame.fresh
        (7, [0.0, 2.0, 1.0], True)
    """

    def __init__(
        self,
        num_channels: int,
        num_inputs: int = 0,
        counts: bool = True,
        dtype: DTypeLike = np.float64,
    ):
        check_whole(num_channels, 1, "num_channels")
        check_whole(num_inputs, 0, "num_inputs")
        self.num_channels, self.num_inputs, self.counts = num_channels, num_inputs, counts
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise InputError(f"dtype {self.dtype}", "dtype", "pass float32 or float64")
        self._layouts = {
            bytes((*MAGIC, VERSION, BIN, code, flags)): self._layout(code, flags)
            for code in WIRE
            for flags in range(FRESH + MASKED + 1)
        }
        self.largest = max(layout.shape[2] for layout in self._layouts.values())
        end = self._layout(1, 0)._replace(shape=(0, 0, LEAST))
        self._layouts[bytes((*MAGIC, VERSION, END, 0, 0))] = end

    def _layout(self, code: int, flags: int) -> _Layout:
        wire = WIRE[code]
        bits = np.dtype(f"<u{wire.itemsize}")
        held = 2**24 if self.dtype == np.float32 else 2**53
        if wire.kind == "f":
            top = int(np.array(min(held, 2 ** (np.finfo(wire).nmant + 1)), wire).view(bits))
        else:
            top = min(held, np.iinfo(wire).max)
        mask_at = HEADER.size + self.num_channels * wire.itemsize
        inputs_at = mask_at + (-(-self.num_channels // 8) if flags & MASKED else 0)
        length = inputs_at + 8 * self.num_inputs + CHECKSUM.size
        shape = (self.num_channels, self.num_inputs, length)
        return _Layout(shape, wire, bits, top, mask_at, inputs_at, bool(flags & FRESH))

    def decode(self, data: bytes | bytearray | memoryview) -> Frame | End:
        """One message.

        Raises:
            FrameError: If it is not a frame that this session can take.
        """
        view = bytes_of(data)
        size = len(view)
        if size < LEAST:
            raise FrameError(Code.TOO_SHORT, f"{size} bytes, a frame has {LEAST} or more")
        if size > self.largest:
            raise FrameError(
                Code.TOO_LONG, f"{size} bytes, frames here have {self.largest} at most"
            )
        layout = self._layouts.get(bytes(view[:8]))
        *_, seq, sent_ns, channels, inputs = HEADER.unpack_from(view)
        if layout is None or (channels, inputs, size) != layout.shape:
            raise self._fault(view)
        if seq > LARGEST or not sound(view):
            raise self._fault(view)
        if not channels:
            return End(seq)
        try:
            y, mask = self._values(view, layout)
            u = self._inputs(view, layout) if inputs else None
        except FrameError as error:
            raise FrameError(error.code, error.message, seq) from None
        return Frame(seq, y, mask, u, layout.fresh, sent_ns)

    def _values(self, view: memoryview, layout: _Layout) -> tuple[np.ndarray, np.ndarray | None]:
        values, mask = np.frombuffer(view, layout.wire, self.num_channels, HEADER.size), None
        if layout.inputs_at > layout.mask_at:
            packed = np.frombuffer(
                view, np.uint8, layout.inputs_at - layout.mask_at, layout.mask_at
            )
            if self.num_channels % 8 and packed[-1] >> self.num_channels % 8:
                raise FrameError(Code.BAD_MASK, f"the last byte of the mask is {packed[-1]:#04x}")
            mask = np.unpackbits(packed, count=self.num_channels, bitorder="little").view(bool)
            values = np.where(mask, values, values.dtype.type(0))
        if layout.wire.kind != "u" and not self._plain(values, layout):
            return self._unusual(values), mask
        return values.astype(self.dtype), mask

    def _plain(self, values: np.ndarray, layout: _Layout) -> bool:
        """Whether values can be taken as they are, by as few operations as possible."""
        if self.counts:
            # As unsigned integers: above all counts are the negative, infinite, not a number.
            if np.maximum.reduce(values.view(layout.bits)) > layout.top:
                return False
            return values.dtype.kind == "i" or not np.count_nonzero(np.floor(values) != values)
        return values.dtype.kind == "i" or bool(np.maximum.reduce(np.abs(values)) <= LARGEST)

    def _unusual(self, values: np.ndarray) -> np.ndarray:
        """Values to be looked at one by one."""
        _refuse(Code.NOT_FINITE, ~np.isfinite(values), values)
        if self.counts:
            _refuse(Code.NEGATIVE, values < 0, values)
            _refuse(Code.FRACTIONAL, np.floor(values) != values, values)
        _refuse(Code.TOO_LARGE, np.abs(values.astype(np.float64)) > LARGEST, values)
        held = values.astype(self.dtype)
        if self.counts:
            _refuse(Code.TOO_LARGE, held.astype(np.float64) != values, values)
        # Zeros lose their sign.
        return np.add(held, 0, dtype=self.dtype)

    def _inputs(self, view: memoryview, layout: _Layout) -> np.ndarray:
        u = np.frombuffer(view, "<f8", self.num_inputs, layout.inputs_at)
        if not np.maximum.reduce(np.abs(u)) <= LARGEST:
            _refuse(Code.NOT_FINITE, ~np.isfinite(u), u, "input")
            _refuse(Code.TOO_LARGE, np.abs(u) > LARGEST, u, "input")
        return u.astype(self.dtype)

    def _fault(self, view: memoryview) -> FrameError:
        """What is wrong with a frame that cannot be read."""
        code, message = self._diagnosis(view)
        holds, seq = sound(view), HEADER.unpack_from(view)[5]
        if not holds and code is not Code.BAD_CHECKSUM:
            message += ", and the checksum does not hold"
        legible = holds and seq <= LARGEST and code not in (Code.BAD_MAGIC, Code.BAD_VERSION)
        return FrameError(code, message, seq if legible else None)

    def _diagnosis(self, view: memoryview) -> tuple[Code, str]:
        magic, version, kind, dtype, flags, seq, _, channels, inputs = HEADER.unpack_from(view)
        if magic != MAGIC:
            return Code.BAD_MAGIC, f"begins with {magic!r}, frames with {MAGIC!r}"
        if version != VERSION:
            return Code.BAD_VERSION, f"version {version}, known is {VERSION}"
        if kind not in (BIN, END):
            return Code.BAD_KIND, f"kind {kind}, known are {BIN} and {END}"
        if (kind == BIN and dtype not in WIRE) or (kind == END and dtype):
            return Code.BAD_DTYPE, f"type {dtype} of values"
        if flags > FRESH + MASKED or (kind == END and flags):
            return Code.BAD_FLAGS, f"flags {flags:#04x}"
        shape = self._layouts[bytes(view[:8])].shape
        if channels != shape[0]:
            return Code.WRONG_CHANNELS, f"{channels} channels, {shape[0]} are due"
        if inputs != shape[1]:
            return Code.WRONG_INPUTS, f"{inputs} inputs, {shape[1]} are due"
        if len(view) != shape[2]:
            return Code.WRONG_LENGTH, f"{len(view)} bytes, {shape[2]} by its header"
        if not sound(view):
            return Code.BAD_CHECKSUM, "the checksum does not hold"
        return Code.TOO_LARGE, f"number {seq}, the largest is {LARGEST}"


def _refuse(code: Code, bad: np.ndarray, values: np.ndarray, what: str = "channel") -> None:
    if bad.any():
        at = int(bad.argmax())
        raise FrameError(code, f"{what} {at} is {values[at]}")


def _read_seq(seq: int) -> int:
    check_whole(seq, 0, "seq")
    if seq > LARGEST:
        raise InputError(f"seq = {seq}", "seq", f"pass {LARGEST} at most")
    return seq


def _read_values(y: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Values with 0 where they are masked, and the mask."""
    values = np.asarray(y)
    if values.ndim != 1 or not values.size or values.dtype.kind not in "buif":
        what = f"y of shape {values.shape} and type {values.dtype}"
        raise InputError(what, "y", "pass real numbers, one a channel")
    if mask is not None:
        mask = np.asarray(mask)
        if mask.shape != values.shape or mask.dtype != bool:
            what = f"mask of shape {mask.shape} and type {mask.dtype}"
            raise InputError(what, "mask", f"pass booleans of shape {values.shape}")
        values = np.where(mask, values, values.dtype.type(0))
    bad = ~(np.abs(values.astype(np.float64)) <= LARGEST)
    if bad.any():
        at = int(bad.argmax())
        raise InputError(f"{values[at]}", f"y[{at}]", "pass finite numbers, or mask the channel")
    return values, mask


def _as_sent(values: np.ndarray, dtype: DTypeLike | None) -> tuple[int, np.ndarray]:
    """The code of a type, and the values in it."""
    wanted = values.dtype if dtype is None else np.dtype(dtype)
    if dtype is not None and wanted not in WIRE.values():
        known = ", ".join(wire.name for wire in WIRE.values())
        raise InputError(f"dtype {wanted}", "dtype", f"pass one of {known}")
    rounds = wanted == WIRE[4] and values.dtype.kind == "f"
    for code, wire in WIRE.items():
        if wanted in WIRE.values() and wanted != wire:
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            sent = values.astype(wire)
            held = sent.astype(values.dtype) == values
        if rounds or held.all():
            return code, sent
    raise InputError("values that no type holds", "y", "pass smaller numbers, or another dtype")
