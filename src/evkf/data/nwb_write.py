"""Estimates and recordings into NWB files, which are complete under their name or not there."""

import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from evkf.data._nwb_file import MODULE, clock, find_trials, nwb_module, open_nwb
from evkf.data._nwb_make import add_trials, as_column, finished, make_series, new_file
from evkf.data.installed import version
from evkf.data.nwb import warn
from evkf.data.recording import Recording
from evkf.errors import InputError

PREDICTION, SOURCE_TIMES, MARKS = "prediction_", "source_times", "marks"
TRIAL, FRESH = "trial", "fresh"


class Mark(NamedTuple):
    """A moment that someone marked."""

    time: float
    """Seconds."""
    text: str


class Results(NamedTuple):
    """What a filter made of a recording, one row a bin."""

    latent_mean: Float[np.ndarray, "T L"]
    latent_cov: Float[np.ndarray, "T L L"]
    rates: Float[np.ndarray, "T N"]
    """In Hz, unless `rates_unit` says otherwise."""
    elbo: Float[np.ndarray, " T"]
    """In nats."""
    predictions: Mapping[str, Float[np.ndarray, "T ..."]] | None = None
    """Decoded behaviour or the like, by name."""
    times: Float[np.ndarray, " T"] | None = None
    """When bins begin, in seconds; filled on reading."""
    rates_when: str = "at the state of the bin"
    """What of the bin `rates` were expected by."""
    rates_unit: str = "Hz"
    """For continuous signals such as "a.u."."""
    source_times: Float[np.ndarray, " T"] | None = None
    """Stamps of bins on the clock of their source, in seconds; NaN where that is not known."""
    marks: Sequence[Mark] = ()
    """In the order of time."""
    trial: Int[np.ndarray, " T"] | None = None
    """Id of the trial that bins belong to, in the trials table; filled on reading, where known."""
    fresh: Bool[np.ndarray, " T"] | None = None
    """True where a trial begins; filled on reading."""


def write_nwb(
    path: str | os.PathLike,
    recording: Recording,
    results: Results,
    into: str | os.PathLike | None = None,
    overwrite: bool = False,
    began: datetime | None = None,
) -> None:
    """Write estimates to an NWB file, as a processing module "evkf".

    They are added to a copy of the file the recording was read from; a recording from elsewhere
    gets a new file, with its trials. To add them to the source itself, pass its name as `path` and
    `overwrite=True`. In every case a copy beside `path` is written, validated, and then moved into
    place: a failure leaves everything as it was. Where windows of trials overlap, or trials are out
    of order, time stamps step back from one to the next, with an `NwbWarning`.

    Args:
        path: Where to, a name that ends in .nwb.
        recording: What was filtered.
        results: What came of it.
        into: The NWB file to add to a copy of, in place of the recording's source. Trials get the
            ids of those in its table that begin and end with them; none if some are not there.
        overwrite: Replace a file that is there, and estimates of an earlier run within it.
        began: When second 0 of the recording was, with its zone, for a new file.

    Example:
        >>> import tempfile
        >>> recording = Recording(np.ones((4, 3), int), bin_width=0.02)
        >>> zeros = np.zeros
        >>> results = Results(zeros((4, 2)), zeros((4, 2, 2)), zeros((4, 3)), zeros(4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_nwb(f"{folder}/out.nwb", recording, results)
        ...     read_results(f"{folder}/out.nwb").latent_mean.shape
        (4, 2)
    """
    _check_results(recording, results)
    source = _source(recording, into)
    ids = _trial_ids(recording, source, into is not None)
    back = _steps_back(recording)
    if back:
        what = f"time stamps step back at the start of {back} of {recording.num_trials} trials"
        why = "as windows overlap or trials are out of order"
        warn(f"{path}: {what}, {why}; series {FRESH!r} tells them apart")
    with finished(path, overwrite, new=source is None) as part:
        pynwb = nwb_module("pynwb")
        if source is None:
            file = new_file(recording, began)
            add_trials(file, recording)
            _add_results(file, recording, results, ids)
            with pynwb.NWBHDF5IO(part, "w") as io:
                io.write(file)
            return
        _copy(source, part, Path(path), overwrite)
        with pynwb.NWBHDF5IO(part, "a") as io:
            file = io.read()
            _add_results(file, recording, results, ids)
            io.write(file)


def check_source(path: str | os.PathLike, recording: Recording, overwrite: bool = False) -> None:
    """Refuse what `write_nwb` would refuse to copy, before there are results."""
    source = _source(recording, None)
    if source is not None:
        with nwb_module("h5py").File(source) as file:
            _check_copy(file, source, Path(path), overwrite)


def check_unfiltered(path: str | os.PathLike) -> None:
    """Refuse a file that has results of an earlier run."""
    with open_nwb(path) as file:
        if f"processing/{MODULE}" in file:
            what = f"results of evkf are in {Path(path).name} already"
            raise InputError(what, f"{path}: processing/{MODULE}", "pass --force to replace them")


def read_results(path: str | os.PathLike) -> Results:
    """Read what `write_nwb` wrote.

    Example:
        >>> read_results("nowhere.nwb")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.nwb): check the name
    """
    with open_nwb(path) as file:
        module = file.get(f"processing/{MODULE}")
        names = [name for name in Results._fields[:4] if module is None or name not in module]
        if module is None or names:
            what = f"no {names[0]} of evkf"
            raise InputError(what, f"{path}: processing/{MODULE}", "pass what write_nwb wrote")
        values = {name: each["data"][...] for name, each in module.items() if name != MARKS}
        marks = _read_marks(module.get(MARKS))
        unit = module["rates"]["data"].attrs["unit"]
        series = module["latent_mean"]
        even = clock(series)
        if even is None:
            times = series["timestamps"][...]
        else:
            times = even[0] + np.arange(len(series["data"])) / even[1]
    fields = [values[name] for name in Results._fields[:4]]
    predictions = {
        name.removeprefix(PREDICTION): array
        for name, array in values.items()
        if name.startswith(PREDICTION)
    }
    return Results(
        *fields,
        predictions=predictions or None,
        times=times,
        rates_unit=str(unit),
        source_times=values.get(SOURCE_TIMES),
        marks=marks,
        trial=values.get(TRIAL),
        fresh=values.get(FRESH),
    )


def _read_marks(table: Any) -> tuple[Mark, ...]:
    if table is None:
        return ()
    times, texts = table["start_time"][...].tolist(), table["label"].asstr()[...]
    return tuple(Mark(*each) for each in zip(times, texts, strict=True))


def recording_to_nwb(
    path: str | os.PathLike,
    recording: Recording,
    seed: int | None = None,
    overwrite: bool = False,
    began: datetime | None = None,
) -> None:
    """Write a recording, such as a simulated one, as an NWB file with units, trials and behaviour.

    Counts become spike times within their bins: read with the same bin width, aligned to
    "start_time" or as one session, observed counts and masks are what they were. Ids of units that
    are text go to a column "unit_name", from where they are read as ids again;
    electrode groups go to "group_name".

    Args:
        path: Where to, a name that ends in .nwb.
        recording: Counts are whole numbers; trials follow one another, from 0 or later on.
        seed: Spread the spikes of a bin at random with this seed; evenly by default.
        overwrite: Replace a file that is there.
        began: When second 0 of the recording was, with its zone, if that is known.

    Example:
        >>> import tempfile
        >>> from evkf.data import read_nwb
        >>> recording = Recording(np.array([[1, 0], [2, 3]]), bin_width=0.02)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recording_to_nwb(f"{folder}/made.nwb", recording)
        ...     read_nwb(f"{folder}/made.nwb", bin_width=0.02).counts.tolist()
        [[1, 0], [2, 3]]
    """
    counts = _whole(recording)
    with finished(path, overwrite, new=True) as part:
        pynwb = nwb_module("pynwb")
        file = new_file(recording, began)
        add_trials(file, recording)
        _add_units(file, recording, counts, seed)
        if recording.behaviour:
            module = file.create_processing_module("behavior", "behaviour, one sample a bin")
            shared: dict[str, Any] = {}
            for name, values in recording.behaviour.items():
                module.add(make_series(recording, shared, name, values, "unknown", "behaviour"))
        with pynwb.NWBHDF5IO(part, "w") as io:
            io.write(file)


def _trial_ids(recording: Recording, source: Path | None, elsewhere: bool) -> np.ndarray | None:
    """Ids of the trials in the table of the file written to, if they are known."""
    if source is None:
        return np.arange(recording.num_trials)
    if not elsewhere:
        known = recording.trials.get("id")
        return known if known is not None and known.dtype.kind in "iu" else None
    with open_nwb(source) as file:
        return find_trials(file, recording)


def _steps_back(recording: Recording) -> int:
    """How many trials begin before the last bin of the one before them."""
    last = recording.start_times + recording.bin_width * (np.asarray(recording.lengths) - 1)
    return int(np.sum(recording.start_times[1:] <= last[:-1]))


def _source(recording: Recording, into: str | os.PathLike | None) -> Path | None:
    """The NWB file to add to a copy of."""
    given = Path(recording.source if into is None else into)
    if into is None and given.suffix != ".nwb":
        return None
    with open_nwb(given):
        return given.resolve()


def _copy(source: Path, part: Path, path: Path, overwrite: bool) -> None:
    shutil.copyfile(source, part)
    with nwb_module("h5py").File(part, "a") as file:
        _check_copy(file, source, path, overwrite)
        if f"processing/{MODULE}" in file:
            del file[f"processing/{MODULE}"]


def _check_copy(file: Any, source: Path, path: Path, overwrite: bool) -> None:
    if source.parent != path.resolve().parent:
        _check_links(file, source)
    if f"processing/{MODULE}" in file and not overwrite:
        what = f"results of an earlier run in {source.name}"
        remedy = "start from a file without, or pass --force (overwrite=True) to replace them"
        raise InputError(what, str(path), remedy)


def _check_links(file: Any, source: Path) -> None:
    """Links to other files are relative to the folder of the file that has them."""
    h5py = nwb_module("h5py")

    def look(name: str, link: Any) -> tuple[str, str] | None:
        far = isinstance(link, h5py.ExternalLink) and not os.path.isabs(link.filename)
        return (name, link.filename) if far else None

    found = file.visititems_links(look)
    if found is not None:
        remedy = f"write to the same folder, {source.parent}"
        raise InputError(f"a link to {found[1]}", f"{source}: {found[0]}", remedy)


def _check_results(recording: Recording, results: Results) -> None:
    num, latent = recording.num_bins, np.shape(results.latent_mean)[-1:]
    shapes = {
        "latent_mean": (num, *latent),
        "latent_cov": (num, *latent, *latent),
        "rates": (num, recording.num_units),
        "elbo": (num,),
    }
    for name, shape in shapes.items():
        if np.shape(getattr(results, name)) != shape:
            what = f"{name} of shape {np.shape(getattr(results, name))}"
            raise InputError(what, f"results.{name}", f"pass shape {shape}")
    if results.source_times is not None and np.shape(results.source_times) != (num,):
        what = f"source_times of shape {np.shape(results.source_times)}"
        raise InputError(what, "results.source_times", f"pass shape {(num,)}")
    for name, values in (results.predictions or {}).items():
        if np.shape(values)[:1] != (num,) or "/" in name:
            what = f"{name} of shape {np.shape(values)}"
            remedy = f"pass {num} rows, and a name without /"
            raise InputError(what, "results.predictions", remedy)


def _add_results(
    file: Any, recording: Recording, results: Results, trial_ids: np.ndarray | None
) -> None:
    description = f"Latent states and rates, filtered by evkf {version()}."
    module = file.create_processing_module(MODULE, description)
    ids = ", ".join(map(str, recording.units["id"].tolist()))
    expected = f"Expected rates, {results.rates_when}: time, unit."
    rows = [
        ("latent_mean", "a.u.", "Mean of the latent state: time, dimension.", ""),
        ("latent_cov", "a.u.^2", "Covariance of the latent state: time, dimension, dimension.", ""),
        ("rates", results.rates_unit, expected, f"Columns are units {ids}."),
        ("elbo", "nats", "Evidence lower bound of every bin.", ""),
    ]
    shared: dict[str, Any] = {}
    for name, unit, text, more in rows:
        module.add(make_series(recording, shared, name, getattr(results, name), unit, text, more))
    for name, values in (results.predictions or {}).items():
        text = f"Expected {name}, before the bin was seen: time, unit."
        unit = "counts" if name == "counts" else "a.u."
        more = f"Columns are units {ids}."
        module.add(make_series(recording, shared, PREDICTION + name, values, unit, text, more))
    text = "True where a trial begins."
    module.add(make_series(recording, shared, FRESH, recording.fresh, "n/a", text))
    if trial_ids is not None:
        text = "Id of the trial that every bin belongs to, in the trials table."
        trial = trial_ids[recording.trial_of_bin]
        module.add(make_series(recording, shared, TRIAL, trial, "n/a", text))
    if results.source_times is not None:
        text = "Stamp of each bin by the clock of its source; from a rig, when the bin ended."
        times = results.source_times
        module.add(make_series(recording, shared, SOURCE_TIMES, times, "seconds", text))
    if results.marks:
        marks = nwb_module("pynwb.epoch").TimeIntervals(
            name=MARKS, description="Moments that the operator marked."
        )
        marks.add_column(name="label", description="what was written")
        for time, text in results.marks:
            marks.add_interval(start_time=time, stop_time=time, label=text)
        module.add(marks)


def _whole(recording: Recording) -> np.ndarray:
    """The counts, zero where nothing was observed."""
    where = f"{recording.source}: counts"
    counts = recording.observed
    if np.any(counts < 0) or np.any(counts != np.floor(counts)):
        raise InputError("counts that are not whole numbers of spikes", where, "write spikes only")
    begin = recording.start_times
    end = begin + recording.bin_width * np.asarray(recording.lengths)
    if begin[0] < 0 or np.any(end[:-1] > begin[1:] + 1e-6 * recording.bin_width):
        what = "trials that overlap, are out of order or begin before 0"
        raise InputError(what, f"{recording.source}: start_times", "shift or sort them")
    return counts.astype(np.int64)


def _add_units(file: Any, recording: Recording, counts: np.ndarray, seed: int | None) -> None:
    rng = None if seed is None else np.random.default_rng(seed)
    begins, fresh = recording.times, recording.fresh
    ids = recording.units["id"]
    numbered = ids.dtype.kind in "iu"
    for unit in range(recording.num_units):
        file.add_unit(
            id=int(ids[unit]) if numbered else unit,
            spike_times=_place(begins, counts[:, unit], recording.bin_width, rng),
            obs_intervals=_observed(begins, fresh, recording.masks[:, unit], recording.bin_width),
        )
    renamed = {"electrode_group": "group_name"}
    columns = {} if numbered else {"unit_name": ids}
    columns |= {k: v for k, v in recording.units.items() if k not in ("id", "rate", "rate_in_file")}
    for name, values in columns.items():
        name = renamed.get(name, name)
        file.add_unit_column(name, f"{name} of the unit", **as_column(values))


def _place(
    begins: np.ndarray, count: np.ndarray, bin_width: float, rng: np.random.Generator | None
) -> np.ndarray:
    """Times of spikes within their bins, off the edges."""
    if rng is None:
        rank = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        part = (rank + 0.5) / np.repeat(count, count)
    else:
        part = rng.uniform(1e-4, 1 - 1e-4, count.sum())
    return np.sort(np.repeat(begins, count) + bin_width * part)


def _observed(
    begins: np.ndarray, fresh: np.ndarray, mask: np.ndarray, bin_width: float
) -> np.ndarray:
    """Runs of observed bins, none across the beginning of a trial."""
    cut = fresh | np.concatenate([[True], ~mask[:-1]])
    first = mask & cut
    last = mask & np.concatenate([fresh[1:] | ~mask[1:], [True]])
    return np.stack([begins[first], begins[last] + bin_width], axis=1)
