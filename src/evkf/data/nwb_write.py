"""Write estimates and recordings to NWB files, and read estimates from them.

`write_nwb` writes estimates and annotations, `read_estimates` and `read_annotations` read them, and
`recording_to_nwb` writes a recording. A file appears under its name only when it is complete.
"""

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from evkf.analysis.estimates import Estimates
from evkf.data.files import replacing, version
from evkf.data.nwb_file import MODULE, clock, find_trials, nwb_module, open_nwb, warn
from evkf.data.recording import Recording
from evkf.errors import InputError

PREDICTION, SOURCE_TIMES, MARKS = "prediction_", "source_times", "marks"
TRIAL, FRESH = "trial", "fresh"
BEFORE = "before the bin was seen"
"""Words in the description of the series "rates" that mark the rates as predictions."""
NOT_KNOWN = datetime(2000, 1, 1, tzinfo=UTC)
"""Begin of the session that is written to a new file if the begin is not known."""


class Mark(NamedTuple):
    """A moment that the operator marked in a live session.

    Attributes:
        time: In seconds of the session.
        text: What the operator wrote.
    """

    time: float
    text: str


class Annotations(NamedTuple):
    """What is written to a file besides estimates.

    Attributes:
        predictions: Predictions of other quantities by name, such as decoded behaviour, with one
            row for each bin.
        source_times: Time of each bin in seconds on the clock of the sender of the bins; NaN where
            not known.
        marks: Marked moments, in the order of time.
        began: Date and time of second 0 with the time zone, for a new file; None if not known.
    """

    predictions: Mapping[str, Float[np.ndarray, "T ..."]] | None = None
    source_times: Float[np.ndarray, " T"] | None = None
    marks: Sequence[Mark] = ()
    began: datetime | None = None


def write_nwb(
    path: str | os.PathLike,
    recording: Recording,
    estimates: Estimates,
    *,
    notes: Annotations | None = None,
    into: str | os.PathLike | None = None,
    overwrite: bool = False,
) -> None:
    """Write estimates to an NWB file, as a processing module (a group of results) named "evkf".

    If the recording was read from an NWB file, the estimates are added to a copy of that file. Else
    the estimates and the trials are written to a new file. To add the estimates to the source file
    itself, pass the name of the source as `path` and `overwrite=True`. A temporary file is written,
    validated and then renamed to `path`; if an error occurs, all files stay as they were. If trials
    overlap or are not in the order of time, time stamps decrease between trials, and an
    `NwbWarning` is given.

    Args:
        path: File to write, a name that ends in .nwb.
        recording: The filtered recording.
        estimates: Estimates of the bins of the recording. If `rates` is None, as after a live
            session, the series "rates" holds `predicted` divided by the bin width.
        notes: Predictions, source times and marks to write as well; none by default.
        into: NWB file to copy and add to, in place of the file that the recording was read from. A
            trial gets the id of the row with the same begin and end in the trials table of this
            file. If a trial has no such row, no ids of trials are written.
        overwrite: True to replace an existing file, and estimates that an earlier run added.

    Example:
        >>> import tempfile
        >>> recording = Recording(np.ones((4, 3), int), bin_width=0.02)
        >>> estimates = Estimates(np.zeros((4, 2)), np.zeros((4, 2, 2)), np.zeros(4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_nwb(f"{folder}/out.nwb", recording, estimates)
        ...     read_estimates(f"{folder}/out.nwb").mean.shape
        (4, 2)
    """
    notes = Annotations() if notes is None else notes
    num, latent = recording.num_bins, np.shape(estimates.mean)[-1:]
    channels = (num, recording.num_units)
    shapes = {"mean": (num, *latent), "cov": (num, *latent, *latent), "elbo": (num,)}
    shapes |= {"rates": channels, "predicted": channels}
    arrays = {f"estimates.{name}": (getattr(estimates, name), x) for name, x in shapes.items()}
    arrays["notes.source_times"] = (notes.source_times, (num,))
    for name, (array, shape) in arrays.items():
        if array is not None and np.shape(array) != shape:
            what = f"{name.partition('.')[2]} of shape {np.shape(array)}"
            raise InputError(what, name, f"pass shape {shape}")
    for name, values in (notes.predictions or {}).items():
        if np.shape(values)[:1] != (num,) or "/" in name:
            what = f"{name} of shape {np.shape(values)}"
            remedy = f"pass {num} rows, and a name without /"
            raise InputError(what, "notes.predictions", remedy)
    source = _find_source(recording, into)
    if source is None:
        ids = np.arange(recording.num_trials)
    elif into is None:
        ids = recording.trials.get("id")
        ids = ids if ids is not None and ids.dtype.kind in "iu" else None
    else:
        with open_nwb(source) as file:
            ids = find_trials(file, recording)
    last = recording.start_times + recording.bin_width * (np.asarray(recording.lengths) - 1)
    back = int(np.sum(recording.start_times[1:] <= last[:-1]))
    if back:
        what = f"time stamps step back at the start of {back} of {recording.num_trials} trials"
        why = "as windows overlap or trials are out of order"
        warn(f"{path}: {what}, {why}; series {FRESH!r} tells them apart")
    with _writing(path, overwrite, new=source is None) as part:
        pynwb = nwb_module("pynwb")
        if source is None:
            file = _new_file(recording, notes.began)
            _add_estimates(file, recording, estimates, notes, ids)
            with pynwb.NWBHDF5IO(part, "w") as io:
                io.write(file)
            return
        shutil.copyfile(source, part)
        with nwb_module("h5py").File(part, "a") as copy:
            _check_copy(copy, source, Path(path), overwrite)
            if f"processing/{MODULE}" in copy:
                del copy[f"processing/{MODULE}"]
        with pynwb.NWBHDF5IO(part, "a") as io:
            file = io.read()
            _add_estimates(file, recording, estimates, notes, ids)
            io.write(file)


def check_source(path: str | os.PathLike, recording: Recording, overwrite: bool = False) -> None:
    """Raise InputError if `write_nwb` could not add estimates to the source of a recording.

    Commands call this function before they filter. A source that is not an NWB file is accepted.

    Args:
        path: File to write.
        recording: The recording to filter.
        overwrite: True to replace estimates in the source.
    """
    source = _find_source(recording, None)
    if source is not None:
        with nwb_module("h5py").File(source) as file:
            _check_copy(file, source, Path(path), overwrite)


def check_unfiltered(path: str | os.PathLike) -> None:
    """Raise InputError if an NWB file has estimates that evkf wrote earlier."""
    with open_nwb(path) as file:
        if f"processing/{MODULE}" in file:
            what = f"results of evkf are in {Path(path).name} already"
            raise InputError(what, f"{path}: processing/{MODULE}", "pass --force to replace them")


def read_estimates(path: str | os.PathLike) -> Estimates:
    """Return the estimates in an NWB file that `write_nwb` wrote.

    Example:
        >>> read_estimates("nowhere.nwb")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.nwb): check the name
    """
    needed = {"mean": "latent_mean", "cov": "latent_cov", "elbo": "elbo"}
    with open_nwb(path) as file:
        module = file.get(f"processing/{MODULE}")
        missing = [name for name in needed.values() if module is None or name not in module]
        if module is None or missing:
            what = f"no {missing[0]} of evkf"
            raise InputError(what, f"{path}: processing/{MODULE}", "pass a file of write_nwb")
        fields = {field: module[name]["data"][...] for field, name in needed.items()}
        for name in (TRIAL, FRESH):
            fields[name] = module[name]["data"][...] if name in module else None
        series = module["latent_mean"]
        even = clock(series)
        if even is None:
            times = series["timestamps"][...]
            width = np.median(np.diff(times))
        else:
            times = even[0] + np.arange(len(series["data"])) / even[1]
            width = 1 / even[1]
        signals = f"{PREDICTION}signals" in module
        if "rates" in module:
            rates = module["rates"]["data"][...]
            signals = module["rates"]["data"].attrs["unit"] != "Hz"
            if BEFORE in str(module["rates"].attrs.get("description", "")):
                fields["predicted"] = rates * (1 if signals else width)
            else:
                fields["rates"] = rates
        name = PREDICTION + ("signals" if signals else "counts")
        if name in module:
            fields["predicted"] = module[name]["data"][...]
    return Estimates(**fields, times=times, signals=signals)


def read_annotations(path: str | os.PathLike) -> Annotations:
    """Return the annotations (predictions, source times, marks) that `write_nwb` wrote.

    Example:
        >>> read_annotations("nowhere.nwb")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.nwb): check the name
    """
    with open_nwb(path) as file:
        module = file.get(f"processing/{MODULE}", {})
        own = {f"{PREDICTION}counts", f"{PREDICTION}signals"}
        predictions = {
            name.removeprefix(PREDICTION): series["data"][...]
            for name, series in module.items()
            if name.startswith(PREDICTION) and name not in own
        }
        source_times = module[SOURCE_TIMES]["data"][...] if SOURCE_TIMES in module else None
        marks: tuple[Mark, ...] = ()
        if MARKS in module:
            table = module[MARKS]
            rows = zip(table["start_time"][...].tolist(), table["label"].asstr()[...], strict=True)
            marks = tuple(Mark(*row) for row in rows)
        began = datetime.fromisoformat(file["timestamps_reference_time"].asstr()[()])
    return Annotations(
        predictions or None, source_times, marks, None if began == NOT_KNOWN else began
    )


def recording_to_nwb(
    path: str | os.PathLike,
    recording: Recording,
    seed: int | None = None,
    overwrite: bool = False,
    began: datetime | None = None,
) -> None:
    """Write a recording, such as a simulated one, as an NWB file with units, trials and behaviour.

    Counts become spike times inside their bins. `read_nwb` returns the same observed counts and
    masks if the bin width is the same and the trials are aligned to "start_time" or the session is
    a single trial. Ids of units that are text are written to a column "unit_name", from which
    `read_nwb` takes them as ids. The unit column "electrode_group" is written as "group_name".

    Args:
        path: File to write, a name that ends in .nwb.
        recording: Recording of whole counts. Trials must be in the order of time, must not overlap
            and must begin at 0 or later.
        seed: Seed for random times of the spikes in a bin. By default they are evenly spaced.
        overwrite: True to replace an existing file.
        began: Date and time of second 0 of the recording with the time zone; None if not known.

    Example:
        >>> import tempfile
        >>> from evkf.data import read_nwb
        >>> recording = Recording(np.array([[1, 0], [2, 3]]), bin_width=0.02)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recording_to_nwb(f"{folder}/made.nwb", recording)
        ...     read_nwb(f"{folder}/made.nwb", bin_width=0.02).counts.tolist()
        [[1, 0], [2, 3]]
    """
    counts, where = recording.observed, recording.source
    if np.any(counts < 0) or np.any(counts != np.floor(counts)):
        what = "counts that are not whole numbers of spikes"
        raise InputError(what, f"{where}: counts", "write spikes only")
    begin = recording.start_times
    end = begin + recording.bin_width * np.asarray(recording.lengths)
    if begin[0] < 0 or np.any(end[:-1] > begin[1:] + 1e-6 * recording.bin_width):
        what = "trials that overlap, are out of order or begin before 0"
        raise InputError(what, f"{where}: start_times", "shift or sort them")
    with _writing(path, overwrite, new=True) as part:
        file = _new_file(recording, began)
        _add_units(file, recording, counts.astype(np.int64), seed)
        if recording.behaviour:
            module = file.create_processing_module("behavior", "behaviour, one sample a bin")
            shared: dict[str, Any] = {}
            for name, values in recording.behaviour.items():
                row = (name, values, "unknown", "behaviour", "")
                module.add(_make_series(recording, shared, *row))
        with nwb_module("pynwb").NWBHDF5IO(part, "w") as io:
            io.write(file)


@contextmanager
def _writing(path: str | os.PathLike, overwrite: bool, new: bool) -> Iterator[Path]:
    """Yield a temporary path. After the block, validate that file and rename it to `path`."""
    given = Path(path)
    if given.suffix != ".nwb":
        raise InputError(f"a file named {given.name!r}", str(path), "end it in .nwb")
    with replacing(given, overwrite) as part:
        yield part
        errors = nwb_module("pynwb").validate(path=str(part))
        # errors that the source already had are accepted
        ours = [error for error in errors if new or f"processing/{MODULE}" in str(error)]
        if ours:
            what = f"{len(ours)} errors of the NWB schema, such as {ours[0]}"
            raise InputError(what, str(path), "report it; nothing was written")


def _new_file(recording: Recording, began: datetime | None) -> Any:
    """Return a new NWB file object that has a description of its origin, and the trials."""
    source = Path(recording.source).name
    unknown = "" if began else "; when it began is not known"
    file = nwb_module("pynwb").NWBFile(
        subject=nwb_module("pynwb.file").Subject(
            subject_id="unknown",
            sex="U",
            age="P0D/",
            description="Nothing is known of the subject.",
        ),
        session_description=f"Written by evkf {version()} from {source}{unknown}.",
        identifier=str(uuid.uuid4()),
        session_start_time=began or NOT_KNOWN,
    )
    for start, length in zip(recording.start_times, recording.lengths, strict=True):
        file.add_trial(start_time=start, stop_time=start + recording.bin_width * length)
    for name, values in recording.trials.items():
        if name not in ("id", "start_time", "stop_time"):
            file.add_trial_column(name, f"{name} of the trial", **_as_column(values))
    return file


def _as_column(values: np.ndarray) -> dict[str, Any]:
    """Return arguments for pynwb's `add_column`; an array of arrays becomes a ragged column."""
    if values.dtype != object:
        return {"data": values.tolist()}
    return {
        "data": np.concatenate([np.asarray(row) for row in values]).tolist(),
        "index": np.cumsum([len(row) for row in values]).tolist(),
    }


def _make_series(
    recording: Recording,
    shared: dict[str, Any],
    name: str,
    values: np.ndarray,
    unit: str,
    description: str,
    comment: str,
) -> Any:
    """Return a pynwb time series with one sample for each bin.

    If there are gaps between trials, time stamps are stored with the first series, and later series
    refer to them. `shared` holds the first series; it is empty before the first call.
    """
    if recording.gap_free:
        even = {"starting_time": recording.start_times[0], "rate": 1 / recording.bin_width}
    else:
        even = {"timestamps": shared.get("first", recording.times)}
    comments = f"Bins of {recording.bin_width} s, stamped with when they begin. {comment}".strip()
    series = nwb_module("pynwb").TimeSeries(
        name=name,
        data=np.asarray(values),
        unit=unit,
        description=description,
        comments=comments,
        **even,
    )
    shared.setdefault("first", series)
    return series


def _find_source(recording: Recording, into: str | os.PathLike | None) -> Path | None:
    """Return the path of the NWB file to copy: `into`, else the source; None if not NWB."""
    given = Path(recording.source if into is None else into)
    if into is None and given.suffix != ".nwb":
        return None
    with open_nwb(given):
        return given.resolve()


def _check_copy(file: Any, source: Path, path: Path, overwrite: bool) -> None:
    """Raise InputError if a copy would break links to other files, or if estimates exist.

    Estimates in the source raise no error if `overwrite` is True.
    """
    h5py = nwb_module("h5py")

    def look(name: str, link: Any) -> tuple[str, str] | None:
        relative = isinstance(link, h5py.ExternalLink) and not os.path.isabs(link.filename)
        return (name, link.filename) if relative else None

    if source.parent != path.resolve().parent:
        # paths in links are relative to the folder of the file, so a copy elsewhere breaks them
        found = file.visititems_links(look)
        if found is not None:
            remedy = f"write to the same folder, {source.parent}"
            raise InputError(f"a link to {found[1]}", f"{source}: {found[0]}", remedy)
    if f"processing/{MODULE}" in file and not overwrite:
        what = f"results of an earlier run in {source.name}"
        remedy = "start from a file without, or pass --force (overwrite=True) to replace them"
        raise InputError(what, str(path), remedy)


def _add_estimates(
    file: Any,
    recording: Recording,
    estimates: Estimates,
    notes: Annotations,
    trial_ids: np.ndarray | None,
) -> None:
    """Add the processing module that holds the estimates and notes to an NWB file object.

    `trial_ids` are the ids of the trials in the trials table of the file; None if not known.
    """
    description = f"Latent states and rates, filtered by evkf {version()}."
    module = file.create_processing_module(MODULE, description)
    columns = f"Columns are units {', '.join(map(str, recording.units['id'].tolist()))}."
    predictions = dict(notes.predictions or {})
    rates, when = estimates.rates, "at the state of the bin"
    if rates is not None and estimates.predicted is not None:
        predictions["signals" if estimates.signals else "counts"] = estimates.predicted
    elif estimates.predicted is not None:
        rates = estimates.predicted / (1 if estimates.signals else recording.bin_width)
        when = BEFORE
    rows: list[tuple[str, Any, str, str, str]] = [
        ("latent_mean", estimates.mean, "a.u.", "Mean of the latent state: time, dimension.", ""),
        (
            "latent_cov",
            estimates.cov,
            "a.u.^2",
            "Covariance of the latent state: time, dimension, dimension.",
            "",
        ),
    ]
    if rates is not None:
        text = f"Expected rates, {when}: time, unit."
        rows.append(("rates", rates, "a.u." if estimates.signals else "Hz", text, columns))
    rows.append(("elbo", estimates.elbo, "nats", "Evidence lower bound of every bin.", ""))
    for name, values in predictions.items():
        text = f"Expected {name}, {BEFORE}: time, unit."
        unit = "counts" if name == "counts" else "a.u."
        rows.append((PREDICTION + name, values, unit, text, columns))
    rows.append((FRESH, recording.fresh, "n/a", "True where a trial begins.", ""))
    if trial_ids is not None:
        text = "Id of the trial that every bin belongs to, in the trials table."
        rows.append((TRIAL, trial_ids[recording.trial_of_bin], "n/a", text, ""))
    if notes.source_times is not None:
        text = "Stamp of each bin by the clock of its source; from a rig, when the bin ended."
        rows.append((SOURCE_TIMES, notes.source_times, "seconds", text, ""))
    shared: dict[str, Any] = {}
    for row in rows:
        module.add(_make_series(recording, shared, *row))
    if notes.marks:
        marks = nwb_module("pynwb.epoch").TimeIntervals(
            name=MARKS, description="Moments that the operator marked."
        )
        marks.add_column(name="label", description="what was written")
        for time, text in notes.marks:
            marks.add_interval(start_time=time, stop_time=time, label=text)
        module.add(marks)


def _add_units(file: Any, recording: Recording, counts: np.ndarray, seed: int | None) -> None:
    """Add the units table to an NWB file object: spike times, observed intervals and columns."""
    rng = None if seed is None else np.random.default_rng(seed)
    begins, fresh, width = recording.times, recording.fresh, recording.bin_width
    ids = recording.units["id"]
    numbered = ids.dtype.kind in "iu"
    for unit in range(recording.num_units):
        count, mask = counts[:, unit], recording.masks[:, unit]
        # intervals of observed bins; an interval ends with its trial
        first = mask & (fresh | np.concatenate([[True], ~mask[:-1]]))
        last = mask & np.concatenate([fresh[1:] | ~mask[1:], [True]])
        file.add_unit(
            id=int(ids[unit]) if numbered else unit,
            spike_times=_place_spikes(begins, count, width, rng),
            obs_intervals=np.stack([begins[first], begins[last] + width], axis=1),
        )
    renamed = {"electrode_group": "group_name"}
    columns = {} if numbered else {"unit_name": ids}
    columns |= {k: v for k, v in recording.units.items() if k not in ("id", "rate", "rate_in_file")}
    for name, values in columns.items():
        name = renamed.get(name, name)
        file.add_unit_column(name, f"{name} of the unit", **_as_column(values))


def _place_spikes(
    begins: np.ndarray, count: np.ndarray, bin_width: float, rng: np.random.Generator | None
) -> np.ndarray:
    """Return sorted spike times in seconds, strictly inside their bins.

    Spikes of a bin are evenly spaced, or uniformly random if `rng` is given.
    """
    if rng is None:
        rank = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        part = (rank + 0.5) / np.repeat(count, count)
    else:
        part = rng.uniform(1e-4, 1 - 1e-4, count.sum())
    return np.sort(np.repeat(begins, count) + bin_width * part)
