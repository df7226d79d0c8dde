"""Segments of the journal: how records are framed, read back, and cut where a write was torn.

A segment is a file of frames, little-endian: length of the payload (u32), CRC-32 of kind and
payload (u32), kind (u8), payload. Its first frame is a HEADER: version of the format (u32),
position of the first record (u64), session (16 bytes). Records are numbered from 0 through all
segments; this is their position. A HOLE (u64 first, u64 count) stands for records that could not
be kept. HEADER and HOLE themselves have no position.

Where a segment goes on past the position that the next one begins with, the next one counts: what
could not be synced is written again, into a new segment.
"""

import re
import struct
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np

from evkf.errors import EvkfError
from evkf.live.disk import DISK, Disk

FORMAT = 1
HEADER, HOLE, FIRST_KIND = 1, 2, 8
"""Kinds of frames that are the journal's own, and the first that is free."""

_FRAME, _HEADER, _HOLE = struct.Struct("<IIB"), struct.Struct("<IQ16s"), struct.Struct("<QQ")
HEADER_BYTES = _FRAME.size + _HEADER.size
"""That a segment begins with."""
_NAME = re.compile(r"(\d{12})\.journal")
_KIND_CRC = tuple(zlib.crc32(bytes([kind])) for kind in range(256))
_BLOCK, _EFFORT = 1 << 16, 1 << 28
"""Bytes in which whole frames are looked for at a time, and bytes to check before giving up."""


class Record(NamedTuple):
    """What was appended."""

    position: int
    """Its number. That of a HOLE is the first it stands for."""
    kind: int
    payload: bytes


class JournalError(EvkfError):
    """A journal that is damaged, not only torn at its end.

    Attributes:
        what: What is wrong.
        path: The segment.
        byte: Where in it.

    Example:
        >>> raise JournalError("bad frame", Path("000000000000.journal"), 37)
        Traceback (most recent call last):
        ...
        evkf.live.segments.JournalError: bad frame (in 000000000000.journal, byte 37): \
restore the segment from a copy, or move it and those after it away
    """

    def __init__(self, what: str, path: Path, byte: int):
        self.what, self.path, self.byte = what, path, byte
        remedy = "restore the segment from a copy, or move it and those after it away"
        super().__init__(f"{what} (in {path}, byte {byte}): {remedy}")

    def __reduce__(self) -> tuple:
        return type(self), (self.what, self.path, self.byte)


def frame(kind: int, payload: bytes) -> bytes:
    """A record as it is written."""
    return _FRAME.pack(len(payload), zlib.crc32(payload, _KIND_CRC[kind]), kind) + payload


def frame_header(first: int, session: bytes) -> bytes:
    """What a segment begins with whose first record has position `first`."""
    return frame(HEADER, _HEADER.pack(FORMAT, first, session))


def frame_hole(lost: range) -> bytes:
    """What stands for records that could not be kept."""
    return frame(HOLE, _HOLE.pack(lost.start, len(lost)))


def hole(record: Record) -> range:
    """The positions that a HOLE stands for.

    Example:
        >>> hole(Record(7, HOLE, _HOLE.pack(7, 3)))
        range(7, 10)
    """
    first, count = _HOLE.unpack(record.payload)
    return range(first, first + count)


def segment_path(folder: Path, number: int) -> Path:
    """Where a segment is."""
    return folder / f"{number:012d}.journal"


def walk(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Frames up to the first that is not whole: where each ends, its kind, its payload."""
    at, size = 0, len(data)
    while (begin := at + _FRAME.size) <= size:
        length, crc, kind = _FRAME.unpack_from(data, at)
        at = begin + length
        if at > size:
            return
        payload = data[begin:at]
        if zlib.crc32(payload, _KIND_CRC[kind]) != crc:
            return
        yield at, kind, payload


def length_of(data: bytes) -> int:
    """Bytes of the frame that some data begin with, as it says itself.

    Example:
        >>> length_of(frame(8, b"abc")), length_of(b"torn")
        (12, 9)
    """
    length = _FRAME.unpack_from(data)[0] if len(data) >= _FRAME.size else 0
    return _FRAME.size + length


def first_of(data: bytes) -> int | None:
    """Position of the first record of a segment that begins so; None if it has no header yet.

    Example:
        >>> first_of(frame_header(7, bytes(16))), first_of(b"torn")
        (7, None)
    """
    _, kind, payload = next(walk(data), (0, 0, b""))
    return _HEADER.unpack(payload)[1] if kind == HEADER else None


def read(folder: Path, disk: Disk = DISK, first: int = 0) -> Iterator[Record]:
    """The records of a journal, holes among them, up to where the last write was torn.

    It may be read while it is written.

    Args:
        folder: Where the segments are.
        disk: To use.
        first: Position to begin at, or the hole that it is in; segments before it are not looked
            into.

    Raises:
        JournalError: Something else than the end is damaged: a bad frame in an earlier segment,
            or one in the last that whole frames follow.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     path = segment_path(Path(name), 0)
        ...     _ = path.write_bytes(frame_header(0, bytes(16)) + frame(8, b"a") + b"torn")
        ...     list(read(Path(name)))
        [Record(position=0, kind=8, payload=b'a')]
    """
    for record in _Scan(folder, disk, first):
        last = hole(record).stop - 1 if record.kind == HOLE else record.position
        if last >= first:
            yield record


def end_of(folder: Path) -> int:
    """The position after the last record of a journal; only its last segment is looked into."""
    scan = _Scan(folder, DISK, begin=sys.maxsize)
    deque(scan, maxlen=0)
    return scan.position


class Found(NamedTuple):
    """Where a journal ends, and what it says of itself."""

    session: bytes
    position: int
    """That the next record gets."""
    lost: list[range]
    """Holes of the last segment."""
    number: int
    """Of the last segment."""
    length: int
    """Of that segment; 0 if there is none yet."""


def recover(folder: Path, disk: Disk, sync: bool) -> Found:
    """Find the end of a journal, and cut off durably what a torn write left there.

    Args:
        folder: Where the segments are.
        disk: To use.
        sync: Make all that is found durable: whoever wrote it may not have.
    """
    if sync:
        for number in _numbers(folder, disk):
            _sync(segment_path(folder, number), disk)
        disk.sync_folder(folder)
    # Only the last segment can be torn; those before may be many.
    scan = _Scan(folder, disk, begin=sys.maxsize)
    lost = [hole(record) for record in scan if record.kind == HOLE]
    for path in scan.headless:
        disk.remove(path)
    if scan.headless:
        disk.sync_folder(folder)
    if not scan.segments:
        return Found(uuid4().bytes, 0, [], 0, 0)
    last = scan.segments[-1]
    if scan.torn:
        cut(segment_path(folder, last.number), scan.length, disk)
    return Found(last.session, scan.position, lost, last.number, scan.length)


def cut(path: Path, length: int, disk: Disk) -> None:
    """Cut a file to a length, durably."""
    handle = disk.open_append(path)
    try:
        disk.truncate(handle, length)
        disk.sync(handle)
    finally:
        disk.close(handle)


def _sync(path: Path, disk: Disk) -> None:
    handle = disk.open_append(path)
    try:
        disk.sync(handle)
        disk.drop_cache(handle)
    finally:
        disk.close(handle)


class _Segment(NamedTuple):
    number: int
    first: int
    session: bytes


class _Scan:
    """The records of a folder and, when all were read, where they end."""

    def __init__(self, folder: Path, disk: Disk, begin: int = 0):
        self._folder, self._disk = folder, disk
        self.segments: list[_Segment] = []
        self.headless: list[Path] = []
        """Segments at the end that were only about to be begun."""
        for number in _numbers(folder, disk):
            self._add(number)
        for before, after in pairwise(self.segments):
            if before.session != after.session:
                path = segment_path(folder, after.number)
                raise JournalError("segment of another session", path, 0)
        before = sum(segment.first <= begin for segment in self.segments) - 1
        self.segments = self.segments[max(before, 0) :]
        self.position = self.segments[0].first if self.segments else 0
        self.length = self.torn = 0
        """Bytes of the last segment that are whole, and that follow them."""

    def _add(self, number: int) -> None:
        path = segment_path(self._folder, number)
        found = next(walk(self._disk.read(path, HEADER_BYTES)), None)
        if found is None:
            data = self._disk.read(path)
            # A writer may have been at it.
            found = next(walk(data), None)
            if found is None:
                _refuse_whole(path, data, 0)
                self.headless.append(path)
                return
        if self.headless:
            raise JournalError("bad frame", self.headless[0], 0)
        end, kind, payload = found
        if kind != HEADER or end != HEADER_BYTES:
            raise JournalError("no header", path, 0)
        version, first, session = _HEADER.unpack(payload)
        if version != FORMAT:
            what = f"format {version}, where this version of evkf knows {FORMAT}"
            raise JournalError(what, path, 0)
        self.segments.append(_Segment(number, first, session))

    def __iter__(self) -> Iterator[Record]:
        ends = [segment.first for segment in self.segments[1:]]
        for i, segment in enumerate(self.segments):
            yield from self._records(segment, ends[i] if i < len(ends) else None)

    def _records(self, segment: _Segment, end: int | None) -> Iterator[Record]:
        """Those of a segment, up to where the next one begins."""
        path = segment_path(self._folder, segment.number)
        data = self._disk.read(path)
        frames = walk(data)
        self.length = next(frames, (0,))[0]
        for stop, kind, payload in frames:
            if self.position == end:
                return
            record = Record(self.position, kind, payload)
            self.position += self._count(record, path)
            self.length = stop
            yield record
        self.torn = len(data) - self.length
        if end is None:
            _refuse_whole(path, data, self.length)
        elif self.position != end:
            what = f"bad frame, or none, where record {self.position} is due"
            raise JournalError(what, path, self.length)

    def _count(self, record: Record, path: Path) -> int:
        """How many positions it takes."""
        if record.kind == HEADER:
            raise JournalError("a second header", path, self.length)
        if record.kind != HOLE:
            return 1
        if len(record.payload) != _HOLE.size or hole(record).start != record.position:
            raise JournalError("a hole of other records", path, self.length)
        return len(hole(record))


def _numbers(folder: Path, disk: Disk) -> list[int]:
    found = [int(match[1]) for name in disk.list(folder) if (match := _NAME.fullmatch(name))]
    for before, after in pairwise(found):
        if after != before + 1:
            what = f"segment {before + 1} is missing before this one"
            raise JournalError(what, segment_path(folder, after), 0)
    return found


def _refuse_whole(path: Path, data: bytes, bad: int) -> None:
    """Refuse a whole frame after a bad one: then the bad one was damaged later, not torn."""
    at = _find_whole(data, bad + 1)
    if at is not None:
        raise JournalError(f"bad frame, but a whole one at byte {at}", path, bad)


def _find_whole(data: bytes, start: int) -> int | None:
    """Where a whole frame begins, if one is found with reasonable effort, the shortest first."""
    effort, last = _EFFORT, len(data) - _FRAME.size
    for block in range(start, last + 1, _BLOCK):
        num = min(_BLOCK, last + 1 - block)
        lengths = np.ndarray((num,), "<u4", data, block, (1,)).astype(np.int64)
        kinds = np.ndarray((num,), np.uint8, data, block + _FRAME.size - 1)
        fits = (np.arange(block, block + num) + lengths <= last) & (kinds >= HOLE)
        places = np.flatnonzero(fits)
        for place in places[np.argsort(lengths[places], kind="stable")].tolist():
            at = block + place
            length, crc, kind = _FRAME.unpack_from(data, at)
            payload = data[at + _FRAME.size : at + _FRAME.size + length]
            if zlib.crc32(payload, _KIND_CRC[kind]) == crc:
                return at
            effort -= length + 100
            if effort < 0:
                return None
    return None
