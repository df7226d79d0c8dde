"""Small NWB files for tests."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from pynwb import NWBHDF5IO, NWBFile, TimeSeries
from pynwb.behavior import Position, SpatialSeries
from pynwb.file import Subject


def empty(**changes) -> NWBFile:
    given = {
        "session_description": "made up",
        "identifier": "test",
        "session_start_time": datetime(2020, 1, 1, tzinfo=UTC),
        "subject": Subject(subject_id="m1", sex="F", species="Mus musculus", age="P90D"),
    }
    return NWBFile(**(given | changes))


def write(path: Path, file: NWBFile) -> Path:
    with NWBHDF5IO(path, "w") as io:
        io.write(file)
    return path


def add_units(file: NWBFile, trains, intervals=None, **columns) -> NWBFile:
    for name in columns:
        file.add_unit_column(name, f"the {name}")
    for n, times in enumerate(trains):
        row = {name: values[n] for name, values in columns.items()}
        if intervals is not None:
            row["obs_intervals"] = intervals[n]
        file.add_unit(spike_times=np.asarray(times, float), id=10 + n, **row)
    return file


def session(path: Path, seed: int = 0) -> Path:
    """Three units for 10 s, four trials of which one has no go cue, behaviour and a bad second."""
    rng = np.random.default_rng(seed)
    trains = [np.sort(rng.uniform(0, 10, n)) for n in (200, 50, 5)]
    seen = [[[0.0, 10.0]], [[0.0, 10.0]], [[0.0, 4.0], [6.0, 10.0]]]
    file = add_units(empty(), trains, seen, quality=["good", "good", "bad"])
    file.add_trial_column("go_time", "when the cue came")
    file.add_trial_column("target", "where to")
    file.add_trial_column("barriers", "which are up", index=True)
    for k, go in enumerate((1.0, np.nan, 5.0, 7.0)):
        file.add_trial(
            start_time=2.0 * k,
            stop_time=2.0 * k + 2,
            go_time=go,
            target="ab"[k % 2],
            barriers=[1] * k,
        )
    file.add_invalid_time_interval(start_time=7.05, stop_time=7.1)
    module = file.create_processing_module("behavior", "of the hand")
    times = np.arange(0, 10, 0.01)
    hand = SpatialSeries(
        name="hand_pos",
        data=np.stack([times, 2 * times], 1),
        reference_frame="table",
        conversion=0.5,
        rate=100.0,
        starting_time=0.0,
    )
    module.add(Position(spatial_series=hand))
    module.add(TimeSeries(name="hand_vel", data=np.sin(times), unit="m/s", timestamps=times))
    file.add_acquisition(
        TimeSeries(name="holes", data=np.where(times > 9, np.nan, 1.0), unit="V", timestamps=times)
    )
    file.add_acquisition(
        TimeSeries(name="short", data=times[:500], unit="V", timestamps=times[:500])
    )
    return write(path, file)
