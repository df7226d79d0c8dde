"""One way in: a recording from whatever the path is."""

import os
from collections.abc import Collection, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from evkf.data._nwb_file import Query
from evkf.data.arrays import HDF5, load_arrays, read_arrays, stream_arrays
from evkf.data.kilosort import read_kilosort
from evkf.data.layout import from_arrays
from evkf.data.nwb import read_nwb
from evkf.data.nwb_stream import stream_nwb
from evkf.data.recording import Recording
from evkf.errors import InputError
from evkf.numerics.checks import check_known

BIN_WIDTH = 0.02
"""Seconds, where neither file nor caller says."""


def open_recording(
    path: str | os.PathLike,
    bin_width: float | None = None,
    align: str | None = None,
    window: tuple[float, float] | None = None,
    behaviour: Sequence[str] = (),
    min_rate: float = 0.0,
    groups: Collection[str] | None = None,
    units: Query = None,
    trials: Query = None,
    signals: bool = False,
    leave_out: Collection[str] = (),
) -> Recording:
    """Read a recording: an NWB, npz, HDF5 or CSV file, or a folder that Kilosort wrote.

    Args:
        path: What to read, known by its ending; a folder has spike_times.npy.
        bin_width: In seconds. 0.02 for spike times unless given; counts keep the bins of their
            file, or are added up to a whole multiple of them (signals are averaged).
        align: As for `read_nwb`; counts are in trials already.
        window: As for `read_nwb`.
        behaviour: Names of what must be there, finite; of an NWB file nothing else is read.
        min_rate: Leave out units of fewer observed spikes per second.
        groups: Labels of the clusters to take from a Kilosort folder; "good" unless given.
        units: Which units of an NWB file to take, as for `read_nwb`.
        trials: Which trials of an NWB file to take, as for `read_nwb`.
        signals: Whether npz, HDF5 and CSV files hold continuous signals in place of counts.
        leave_out: Names of arrays of npz and HDF5 files, or of columns of CSV files, not to read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", counts=np.ones((6, 2), int), bin_width=0.01)
        ...     open_recording(f"{folder}/a.npz", bin_width=0.02).counts.tolist()
        [[2, 2], [2, 2], [2, 2]]
    """
    place = Path(path)
    folder = place.is_dir()
    if groups is not None and not folder:
        what = "groups, for a path that is not a Kilosort folder"
        raise InputError(what, str(path), "leave them out, or pass a folder")
    if signals and min_rate > 0:
        remedy = "leave it out: signals do not fire"
        raise InputError("a least rate for signals", str(path), remedy)
    if leave_out and (folder or place.suffix == ".nwb"):
        what = "names to leave out, for a path that is not an npz, HDF5 or CSV file"
        raise InputError(what, str(path), "choose units or trials instead")
    if place.suffix == ".nwb":
        width = BIN_WIDTH if bin_width is None else bin_width
        return read_nwb(place, width, align, window, behaviour, units, min_rate, trials=trials)
    asked = {"align": align, "window": window, "units": units, "trials": trials}
    given = [f"--{name}" for name, value in asked.items() if value is not None]
    if given:
        what = f"{', '.join(given)}, for a path that is not an NWB file"
        raise InputError(what, str(path), "leave them out, or pass an NWB file")
    if folder:
        if not (place / "spike_times.npy").is_file():
            what = "a folder without spike_times.npy"
            raise InputError(what, str(path), "pass a file, or the folder that Kilosort wrote")
        width = BIN_WIDTH if bin_width is None else bin_width
        recording = read_kilosort(place, width, groups or ("good",))
    elif place.suffix in (".npz", *HDF5):
        recording = _read_counts(place, bin_width, signals, leave_out)
        recording = _rebinned(recording, bin_width, signals)
    elif place.suffix == ".csv":
        recording = read_arrays(place, bin_width, signals=signals, leave_out=leave_out)
    else:
        raise _unknown(place)
    _check_behaviour(recording, behaviour)
    return recording if min_rate <= 0 else recording.pick(recording.rates() >= min_rate)


def stream_recording(
    path: str | os.PathLike,
    bin_width: float | None = None,
    chunk_bins: int = 10_000,
    units: Query = None,
    signals: bool = False,
    leave_out: Collection[str] = (),
) -> Generator[Recording, None, None]:
    """Read an NWB session or an HDF5 file in chunks that follow one another.

    Args:
        path: Ends in .nwb, .h5 or .hdf5.
        bin_width: In seconds; of an HDF5 file, its own.
        chunk_bins: Bins of a chunk; the last may have fewer.
        units: As for `open_recording`.
        signals: As for `open_recording`.
        leave_out: As for `open_recording`.

    Yields:
        Recordings with a column "trial": where the last trial of one and the first of the next have
        the same number, that trial goes on.

    Example:
        >>> import tempfile
        >>> from evkf.data import write_arrays
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_arrays(f"{folder}/a.h5", Recording(np.ones((5, 2), int), 0.02))
        ...     [chunk.num_bins for chunk in stream_recording(f"{folder}/a.h5", chunk_bins=3)]
        [3, 2]
    """
    place = Path(path)
    if place.suffix == ".nwb":
        width = BIN_WIDTH if bin_width is None else bin_width
        for chunk in stream_nwb(place, width, chunk_bins, units):
            yield replace(chunk, trials={"trial": np.zeros(1, int)})
    elif units is not None:
        what = "units, for a path that is not an NWB file"
        raise InputError(what, str(path), "leave them out, or pass an NWB file")
    else:
        # without the file's own names of trials, of which two may be the same
        own = ("trial", "trials/trial", *leave_out)
        yield from stream_arrays(place, chunk_bins, bin_width, signals=signals, leave_out=own)


def _read_counts(
    path: Path, bin_width: float | None, signals: bool, leave_out: Collection[str]
) -> Recording:
    arrays = load_arrays(path, leave_out)
    known = "bin_width" in arrays or "bin_ms" in arrays
    return from_arrays(arrays, str(path), None if known else bin_width, signals)


def _rebinned(recording: Recording, bin_width: float | None, signals: bool) -> Recording:
    if bin_width is None:
        return recording
    factor = bin_width / recording.bin_width
    whole = round(factor) if np.isfinite(factor) else 0
    if whole < 1 or abs(factor - whole) > 1e-6 * whole:
        what = f"bins of {recording.bin_width:g} s for a bin width of {bin_width:g} s"
        remedy = "pass a whole multiple of the file's own"
        raise InputError(what, f"{recording.source}: bin_width", remedy)
    return recording if whole == 1 else recording.rebinned(whole, signals)


def _unknown(path: Path) -> InputError:
    if path.suffix == ".safetensors":
        remedy = (
            "pass a recording; --model takes models, and `evkf.recordings.units.UnitModel.load`"
        )
        return InputError("a model, not a recording", str(path), remedy)
    remedy = "end it in .nwb, .npz, .h5, .hdf5 or .csv, or pass the folder that Kilosort wrote"
    return InputError(f"a file named {path.name!r}", str(path), remedy)


def _check_behaviour(recording: Recording, names: Sequence[str]) -> None:
    for name in names:
        where = f"{recording.source}: behaviour"
        check_known("behaviour", name, recording.behaviour, where)
        values = recording.behaviour[name]
        if values.dtype.kind not in "biuf":
            what = f"{name} of {values.dtype}"
            raise InputError(what, where, "name a column of numbers")
        wrong = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if wrong.any():
            what = f"NaN in bin {np.argmax(wrong)} and {wrong.sum() - 1} bins more"
            raise InputError(what, f"{where} {name!r}", "mend the file, or leave the column out")
