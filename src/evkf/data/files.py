"""Read and write npz and HDF5 files, write any file completely or not at all, and name versions.

All modules that read or write files build on this one.
"""

import importlib.util
import math
import os
import platform
import secrets
import shutil
import struct
import sys
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from evkf.errors import InputError

HDF5 = (".h5", ".hdf5")
"""Endings of the names of HDF5 files."""

KINDS = "biufcSU"
"""Types of numbers and text (`dtype.kind`) that npz and HDF5 store without pickle."""

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
"""Exceptions that NumPy, zipfile and h5py raise when they read a damaged file."""

Arrays = dict[str, np.ndarray]


def version() -> str:
    """Return the version of this package.

    Example:
        >>> version().split(".")[0].isdigit()
        True
    """
    return sys.modules["evkf"].__version__  # not imported: evkf itself imports this module


def versions() -> dict[str, str]:
    """Return the versions of evkf, of the numerical libraries and of Python, by name.

    Example:
        >>> list(versions())
        ['evkf', 'jax', 'jaxlib', 'numpy', 'python']
    """
    libraries = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"evkf": version(), **libraries, "python": platform.python_version()}


def need(what: str, extra: str, *packages: str) -> None:
    """Raise InputError if optional packages are not installed. No package is imported.

    Args:
        what: What needs the packages, for the message.
        extra: Optional dependencies of evkf that include the packages, such as "web" in
            `pip install "evkf[web]"`.
        packages: Names by which the packages are imported.

    Example:
        >>> need("the page", "web", "no_such_package")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: the page needs no_such_package (in this installation): \
pip install "evkf[web]"
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        remedy = f'pip install "evkf[{extra}]"'
        raise InputError(f"{what} needs {', '.join(missing)}", "this installation", remedy)


def finite(value: Any) -> Any:
    """Return a value that strict JSON can hold: NaN and infinite numbers are replaced by None.

    Dictionaries, lists and tuples are searched at all depths; tuples become lists.

    Example:
        >>> finite({"elbo": float("nan"), "bins": [1, 2.5]})
        {'elbo': None, 'bins': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def unreadable(path: Path, error: BaseException) -> InputError:
    """Return an InputError for a file that is damaged, or whose format is not that of its ending.

    Example:
        >>> unreadable(Path("day1.npz"), EOFError("no data left"))
        InputError('the file cannot be read: no data left (in day1.npz): is it complete? copy it \
again, or check its format')
    """
    remedy = "is it complete? copy it again, or check its format"
    return InputError(f"the file cannot be read: {error}", str(path), remedy)


def check_file(path: Path) -> None:
    """Raise InputError if a file does not exist.

    Example:
        >>> check_file(Path("nowhere.npz"))
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.npz): check the name
    """
    if not path.is_file():
        raise InputError("no such file", str(path), "check the name")


def how_to_leave_out(name: str) -> str:
    """Return the advice, for an error message, how not to read an array.

    Example:
        >>> how_to_leave_out("events")
        'leave it out with --leave-out events (leave_out in Python)'
    """
    return f"leave it out with --leave-out {name} (leave_out in Python)"


@contextmanager
def replacing(path: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename that file to `path` after the block.

    After an error the temporary file is deleted and `path` is unchanged. Raise InputError if the
    folder does not exist, or if `path` exists and `overwrite` is False.

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
    # if path is a link, its target is replaced; the ending is kept, as some writers need it
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
    """Return the arrays of an npz file by name.

    Raise InputError if the file is damaged, or if an array holds Python objects.

    Args:
        path: The file.
        leave_out: Names of arrays that are not read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", one=np.zeros(1), two=np.ones(2))
        ...     read_npz(Path(folder) / "a.npz", leave_out=["one"])
        {'two': array([1., 1.])}
    """
    check_file(path)
    arrays: Arrays = {}
    name = ""
    try:
        # np.load would ask for pickle when the file is no npz file
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as content:
            for name in content.files:
                if name not in leave_out:
                    arrays[name] = np.asarray(content[name])
    except BROKEN as error:
        if "Object arrays" in str(error):
            raise _python_objects(str(path), name) from error
        raise unreadable(path, error) from error
    return arrays


def _python_objects(path: str, name: str) -> InputError:
    remedy = f"save numbers or text, or {how_to_leave_out(name)}"
    return InputError("an array of Python objects or references", f"{path}: {name}", remedy)


def import_h5py() -> Any:
    """Return the module h5py. Raise InputError that says how to install h5py if it is missing.

    Example:
        >>> import_h5py().__name__
        'h5py'
    """
    need("an HDF5 file", "hdf5", "h5py")
    import h5py

    return h5py


@contextmanager
def open_hdf5(path: Path, leave_out: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Open an HDF5 file and yield its datasets by path, such as "units/area".

    Soft and external links are not followed, because they may lead out of the file. Raise
    InputError if the file is damaged.

    Args:
        path: The file.
        leave_out: Paths of datasets that are not in the result.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_arrays_as(Path(folder) / "a.h5", {"units/area": np.array(["M1", "PMd"])})
        ...     with open_hdf5(Path(folder) / "a.h5") as datasets:
        ...         {name: load(dataset) for name, dataset in datasets.items()}
        {'units/area': array(['M1', 'PMd'], dtype='<U3')}
    """
    h5py = import_h5py()
    check_file(path)
    datasets: dict[str, Any] = {}

    def collect(name: str | bytes, item: Any) -> None:
        if isinstance(name, bytes):  # h5py's form of names that are not UTF-8
            name = name.decode("utf-8", "backslashreplace")
        if isinstance(item, h5py.Dataset) and name not in leave_out:
            datasets[name] = item

    try:
        with h5py.File(path, "r") as file:
            file.visititems(collect)
            yield datasets
    except InputError:
        raise
    except BROKEN as error:
        raise unreadable(path, error) from error


def load(dataset: Any, rows: slice = slice(None)) -> np.ndarray:
    """Return rows of an HDF5 dataset as a NumPy array, by default all rows.

    Text becomes an array of str. Raise InputError if the dataset holds Python objects or
    references. The docstring of `open_hdf5` has an example.
    """
    h5py = import_h5py()
    if dataset.shape == ():
        rows = ()  # type: ignore[assignment]
    text = h5py.check_string_dtype(dataset.dtype)
    if text is None and dataset.dtype.kind == "O":
        raise _python_objects(dataset.file.filename, dataset.name.strip("/"))
    if text is None or (text.encoding == "ascii" and text.length is not None):
        return np.asarray(dataset[rows])
    return np.asarray(dataset.asstr()[rows]).astype(f"U{int(dataset.attrs.get('characters', 0))}")


def write_arrays_as(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a new npz or HDF5 file, by the ending of its name.

    In HDF5 a slash in the name of an array makes a group.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_arrays_as(Path(folder) / "a.npz", {"units/area": np.ones(2)})
        ...     read_npz(Path(folder) / "a.npz")
        {'units/area': array([1., 1.])}
    """
    if path.suffix == ".npz":
        with path.open("xb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        return
    h5py = import_h5py()
    for name in arrays:
        if {"", ".", ".."} & set(name.split("/")) or "\0" in name:
            raise InputError(f"the name {name!r}", str(path), "name the column without dots and /")
    with h5py.File(path, "x") as file:
        for name, array in arrays.items():
            if array.dtype.kind == "U":
                # text of fixed length: HDF5 may hang on damaged text of variable length
                text = np.char.encode(array, "utf-8")
                kind = h5py.string_dtype("utf-8", max(text.dtype.itemsize, 1))
                stored = file.create_dataset(name, data=text.astype(kind))
                stored.attrs["characters"] = array.dtype.itemsize // 4
            else:
                file.create_dataset(name, data=array)
