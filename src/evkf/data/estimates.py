"""Write estimates to npz and HDF5 files, at once or chunk by chunk.

`write_estimates` chooses the format by the ending of the file, and calls
`evkf.data.nwb_write.write_nwb` for an NWB file.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from evkf.analysis.estimates import Estimates
from evkf.data.files import HDF5, Arrays, import_h5py, replacing, write_arrays_as
from evkf.data.nwb_write import Annotations, write_nwb
from evkf.data.recording import Recording
from evkf.errors import InputError

CHUNK_BYTES = 1 << 18
"""Bytes of one storage block of an HDF5 dataset that grows; a larger row is a block itself."""


def write_estimates(
    path: str | os.PathLike,
    recording: Recording,
    estimates: Estimates,
    *,
    notes: Annotations | None = None,
    overwrite: bool = False,
) -> None:
    """Write estimates to an NWB, npz or HDF5 file, by the ending of its name.

    An npz or HDF5 file holds the arrays latent_mean, latent_cov, rates, predicted, variance, elbo,
    times, fresh (True where a trial begins) and trial, with one row for each bin. Arrays that the
    estimates do not have are left out. The file also holds bin_width and unit_id. `write_nwb`
    writes NWB files.

    Args:
        path: Ends in .nwb, .npz, .h5 or .hdf5.
        recording: The filtered recording.
        estimates: Estimates of the bins of the recording.
        notes: Predictions, source times and marks to write as well; none by default.
        overwrite: True to replace an existing file.

    Example:
        >>> import tempfile
        >>> recording = Recording(np.ones((2, 1), int), 0.02)
        >>> estimates = Estimates(np.zeros((2, 1)), np.zeros((2, 1, 1)), np.zeros(2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_estimates(f"{folder}/a.npz", recording, estimates)
        ...     with np.load(f"{folder}/a.npz") as file:
        ...         sorted(file.files)[:5]
        ['bin_width', 'elbo', 'fresh', 'latent_cov', 'latent_mean']
    """
    place = Path(path)
    if place.suffix == ".nwb":
        write_nwb(path, recording, estimates, notes=notes, overwrite=overwrite)
        return
    if place.suffix not in (".npz", *HDF5):
        raise InputError(f"a file named {place.name!r}", str(path), "end it in .nwb, .npz or .h5")
    if estimates.times is None:
        estimates = estimates._replace(**recording.bin_labels())
    arrays = _constants(recording) | _columns(recording, estimates)
    if notes is not None:
        arrays |= {f"prediction_{name}": x for name, x in (notes.predictions or {}).items()}
        if notes.source_times is not None:
            arrays["source_times"] = notes.source_times
        arrays["mark_times"] = np.array([mark.time for mark in notes.marks], float)
        arrays["mark_texts"] = np.array([mark.text for mark in notes.marks], "U")
    with replacing(place, overwrite) as part:
        write_arrays_as(part, arrays)


@contextmanager
def growing_hdf5(
    path: str | os.PathLike, recording: Recording, overwrite: bool = False
) -> Iterator[Callable[[Estimates], None]]:
    """Open a new HDF5 file and yield a function that appends estimates to it.

    The file appears under its name when the block ends without an error.

    Args:
        path: Ends in .h5 or .hdf5.
        recording: The filtered recording or a chunk of it, which gives unit ids and bin width.
        overwrite: True to replace an existing file.

    Yields:
        Function that takes estimates and appends one row for each of their bins.

    Example:
        >>> import tempfile
        >>> recording = Recording(np.ones((2, 1), int), 0.02)
        >>> part = Estimates(np.zeros((2, 1)), np.zeros((2, 1, 1)), np.zeros(2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with growing_hdf5(f"{folder}/a.h5", recording) as append:
        ...         append(part)
        ...         append(part._replace(elbo=np.ones(2)))
        ...     with import_h5py().File(f"{folder}/a.h5") as file:
        ...         file["elbo"][:].tolist(), file["unit_id"][:].tolist()
        ([0.0, 0.0, 1.0, 1.0], [0])
    """
    place = Path(path)
    if place.suffix not in HDF5:
        raise InputError(f"a file named {place.name!r}", str(path), "end it in .h5 or .hdf5")
    with replacing(place, overwrite) as part:
        write_arrays_as(part, _constants(recording))
        with import_h5py().File(part, "a") as file:

            def append(estimates: Estimates) -> None:
                for name, array in _columns(recording, estimates).items():
                    if name in file:
                        stored = file[name]
                        before = len(stored)
                        stored.resize(before + len(array), axis=0)
                        stored[before:] = array
                        continue
                    rows = max(CHUNK_BYTES // max(array[:1].nbytes, 1), 1)
                    shape = array.shape[1:]
                    file.create_dataset(
                        name, data=array, maxshape=(None, *shape), chunks=(rows, *shape)
                    )

            yield append


def _constants(recording: Recording) -> Arrays:
    return {"bin_width": np.asarray(recording.bin_width), "unit_id": recording.units["id"]}


def _columns(recording: Recording, estimates: Estimates) -> Arrays:
    """Return the arrays to write that have one row for each bin, by name.

    Rates that are missing are computed from the predicted counts, divided by the bin width.
    """
    rates = estimates.rates
    if rates is None and estimates.predicted is not None:
        # a live session gives predictions only; predicted signals are not divided
        rates = estimates.predicted / (1 if estimates.signals else recording.bin_width)
    arrays = {
        "latent_mean": estimates.mean,
        "latent_cov": estimates.cov,
        "rates": rates,
        "predicted": estimates.predicted,
        "variance": estimates.variance,
        "elbo": estimates.elbo,
        "times": estimates.times,
        "fresh": estimates.fresh,
        "trial": estimates.trial,
    }
    return {name: np.asarray(array) for name, array in arrays.items() if array is not None}
