"""Estimates into plain files, bin after bin."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from evkf.data.arrays import HDF5
from evkf.data.files import Arrays, import_h5py, replacing, write_hdf5, write_npz
from evkf.data.recording import Recording
from evkf.errors import InputError

CHUNK_BYTES = 1 << 18
"""Of a dataset that grows."""


class Growing:
    """An HDF5 file whose arrays grow by the rows of every call."""

    def __init__(self, file: Any):
        self.file = file

    def add(self, arrays: Arrays) -> None:
        """Put rows after those that are there; the first call says which arrays there are."""
        for name, array in arrays.items():
            if name not in self.file:
                row = max(array[:1].nbytes, 1)
                self.file.create_dataset(
                    name,
                    data=array,
                    maxshape=(None, *array.shape[1:]),
                    chunks=(max(CHUNK_BYTES // row, 1), *array.shape[1:]),
                )
                continue
            stored = self.file[name]
            before = len(stored)
            stored.resize(before + len(array), axis=0)
            stored[before:] = array


@contextmanager
def growing_hdf5(
    path: str | os.PathLike, recording: Recording, overwrite: bool = False
) -> Iterator[Growing]:
    """A file to add estimates to, which takes its name when all was added.

    Args:
        path: Ends in .h5 or .hdf5.
        recording: Whose units and bins they are; any part of it will do.
        overwrite: Whether to write in place of a file that is there.

    Example:
        >>> import tempfile
        >>> recording = Recording(np.ones((2, 1), int), 0.02)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with growing_hdf5(f"{folder}/a.h5", recording) as file:
        ...         file.add({"elbo": np.zeros(2)})
        ...         file.add({"elbo": np.ones(3)})
        ...     with import_h5py().File(f"{folder}/a.h5") as file:
        ...         file["elbo"][:].tolist(), file["unit_id"][:].tolist()
        ([0.0, 0.0, 1.0, 1.0, 1.0], [0])
    """
    place = Path(path)
    if place.suffix not in HDF5:
        raise InputError(f"a file named {place.name!r}", str(path), "end it in .h5 or .hdf5")
    with replacing(place, overwrite) as part:
        write_hdf5(part, _constants(recording))
        with import_h5py().File(part, "a") as file:
            yield Growing(file)


def write_estimates(
    path: str | os.PathLike, recording: Recording, arrays: Arrays, overwrite: bool = False
) -> None:
    """Write arrays of one row a bin with units, bins and where trials begin, to npz or HDF5.

    Example:
        >>> import tempfile
        >>> recording = Recording(np.ones((2, 1), int), 0.02)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_estimates(f"{folder}/a.npz", recording, {"elbo": np.zeros(2)})
        ...     with np.load(f"{folder}/a.npz") as file:
        ...         sorted(file.files)
        ['bin_width', 'elbo', 'unit_id']
    """
    place = Path(path)
    whole = _constants(recording) | arrays
    if place.suffix not in (".npz", *HDF5):
        raise InputError(f"a file named {place.name!r}", str(path), "end it in .nwb, .npz or .h5")
    with replacing(place, overwrite) as part:
        (write_npz if place.suffix == ".npz" else write_hdf5)(part, whole)


def _constants(recording: Recording) -> Arrays:
    return {"bin_width": np.asarray(recording.bin_width), "unit_id": recording.units["id"]}
