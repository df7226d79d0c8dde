"""What is in a file, before anything is done with it."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from evkf.data._nwb_file import open_nwb
from evkf.data._nwb_units import Units
from evkf.data.nwb import list_nwb
from evkf.data.open import open_recording
from evkf.errors import InputError


def describe(
    path: str | os.PathLike,
    bin_width: float | None = None,
    groups: Collection[str] | None = None,
    leave_out: Collection[str] = (),
) -> dict[str, Any]:
    """Units, those without spikes, bins, trials, behaviour and rates, as plain values.

    Of an NWB file no spike times are read; its rates are spikes over the time that a unit was
    observed for, as its `obs_intervals` say, or else over the length of the session. Where that is
    less than the session, its median over units is given as "observed_for". Spikes outside of
    these intervals count as well.

    Args:
        path: As for `open_recording`.
        bin_width: As for `open_recording`; not for NWB files, of which nothing is binned.
        groups: As for `open_recording`.
        leave_out: As for `open_recording`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", counts=np.ones((6, 2), int), bin_width=0.5)
        ...     found = describe(f"{folder}/a.npz")
        >>> found["units"], found["duration"], found["rates"]["median"]
        (2, 3.0, 2.0)
    """
    if Path(path).suffix == ".nwb":
        given = {"bin width": bin_width, "groups": groups, "names to leave out": leave_out or None}
        for name, value in given.items():
            if value is not None:
                remedy = "leave it out: an NWB file is described as it is"
                raise InputError(f"{name} for an NWB file", str(path), remedy)
        return _describe_nwb(path)
    recording = open_recording(path, bin_width, groups=groups, leave_out=leave_out)
    return {
        "path": str(path),
        "units": recording.num_units,
        "silent_units": _silent(recording.units["id"], recording.observed.sum(axis=0)),
        "unit_columns": list(recording.units),
        "bins": recording.num_bins,
        "bin_width": recording.bin_width,
        "duration": recording.num_bins * recording.bin_width,
        "trials": recording.num_trials,
        "trial_columns": list(recording.trials),
        "behaviour": {name: list(x.shape) for name, x in recording.behaviour.items()},
        "rates": _spread(recording.rates()),
    }


def _describe_nwb(path: str | os.PathLike) -> dict[str, Any]:
    found = list_nwb(path)
    duration = found["stop"] - found["start"]
    with open_nwb(path) as file:
        table = Units(file, str(path))
        spikes, seconds = np.diff(table.ends, prepend=0), table.seconds()
        silent = _silent(table.columns(file)["id"], spikes)
    observed = float(np.median(seconds))
    gaps = {"observed_for": observed} if observed < duration * (1 - 1e-9) else {}
    rates = np.divide(spikes, seconds, out=np.full(len(spikes), np.nan), where=seconds > 0)
    ours = {"results_of_evkf": found["results"]} if found["results"] else {}
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
        **ours,
    }


def _silent(ids: np.ndarray, spikes: np.ndarray) -> list[str]:
    return [str(unit) for unit in ids[spikes == 0]]


def _spread(rates: np.ndarray) -> dict[str, float]:
    known = rates[np.isfinite(rates)]
    if not len(known):
        return {}
    names = ("least", "median", "most")
    return dict(zip(names, map(float, np.quantile(known, (0, 0.5, 1))), strict=True))
