"""Checkpoints of a live session: what is known after a bin, in files that are whole or not there.

They are trees of arrays as `evkf.data.storage` writes them, which needs the extra "storage", with a
digest of all they hold.
"""

import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import PyTree

from evkf.data.storage import load_tree, read_meta, save_tree
from evkf.errors import InputError
from evkf.live.disk import DISK, Disk
from evkf.numerics.checks import check_whole

_NAME = re.compile(r"(\d{12})\.safetensors")
_UNFINISHED = "unfinished.safetensors"


class CheckpointWarning(UserWarning):
    """A checkpoint that cannot be used was passed over."""


class Checkpoint(NamedTuple):
    """What was known after a bin."""

    bin: int
    state: Any
    metadata: dict[str, str]
    path: Path


def save(
    folder: str | Path,
    bin: int,
    state: PyTree,
    metadata: dict[str, str],
    disk: Disk = DISK,
    keep: int = 2,
) -> Path:
    """Write a checkpoint; when this returns, it would survive a loss of power.

    Older ones are removed, but for the newest; and later ones, for they are of bins that this
    session does not know.

    Args:
        folder: Where to, made if it is not there.
        bin: Number of the bin it was made after.
        state: A tree of arrays of the types that `evkf.data.storage` knows.
        metadata: What else to keep.
        disk: To use.
        keep: How many to keep, with this one.

    Returns:
        The file.

    Raises:
        OSError: The disk refuses. The checkpoints that were there are still there.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save(folder, 7, {"mean": np.ones(2)}, {"animal": "m1"})
        ...     found = load_newest(folder, like={"mean": np.zeros(2)})
        >>> found.bin, found.state, found.metadata
        (7, {'mean': array([1., 1.])}, {'animal': 'm1'})
    """
    check_whole(bin, 0, "bin")
    check_whole(keep, 1, "keep")
    if bin >= 10**12:
        raise InputError(f"bin = {bin}", "bin", "number bins with 12 digits or fewer")
    folder = Path(folder)
    disk.make_folder(folder)
    part, path = folder / _UNFINISHED, folder / f"{bin:012d}.safetensors"
    save_tree(part, state, {"bin": bin, "metadata": metadata})
    disk.rename(part, path)
    disk.sync_folder(folder)
    _tidy(folder, bin, keep, disk)
    return path


def load_newest(folder: str | Path, like: PyTree, at_most: int | None = None) -> Checkpoint | None:
    """Read the newest checkpoint that is whole.

    Args:
        folder: Where they are.
        like: A tree of the same structure as was saved, see `evkf.data.storage.load_tree`.
        at_most: None made after a later bin than this is looked at.

    Returns:
        The checkpoint; None if there is none that can be used.

    Raises:
        InputError: It is whole, but not of the structure, shapes or types of `like`.

    Warns:
        CheckpointWarning: For every later one that cannot be used.
    """
    folder = Path(folder)
    for bin in reversed(_bins(folder, DISK)):
        if at_most is not None and bin > at_most:
            continue
        path = folder / f"{bin:012d}.safetensors"
        meta = _read(path, bin)
        if isinstance(meta, str):
            why = f"checkpoint passed over: {path.name}: {meta}"
            warnings.warn(why, CheckpointWarning, stacklevel=2)
            continue
        state, _ = load_tree(path, like)
        return Checkpoint(bin, state, meta["metadata"], path)
    return None


def _read(path: Path, bin: int) -> dict | str:
    """What a file says of itself when it is whole, or why it cannot be used."""
    try:
        meta = read_meta(path)
    except OSError as error:
        return str(error)
    except InputError as error:
        # Anything else than the file, such as a missing package, holds for all of them.
        if error.where != str(path):
            raise
        return error.what
    if not (meta.keys() >= {"bin", "metadata"} and meta["bin"] == bin):
        return "no checkpoint of this bin"
    return meta


def _tidy(folder: Path, bin: int, keep: int, disk: Disk) -> None:
    """Remove what is not kept, and what was left when a process ended while it saved."""
    bins = _bins(folder, disk)
    kept = [known for known in bins if known <= bin][-keep:]
    names = [f"{known:012d}.safetensors" for known in bins if known not in kept]
    names += [name for name in disk.list(folder) if name.startswith(f".{_UNFINISHED}.")]
    for name in names:
        disk.remove(folder / name)
    if bins[-1] > bin:
        # A later one must not come back: it would be taken for the newest.
        disk.sync_folder(folder)


def _bins(folder: Path, disk: Disk) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(match[1]) for name in disk.list(folder) if (match := _NAME.fullmatch(name))]
