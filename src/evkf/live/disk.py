"""The file layer of journal and checkpoints: the few calls they make, so that tests can fail them.

POSIX only: folders are synced and files are locked.
"""

import os
import sys
from pathlib import Path


class Disk:
    """The disk of this machine. Files are open descriptors: nothing is buffered in the process.

    Every call raises OSError when the disk refuses. It has no state, so one serves all threads.

    Example:
        >>> import tempfile
        >>> disk = Disk()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     handle = disk.open_append(Path(folder, "a"))
        ...     written = disk.write(handle, b"abc")
        ...     disk.close(handle)
        ...     disk.list(Path(folder)), disk.read(Path(folder, "a"))
        (('a',), b'abc')
    """

    def open_append(self, path: Path) -> int:
        """Open a file to write at its end, made if it is not there; the handle."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        """Write at the end; how many bytes were taken, which may be fewer than given."""
        return os.write(handle, data)

    def sync(self, handle: int) -> None:
        """Return when what was written would survive a loss of power."""
        if sys.platform == "darwin":
            import fcntl

            # There, fsync leaves the data in the cache of the drive.
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(handle)

    def drop_cache(self, handle: int) -> None:
        """Have what was synced read from the disk next: after a sync that failed, possibly in
        another process, the kernel's cache may hold what the disk does not.
        """
        if sys.platform == "linux":
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in a folder would survive a loss of power."""
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self, path: Path, most: int = -1) -> bytes:
        """What a file holds, or the first `most` bytes of it."""
        with path.open("rb", buffering=0) as file:
            return file.read(most) or b""

    def list(self, folder: Path) -> tuple[str, ...]:
        """Names in a folder, sorted."""
        return tuple(sorted(os.listdir(folder)))

    def rename(self, old: Path, new: Path) -> None:
        """Move a file, over another if one is there."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def truncate(self, handle: int, length: int) -> None:
        """Cut a file to a length."""
        os.ftruncate(handle, length)

    def close(self, handle: int) -> None:
        """Close a file, or let go of a lock."""
        os.close(handle)

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, if they are not there, to survive a loss of power."""
        if not folder.is_dir():
            self.make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            self.sync_folder(folder.parent)

    def lock(self, path: Path) -> int | None:
        """Lock a file, made if it is not there; the handle, or None when it is locked already.

        The lock ends with `close`, or with the process however that ends.
        """
        import fcntl

        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return handle


DISK = Disk()
"""The real one."""
