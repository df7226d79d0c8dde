"""Read a recording, its chunks or a summary from any supported file or folder."""

import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evkf.data.arrays import from_arrays, load_arrays, read_arrays, stream_arrays
from evkf.data.files import HDF5
from evkf.data.kilosort import read_kilosort
from evkf.data.nwb import list_nwb, read_nwb, stream_nwb
from evkf.data.nwb_file import Units, open_nwb
from evkf.data.recording import Reading, Recording
from evkf.errors import InputError
from evkf.numerics.checks import check_known


def open_recording(
    path: str | os.PathLike, reading: Reading | None = None, **settings: Any
) -> Recording:
    """Return the recording in an NWB, npz, HDF5 or CSV file, or in a folder that Kilosort wrote.

    Spike times are counted in bins of `bin_width`. Counts in npz and HDF5 files keep the bins of
    the file, or are summed in wider bins if `bin_width` is a whole multiple of the bin width of the
    file. Continuous signals are averaged, not summed.

    Args:
        path: File, whose ending gives the format, or folder that has spike_times.npy.
        reading: Settings of reading; `Reading()` by default.
        settings: Fields of `Reading` that replace those of `reading`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", counts=np.ones((6, 2), int), bin_width=0.01)
        ...     open_recording(f"{folder}/a.npz", bin_width=0.02).counts.tolist()
        [[2, 2], [2, 2], [2, 2]]
    """
    reading = replace(Reading() if reading is None else reading, **settings)
    place = Path(path)
    folder, width, signals = place.is_dir(), reading.bin_width, reading.signals
    if reading.groups is not None and not folder:
        what = "groups, for a path that is not a Kilosort folder"
        raise InputError(what, str(path), "leave them out, or pass a folder")
    if signals and reading.min_rate > 0:
        remedy = "leave it out: signals do not fire"
        raise InputError("a least rate for signals", str(path), remedy)
    if reading.leave_out and (folder or place.suffix == ".nwb"):
        what = "names to leave out, for a path that is not an npz, HDF5 or CSV file"
        raise InputError(what, str(path), "choose units or trials instead")
    if place.suffix == ".nwb":
        return read_nwb(place, **vars(replace(reading, signals=False)))
    only_nwb = ("align", "window", "units", "trials", "blank")
    given = [f"--{name}" for name in only_nwb if getattr(reading, name) is not None]
    if given:
        what = f"{', '.join(given)}, for a path that is not an NWB file"
        raise InputError(what, str(path), "leave them out, or pass an NWB file")
    if folder:
        if not (place / "spike_times.npy").is_file():
            what = "a folder without spike_times.npy"
            raise InputError(what, str(path), "pass a file, or the folder that Kilosort wrote")
        recording = read_kilosort(place, reading.width, reading.groups or ("good",))
    elif place.suffix in (".npz", *HDF5):
        arrays = load_arrays(place, reading.leave_out)
        own = "bin_width" in arrays or "bin_ms" in arrays
        recording = from_arrays(arrays, str(path), None if own else width, signals)
        if width is not None:
            factor = width / recording.bin_width
            whole = round(factor) if np.isfinite(factor) else 0
            if whole < 1 or abs(factor - whole) > 1e-6 * whole:
                what = f"bins of {recording.bin_width:g} s for a bin width of {width:g} s"
                remedy = "pass a whole multiple of the file's own"
                raise InputError(what, f"{recording.source}: bin_width", remedy)
            recording = recording if whole == 1 else recording.rebinned(whole, signals)
    elif place.suffix == ".csv":
        recording = read_arrays(place, width, signals=signals, leave_out=reading.leave_out)
    elif place.suffix == ".safetensors":
        remedy = "pass a recording; --model takes models, and "
        remedy += "`evkf.recordings.units.UnitModel.load`"
        raise InputError("a model, not a recording", str(place), remedy)
    else:
        remedy = "end it in .nwb, .npz, .h5, .hdf5 or .csv, or pass the folder that Kilosort wrote"
        raise InputError(f"a file named {place.name!r}", str(place), remedy)
    for name in reading.behaviour:
        where = f"{recording.source}: behaviour"
        check_known("behaviour", name, recording.behaviour, where)
        values = recording.behaviour[name]
        if values.dtype.kind not in "biuf":
            raise InputError(f"{name} of {values.dtype}", where, "name a column of numbers")
        wrong = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if wrong.any():
            what = f"NaN in bin {np.argmax(wrong)} and {wrong.sum() - 1} bins more"
            raise InputError(what, f"{where} {name!r}", "mend the file, or leave the column out")
    least = reading.min_rate
    return recording if least <= 0 else recording.pick(recording.rates() >= least)


def stream_recording(
    path: str | os.PathLike,
    reading: Reading | None = None,
    chunk_bins: int = 10_000,
    **settings: Any,
) -> Generator[Recording, None, None]:
    """Yield consecutive chunks of the session in an NWB file, or of an HDF5 file.

    Args:
        path: Ends in .nwb, .h5 or .hdf5.
        reading: Settings of reading; `Reading()` by default. NWB files use `bin_width`, `units` and
            `blank`. HDF5 files use `signals` and `leave_out`, and `bin_width`, which must be the
            bin width of the file.
        chunk_bins: Number of bins in a chunk; the last chunk may have fewer.
        settings: Fields of `Reading` that replace those of `reading`.

    Yields:
        Recordings that have a trial column "trial". If the last trial of a chunk and the first
        trial of the next chunk have the same number, they are parts of one trial.

    Example:
        >>> import tempfile
        >>> from evkf.data import write_arrays
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_arrays(f"{folder}/a.h5", Recording(np.ones((5, 2), int), 0.02))
        ...     [chunk.num_bins for chunk in stream_recording(f"{folder}/a.h5", chunk_bins=3)]
        [3, 2]
    """
    reading = replace(Reading() if reading is None else reading, **settings)
    place = Path(path)
    if place.suffix == ".nwb":
        for chunk in stream_nwb(place, reading.width, chunk_bins, reading.units, reading.blank):
            yield replace(chunk, trials={"trial": np.zeros(1, int)})
    elif reading.units is not None:
        what = "units, for a path that is not an NWB file"
        raise InputError(what, str(path), "leave them out, or pass an NWB file")
    else:
        # two trials may have the same name in the file, so trials are numbered instead
        own = ("trial", "trials/trial", *reading.leave_out)
        width, signals = reading.bin_width, reading.signals
        yield from stream_arrays(place, chunk_bins, width, signals=signals, leave_out=own)


def describe(
    path: str | os.PathLike, reading: Reading | None = None, **settings: Any
) -> dict[str, Any]:
    """Return a summary of a recording: units, silent units, duration, trials, behaviour, rates.

    The values are numbers, text, lists and dictionaries. Times are in seconds, rates in spikes per
    second. For an NWB file, the rate of a unit is its number of spikes, also outside of
    `obs_intervals`, divided by the length of its `obs_intervals`, or of the session if there are
    none. If the median length over units is less than the session, it is given as "observed_for".

    Args:
        path: File or folder that `open_recording` can read.
        reading: Settings of reading; `Reading()` by default. For an NWB file, `bin_width`, `groups`
            and `leave_out` raise InputError.
        settings: Fields of `Reading` that replace those of `reading`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", counts=np.ones((6, 2), int), bin_width=0.5)
        ...     found = describe(f"{folder}/a.npz")
        >>> found["units"], found["duration"], found["rates"]["median"]
        (2, 3.0, 2.0)
    """
    reading = replace(Reading() if reading is None else reading, **settings)
    if Path(path).suffix != ".nwb":
        recording = open_recording(path, reading)
        spikes, rates = recording.observed.sum(axis=0), recording.rates()
        return {
            "path": str(path),
            "units": recording.num_units,
            "silent_units": [str(unit) for unit in recording.units["id"][spikes == 0]],
            "unit_columns": list(recording.units),
            "bins": recording.num_bins,
            "bin_width": recording.bin_width,
            "duration": recording.num_bins * recording.bin_width,
            "trials": recording.num_trials,
            "trial_columns": list(recording.trials),
            "behaviour": {name: list(x.shape) for name, x in recording.behaviour.items()},
            "rates": _spread(rates),
        }
    given = {
        "bin width": reading.bin_width,
        "groups": reading.groups,
        "names to leave out": reading.leave_out or None,
    }
    for name, value in given.items():
        if value is not None:
            remedy = "leave it out: an NWB file is described as it is"
            raise InputError(f"{name} for an NWB file", str(path), remedy)
    found = list_nwb(path)
    duration = found["stop"] - found["start"]
    with open_nwb(path) as file:
        table = Units(file, str(path))
        spikes, seconds = np.diff(table.ends, prepend=0), table.seconds()
        silent = [str(unit) for unit in table.columns(file)["id"][spikes == 0]]
    observed = float(np.median(seconds))
    gaps = {"observed_for": observed} if observed < duration * (1 - 1e-9) else {}
    rates = np.divide(spikes, seconds, out=np.full(len(spikes), np.nan), where=seconds > 0)
    earlier = {"results_of_evkf": found["results"]} if found["results"] else {}
    return {
        "path": str(path),
        "session": found["session"],
        "units": found["units"],
        "silent_units": silent,
        "unit_columns": found["unit_columns"],
        "spikes": found["spikes"],
        "duration": duration,
        **gaps,
        "trials": found["trials"],
        "trial_columns": found["trial_columns"],
        "behaviour": {name: series["shape"] for name, series in found["behaviour"].items()},
        "rates": _spread(rates),
        **earlier,
    }


def _spread(rates: np.ndarray) -> dict[str, float]:
    known = rates[np.isfinite(rates)]
    if not len(known):
        return {}
    names = ("least", "median", "most")
    return dict(zip(names, map(float, np.quantile(known, (0, 0.5, 1))), strict=True))
