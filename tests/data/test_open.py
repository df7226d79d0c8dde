"""One way in, whatever the path is."""

import numpy as np
import pytest

from evkf.data import Reading, Recording, read_nwb, recording_to_nwb, write_arrays
from evkf.data.open import describe, open_recording, stream_recording
from evkf.errors import InputError
from tests.data.nwb_files import session


@pytest.fixture
def recording() -> Recording:
    counts = np.tile(np.array([[0, 1, 2]]), (12, 1))
    hand = np.where(np.arange(12)[:, None] == 11, np.nan, [[1.0, 2.0]])
    names = np.array(["x"] * 12)
    shown = {"hand": np.ones((12, 2)), "holes": hand, "names": names}
    return Recording(counts, 0.01, (8, 4), behaviour=shown)


@pytest.mark.parametrize("ending", [".npz", ".h5", ".hdf5"])
def test_counts_keep_their_bins_or_are_added_up(tmp_path, recording, ending):
    path = tmp_path / f"a{ending}"
    recording = Recording(recording.counts, 0.01, (8, 4))
    write_arrays(path, recording)
    assert open_recording(path).bin_width == 0.01
    wide = open_recording(path, bin_width=0.02)
    assert (wide.lengths, wide.counts[0].tolist()) == ((4, 2), [0, 2, 4])
    for width in (0.015, 0.005, np.inf):
        with pytest.raises(InputError, match="whole multiple"):
            open_recording(path, bin_width=width)
    busy = open_recording(path, min_rate=150.0)
    assert busy.units["id"].tolist() == [2]
    with pytest.raises(InputError, match="no units left"):
        open_recording(path, min_rate=1e6)
    with pytest.raises(InputError, match="leave them out"):
        open_recording(path, align="start_time")


def test_width_of_a_file_that_does_not_say(tmp_path):
    np.savez(tmp_path / "a.npz", counts=np.ones((4, 2), int))
    assert open_recording(tmp_path / "a.npz", bin_width=0.05).num_bins == 4
    (tmp_path / "a.csv").write_text("a,b\n1,0\n0,1\n")
    assert open_recording(tmp_path / "a.csv", bin_width=0.05).num_bins == 2
    for name in ("a.npz", "a.csv"):
        with pytest.raises(InputError, match="not known"):
            open_recording(tmp_path / name)


def test_behaviour_must_be_there_and_finite(tmp_path, recording):
    write_arrays(tmp_path / "a.npz", recording)
    path = tmp_path / "a.npz"
    assert open_recording(path, behaviour=["hand"]).behaviour["hand"].shape == (12, 2)
    wrong = {"foot": "choose among hand", "holes": "NaN in bin 11", "names": "numbers"}
    for name, says in wrong.items():
        with pytest.raises(InputError, match=says) as caught:
            open_recording(path, behaviour=[name])
        assert "a.npz" in str(caught.value)


def test_nwb_and_its_chunks(tmp_path):
    path = session(tmp_path / "a.nwb")
    whole = open_recording(path)
    np.testing.assert_array_equal(whole.counts, read_nwb(path, 0.02).counts)
    aligned = open_recording(
        path, Reading(0.05, "start_time", (0.0, 1.0), ["hand_vel"]), min_rate=1.0
    )
    assert (aligned.lengths, aligned.num_units) == ((20,) * 4, 2)
    chunks = list(stream_recording(path, bin_width=0.02, chunk_bins=200))
    np.testing.assert_array_equal(np.concatenate([c.counts for c in chunks]), whole.counts)
    assert {c.trials["trial"].tolist()[0] for c in chunks} == {0}
    found = describe(path)
    assert (found["units"], found["spikes"], found["rates"]["most"]) == (3, 255, 20.0)


def test_rates_are_of_the_time_that_was_observed(tmp_path):
    counts, masks = np.full((40, 2), 3), np.ones((40, 2), bool)
    masks[10:30] = False
    recording_to_nwb(tmp_path / "gaps.nwb", Recording(counts, 0.5, masks=masks), seed=0)
    found = describe(tmp_path / "gaps.nwb")
    assert (found["duration"], found["observed_for"]) == pytest.approx((20.0, 10.0))
    assert found["rates"]["median"] == pytest.approx(6.0)


def test_kilosort_and_other_folders(tmp_path):
    (tmp_path / "params.py").write_text("sample_rate = 1000.")
    (tmp_path / "cluster_group.tsv").write_text("cluster_id\tgroup\n3\tgood\n5\tmua\n")
    with pytest.raises(InputError, match=r"without spike_times\.npy"):
        open_recording(tmp_path)
    np.save(tmp_path / "spike_times.npy", np.array([1, 30, 35], np.uint64))
    np.save(tmp_path / "spike_clusters.npy", np.array([3, 3, 5], np.int32))
    assert open_recording(tmp_path).counts.tolist() == [[1], [1]]
    assert open_recording(tmp_path, groups=["mua"]).units["id"].tolist() == [5]
    assert describe(tmp_path, groups=["mua", "good"])["units"] == 2


def test_other_files(tmp_path):
    with pytest.raises(InputError, match="end it in"):
        open_recording(tmp_path / "a.mat")
    with pytest.raises(InputError, match="a model, not a recording"):
        open_recording(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="no such file"):
        open_recording(tmp_path / "a.nwb")
    with pytest.raises(InputError, match="no such file"):
        open_recording(tmp_path / "a.h5")
