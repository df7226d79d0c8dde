"""Estimates and recordings in NWB files, which are complete under their name or not there.

`write_nwb` writes estimates, `read_estimates` and `read_annotations` read them, and
`recording_to_nwb` writes a recording itself.
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
"""Words of the description of rates that are predictions."""
NOT_KNOWN = datetime(2000, 1, 1, tzinfo=UTC)
"""Begin of a session in new files, where it is not known."""


class Mark(NamedTuple):
    """A moment marked by the operator.

    Attributes:
        time: Seconds.
        text: Label.
    """

    time: float
    text: str


class Annotations(NamedTuple):
    """Additions to estimates in an NWB file.

    Attributes:
        predictions: Predictions of other quantities, such as decoded behaviour, one row a bin, by
            name.
        source_times: Stamps of the bins on the clock of their source in seconds; NaN where not
            known.
        marks: Marked moments, in the order of time.
        began: Time of second 0 with its zone, for a new file.
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
    """Write estimates to an NWB file, as a processing module "evkf".

    They are added to a copy of the file that the recording was read from; a recording from
    elsewhere gets a new file, with its trials. To add them to the source itself, pass its name as
    `path` and `overwrite=True`. A copy beside `path` is written, validated, and then moved into
    place: a failure leaves everything as it was. Where windows of trials overlap, or trials are out
    of order, time stamps step back from one to the next, with an `NwbWarning`.

    Args:
        path: File to write, a name that ends in .nwb.
        recording: The filtered recording.
        estimates: Estimates of its bins. Without `rates` but with `predicted`, as from a live
            session, the series "rates" has the predictions per second.
        notes: Additions.
        into: The NWB file to add to a copy of, in place of the recording's source. Trials get the
            ids of those in its table that begin and end with them; none if some are not there.
        overwrite: True to replace an existing file, and estimates of an earlier run within it.

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
    """Raise the error of `write_nwb` for a source that it cannot copy, before filtering."""
    source = _find_source(recording, None)
    if source is not None:
        with nwb_module("h5py").File(source) as file:
            _check_copy(file, source, Path(path), overwrite)


def check_unfiltered(path: str | os.PathLike) -> None:
    """Raise an error if a file has estimates of an earlier run."""
    with open_nwb(path) as file:
        if f"processing/{MODULE}" in file:
            what = f"results of evkf are in {Path(path).name} already"
            raise InputError(what, f"{path}: processing/{MODULE}", "pass --force to replace them")


def read_estimates(path: str | os.PathLike) -> Estimates:
    """Read the estimates that `write_nwb` wrote.

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
    """Read the annotations that `write_nwb` wrote.

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

    Counts become spike times within their bins: read with the same bin width, aligned to
    "start_time" or as one session, observed counts and masks are the same again. Ids of units that
    are text go to a column "unit_name", from which they are read as ids again; electrode groups go
    to "group_name".

    Args:
        path: File to write, a name that ends in .nwb.
        recording: Recording of whole counts, with trials in order that begin at 0 or later.
        seed: Seed to spread the spikes of a bin at random; evenly by default.
        overwrite: True to replace an existing file.
        began: Time of second 0 of the recording with its zone, if known.

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
    """Yield a temporary file, validated and moved to `path` after the block."""
    given = Path(path)
    if given.suffix != ".nwb":
        raise InputError(f"a file named {given.name!r}", str(path), "end it in .nwb")
    with replacing(given, overwrite) as part:
        yield part
        errors = nwb_module("pynwb").validate(path=str(part))
        # an older source may have errors of its own
        ours = [error for error in errors if new or f"processing/{MODULE}" in str(error)]
        if ours:
            what = f"{len(ours)} errors of the NWB schema, such as {ours[0]}"
            raise InputError(what, str(path), "report it; nothing was written")


def _new_file(recording: Recording, began: datetime | None) -> Any:
    """Return an NWB file with nothing but its origin and the trials."""
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
    """Return arguments of `add_column`; arrays of arrays become ragged columns."""
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
    """Return a series of one sample a bin; uneven times are stored once, with the first series."""
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
    """Return the NWB file to add to a copy of, if there is one."""
    given = Path(recording.source if into is None else into)
    if into is None and given.suffix != ".nwb":
        return None
    with open_nwb(given):
        return given.resolve()


def _check_copy(file: Any, source: Path, path: Path, overwrite: bool) -> None:
    """Raise an error for links that a copy would break, and for earlier estimates."""
    h5py = nwb_module("h5py")

    def look(name: str, link: Any) -> tuple[str, str] | None:
        relative = isinstance(link, h5py.ExternalLink) and not os.path.isabs(link.filename)
        return (name, link.filename) if relative else None

    if source.parent != path.resolve().parent:
        # links to other files are relative to the folder of the file that has them
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
    """Add the processing module; `trial_ids` are those of the file's trials table, if known."""
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
    """Add the units table: spike times within the bins, observed intervals and columns."""
    rng = None if seed is None else np.random.default_rng(seed)
    begins, fresh, width = recording.times, recording.fresh, recording.bin_width
    ids = recording.units["id"]
    numbered = ids.dtype.kind in "iu"
    for unit in range(recording.num_units):
        count, mask = counts[:, unit], recording.masks[:, unit]
        # runs of observed bins, none across the beginning of a trial
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
    """Return times of spikes within their bins, off the edges."""
    if rng is None:
        rank = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        part = (rank + 0.5) / np.repeat(count, count)
    else:
        part = rng.uniform(1e-4, 1 - 1e-4, count.sum())
    return np.sort(np.repeat(begins, count) + bin_width * part)
