"""The journal of a live session: an append-only log that a thread of its own makes durable.

The hot thread appends to a queue in memory and never waits for the disk. The commit thread takes
what is there, writes it in one go, and syncs it if the policy asks for it. It alone touches files.
What is not durable stays in memory; while the disk refuses, the same bytes are written again.
"""

import errno
import sys
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from evkf.errors import InputError
from evkf.live.disk import DISK, Disk
from evkf.live.segments import FIRST_KIND, HEADER_BYTES, Found, frame, recover
from evkf.live.tail import Batch, Hole, Tail, Waiting, take_batch
from evkf.numerics.checks import check_whole

Policy = Literal["process-crash", "power-loss"]
"""What durable records survive: for the first the kernel has them, for the second the disk."""

RETRY_S = 0.2
"""Between attempts while the disk refuses."""
HANG_NS = 2_000_000_000
"""A write that takes longer is trouble."""
END_S = 0.5
"""For the commit thread to end when told to give up."""


class Journal:
    """An append-only log in a folder, made by `Journal.open`. Any thread may use it.

    Attributes:
        session: 16 bytes that all segments carry.
        on_durable: As in `open`; it may be set later.

    Example:
        >>> import tempfile
        >>> from evkf.live.segments import read
        >>> with tempfile.TemporaryDirectory() as name:
        ...     with Journal.open(name, "power-loss") as journal:
        ...         position = journal.append(8, b"a bin")
        ...         journal.wait(position + 1, timeout=60)
        ...     list(read(Path(name)))
        True
        [Record(position=0, kind=8, payload=b'a bin')]
    """

    def __init__(
        self,
        tail: Tail,
        found: Found,
        backlog_limit: int,
        on_durable: Callable[[int], None] | None,
    ):
        self.session = found.session
        self._tail, self._backlog_limit, self.on_durable = tail, backlog_limit, on_durable
        self._lock = threading.Lock()
        self._more, self._done = threading.Condition(self._lock), threading.Condition(self._lock)
        # Guarded by the lock.
        self._next = self._settled = found.position
        self._lost = [Hole(lost.start, lost.stop) for lost in found.lost]
        self._queue: deque[Waiting] = deque()
        self._num_bytes = self._exposure_ns = 0
        self._trouble: str | None = None
        self._closing = self._closed = self._stopped = False
        # Changed by the commit thread only, and with the lock held where others look.
        self._backlog: deque[Waiting] = deque()
        self._since_ns: int | None = None
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evkf-journal", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        folder: str | Path,
        policy: Policy,
        disk: Disk = DISK,
        *,
        segment_bytes: int = 1 << 26,
        backlog_limit: int = 1 << 26,
        on_durable: Callable[[int], None] | None = None,
    ) -> "Journal":
        """Begin a journal, or go on with one; what a torn write left at its end is cut off.

        Args:
            folder: Of its segments, made if it is not there.
            policy: What a record must survive to be durable: "process-crash" (the kernel has it)
                or "power-loss" (the disk has it).
            disk: To use.
            segment_bytes: The most a segment holds.
            backlog_limit: Bytes of records that may wait to be durable. Beyond it they are
                dropped, see `lost`.
            on_durable: Called in the commit thread after every commit, with `durable`; the next
                commit waits for it. What it raises goes to `threading.excepthook`.

        Raises:
            JournalError: What is there is damaged, not only torn at its end.
        """
        if policy not in get_args(Policy):
            remedy = f"choose one of {', '.join(get_args(Policy))}"
            raise InputError(f"policy {policy!r}", "policy", remedy)
        check_whole(segment_bytes, 2 * HEADER_BYTES, "segment_bytes")
        check_whole(backlog_limit, 0, "backlog_limit")
        folder, synced = Path(folder), policy == "power-loss"
        disk.make_folder(folder)
        lock = disk.lock(folder / "lock")
        if lock is None:
            remedy = "end the session that runs there, or name another folder"
            raise InputError("a journal that is being written already", str(folder), remedy)
        try:
            found = recover(folder, disk, synced)
            tail = Tail(folder, disk, found, segment_bytes, synced, lock)
            return cls(tail, found, backlog_limit, on_durable)
        except BaseException:
            disk.close(lock)
            raise

    def append(self, kind: int, payload: bytes) -> int:
        """Put a record into the queue, without waiting for the disk.

        Args:
            kind: 8 to 255.
            payload: Anything.

        Returns:
            Its position. It has one even when the queue is full and it is dropped: see `lost`.
        """
        if not FIRST_KIND <= kind <= 255:
            remedy = f"pass a number from {FIRST_KIND} to 255"
            raise InputError(f"kind {kind!r}", "append", remedy)
        if type(payload) is not bytes:
            payload = memoryview(payload).tobytes()
        data = frame(kind, payload)
        if len(data) > self._tail.largest:
            what = f"a record of {len(payload)} bytes"
            raise InputError(what, "append", "split it, or open with a larger segment_bytes")
        now_ns = time.monotonic_ns()
        with self._lock:
            if self._closing:
                raise InputError("a journal that is closed", "append", "open it again")
            position = self._next
            if self._num_bytes + len(data) > self._backlog_limit:
                self._drop(position, now_ns)
            else:
                self._num_bytes += len(data)
                self._queue.append((data, now_ns))
            self._next += 1
            self._more.notify()
        return position

    def _drop(self, position: int, now_ns: int) -> None:
        last = self._queue[-1][0] if self._queue else None
        if isinstance(last, Hole):
            last.stop = position + 1
            return
        hole = Hole(position, position + 1)
        self._lost.append(hole)
        self._queue.append((hole, now_ns))

    @property
    def thread(self) -> int:
        """The system's number of the thread that commits."""
        return self._thread.native_id or 0

    @property
    def position(self) -> int:
        """The position that the next record gets."""
        return self._next

    @property
    def durable(self) -> int:
        """All records below this position are durable; so it never passes one that is lost."""
        with self._lock:
            return self._first_open()

    def _first_open(self) -> int:
        return min(self._settled, self._lost[0].first) if self._lost else self._settled

    @property
    def settled(self) -> int:
        """All records below this position are durable or lost."""
        return self._settled

    @property
    def lost(self) -> tuple[range, ...]:
        """Positions of records that were dropped because the queue was full, in order: those of
        earlier processes as far as the last segment tells.
        """
        with self._lock:
            return tuple(range(hole.first, hole.stop) for hole in self._lost)

    @property
    def holes(self) -> int:
        """Stretches of records that were dropped, those that the last segment tells of included."""
        return len(self._lost)

    def is_lost(self, position: int) -> bool:
        """Whether the record at a position was dropped."""
        if not self._lost:
            return False
        with self._lock:
            return self._in_hole(position)

    def _in_hole(self, position: int) -> bool:
        at = bisect_right(self._lost, position, key=lambda hole: hole.first) - 1
        return at >= 0 and position < self._lost[at].stop

    def durable_through(self, position: int) -> bool:
        """Whether the record at a position is durable, which one that was lost never is."""
        with self._lock:
            return 0 <= position < self._settled and not self._in_hole(position)

    def wait(self, position: int, timeout: float | None = None) -> bool:
        """Wait until all records below a position are durable.

        Args:
            position: One more than that of the last.
            timeout: Seconds; None waits as long as it takes.

        Returns:
            Whether they are. False when time is up, one is lost, or they were left at closing.
        """
        with self._lock:
            self._done.wait_for(lambda: self._settled >= position or self._stopped, timeout)
            return self._first_open() >= position

    @property
    def trouble(self) -> str | None:
        """Why the disk refuses, while it does; after closing, why something is left."""
        with self._lock:
            left = self._next - self._settled
            if not (self._closed and left):
                hangs = self._since_ns is not None and _age_ns(self._since_ns) > HANG_NS
                return self._trouble or ("the disk does not answer" if hangs else None)
            why = self._trouble or "the disk does not answer"
            return f"{why}; closed with {left} records that are not durable"

    @property
    def exposure_ms(self) -> float:
        """The longest that a record has waited to be durable so far, those waiting included."""
        with self._lock:
            since = self._since_ns
            if since is None and self._queue:
                since = self._queue[0][1]
            waiting = 0 if since is None else _age_ns(since)
            return max(self._exposure_ns, waiting) / 1e6

    def close(self, patience: float = 5.0) -> None:
        """Commit all that is there and end the thread. What is left then, `trouble` says.

        Args:
            patience: Seconds without progress after which the rest is left.
        """
        with self._lock:
            self._closing = True
            self._more.notify()
        if threading.current_thread() is self._thread:
            return
        before = None
        while self._thread.is_alive() and before != self._settled:
            before = self._settled
            self._thread.join(patience)
        self._give_up.set()
        # A thread between two attempts ends at once; one that the disk does not answer stays
        # behind, and keeps the lock of the folder for as long.
        self._thread.join(END_S)
        self._closed = True

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while self._take():
                batch = take_batch(self._backlog, self._settled, self._tail.room)
                if not self._commit(batch):
                    return
                self._settle(batch)
                self._tell()
        except BaseException as error:
            self._trouble = f"the commit thread ended: {error!r}"
            raise
        finally:
            self._tail.close()
            with self._lock:
                self._stopped = True
                self._done.notify_all()

    def _take(self) -> bool:
        """Wait for records; false when there will be none."""
        if self._backlog:
            return True
        with self._lock:
            while not self._queue and not self._closing:
                self._more.wait()
            # In one go: the hot thread must not wait, and can change none of these any more.
            self._backlog, self._queue = self._queue, self._backlog
            self._since_ns = self._backlog[0][1] if self._backlog else None
        return bool(self._backlog)

    def _commit(self, batch: Batch) -> bool:
        """Write until it is durable; false if that was given up."""
        while True:
            try:
                self._tail.commit(batch)
                return True
            except OSError as error:
                name = errno.errorcode.get(error.errno or 0, "OSError")
                self._trouble = f"{name}: {error.strerror or error}, writing to {self._tail.path}"
            if self._give_up.wait(RETRY_S):
                return False

    def _settle(self, batch: Batch) -> None:
        now_ns = time.monotonic_ns()
        with self._lock:
            self._settled = batch.stop
            self._num_bytes -= batch.num_bytes
            self._exposure_ns = max(self._exposure_ns, now_ns - batch.since_ns)
            self._since_ns = self._backlog[0][1] if self._backlog else None
            self._trouble = None
            self._done.notify_all()

    def _tell(self) -> None:
        if self.on_durable is None:
            return
        try:
            self.on_durable(self.durable)
        except Exception:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))


def _age_ns(since_ns: int) -> int:
    return time.monotonic_ns() - since_ns


def is_written(folder: Path) -> bool:
    """Whether somebody has the journal in a folder open, to write to it."""
    try:
        lock = DISK.lock(folder / "lock")
    except OSError:
        return False
    if lock is not None:
        DISK.close(lock)
    return lock is None
