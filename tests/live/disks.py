"""Disks for tests: one that forgets what was not synced, fails as it is told, and can be slow."""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from evkf.live.disk import Disk


class _File:
    """What the platters hold of a file, whatever its name."""

    def __init__(self, kept: bytes = b""):
        self.kept = kept
        self.dropped = range(0)
        """Bytes that the kernel believes to have written, but a sync of which has failed."""


class ForgetfulDisk(Disk):
    """A disk over real files whose power can be cut.

    At a cut, every file goes back to what was synced, with a random part of what was written
    after it, and every name to the last sync of its folder. Names and lengths that were not synced
    may survive or not. From then on all calls fail, so that nothing of the dead process is written.
    Look at what survived with another disk.

    Attributes:
        refuse: Asked before every call, with its name; an errno makes it fail. A write that fails
            for want of space is done in part.
        delay_s: Seconds that calls take, by name.
        calls: How many calls could have failed so far.
        cut_at: The call during which the power is cut, if any.
    """

    def __init__(self, seed: int = 0):
        self.refuse: Callable[[str], int | None] = lambda call: None
        self.delay_s: dict[str, float] = {}
        self.calls, self.cut_at, self.off = 0, -1, False
        self._rng = np.random.default_rng(seed)
        self._mutex = threading.RLock()
        self._names: dict[Path, _File] = {}
        self._durable_names: dict[Path, _File] = {}
        self._open: dict[int, _File] = {}

    def open_append(self, path: Path) -> int:
        with self._mutex:
            self._call("open_append")
            if path not in self._names:
                if path.exists():
                    self._names[path] = self._durable_names[path] = _File(path.read_bytes())
                else:
                    self._names[path] = _File()
            handle = super().open_append(path)
            self._open[handle] = self._names[path]
            return handle

    def write(self, handle: int, data: bytes | memoryview) -> int:
        part = bytes(data[: len(data) // 2])
        with self._mutex:
            self._call("write", lambda: os.write(handle, part))
            # Now and then not all at once, as a kernel may.
            return os.write(handle, data if len(data) < 20 or self._rng.random() < 0.9 else part)

    def sync(self, handle: int) -> None:
        file = self._open[handle]
        with self._mutex:
            data = self._path(file).read_bytes()
            unsynced = range(min(len(file.kept), len(data)), len(data))
            self._call("sync", lambda: setattr(file, "dropped", unsynced))
            file.kept = self._on_platters(file, data)

    def sync_folder(self, folder: Path) -> None:
        with self._mutex:
            self._call("sync_folder")
            for path in {*self._names, *self._durable_names}:
                if path.parent == folder:
                    self._follow(path)

    def rename(self, old: Path, new: Path) -> None:
        with self._mutex:
            self._call("rename")
            if old not in self._names:
                # Written and synced past this disk, under a name that does not matter.
                self._names[old] = _File(old.read_bytes())
            if new not in self._names and new.exists():
                self._names[new] = self._durable_names[new] = _File(new.read_bytes())
            self._names[new] = self._names.pop(old)
            super().rename(old, new)

    def remove(self, path: Path) -> None:
        with self._mutex:
            self._call("remove")
            if path not in self._names:
                self._durable_names[path] = _File(path.read_bytes())
            self._names.pop(path, None)
            super().remove(path)

    def truncate(self, handle: int, length: int) -> None:
        with self._mutex:
            self._call("truncate")
            file = self._open[handle]
            file.dropped = range(file.dropped.start, min(file.dropped.stop, length))
            super().truncate(handle, length)

    def cut(self) -> None:
        """Cut the power now."""
        with self._mutex:
            if not self.off:
                self._forget()
            self.off = True

    def _call(self, name: str, halfway: Callable[[], object] = lambda: None) -> None:
        if self.delay_s.get(name):
            self._mutex.release()
            time.sleep(self.delay_s[name])
            self._mutex.acquire()
        if self.off:
            raise OSError(errno.EIO, "the power is off")
        self.calls += 1
        if self.calls == self.cut_at:
            halfway()
            self.cut()
            raise OSError(errno.EIO, "the power went off")
        error = self.refuse(name)
        if error is not None:
            if name != "write" or error == errno.ENOSPC:
                halfway()
            raise OSError(error, os.strerror(error))

    def _path(self, file: _File) -> Path:
        return next(path for path, known in self._names.items() if known is file)

    def _follow(self, path: Path) -> None:
        if path in self._names:
            self._durable_names[path] = self._names[path]
        else:
            self._durable_names.pop(path, None)

    def _on_platters(self, file: _File, data: bytes) -> bytes:
        lost = file.dropped
        return data[: lost.start] + bytes(len(lost)) + data[lost.stop :] if lost else data

    def _forget(self) -> None:
        now = {path: path.read_bytes() for path in self._names}
        for path in {*self._names, *self._durable_names}:
            if self._rng.random() < 0.3:
                self._follow(path)
        for path in {*self._names, *self._durable_names}:
            path.unlink(missing_ok=True)
            file = self._durable_names.get(path)
            if file is not None:
                known = [place for place, named in self._names.items() if named is file]
                path.write_bytes(self._left(file, now[known[0]] if known else file.kept))

    def _left(self, file: _File, now: bytes) -> bytes:
        written = self._on_platters(file, now)
        if not written.startswith(file.kept):
            return written if self._rng.random() < 0.5 else file.kept
        end = self._rng.integers(len(file.kept), len(written), endpoint=True)
        return written[:end]
