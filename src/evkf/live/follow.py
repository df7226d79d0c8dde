"""A journal read while it is written: what is new, from where it was read to the last time."""

import os
from collections.abc import Container
from pathlib import Path

from evkf.live.disk import DISK
from evkf.live.segments import (
    FIRST_KIND,
    HEADER,
    HEADER_BYTES,
    Record,
    first_of,
    length_of,
    segment_path,
    walk,
)

AT_ONCE = 1 << 22
"""Bytes that are read at a time."""


class Follower:
    """Reads on in a journal, without reading anything twice.

    It holds no lock and waits for nobody. Where the journal is damaged it stands still.

    Args:
        folder: Where the segments are; it may not be there yet.

    Example:
        >>> import tempfile
        >>> from evkf.live.segments import frame, frame_header
        >>> with tempfile.TemporaryDirectory() as name:
        ...     path, follower = segment_path(Path(name), 0), Follower(Path(name))
        ...     _ = path.write_bytes(frame_header(0, bytes(16)) + frame(8, b"a"))
        ...     first = follower.read()
        ...     with path.open("ab") as file:
        ...         _ = file.write(frame(8, b"b"))
        ...     first, follower.read(), follower.read()
        ([Record(position=0, kind=8, payload=b'a')], [Record(position=1, kind=8, payload=b'b')], [])
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._number, self._at, self._position, self._done = -1, 0, 0, 0

    def read(self, most: int = AT_ONCE) -> list[Record]:
        """Records that have come, holes left out; of so many bytes at most, unless the first alone
        has more."""
        found: list[Record] = []
        while not found:
            # Asked first: when the next segment is there, all of this one is.
            over = segment_path(self._folder, self._number + 1).exists()
            data = b"" if self._number < 0 else self._load(most)
            begin = self._at
            for end, kind, payload in walk(data):
                self._at = begin + end
                found += self._take(kind, payload)
            if self._at > begin:
                continue
            if not over or len(data) >= most or not self._begin(self._number + 1):
                break
        return found

    def skip(self, kinds: Container[int] = ()) -> list[Record]:
        """Go to the end. Of what is passed over in the last segment, the records of some kinds."""
        last = self._last()
        if last > self._number:
            self._begin(last)
        found: list[Record] = []
        while passed := self.read():
            found += [record for record in passed if record.kind in kinds]
        return found

    @property
    def behind(self) -> int:
        """Bytes of the last segment that were not read yet."""
        last = self._last()
        size = segment_path(self._folder, last).stat().st_size if last >= 0 else 0
        return size - (self._at if last == self._number else 0)

    def rewind(self) -> None:
        """Go back to the first record."""
        self._number, self._done = -1, 0

    def _last(self) -> int:
        names = DISK.list(self._folder) if self._folder.is_dir() else ()
        numbers = [int(name[:12]) for name in names if name.endswith(".journal")]
        return max(numbers, default=-1)

    def _load(self, most: int) -> bytes:
        with segment_path(self._folder, self._number).open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), most, self._at)
            whole, size = length_of(data), os.fstat(file.fileno()).st_size
            if len(data) == most < whole <= size - self._at:
                data = os.pread(file.fileno(), whole, self._at)
            return data

    def _take(self, kind: int, payload: bytes) -> list[Record]:
        record = Record(self._position, kind, payload)
        if kind < FIRST_KIND:
            # A hole: what it stands for is not there.
            self._position += int.from_bytes(payload[8:16], "little") if kind != HEADER else 0
            return []
        self._position += 1
        # What could not be synced stands once more in the next segment.
        again = record.position < self._done
        self._done = max(self._done, self._position)
        return [] if again else [record]

    def _begin(self, number: int) -> bool:
        first = first_of(DISK.read(segment_path(self._folder, number), HEADER_BYTES))
        if first is None:
            return False
        self._number, self._at, self._position = number, HEADER_BYTES, first
        return True
