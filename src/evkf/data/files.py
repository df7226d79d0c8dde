"""Arrays by name in npz and HDF5 files: read whole or not at all, written whole or not at all."""

import os
import secrets
import shutil
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from evkf.data.installed import need
from evkf.errors import InputError

KINDS = "biufcSU"
"""Kinds of numbers and text that both formats hold without pickle."""

BROKEN = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    RuntimeError,
    MemoryError,
    OverflowError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
"""What NumPy, zipfile and h5py raise over a damaged file."""

Arrays = dict[str, np.ndarray]


def unreadable(path: Path, error: BaseException) -> InputError:
    """The error for a file that is damaged or of another format than its name says.

    Example:
        >>> unreadable(Path("day1.npz"), EOFError("no data left"))
        InputError('the file cannot be read: no data left (in day1.npz): is it complete? copy it \
again, or check its format')
    """
    remedy = "is it complete? copy it again, or check its format"
    return InputError(f"the file cannot be read: {error}", str(path), remedy)


def check_file(path: Path) -> None:
    """Refuse a file that is not there.

    Example:
        >>> check_file(Path("nowhere.npz"))
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.npz): check the name
    """
    if not path.is_file():
        raise InputError("no such file", str(path), "check the name")


def how_to_leave_out(name: str) -> str:
    """The remedy for an array that is not needed.

    Example:
        >>> how_to_leave_out("events")
        'leave it out with --leave-out events (leave_out in Python)'
    """
    return f"leave it out with --leave-out {name} (leave_out in Python)"


@contextmanager
def replacing(path: Path, overwrite: bool) -> Iterator[Path]:
    """A place to write to, moved to `path` when all is written and removed when that fails.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = Path(folder) / "a.txt"
        ...     with replacing(place, overwrite=False) as part:
        ...         _ = part.write_text("whole")
        ...     place.read_text(), len(list(Path(folder).iterdir()))
        ('whole', 1)
    """
    if not path.parent.is_dir():
        raise InputError(f"no folder {path.parent}", str(path), "make it first")
    if path.exists() and not overwrite:
        raise InputError(
            "there is a file already", str(path), "name another, or pass overwrite=True"
        )
    # What a link points to is replaced, not the link; and some writers look at the ending.
    place = path.resolve()
    part = place.with_name(f".{place.stem}.{secrets.token_hex(4)}.part{place.suffix}")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        if place.exists():
            shutil.copymode(place, part)
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)


def read_npz(path: Path, leave_out: Collection[str] = ()) -> Arrays:
    """All arrays of an npz file but those to be left out.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", one=np.zeros(1), two=np.ones(2))
        ...     read_npz(Path(folder) / "a.npz", leave_out=["one"])
        {'two': array([1., 1.])}
    """
    check_file(path)
    try:
        # np.load takes other files too, and of those says that they need pickle.
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as content:
            names = [name for name in content.files if name not in leave_out]
            return {name: _member(content, name, path) for name in names}
    except InputError:
        raise
    except BROKEN as error:
        raise unreadable(path, error) from error


def _member(content: Any, name: str, path: Path) -> np.ndarray:
    try:
        return np.asarray(content[name])
    except ValueError as error:
        if "Object arrays" in str(error):
            raise _objects(str(path), name) from error
        raise


def _objects(path: str, name: str) -> InputError:
    remedy = f"save numbers or text, or {how_to_leave_out(name)}"
    return InputError("an array of Python objects or references", f"{path}: {name}", remedy)


def write_npz(path: Path, arrays: Arrays) -> None:
    """Write an npz file; names may hold strokes, as `units/area` does.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_npz(Path(folder) / "a.npz", {"units/area": np.ones(2)})
        ...     read_npz(Path(folder) / "a.npz")
        {'units/area': array([1., 1.])}
    """
    with path.open("xb") as file:
        np.savez(file, allow_pickle=False, **arrays)


@contextmanager
def open_hdf5(path: Path, leave_out: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """The datasets of an HDF5 file by their paths, but those to be left out.

    Links are not followed: they may lead out of the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_hdf5(Path(folder) / "a.h5", {"units/area": np.array(["M1", "PMd"])})
        ...     with open_hdf5(Path(folder) / "a.h5") as datasets:
        ...         {name: load(dataset) for name, dataset in datasets.items()}
        {'units/area': array(['M1', 'PMd'], dtype='<U3')}
    """
    h5py = import_h5py()
    check_file(path)
    found: dict[str, Any] = {}

    def collect(name: str | bytes, item: Any) -> None:
        if isinstance(name, bytes):  # what h5py makes of names that are not UTF-8
            name = name.decode("utf-8", "backslashreplace")
        if isinstance(item, h5py.Dataset) and name not in leave_out:
            found[name] = item

    try:
        with h5py.File(path, "r") as file:
            file.visititems(collect)
            yield found
    except InputError:
        raise
    except BROKEN as error:
        raise unreadable(path, error) from error


def load(dataset: Any, rows: slice = slice(None)) -> np.ndarray:
    """Rows of a dataset, with text as NumPy keeps it. `open_hdf5` has an example."""
    h5py = import_h5py()
    if dataset.shape == ():
        rows = ()  # type: ignore[assignment]
    text = h5py.check_string_dtype(dataset.dtype)
    if text is None and dataset.dtype.kind == "O":
        raise _objects(dataset.file.filename, dataset.name.strip("/"))
    if text is None or (text.encoding == "ascii" and text.length is not None):
        return np.asarray(dataset[rows])
    return np.asarray(dataset.asstr()[rows]).astype(f"U{int(dataset.attrs.get('characters', 0))}")


def write_hdf5(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an HDF5 file; a stroke in a name makes a group. `open_hdf5` has an example."""
    h5py = import_h5py()
    for name in arrays:
        if {"", ".", ".."} & set(name.split("/")) or "\0" in name:
            raise InputError(f"the name {name!r}", str(path), "name the column without dots and /")
    with h5py.File(path, "x") as file:
        for name, array in arrays.items():
            if array.dtype.kind == "U":
                # Of fixed length: over a damaged heap of other text HDF5 may hang.
                text = np.char.encode(array, "utf-8")
                kind = h5py.string_dtype("utf-8", max(text.dtype.itemsize, 1))
                stored = file.create_dataset(name, data=text.astype(kind))
                stored.attrs["characters"] = array.dtype.itemsize // 4
            else:
                file.create_dataset(name, data=array)


def import_h5py() -> Any:
    """h5py, or what to install.

    Example:
        >>> import_h5py().__name__
        'h5py'
    """
    need("an HDF5 file", "hdf5", "h5py")
    import h5py

    return h5py
