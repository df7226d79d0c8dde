"""Writing NWB files: round trips, what others say of them, and that nothing is ever damaged."""

import dataclasses
import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evkf.analysis.estimates import Estimates
from evkf.data import (
    Annotations,
    NwbWarning,
    Recording,
    files,
    list_nwb,
    read_annotations,
    read_estimates,
    read_nwb,
    recording_to_nwb,
    stream_nwb,
)
from evkf.data import write_nwb as write_estimates_and_notes
from evkf.errors import InputError
from evkf.recordings.units import check_units, fit_recording
from tests.data import nwb_files


@pytest.fixture
def source(tmp_path):
    (tmp_path / "data").mkdir()
    return nwb_files.session(tmp_path / "data" / "session.nwb")


def simulated(seed=0, **changes) -> Recording:
    rng = np.random.default_rng(seed)
    given = {
        "counts": rng.poisson(1.0, (60, 4)),
        "bin_width": 0.02,
        "lengths": (10, 30, 20),
        "start_times": np.array([0.1, 0.5, 2.0]),
        "masks": rng.uniform(size=(60, 4)) > 0.2,
        "behaviour": {"hand": rng.normal(size=(60, 2)), "pupil": rng.normal(size=60)},
        "trials": {"target": np.array(["up", "down", "up"]), "angle": np.array([1.0, 2.0, 3.0])},
        "units": {"id": np.array([3, 1, 7, 5]), "area": np.array(["M1", "M1", "PMd", "PMd"])},
        "source": "simulation",
    }
    return Recording(**(given | changes))


def made_up(recording: Recording, seed=0) -> Estimates:
    rng = np.random.default_rng(seed)
    num = recording.num_bins
    return Estimates(
        rng.normal(size=(num, 2)),
        rng.normal(size=(num, 2, 2)),
        rng.normal(size=num).astype(np.float32),
        rng.uniform(1, 50, (num, recording.num_units)),
        rng.uniform(0, 2, (num, recording.num_units)),
    )


def decoded(recording: Recording, seed=0) -> Annotations:
    rng = np.random.default_rng(seed)
    return Annotations({"hand_vel": rng.normal(size=(recording.num_bins, 2))})


def write_nwb(path: Path, recording: Recording, estimates: Estimates, **given) -> None:
    """Write estimates with decoded behaviour."""
    write_estimates_and_notes(path, recording, estimates, notes=decoded(recording), **given)


def same(path: Path, recording: Recording, want: Estimates) -> None:
    got, notes = read_estimates(path), read_annotations(path)
    for name in ("mean", "cov", "rates", "predicted", "elbo"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
        assert getattr(got, name).dtype == getattr(want, name).dtype
    assert notes.predictions is not None
    assert list(notes.predictions) == ["hand_vel"]
    np.testing.assert_array_equal(
        notes.predictions["hand_vel"], decoded(recording).predictions["hand_vel"]
    )


def check_with_others(path: Path) -> None:
    """No error of the schema, and no finding of the inspector that is an error or critical."""
    import pynwb
    from nwbinspector import Importance, inspect_nwbfile

    assert pynwb.validate(path=str(path)) == []
    found = [
        message
        for message in inspect_nwbfile(nwbfile_path=str(path))
        if message.importance.value >= Importance.CRITICAL.value
    ]
    assert found == []


def test_results_are_added_to_a_copy_and_read_back(source, tmp_path):
    before = source.read_bytes()
    recording = read_nwb(source, 0.1)
    results = made_up(recording)
    path = tmp_path / "out.nwb"
    write_nwb(path, recording, results)
    got = read_estimates(path)
    same(path, recording, results)
    np.testing.assert_allclose(got.times, recording.times)
    assert got.trial is None  # of a session read as one
    assert np.flatnonzero(got.fresh).tolist() == [0]
    assert source.read_bytes() == before
    # all that was in the source is in the copy
    again = read_nwb(path, 0.1)
    np.testing.assert_array_equal(again.counts, recording.counts)
    assert list_nwb(path)["trials"] == 4
    assert list_nwb(path)["behaviour"].keys() == list_nwb(source)["behaviour"].keys()
    assert {"latent_mean", "fresh"} < set(list_nwb(path)["results"])
    assert list_nwb(source)["results"] == []
    with h5py.File(path) as file:
        rates = file["processing/evkf/rates"]
        assert rates["data"].attrs["unit"] == "Hz"
        assert "10, 11, 12" in rates.attrs["comments"]
        assert rates["starting_time"].attrs["rate"] == pytest.approx(10)
        assert "timestamps" not in rates
    assert sorted(os.listdir(tmp_path)) == ["data", "out.nwb"]


def test_trials_with_gaps_have_time_stamps(source, tmp_path):
    recording = read_nwb(source, 0.1, "start_time", (0.5, 1.5))
    write_nwb(tmp_path / "out.nwb", recording, made_up(recording))
    np.testing.assert_array_equal(read_estimates(tmp_path / "out.nwb").times, recording.times)
    with h5py.File(tmp_path / "out.nwb") as file:
        assert "starting_time" not in file["processing/evkf/elbo"]
    check_with_others(tmp_path / "out.nwb")


@pytest.mark.parametrize(
    ("window", "trials", "back"),
    [((-1.5, 1.5), [0, 2, 3], 1), ((-0.5, 0.5), [3, 0, 2], 1), ((-1.5, 1.5), [3, 2, 0], 2)],
)
def test_results_are_cut_into_trials_again_where_time_stamps_step_back(
    source, tmp_path, window, trials, back
):
    path = tmp_path / "out.nwb"
    recording = read_nwb(source, 0.1, "go_time", window, trials=trials)
    results = made_up(recording)
    why = "as windows overlap or trials are out of order; series 'fresh'"
    with pytest.warns(NwbWarning, match=f"the start of {back} of 3 trials, {why}") as caught:
        write_nwb(path, recording, results)
    assert caught[0].filename == __file__
    got = read_estimates(path)
    assert got.trial[got.fresh].tolist() == trials
    cut = np.split(got.mean, np.flatnonzero(got.fresh)[1:])
    for own, want in zip(cut, recording.split(results.mean), strict=True):
        np.testing.assert_array_equal(own, want)
    check_with_others(path)


def test_ids_of_trials_are_those_of_the_table_of_another_file(source, tmp_path):
    other, out = tmp_path / "other.nwb", tmp_path / "out.nwb"
    recording = read_nwb(source, 0.1, "start_time", trials=[1, 2])
    recording_to_nwb(other, recording)  # with ids 0 and 1
    write_nwb(out, recording, made_up(recording), into=other)
    assert read_estimates(out).trial.tolist() == [0] * 20 + [1] * 20
    # without ids of its own, and by when trials begin where windows do not
    bare = dataclasses.replace(recording, trials={})
    write_nwb(out, bare, made_up(recording), into=source, overwrite=True)
    assert read_estimates(out).trial.tolist() == [1] * 20 + [2] * 20
    moved = read_nwb(source, 0.1, "go_time", (0.0, 0.5), trials=[2, 3])
    write_nwb(out, moved, made_up(moved), into=source, overwrite=True)
    assert read_estimates(out).trial.tolist() == [2] * 5 + [3] * 5


def test_no_ids_of_trials_are_written_where_another_file_has_none_such(source, tmp_path):
    other, out = tmp_path / "other.nwb", tmp_path / "out.nwb"
    recording = read_nwb(source, 0.1, "start_time", trials=[1, 2])
    recording_to_nwb(other, recording.take([0]))
    whole = read_nwb(source, 0.1)  # begins with the first trial, and goes on
    named = dataclasses.replace(recording, trials={"start_time": np.array(["2", "4"])})
    late = dataclasses.replace(named, start_times=recording.start_times + 0.3)
    for made, into in ((recording, other), (whole, source), (late, source)):
        write_nwb(out, made, made_up(made), into=into, overwrite=True)
        got = read_estimates(out)
        assert got.trial is None
        assert got.fresh.sum() == made.num_trials
    bare = nwb_files.write(tmp_path / "bare.nwb", nwb_files.empty())
    write_nwb(out, recording, made_up(recording), into=bare, overwrite=True)
    assert read_estimates(out).trial is None


def test_the_source_itself_is_changed_only_on_request(source):
    recording = read_nwb(source, 0.1)
    before = source.read_bytes()
    with pytest.raises(InputError, match="there is a file already"):
        write_nwb(source, recording, made_up(recording))
    assert source.read_bytes() == before
    source.chmod(0o640)
    write_nwb(source, recording, made_up(recording), overwrite=True)
    assert source.stat().st_mode & 0o777 == 0o640
    same(source, recording, made_up(recording))
    with pytest.raises(InputError, match=r"results of an earlier run in session.nwb"):
        write_nwb(source.with_name("more.nwb"), recording, made_up(recording))
    write_nwb(source, recording, made_up(recording, 1), overwrite=True)
    same(source, recording, made_up(recording, 1))
    np.testing.assert_array_equal(read_nwb(source, 0.1).counts, recording.counts)
    assert os.listdir(source.parent) == ["session.nwb"]


def test_a_link_to_the_source_stays_one(source, tmp_path):
    recording = read_nwb(source, 0.1)
    link = tmp_path / "link.nwb"
    link.symlink_to(source)
    write_nwb(link, recording, made_up(recording), overwrite=True)
    assert link.is_symlink()
    same(source, recording, made_up(recording))


@pytest.mark.parametrize("step", ["write", "validate", "errors", "replace"])
@pytest.mark.parametrize("there", [False, True])
def test_a_failure_leaves_everything_as_it_was(source, tmp_path, monkeypatch, step, there):
    import pynwb

    recording = read_nwb(source, 0.1)
    before, out = source.read_bytes(), tmp_path / "out.nwb"
    if there:
        out.write_bytes(b"precious")

    def fail(*_args, **_kwargs):
        raise OSError("no space left on device")

    if step == "write":
        monkeypatch.setattr(pynwb.NWBHDF5IO, "write", fail)
    elif step == "validate":
        monkeypatch.setattr(pynwb, "validate", fail)
    elif step == "errors":
        monkeypatch.setattr(pynwb, "validate", lambda path: ["processing/evkf: wrong"])
    else:
        monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises((OSError, InputError), match=r"no space|errors of the NWB schema"):
        write_nwb(out, recording, made_up(recording), overwrite=True)
    assert source.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == (["data", "out.nwb"] if there else ["data"])
    assert not there or out.read_bytes() == b"precious"


def test_errors_that_a_source_had_before_do_not_keep_results_out(source, tmp_path, monkeypatch):
    import pynwb

    recording = read_nwb(source, 0.1)
    monkeypatch.setattr(pynwb, "validate", lambda path: ["units: of an older schema"])
    write_nwb(tmp_path / "out.nwb", recording, made_up(recording))
    same(tmp_path / "out.nwb", recording, made_up(recording))


def test_a_recording_from_elsewhere_gets_a_new_file_that_others_accept(tmp_path):
    recording = simulated()
    write_nwb(tmp_path / "new.nwb", recording, made_up(recording))
    same(tmp_path / "new.nwb", recording, made_up(recording))
    assert read_estimates(tmp_path / "new.nwb").trial.tolist() == [0] * 10 + [1] * 30 + [2] * 20
    check_with_others(tmp_path / "new.nwb")
    with h5py.File(tmp_path / "new.nwb") as file:
        assert file["intervals/trials/target"].asstr()[...].tolist() == ["up", "down", "up"]


def test_what_does_not_fit_is_refused_before_anything_is_written(source, tmp_path):
    recording = read_nwb(source, 0.1)
    good, out = made_up(recording), tmp_path / "out.nwb"
    for name in ("mean", "cov", "rates", "predicted", "elbo"):
        with pytest.raises(InputError, match=f"estimates.{name}"):
            write_nwb(out, recording, good._replace(**{name: getattr(good, name)[:-1]}))
    for notes, says in (
        (Annotations({"a": np.zeros(3)}), "pass 100 rows"),
        (Annotations(None, np.zeros(3)), r"notes.source_times\): pass shape \(100,\)"),
    ):
        with pytest.raises(InputError, match=says):
            write_estimates_and_notes(out, recording, good, notes=notes)
    with pytest.raises(InputError, match=r"end it in .nwb"):
        write_nwb(tmp_path / "out.h5", recording, good)
    with pytest.raises(InputError, match="make it first"):
        write_nwb(tmp_path / "no" / "out.nwb", recording, good)
    with pytest.raises(InputError, match="no such file"):
        write_nwb(out, recording, good, into=tmp_path / "gone.nwb")
    with pytest.raises(InputError, match="no latent_mean of evkf"):
        read_estimates(source)
    assert os.listdir(tmp_path) == ["data"]


def test_links_to_other_files_are_not_broken_by_a_copy_elsewhere(source, tmp_path):
    with h5py.File(source, "a") as file:
        file["acquisition/far"] = h5py.ExternalLink("video.h5", "/data")
    with pytest.raises(InputError, match=r"a link to video.h5 .*write to the same folder"):
        write_nwb(tmp_path / "out.nwb", read_nwb(source, 0.1), made_up(read_nwb(source, 0.1)))


@pytest.mark.parametrize("seed", [None, 3])
def test_a_recording_is_what_it_was_after_a_round_trip(tmp_path, seed):
    path, recording = tmp_path / "made.nwb", simulated()
    recording_to_nwb(path, recording, seed)
    got = read_nwb(path, 0.02, "start_time", behaviour=["hand", "pupil"])
    assert got.lengths == recording.lengths
    np.testing.assert_array_equal(got.masks, recording.masks)
    np.testing.assert_array_equal(got.counts, np.where(recording.masks, recording.counts, 0))
    np.testing.assert_array_equal(got.start_times, recording.start_times)
    for name, values in recording.behaviour.items():
        np.testing.assert_allclose(got.behaviour[name], values, rtol=1e-14)
    for name in ("id", "area"):
        assert got.units[name].tolist() == recording.units[name].tolist()
    for name, values in recording.trials.items():
        assert got.trials[name].tolist() == values.tolist()
    check_with_others(path)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.001, 0.01, 0.02, 1 / 3]))
def test_spikes_are_found_in_the_bins_they_were_placed_in(seed, width):
    from evkf.data.nwb_write import _place_spikes
    from evkf.numerics.binning import bin_spikes

    rng = np.random.default_rng(seed)
    start = rng.uniform(0, 1e5)
    counts = rng.poisson(rng.uniform(0, 5), 50)
    begins = start + width * np.arange(50)
    for source in (None, rng):
        times = _place_spikes(begins, counts, width, source)
        np.testing.assert_array_equal(bin_spikes([times], start, width, 50)[:, 0], counts)


def test_an_unbroken_recording_is_read_back_as_one_session(tmp_path):
    recording = simulated(
        lengths=(60,), start_times=np.array([2.5]), trials={}, units={"id": np.array(list("abcd"))}
    )
    recording_to_nwb(tmp_path / "a.nwb", recording)
    got = read_nwb(tmp_path / "a.nwb", 0.02)
    # the session begins and ends with what any unit was observed in
    seen = np.flatnonzero(recording.masks.any(axis=1))
    part = slice(seen[0], seen[-1] + 1)
    np.testing.assert_array_equal(got.masks, recording.masks[part])
    kept = np.where(recording.masks, recording.counts, 0)[part]
    np.testing.assert_array_equal(got.counts, kept)
    assert got.units["id"].tolist() == list("abcd")


def test_names_of_units_are_read_as_their_ids(tmp_path):
    names = ["E1", "E12", "E3", "M"]
    recording = simulated(units={"id": np.array(names)})
    recording_to_nwb(tmp_path / "a.nwb", recording)
    for part in (
        read_nwb(tmp_path / "a.nwb", 0.02, "start_time"),
        next(stream_nwb(tmp_path / "a.nwb", 0.02)),
    ):
        assert part.units["id"].tolist() == names
        assert part.units["unit_name"].tolist() == names
    picked = read_nwb(tmp_path / "a.nwb", 0.02, "start_time", units={"id": ["E3", "E1"]})
    np.testing.assert_array_equal(picked.observed, recording.observed[:, [0, 2]])
    assert list_nwb(tmp_path / "a.nwb")["unit_columns"][0] == "id"
    model = fit_recording(read_nwb(tmp_path / "a.nwb", 0.02), 1, hidden=2, passes=1)
    assert model.units == tuple(names)
    check_units(model, simulated(units={"id": np.array(names)}))


def test_names_that_are_not_unique_are_a_column_like_others(tmp_path):
    twice = simulated(units={"id": np.arange(4), "unit_name": np.array(["a", "b", "a", "c"])})
    recording_to_nwb(tmp_path / "a.nwb", twice)
    got = read_nwb(tmp_path / "a.nwb", 0.02, "start_time")
    assert got.units["id"].tolist() == [0, 1, 2, 3]
    assert got.units["unit_name"].tolist() == ["a", "b", "a", "c"]


def test_columns_of_lists_and_a_unit_never_observed_survive(tmp_path):
    masks = np.ones((60, 4), bool)
    masks[:, 2] = False
    lists = np.empty(3, object)
    lists[:] = [np.array([1.0]), np.zeros(0), np.array([2.0, 3.0])]
    recording = simulated(masks=masks, trials={"barriers": lists})
    recording_to_nwb(tmp_path / "a.nwb", recording)
    got = read_nwb(tmp_path / "a.nwb", 0.02, "start_time")
    np.testing.assert_array_equal(got.masks, masks)
    assert [row.tolist() for row in got.trials["barriers"]] == [[1.0], [], [2.0, 3.0]]


def test_what_has_no_spikes_or_no_place_in_time_is_refused(tmp_path):
    out = tmp_path / "a.nwb"
    with pytest.raises(InputError, match="not whole numbers of spikes"):
        recording_to_nwb(out, simulated(counts=np.full((60, 4), 0.5)))
    for starts in ([0.1, 0.2, 2.0], [-0.1, 0.5, 2.0], [5.0, 0.5, 2.0]):
        with pytest.raises(InputError, match="overlap, are out of order or begin before 0"):
            recording_to_nwb(out, simulated(start_times=np.array(starts)))
    recording_to_nwb(out, simulated())
    with pytest.raises(InputError, match="there is a file already"):
        recording_to_nwb(out, simulated())
    recording_to_nwb(out, simulated(), overwrite=True)
    assert json.dumps(list_nwb(out))
