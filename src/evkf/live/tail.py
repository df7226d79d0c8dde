"""The end of the journal on the disk: where what waits is written and made durable."""

import errno
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from evkf.live.disk import Disk
from evkf.live.segments import HEADER_BYTES, Found, frame_header, frame_hole, segment_path

BATCH_BYTES = 1 << 18
"""The most that is committed at once, unless one record is larger."""


class Hole:
    """Records next to one another that were dropped; it grows while it is the last that waits."""

    __slots__ = ("first", "stop")

    def __init__(self, first: int, stop: int):
        self.first, self.stop = first, stop


Waiting = tuple[bytes | Hole, int]
"""The frame of a record, or what was dropped at its place; and since when it waits."""


class Batch(NamedTuple):
    """What is committed together."""

    data: bytes
    first: int
    """Position of its first record."""
    stop: int
    """That after its last."""
    num_bytes: int
    """Of its records, without holes."""
    since_ns: int
    """When its first began to wait."""


def take_batch(waiting: deque[Waiting], first: int, room: int) -> Batch:
    """Take from what waits as much as goes into a segment together, but one record at least.

    Args:
        waiting: Not empty.
        first: Position of the first.
        room: Bytes left in the segment.
    """
    limit = min(BATCH_BYTES, room)
    frames, size, num_bytes, stop, since_ns = [], 0, 0, first, waiting[0][1]
    while waiting:
        item = waiting[0][0]
        if isinstance(item, Hole):
            data, count, taken = frame_hole(range(item.first, item.stop)), item.stop - stop, 0
        else:
            data, count, taken = item, 1, len(item)
        if frames and size + len(data) > limit:
            break
        waiting.popleft()
        frames.append(data)
        size, num_bytes, stop = size + len(data), num_bytes + taken, stop + count
    return Batch(b"".join(frames), first, stop, num_bytes, since_ns)


class Tail:
    """The end of the journal on the disk, which the commit thread writes to.

    A commit that fails leaves the file longer than `_length` at most; the next one begins by
    cutting it back. After a failed sync the kernel may have marked as clean what it never wrote,
    so that to sync again proves nothing: the next commit then writes all of it anew, to a new
    segment, or to this one cut to nothing.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        found: Found,
        segment_bytes: int,
        synced: bool,
        lock: int,
    ):
        self._folder, self._disk, self._synced, self._lock = folder, disk, synced, lock
        self._session, self._segment_bytes = found.session, segment_bytes
        self._number, self._length = found.number, found.length
        self._handle: int | None = None
        self._loose = True
        """The file may be longer than it should be."""
        self._failed = False
        """A sync of it has failed."""
        self.largest = segment_bytes - HEADER_BYTES
        """Bytes of a frame that fits into a segment."""

    @property
    def path(self) -> Path:
        """The segment that is written."""
        return segment_path(self._folder, self._number)

    @property
    def room(self) -> int:
        """Bytes of records that the segment still takes."""
        return self._segment_bytes - max(self._length, HEADER_BYTES)

    def commit(self, batch: Batch) -> None:
        """Make a batch durable, after all that is; after OSError, try again with the same."""
        data = batch.data
        if self._length and self._failed:
            self._turn()
        elif self._length and len(data) > self.room:
            self._finish()
        if self._handle is None:
            self._handle = self._disk.open_append(self.path)
        if self._loose:
            self._disk.truncate(self._handle, self._length)
        self._loose = True
        if not self._length:
            data = frame_header(batch.first, self._session) + data
        self._write(self._handle, data)
        if self._synced:
            self._sync(self._handle)
        self._length += len(data)
        self._loose = False

    def _write(self, handle: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            done = self._disk.write(handle, rest)
            if not done:
                raise OSError(errno.EIO, "nothing was written")
            rest = rest[done:]

    def _sync(self, handle: int) -> None:
        self._failed = True
        self._disk.sync(handle)
        if not self._length:
            self._disk.sync_folder(self._folder)
        self._failed = False

    def _finish(self) -> None:
        """Go on to the next segment, once the disk has this one, whatever the policy: a loss of
        power may tear the last segment, but damages any other.
        """
        if self._handle is not None:
            self._disk.sync(self._handle)
        self._turn()

    def _turn(self) -> None:
        if self._handle is not None:
            self._let_go(self._handle)
        self._handle, self._number, self._length = None, self._number + 1, 0
        self._loose, self._failed = True, False

    def _let_go(self, handle: int) -> None:
        # What it would complain of was synced before, or is written again.
        with suppress(OSError):
            self._disk.close(handle)

    def close(self) -> None:
        """Close the file, and unlock the folder."""
        if self._handle is not None:
            self._let_go(self._handle)
        self._let_go(self._lock)
