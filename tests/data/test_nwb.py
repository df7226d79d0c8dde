"""Reading NWB files: counts, trials, behaviour, masks, and what is refused."""

import sys
import tracemalloc

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evkf.data import (
    NwbWarning,
    Reading,
    Series,
    list_nwb,
    open_recording,
    read_nlb,
    read_nwb,
    stream_nwb,
)
from evkf.data import nwb as streaming
from evkf.errors import InputError
from evkf.numerics.binning import bin_spikes, bin_trials, inside, merged, resample
from tests.data import nwb_files


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return nwb_files.session(tmp_path_factory.mktemp("nwb") / "session.nwb")


def spikes_of(path):
    with h5py.File(path) as file:
        times, ends = file["units/spike_times"][...], file["units/spike_times_index"][...]
    return np.split(times, ends.astype(int)[:-1])


@given(st.integers(0, 10**7), st.sampled_from([0.001, 0.005, 0.01, 0.02, 0.1, 1 / 3]))
def test_a_spike_on_an_edge_falls_into_the_bin_that_begins_there(k, width):
    for time in (k * width, np.nextafter(k * width, -1), float(f"{k * width:.9g}")):
        if abs(time - k * width) < 1e-7 * width:
            first = max(k - 1, 0)
            counts = bin_spikes([np.array([time])], first * width, width, 3)
            assert counts[:, 0].tolist().index(1) == k - first
    late = np.array([(k + 0.999) * width])
    assert bin_spikes([late], k * width, width, 1).tolist() == [[1]]


@given(st.integers(0, 2**32 - 1))
def test_trials_hold_the_spikes_that_a_plain_count_finds(seed):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 5, 60))
    starts, lengths = rng.uniform(-1, 5, 4), rng.integers(1, 9, 4)
    got = bin_trials(times, starts, lengths, 0.13)
    edges = [s + 0.13 * np.arange(n + 1) for s, n in zip(starts, lengths, strict=True)]
    np.testing.assert_array_equal(got, np.concatenate([np.histogram(times, e)[0] for e in edges]))


def test_samples_are_averaged_in_bins_and_interpolated_between_them():
    times = np.array([1.0, 1.1, 1.2, 2.0])
    values = np.stack([times, -times], axis=1)
    got = resample(times, values, np.array([1.8, 1.0, 1.4, 1.2, 9.0, 0.75, 0.6]), 0.2)
    want = np.array([1.9, 1.05, 1.5, 1.2, np.nan, 1.0, np.nan])
    np.testing.assert_allclose(got, np.stack([want, -want], 1))


def test_intervals_are_joined_and_bins_must_lie_within():
    pairs = merged(np.array([[3.0, 4.0], [0.0, 2.0], [0.5, 1.0], [2.0, 2.5]]))
    assert pairs.tolist() == [[0.0, 2.5], [3.0, 4.0]]
    starts = np.array([-0.1, 0.0, 1.9, 2.2, 2.4, 3.0, 3.9, 4.0])
    want = [False, True, True, True, True, True, True, False]
    assert inside(starts, 0.1, pairs).tolist() == want
    assert not inside(starts, 0.1, pairs[:0]).any()


def test_a_session_is_one_trial_with_masks_where_nothing_was_observed(path):
    recording = read_nwb(path, 0.1)
    assert (recording.num_bins, recording.num_trials) == (100, 1)
    for n, times in enumerate(spikes_of(path)):
        want = np.histogram(times, 0.1 * np.arange(101))[0]
        np.testing.assert_array_equal(recording.counts[:, n], want)
    begins = recording.times
    bad = np.isin(np.arange(100), [70])  # 7.05 to 7.1 s, and 7.1 is the next bin's
    assert np.array_equal(recording.masks[:, 0], ~bad)
    away = (begins > 3.95) & (begins < 5.95)
    assert np.array_equal(recording.masks[:, 2], ~(bad | away))
    assert recording.units["id"].tolist() == [10, 11, 12]
    assert recording.units["quality"].tolist() == ["good", "good", "bad"]
    np.testing.assert_allclose(recording.units["rate"], recording.rates())
    more = read_nwb(path, 0.1, blank=np.array([[0.0, 1.0]]))
    assert not more.masks[:10].any()
    assert np.array_equal(more.masks[10:], recording.masks[10:])


def test_trials_are_aligned_and_rows_without_a_time_are_said_to_be_missing(path):
    with pytest.warns(NwbWarning, match="1 of 4 rows of the trials have no go_time"):
        recording = read_nwb(
            path, 0.1, "go_time", (-0.5, 0.5), behaviour=["hand_vel", "Position/hand_pos"]
        )
    assert recording.lengths == (10, 10, 10)
    np.testing.assert_allclose(recording.start_times, [0.5, 4.5, 6.5])
    assert recording.trials["target"].tolist() == ["a", "a", "b"]
    assert recording.trials["id"].tolist() == [0, 2, 3]
    assert [len(row) for row in recording.trials["barriers"]] == [0, 2, 3]
    want = np.histogram(spikes_of(path)[0], 4.5 + 0.1 * np.arange(11))[0]
    np.testing.assert_array_equal(recording.counts[10:20, 0], want)
    # ten samples a bin; half of the time in seconds is what the series says in its unit
    middle = recording.times + 0.045
    np.testing.assert_allclose(recording.behaviour["hand_pos"][:, 0], middle / 2)
    np.testing.assert_allclose(recording.behaviour["hand_vel"], np.sin(middle), atol=1e-2)
    assert recording.series == {"hand_vel": Series("m/s"), "hand_pos": Series("meters", True)}
    assert recording.take([1]).series == recording.series


def test_columns_are_times_if_they_lie_within_their_trials(tmp_path):
    file = nwb_files.add_units(nwb_files.empty(), [np.arange(0.05, 12, 0.1)])
    columns = {
        "outcome": [1, 0, 1, 1],
        "lick": [0.5, 3.5, np.nan, 99.0],
        "reaction_time": [0.3, 0.2, 0.4, 0.3],
        "reward_time": [2.2, 5.2, 8.2, 11.2],
        "unused_time": [np.nan] * 4,
    }
    for name in columns:
        file.add_trial_column(name, name)
    for k in range(4):
        row = {name: values[k] for name, values in columns.items()}
        file.add_trial(start_time=3.0 * k, stop_time=3.0 * k + 2, **row)
    path = nwb_files.write(tmp_path / "a.nwb", file)
    with pytest.warns(NwbWarning, match="1 of 4 rows") as caught:
        lick = open_recording(path, Reading(0.1, "lick", (0.0, 0.5)))
    assert caught[0].filename == __file__
    np.testing.assert_allclose(lick.start_times, [0.5, 3.5, 99.0])
    assert read_nwb(path, 0.1, "reward_time", (0.0, 0.5)).num_trials == 4
    offered = "choose among start_time, stop_time, lick, reward_time, unused_time$"
    for name in ("outcome", "reaction_time"):
        with pytest.raises(InputError, match=f"no times '{name}', but numbers .*{offered}"):
            read_nwb(path, 0.1, name)


def with_columns(path, starts, length, **columns):
    file = nwb_files.add_units(nwb_files.empty(), [np.arange(0.05, 30, 0.1)])
    for name in columns:
        file.add_trial_column(name, name)
    for k, start in enumerate(starts):
        row = {name: values[k] for name, values in columns.items()}
        file.add_trial(start_time=start, stop_time=start + length, **row)
    return nwb_files.write(path, file)


def test_events_outside_short_trials_are_times_too(tmp_path):
    starts = np.array([3.0, 9.5, 5.0, 7.0, 11.0])  # no table need be in order
    path = with_columns(
        tmp_path / "a.nwb",
        starts,
        0.4,
        cue_on=starts - 0.5,
        fixation_time=starts - 1.0,
        reward=starts + 0.9,
        cue_off=np.where(starts > 6, np.nan, starts - 0.1),
    )
    for name, after in (("cue_on", -0.5), ("fixation_time", -1.0), ("reward", 0.9)):
        got = read_nwb(path, 0.1, name, (0.0, 0.3))
        np.testing.assert_allclose(got.start_times, starts + after)
    with pytest.warns(NwbWarning, match="3 of 5 rows of the trials have no cue_off"):
        assert read_nwb(path, 0.1, "cue_off", (0.0, 0.3)).trials["id"].tolist() == [0, 2]


@pytest.mark.parametrize("num", [4, 5, 20])
def test_numbers_that_are_no_times_of_the_session_are_refused(tmp_path, num):
    rng = np.random.default_rng(num)
    columns = {
        "reaction_time": rng.uniform(0.2, 0.4, num),
        "reaction_ms": rng.uniform(200, 400, num),
        "duration": np.full(num, 0.4),
        "condition": np.arange(num) % 3,
        "offset_time": np.full(num, -0.5),  # from start_time, not from that of the session
    }
    path = with_columns(tmp_path / "a.nwb", 1.3 * np.arange(num), 0.4, **columns)
    for name in columns:
        with pytest.raises(InputError, match=f"no times '{name}', .*start_time, stop_time$"):
            read_nwb(path, 0.1, name)


def test_without_a_window_a_trial_goes_on_to_its_stop(path):
    recording = read_nwb(path, 0.3, "start_time")
    assert recording.lengths == (6, 6, 6, 6)
    np.testing.assert_allclose(recording.start_times, [0, 2, 4, 6])
    some = read_nwb(path, 0.3, "start_time", trials={"target": "b"})
    assert some.trials["id"].tolist() == [1, 3]
    assert read_nwb(path, 0.3, "start_time", trials=[3, 0]).trials["id"].tolist() == [3, 0]


def test_units_are_chosen_by_column_id_or_rate(path):
    assert read_nwb(path, 0.1, units={"quality": "good"}).units["id"].tolist() == [10, 11]
    assert read_nwb(path, 0.1, units=[12, 10]).units["id"].tolist() == [12, 10]
    assert read_nwb(path, 0.1, min_rate=10.0).units["id"].tolist() == [10]
    with pytest.raises(InputError, match="choose among bad, good"):
        read_nwb(path, 0.1, units={"quality": "fine"})
    with pytest.raises(InputError, match=r"no id 99 .*choose among 10, 11, 12"):
        read_nwb(path, 0.1, units=[99])
    with pytest.raises(InputError, match="no column 'depth'"):
        read_nwb(path, 0.1, units={"depth": 3})


def test_behaviour_that_does_not_cover_the_bins_is_nan_and_said_to_be(path):
    with pytest.warns(NwbWarning, match="acquisition/short covers 0 to 4.99 s"):
        recording = read_nwb(path, 0.1, behaviour=["short"])
    wrong = np.isnan(recording.behaviour["short"])
    assert np.array_equal(wrong, recording.times > 5.05)
    early = read_nwb(path, 0.1, "start_time", (0, 1), behaviour=["holes"])
    assert np.all(early.behaviour["holes"] == 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"align": "onset"}, r"no times 'onset' .*trials\): choose among start_time, stop_time"),
        ({"align": "target"}, "no times 'target'"),
        ({"align": "id"}, "outside the trials .*choose among start_time, stop_time, go_time$"),
        ({"behaviour": ["cursor"]}, r"no series 'cursor' .*there are processing/behavior"),
        ({"behaviour": ["holes"]}, r"NaN at 9 s and in 9 bins more .*acquisition/holes"),
        (
            {"align": "go_time", "window": (0.0, 0.05), "trials": [0]},
            r"no bin of 0.1 s in trial 0, .*--trials id=",
        ),
        ({"align": "go_time", "window": (0.5, 0.0), "trials": [0]}, "pass FROM before TO"),
        ({"align": "go_time", "trials": [1]}, "1 of 1 rows of the trials have no go_time"),
        ({"window": (0.0, 1.0)}, r"nothing to align to .*pass --align COLUMN"),
        ({"bin_width": 0.0}, "bin_width = 0.0"),
        ({"blank": np.ones(3)}, "blank"),
        ({"min_rate": 1e6}, "no units left"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(path, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        read_nwb(path, **({"bin_width": 0.1} | arguments))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("trains", "message"),
    [
        ([[0.1, 0.3, 0.2]], "0.2 s after one at 0.3 s .*unit 10, index 2"),
        ([[0.1], [-0.5, 0.2]], "1 spikes outside the session .* at -0.5 s .*unit 11, index 0"),
        ([[0.1, np.nan]], "not finite"),
        ([[], []], "no spikes"),
    ],
)
def test_spike_times_must_be_in_order_and_in_the_session(tmp_path, trains, message):
    path = nwb_files.write(tmp_path / "a.nwb", nwb_files.add_units(nwb_files.empty(), trains))
    for read in (lambda: read_nwb(path, 0.1), lambda: list(stream_nwb(path, 0.1))):
        with pytest.raises(InputError, match=message):
            read()


def test_files_that_are_no_nwb_files_or_incomplete_are_refused(path, tmp_path):
    whole = path.read_bytes()
    broken = tmp_path / "broken.nwb"
    for part in (len(whole) // 2, len(whole) - 100, 600, 100):
        broken.write_bytes(whole[:part])
        with pytest.raises(InputError, match=r"cannot be opened .*broken.nwb\): is it complete"):
            read_nwb(broken, 0.1)
    broken.write_text("spikes")
    with pytest.raises(InputError, match="not an NWB file"):
        read_nwb(broken, 0.1)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(InputError, match="HDF5, but not an NWB file"):
        list_nwb(tmp_path / "other.h5")
    nwb_files.write(tmp_path / "none.nwb", nwb_files.empty())
    for read in (list_nwb, lambda path: read_nwb(path, 0.1)):
        with pytest.raises(InputError, match="no units table"):
            read(tmp_path / "none.nwb")
    file = nwb_files.add_units(nwb_files.empty(), [[0.1, 0.5]])
    nwb_files.write(tmp_path / "bare.nwb", file)
    with pytest.raises(InputError, match=r"no trials .*leave out align"):
        read_nwb(tmp_path / "bare.nwb", 0.1, "start_time")


def test_a_damaged_block_of_a_file_is_said_in_one_line(tmp_path):
    rng = np.random.default_rng(0)
    trains = [np.sort(rng.uniform(0, 10, 5000))]
    path = nwb_files.write(tmp_path / "a.nwb", nwb_files.add_units(nwb_files.empty(), trains))
    with h5py.File(path, "a") as file:
        del file["units/spike_times"]
        file["units"].create_dataset("spike_times", data=trains[0], compression="gzip")
        offset = file["units/spike_times"].id.get_chunk_info(0).byte_offset
    with path.open("r+b") as raw:
        raw.seek(offset)
        raw.write(b"x" * 200)
    with pytest.raises(InputError, match=r"cannot be opened or read .*is it complete") as caught:
        read_nwb(path, 0.1)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named_with_its_extra(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r'an NWB file needs h5py .*pip install "evkf\[nwb\]"'):
        read_nwb(path, 0.1)


def test_the_summary_says_what_is_there(path):
    summary = list_nwb(path)
    assert (summary["units"], summary["spikes"], summary["trials"]) == (3, 255, 4)
    assert (summary["start"], summary["stop"], summary["observed"]) == (0.0, 10.0, True)
    assert summary["unit_columns"] == ["id", "quality"]
    assert summary["trial_columns"][2:] == ["go_time", "target", "barriers"]
    assert summary["invalid_times"] == [[7.05, 7.1]]
    series = summary["behaviour"]["processing/behavior/Position/hand_pos"]
    assert series == {"shape": [1000, 2], "rate": 100.0, "unit": "meters"}
    assert summary["behaviour"]["acquisition/short"]["rate"] == pytest.approx(100)


@pytest.mark.parametrize("chunk", [7, 100, 1000])
def test_chunks_put_end_to_end_are_the_session(path, chunk, monkeypatch):
    monkeypatch.setattr(streaming, "BUFFER", 0)
    monkeypatch.setattr(streaming, "LEAST", 3)
    whole = read_nwb(path, 0.1, blank=np.array([[1.0, 1.5]]))
    chunks = list(stream_nwb(path, 0.1, chunk, blank=np.array([[1.0, 1.5]])))
    assert [c.num_bins for c in chunks] == np.diff([*range(0, 100, chunk), 100]).tolist()
    for name in ("counts", "masks", "times"):
        got = np.concatenate([getattr(c, name) for c in chunks])
        np.testing.assert_allclose(got, getattr(whole, name), rtol=1e-14)
    assert next(stream_nwb(path, 0.1, units=[12])).units["id"].tolist() == [12]


def test_a_stream_finds_disorder_across_blocks_and_after_the_last_bin(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "BUFFER", 0)
    monkeypatch.setattr(streaming, "LEAST", 2)
    for times, spike in (([0.1, 0.4, 0.3, 0.5], 2), ([0.1, 0.2, 5.0, 6.0, 0.35], 4)):
        file = nwb_files.add_units(nwb_files.empty(), [times])
        path = nwb_files.write(tmp_path / f"{spike}.nwb", file)
        with pytest.raises(InputError, match=f"after one at .*index {spike}"):
            list(stream_nwb(path, 0.1, 2))


def test_a_stream_holds_its_blocks_only(tmp_path, monkeypatch):
    times = np.sort(np.random.default_rng(0).uniform(0, 100, 1_000_000))
    path = nwb_files.write(tmp_path / "a.nwb", nwb_files.add_units(nwb_files.empty(), [times]))
    monkeypatch.setattr(streaming, "BUFFER", 1 << 16)
    tracemalloc.start()
    total = sum(int(chunk.counts.sum()) for chunk in stream_nwb(path, 0.01, 1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == len(times)
    assert peak < times.nbytes / 4


def benchmark_file(path, name="hand_vel"):
    """As the Neural Latents Benchmark has them."""
    rng = np.random.default_rng(0)
    trains = [np.sort(rng.uniform(0, 8, 300)) for _ in range(4)]
    seen = [[[2.0 * k, 2.0 * k + 1.8] for k in range(4)]] * 4
    file = nwb_files.empty()
    device = file.create_device("array")
    group = file.create_electrode_group("M1", "electrodes", "M1", device)
    for _ in range(4):
        file.add_electrode(location="M1", group=group)
    file.add_unit_column("heldout", "held out")
    for n, times in enumerate(trains):
        file.add_unit(spike_times=times, obs_intervals=seen[n], heldout=n > 2, electrodes=[n])
    file.add_trial_column("move_onset_time", "onset")
    file.add_trial_column("split", "which part")
    for k, split in enumerate(("train", "val", "train", "none")):
        onset = np.nan if split == "none" else 2 * k + 0.75
        file.add_trial(
            start_time=2.0 * k, stop_time=2.0 * k + 2, move_onset_time=onset, split=split
        )
    if name:
        times = np.arange(0, 8, 0.001)
        series = nwb_files.TimeSeries(
            name=name, data=np.stack([times, times], 1), unit="mm/s", timestamps=times
        )
        file.create_processing_module("behavior", "hand").add(series)
    return nwb_files.write(path, file)


def test_a_benchmark_file_gives_its_split_with_held_out_units_marked(tmp_path):
    path = benchmark_file(tmp_path / "maze.nwb")
    recording = read_nlb(path)
    assert recording.lengths == (35, 35)
    assert recording.trials["split"].tolist() == ["train", "train"]
    assert recording.units["heldout"].tolist() == [False, False, False, True]
    assert recording.units["electrode_group"].tolist() == ["M1"] * 4
    assert recording.masks.all()
    assert recording.behaviour["hand_vel"].shape == (70, 2)
    edges = 4.5 + 0.02 * np.arange(36)
    want = np.histogram(spikes_of(path)[1], edges)[0]
    np.testing.assert_array_equal(recording.counts[35:, 1], want)
    assert read_nlb(path, split="val", window=(-0.25, 2.0)).masks.mean() == pytest.approx(102 / 112)
    with pytest.raises(InputError, match="choose among none, train, val"):
        read_nlb(path, split="test")
    assert read_nlb(benchmark_file(tmp_path / "bare.nwb", "")).behaviour == {}


def test_the_file_of_the_memory_check_is_streamed_whole(tmp_path):
    import nwb_memory
    import pynwb

    path = tmp_path / "long.nwb"
    spikes = nwb_memory.make(path, 2e6)
    assert pynwb.validate(path=str(path)) == []
    figures = nwb_memory.stream(path)
    assert figures["spikes"] == spikes == 249_856
    assert figures["peak_mb"] >= figures["settled_mb"] > 10
    assert figures["complete"]


def test_a_column_of_rates_in_the_file_is_kept(tmp_path):
    file = nwb_files.add_units(nwb_files.empty(), [[0.1, 0.5, 0.95]], rate=[42.0])
    recording = read_nwb(nwb_files.write(tmp_path / "a.nwb", file), 0.1)
    assert recording.units["rate_in_file"].tolist() == [42.0]
    # no intervals: from 0 to the bin of the last spike
    np.testing.assert_allclose(recording.units["rate"], 3.0)
    assert recording.num_bins == 10
