"""npz and HDF5 files: read by the rules, written whole, refused with a reason."""

import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest

from evkf.data import Recording, read_arrays, stream_arrays, write_arrays
from evkf.errors import InputError
from tests.data.conftest import assert_same
from tests.real_recordings import find

SUFFIXES = ["npz", "h5", "hdf5"]


def save(path, **arrays):
    """A file as someone else would write it."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values
    return path


@pytest.fixture(params=SUFFIXES)
def path(request, tmp_path):
    return tmp_path / f"day1.{request.param}"


def test_what_is_written_is_read_again(path, full):
    write_arrays(path, full)
    assert_same(read_arrays(path), full)
    assert read_arrays(path).source == str(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_signals_are_written_and_read_again(path, full):
    counts = np.where(full.masks, np.float32(-0.25), np.float32(np.nan))
    signals = replace(full, counts=counts)
    write_arrays(path, signals)
    assert_same(read_arrays(path, signals=True), signals)
    with pytest.raises(InputError, match=r"a count of -0.25 .*trial 0, bin 0.*signals=True"):
        read_arrays(path)


def test_a_file_that_is_there_stays(path, full):
    write_arrays(path, full)
    before = path.read_bytes()
    other = full.take([1])
    with pytest.raises(InputError, match="overwrite=True"):
        write_arrays(path, other)
    assert path.read_bytes() == before
    write_arrays(path, other, overwrite=True)
    assert_same(read_arrays(path), other)


def test_a_write_that_fails_leaves_nothing_and_spoils_nothing(path, full):
    write_arrays(path, full)
    before = path.read_bytes()
    bad = replace(full, units={"thing": np.array([object()] * 3)})
    with pytest.raises(InputError, match="units/thing of object"):
        write_arrays(path, bad, overwrite=True)
    assert path.read_bytes() == before
    assert len(list(path.parent.iterdir())) == 1
    with pytest.raises(InputError, match="make it first"):
        write_arrays(path.parent / "nowhere" / path.name, full)


def test_a_name_that_hdf5_would_change_is_refused(tmp_path, full):
    odd = replace(full, trials={"a//b": np.zeros(2)})
    with pytest.raises(InputError, match="a//b"):
        write_arrays(tmp_path / "a.h5", odd)
    assert not list(tmp_path.iterdir())


def test_trials_end_to_end(path):
    arrays = {
        "counts": np.arange(18).reshape(6, 3),
        "trial_lengths": [2, 4],
        "bin_ms": 20,
        "masks": np.arange(18).reshape(6, 3) > 0,
        "start_times": [1.5, 9.0],
        "unit_id": [7, 8, 9],
        "hand": np.arange(12.0).reshape(6, 2),
        "target": [5, 6],
        "depth": [0.1, 0.2, 0.3],
        "session": 12,
    }
    recording = read_arrays(save(path, **arrays))
    assert (recording.lengths, recording.bin_width) == ((2, 4), 0.02)
    assert recording.units.keys() == {"id", "depth"}
    assert recording.trials.keys() == {"target"}
    assert recording.behaviour.keys() == {"hand"}
    for name, values in {
        "counts": recording.counts,
        "masks": recording.masks,
        "start_times": recording.start_times,
        "unit_id": recording.units["id"],
        "hand": recording.behaviour["hand"],
        "target": recording.trials["target"],
        "depth": recording.units["depth"],
    }.items():
        np.testing.assert_array_equal(values, arrays[name])


def test_counts_by_trial(path):
    rng = np.random.default_rng(1)
    counts, hand = rng.poisson(1.0, (4, 5, 3)), rng.normal(size=(4, 5, 2))
    whole = read_arrays(save(path, counts=counts, hand=hand, cue=np.arange(4)), bin_width=0.01)
    assert whole.lengths == (5,) * 4
    np.testing.assert_array_equal(np.stack(whole.split(whole.counts)), counts)
    np.testing.assert_array_equal(np.stack(whole.split(whole.behaviour["hand"])), hand)
    assert whole.trials["cue"].tolist() == [0, 1, 2, 3]


def test_trials_filled_up_to_the_same_length(path):
    counts = np.ones((3, 5, 2))
    lengths = [5, 1, 3]
    for trial, length in enumerate(lengths):
        counts[trial, length:] = np.nan
    recording = read_arrays(save(path, counts=counts, lengths=lengths, bin_width=0.1))
    assert recording.lengths == (5, 1, 3)
    np.testing.assert_array_equal(recording.counts, np.ones((9, 2)))


def test_where_sizes_coincide_bins_come_before_trials_before_units(path):
    arrays = {
        "counts": np.zeros((3, 3), int),
        "lengths": [1, 1, 1],
        "x": np.zeros(3),
        "trials/y": np.ones(3),
        "units/z": np.ones(3),
        "bin_ms": 5,
    }
    recording = read_arrays(save(path, **arrays))
    assert [*recording.behaviour, *recording.trials, *recording.units] == ["x", "y", "id", "z"]
    arrays["counts"], arrays["x"] = np.zeros((4, 3), int), np.zeros(3)
    arrays["lengths"] = [1, 1, 2]
    assert "x" in read_arrays(save(path.with_stem("b"), **arrays)).trials


GOOD = {"counts": np.ones((6, 3), int), "bin_ms": 5}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bin_ms": None}, "as bin_width or --bin-width"),
        ({"bin_ms": [5, 5]}, "bin_ms.*one number"),
        ({"bin_width": 0.01}, "bin_width of the file is 0.01 s, but bin_ms of the file is 0.005 s"),
        ({"counts": None, "spikes": np.ones((6, 3))}, "no counts among the arrays bin_ms, spikes"),
        ({"counts": np.ones(6)}, r"counts of float64 and shape \(6,\)"),
        ({"counts": np.full((6, 3), b"1")}, "counts of .*S1"),
        ({"counts": -np.eye(6, 3, -1, int)}, r"a count of -1 .*counts\[1, 0\]"),
        ({"counts": 0.5 * np.eye(6, 3, 2)}, r"a count of 0.5 .*counts\[0, 2\].*signals=True"),
        ({"counts": np.full((6, 3), np.inf)}, "not finite"),
        ({"counts": -np.ones((2, 3, 3), int)}, "a count of -1 .*trial 0, bin 0, unit 0"),
        ({"lengths": [2, 3]}, "trials of 5 bins"),
        ({"lengths": [2.5, 3.5]}, "whole number"),
        ({"lengths": [2, 4], "trial_lengths": [3, 3]}, "differ"),
        ({"counts": np.ones((2, 3, 3), int), "lengths": [3, 4]}, "one of 1 to 3 bins"),
        ({"counts": np.ones((2, 3, 3), int), "masks": np.ones((6, 3), bool)}, "masks of shape"),
        ({"masks": np.ones((6, 3), int)}, "True where observed"),
        ({"events": np.zeros((57, 2))}, r"events.*--leave-out events"),
        ({"pos": np.zeros(6), "behaviour/pos": np.zeros(6)}, "behaviour 'pos' twice"),
        ({"unit_id": [1, 1, 2]}, "name every unit once"),
        ({"odd": np.zeros(6, [("a", int)])}, "an array of .*--leave-out odd"),
    ],
)
def test_what_does_not_fit_is_refused(path, changes, says):
    arrays = {name: x for name, x in (GOOD | changes).items() if x is not None}
    with pytest.raises(InputError, match=says) as caught:
        read_arrays(save(path, **arrays))
    assert path.name in str(caught.value)


def test_a_bin_width_that_the_file_contradicts(path):
    save(path, **GOOD)
    assert read_arrays(path, bin_width=0.005).bin_width == 0.005
    with pytest.raises(InputError, match=r"as passed is 0.02 s, but bin_ms of the file is 0.005"):
        read_arrays(path, bin_width=0.02)


def test_what_is_left_out_is_not_read(path):
    save(path, **GOOD, events=np.zeros(57))
    assert read_arrays(path, leave_out=["events"]).behaviour == {}
    assert read_arrays(path, leave_out="events").behaviour == {}


def test_nothing_is_unpickled(tmp_path):
    place = tmp_path / "a.npz"
    np.savez(place, **GOOD, thing=np.array([{}, None, 1], object))
    with pytest.raises(InputError, match=r"Python objects.*--leave-out thing"):
        read_arrays(place)
    assert read_arrays(place, leave_out=["thing"]).num_bins == 6


def test_references_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["counts"] = np.ones((6, 3), int)
        file["odd"] = np.array([file["counts"].ref] * 6, h5py.ref_dtype)
    with pytest.raises(InputError, match=r"a\.h5: odd"):
        read_arrays(tmp_path / "a.h5", 0.01)


def test_names_that_are_not_utf8(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file[b"b\xfcro"] = np.ones((6, 3), int)
        file["x"] = 1
    with pytest.raises(InputError, match=r"no counts among the arrays b\\xfcro, x"):
        read_arrays(tmp_path / "a.h5", 0.01)


def test_text_of_any_length(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["counts"] = np.ones((6, 3), int)
        file["unit_id"] = ["ü", "long one", ""]
    ids = read_arrays(tmp_path / "a.h5", 0.01).units["id"]
    assert (ids.dtype.kind, ids.tolist()) == ("U", ["ü", "long one", ""])


def test_damaged_files_are_named(path, full):
    write_arrays(path, full)
    content = path.read_bytes()
    for keep in (0, 1, 10, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:keep])
        with pytest.raises(InputError, match=r"cannot be read.*is it complete\?") as caught:
            read_arrays(path)
        assert str(path) in str(caught.value)


def test_bits_that_flipped_never_end_in_another_error(tmp_path, full):
    path = tmp_path / "day1.npz"
    write_arrays(path, full)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 20):
            damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            read_arrays(path, signals=True)
        except InputError:
            refused += 1
    assert refused > 140


def test_files_that_are_not_there_or_of_another_kind(tmp_path, full):
    for suffix in (*SUFFIXES, "csv"):
        with pytest.raises(InputError, match="no such file"):
            read_arrays(tmp_path / f"none.{suffix}", 0.01)
    for work in (lambda p: read_arrays(p), lambda p: write_arrays(p, full)):
        with pytest.raises(InputError, match=r"end it in \.npz"):
            work(tmp_path / "a.mat")


def test_without_h5py(monkeypatch, tmp_path, full):
    monkeypatch.setitem(sys.modules, "h5py", None)
    for work in (
        lambda: read_arrays(tmp_path / "a.h5"),
        lambda: write_arrays(tmp_path / "a.h5", full),
        lambda: next(stream_arrays(tmp_path / "a.h5", 5)),
    ):
        with pytest.raises(
            InputError, match=r'an HDF5 file needs h5py .*pip install "evkf\[hdf5\]"'
        ):
            work()
    write_arrays(tmp_path / "a.npz", full)
    assert_same(read_arrays(tmp_path / "a.npz"), full)


@pytest.mark.parametrize("chunk", [1, 3, 4, 9, 10, 100])
def test_a_stream_is_the_recording_in_pieces(tmp_path, full, chunk):
    write_arrays(tmp_path / "a.h5", full)
    chunks = list(stream_arrays(tmp_path / "a.h5", chunk))
    assert [piece.num_bins for piece in chunks[:-1]] == [chunk] * (len(chunks) - 1)
    for name in ("counts", "masks"):
        joined = np.concatenate([getattr(piece, name) for piece in chunks])
        np.testing.assert_array_equal(joined, getattr(full, name))
    times = np.concatenate([piece.times for piece in chunks])
    np.testing.assert_allclose(times, full.times, rtol=0, atol=1e-12)
    for name, values in full.behaviour.items():
        joined = np.concatenate([piece.behaviour[name] for piece in chunks])
        np.testing.assert_array_equal(joined, values)
    trial = np.concatenate([np.repeat(x.trials["trial"], x.lengths) for x in chunks])
    np.testing.assert_array_equal(trial, np.repeat([0, 1], full.lengths))
    for piece in chunks:
        expected = full.trials["target"][piece.trials["trial"]]
        np.testing.assert_array_equal(piece.trials["target"], expected)
        assert piece.units["id"].tolist() == ["a", "b", "c"]


def test_a_stream_reads_a_chunk_at_a_time(tmp_path, monkeypatch):
    recording = Recording(np.zeros((1000, 4), np.int16), 0.01, behaviour={"x": np.zeros(1000)})
    write_arrays(tmp_path / "a.h5", recording)
    read, original = [], h5py.Dataset.__getitem__

    def spy(self, *args, **kwargs):
        values = original(self, *args, **kwargs)
        read.append(np.size(values))
        return values

    monkeypatch.setattr(h5py.Dataset, "__getitem__", spy)
    stream = stream_arrays(tmp_path / "a.h5", 10)
    for _ in range(3):
        next(stream)
    stream.close()
    assert max(read) == 40
    assert sum(read) < 3 * (40 + 40 + 10) + 20


def test_a_stream_names_the_bin_of_the_file(tmp_path):
    counts = np.zeros((20, 2))
    counts[13, 1] = -1
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["counts"] = counts
    stream = stream_arrays(tmp_path / "a.h5", 5, 0.01)
    assert next(stream).num_bins == next(stream).num_bins == 5
    with pytest.raises(InputError, match=r"counts\[13, 1\]"):
        next(stream)
    assert len(list(stream_arrays(tmp_path / "a.h5", 5, 0.01, signals=True))) == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"counts": np.ones((2, 3, 3), int)}, "write_arrays makes such a file"),
        ({"masks": np.ones((60, 3), bool)}, "masks of shape"),
        ({"behaviour/x": np.ones(60)}, "behaviour 'x' of shape"),
        ({"start_times": np.zeros(4)}, "start_times"),
        ({"lengths": [3, 2]}, "trials of 5 bins"),
        ({"bin_ms": None}, "as bin_width or --bin-width"),
    ],
)
def test_what_does_not_fit_a_stream_is_refused_at_once(tmp_path, changes, says):
    arrays = {name: x for name, x in (GOOD | changes).items() if x is not None}
    with pytest.raises(InputError, match=says):
        next(stream_arrays(save(tmp_path / "a.h5", **arrays), 2))


def test_streams_that_cannot_be(tmp_path):
    with pytest.raises(InputError, match=r"stream \.h5"):
        stream_arrays(tmp_path / "a.npz", 5)
    with pytest.raises(InputError, match="one or more"):
        stream_arrays(tmp_path / "a.h5", 0)


def test_mc_maze():
    path = find("mc_maze_large_9cond_5ms.npz")
    recording, file = read_arrays(path), np.load(path, allow_pickle=False)
    assert (recording.lengths, recording.bin_width) == ((100,) * 165, 0.005)
    np.testing.assert_array_equal(recording.split(recording.counts)[7], file["counts"][7])
    assert recording.behaviour.keys() == {"hand_pos_mm", "hand_vel_mm_s"}
    velocity = recording.split(recording.behaviour["hand_vel_mm_s"])
    np.testing.assert_array_equal(velocity[164], file["hand_vel_mm_s"][164])
    np.testing.assert_array_equal(recording.trials["trial_type"], file["trial_type"])
    assert recording.num_units == 162


def test_centre_out(tmp_path):
    path = find("chewie_centre_out_100ms.npz")
    recording, file = read_arrays(path), np.load(path, allow_pickle=False)
    assert (recording.num_trials, recording.num_units, recording.bin_width) == (159, 174, 0.1)
    assert recording.lengths == tuple(file["trial_lengths"])
    assert recording.behaviour.keys() == {"pos", "vel", "acc", "force"}
    np.testing.assert_array_equal(recording.behaviour["vel"], file["vel"])
    np.testing.assert_array_equal(recording.trials["target"], file["target"])
    write_arrays(tmp_path / "a.h5", recording)
    assert_same(read_arrays(tmp_path / "a.h5"), recording)
