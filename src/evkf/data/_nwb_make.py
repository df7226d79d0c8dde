"""NWB files made: safely, with series of one sample a bin and tables of columns."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from evkf.data._nwb_file import MODULE, nwb_module
from evkf.data.files import replacing
from evkf.data.installed import version
from evkf.data.recording import Recording
from evkf.errors import InputError


@contextmanager
def finished(path: str | os.PathLike, overwrite: bool, new: bool) -> Iterator[Path]:
    """A file beside `path` to write to, which is validated and moved there if nothing is raised."""
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


def new_file(recording: Recording, began: datetime | None = None) -> Any:
    """Nothing but where it came from, and when it began if that is known."""
    source = Path(recording.source).name
    unknown = "" if began else "; when it began is not known"
    return nwb_module("pynwb").NWBFile(
        subject=nwb_module("pynwb.file").Subject(
            subject_id="unknown",
            sex="U",
            age="P0D/",
            description="Nothing is known of the subject.",
        ),
        session_description=f"Written by evkf {version()} from {source}{unknown}.",
        identifier=str(uuid.uuid4()),
        session_start_time=began or datetime(2000, 1, 1, tzinfo=UTC),
    )


def make_series(
    recording: Recording,
    shared: dict[str, Any],
    name: str,
    values: np.ndarray,
    unit: str,
    description: str,
    more: str = "",
) -> Any:
    """One sample a bin; the times of `shared` series are stored once."""
    series = nwb_module("pynwb").TimeSeries
    if recording.gap_free:
        even = {"starting_time": recording.start_times[0], "rate": 1 / recording.bin_width}
    else:
        even = {"timestamps": shared.get("first", recording.times)}
    comments = f"Bins of {recording.bin_width} s, stamped with when they begin. {more}".strip()
    made = series(
        name=name,
        data=np.asarray(values),
        unit=unit,
        description=description,
        comments=comments,
        **even,
    )
    shared.setdefault("first", made)
    return made


def add_trials(file: Any, recording: Recording) -> None:
    """The table of trials with all its columns."""
    for start, length in zip(recording.start_times, recording.lengths, strict=True):
        file.add_trial(start_time=start, stop_time=start + recording.bin_width * length)
    for name, values in recording.trials.items():
        if name not in ("id", "start_time", "stop_time"):
            file.add_trial_column(name, f"{name} of the trial", **as_column(values))


def as_column(values: np.ndarray) -> dict[str, Any]:
    """Arguments of `add_column`; arrays of arrays become ragged columns."""
    if values.dtype != object:
        return {"data": values.tolist()}
    return {
        "data": np.concatenate([np.asarray(row) for row in values]).tolist(),
        "index": np.cumsum([len(row) for row in values]).tolist(),
    }
