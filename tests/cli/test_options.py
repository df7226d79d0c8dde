"""How commands read files."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from evkf.cli.console import (
    ReadingOptions,
    cut_of_trials,
    note_trials,
    read_noting,
    read_settings,
)
from evkf.data import Reading, Recording
from evkf.errors import InputError
from evkf.recordings.units import UnitModel
from tests.data.nwb_files import session

SILENT, LOUD = Console(quiet=True), Console()


def read(options: ReadingOptions, path: Path, **settings) -> Recording:
    return read_noting(SILENT, path, read_settings(options, **settings))


def test_units_and_trials_of_an_nwb_file(tmp_path):
    path = session(tmp_path / "a.nwb")
    chosen = ReadingOptions(
        0.1, "start_time", units=["quality=good"], trials=["target=a", "target=b"]
    )
    assert read(chosen, path).units["id"].tolist() == [10, 11]
    units, trials = ["id=12", "id=10"], ["target=b", "id=3"]
    recording = read(ReadingOptions(0.1, "start_time", units=units, trials=trials), path)
    assert recording.units["id"].tolist() == [10, 12]
    assert recording.trials["id"].tolist() == [3]
    with pytest.raises(InputError, match="choose among bad, good"):
        read(ReadingOptions(0.1, units=["quality=best"]), path)


def test_clusters_of_a_kilosort_folder(tmp_path):
    (tmp_path / "params.py").write_text("sample_rate = 1000.")
    (tmp_path / "cluster_group.tsv").write_text("cluster_id\tgroup\n3\tgood\n5\tmua\n")
    np.save(tmp_path / "spike_times.npy", np.array([1, 30, 35], np.uint64))
    np.save(tmp_path / "spike_clusters.npy", np.array([3, 3, 5], np.int32))
    for group, ids in ((None, [3]), (["mua"], [5]), (["mua", "good"], [3, 5])):
        assert read(ReadingOptions(group=group), tmp_path).units["id"].tolist() == ids
    with pytest.raises(InputError, match="units, for a path that is not an NWB file"):
        read(ReadingOptions(units=["id=3"]), tmp_path)


@pytest.mark.parametrize(
    ("here", "remedy"),
    [
        (Reading(), "--align start_time --window -0.1 0.5"),
        (Reading(align="start_time"), "--align start_time --window -0.1 0.5"),
        (Reading(align="start_time", window=(-0.1, 0.5)), None),
    ],
)
def test_trials_made_in_another_way_are_noted(capsys, here, remedy):
    fitted = cut_of_trials(Reading(align="start_time", window=(-0.1, 0.5)), Path("a.nwb"))
    model = UnitModel(*[None] * 2, ("0",), 0.02, fitted=fitted)  # pyright: ignore[reportArgumentType]
    note_trials(LOUD, here, model, Path("b.nwb"))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == (remedy is not None)
    if remedy is not None:
        for part in ("note: a trial of b.nwb", "-0.1 to 0.5 s from start_time", remedy):
            assert part in said.err
    for say, known, file in (
        (SILENT, fitted, "b.nwb"),
        (LOUD, {}, "b.nwb"),
        (LOUD, None, "b.nwb"),
        (LOUD, fitted, "b.npz"),
    ):
        note_trials(say, here, model._replace(fitted=known), Path(file))
    assert capsys.readouterr().err == ""


def test_a_model_of_whole_sessions_or_trials_says_so(capsys):
    for before, says in (
        (Reading(), "the whole session; for the same, leave out --align"),
        (Reading(align="go"), "from go to stop_time; for the same, pass --align go without"),
    ):
        fitted = cut_of_trials(before, Path("a.nwb"))
        model = UnitModel(*[None] * 2, ("0",), 0.02, fitted=fitted)  # pyright: ignore[reportArgumentType]
        note_trials(LOUD, Reading(align="go", window=(0.0, 1.0)), model, Path("b.nwb"))
        assert says in capsys.readouterr().err


def test_signals_are_read_where_they_are_expected(tmp_path):
    np.savez(tmp_path / "a.npz", counts=np.full((4, 2), -0.5), bin_width=0.02)
    with pytest.raises(InputError, match=r"a count of -0\.5"):
        read(ReadingOptions(), tmp_path / "a.npz")
    assert read(ReadingOptions(), tmp_path / "a.npz", signals=True).counts[0, 0] == -0.5


def test_the_width_of_the_model_is_taken_where_none_is_given():
    assert read_settings(ReadingOptions(), 0.05) == Reading(0.05)
    assert read_settings(ReadingOptions(0.1, "go"), 0.05) == Reading(0.1, "go")


@pytest.mark.parametrize("given", ["quality", "=good", "quality="])
def test_what_is_no_choice(given):
    with pytest.raises(InputError, match="COLUMN=VALUE"):
        read_settings(ReadingOptions(units=[given]))
