"""Lab Streaming Layer in and out, with real peers; and what streams may hold that bins may not."""

import math
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pylsl
import pytest
from rig_peers import WAIT_S, gateway

from evkf.data.files import need
from evkf.errors import InputError
from evkf.live.answers import Estimate, Flags
from evkf.live.frames import Frame, encode
from evkf.rigs.clock import SECOND
from evkf.rigs.gateway import END_S, Notes, Setup
from evkf.rigs.lsl import (
    ASK_S,
    LOOK_S,
    OPEN_S,
    Rows,
    Spikes,
    _find,
    check,
    check_labels,
    describe,
    drain,
    run,
)
from evkf.rigs.lsl_out import LslSink, channels, flatten

UNITS = ("a", "b", "c")


def named(text: str) -> str:
    """A name that no other process uses."""
    return f"evkf-test-{text}-{os.getpid()}"


def outlet(
    name: str,
    num: int,
    rate: float,
    kind: int = pylsl.cf_double64,
    labels: Sequence[str] = (),
) -> pylsl.StreamOutlet:
    info = pylsl.StreamInfo(name, "Spikes", num, rate, kind, name)
    if labels:
        info.set_channel_labels(list(labels))
    return pylsl.StreamOutlet(info)


def inlet(name: str) -> pylsl.StreamInlet:
    found = pylsl.resolve_byprop("name", name, 1, WAIT_S)
    return pylsl.StreamInlet(found[0])


def listened_to(made: pylsl.StreamOutlet, log: Path, times: int = 1) -> None:
    """Wait until the gateway has drained what waited."""
    assert made.wait_for_consumers(WAIT_S)
    end = time.monotonic() + WAIT_S
    while (log.read_text() if log.exists() else "").count("connected") < times:
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.2)


def test_bins_of_a_stream_come_out_as_they_went_in(tmp_path: Path):
    name, log = named("rows"), tmp_path / "log"
    counts = np.random.default_rng(0).poisson(2.0, (10_000, 3)).astype(float)
    sent, begin, made = [], time.monotonic(), outlet(name, 3, 100.0)
    with gateway(run, Setup(UNITS, 0.01, stream=name, log=log)) as received:
        for times in (1, 2):
            listened_to(made, log, times)
            for _ in range(60):
                k = int((time.monotonic() - begin) * 100)
                if not sent or k > sent[-1]:
                    made.push_sample(counts[k].tolist(), 1000 + k / 100)
                    sent.append(k)
                time.sleep(0.01)
            end = 1000 * SECOND + sent[-1] * 10_000_000
            frames = received.until(lambda got, end=end: got != [] and got[-1].sent_ns == end)
            if times == 1:
                # A stream that is lost is looked for again.
                del made
                made = outlet(name, 3, 100.0)
    at = [(frame.sent_ns - 1000 * SECOND) // 10_000_000 for frame in frames]
    first = at[0]
    # LSL may lose the first sample of a connection; the rest is told by its stamp.
    assert set(at) <= set(sent)
    assert len(at) >= len(sent) - 2
    assert [frame.sent_ns for frame in frames] == [1000 * SECOND + k * 10_000_000 for k in at]
    assert [frame.seq for frame in frames] == [k - first for k in at]
    np.testing.assert_array_equal([frame.y for frame in frames], counts[at])
    assert "lost_bin" in log.read_text()


def test_spikes_of_a_stream_are_binned_exactly(tmp_path: Path):
    name, log = named("spikes"), tmp_path / "log"
    made = outlet(name, 1, pylsl.IRREGULAR_RATE, pylsl.cf_float32)
    rng = np.random.default_rng(0)
    times = 50 * SECOND + np.sort(rng.integers(0, SECOND, 300))
    units = rng.integers(0, 3, 300)
    # A busy machine may hold this process up, which is no silence.
    setup = Setup(UNITS, 0.01, stream=name, log=log, silence=2.0)
    with gateway(run, setup) as received:
        listened_to(made, log)
        begin = time.monotonic()
        for at, unit in zip(times.tolist(), units.tolist(), strict=True):
            time.sleep(max(begin + (at / SECOND - 50) - time.monotonic(), 0))
            made.push_sample([float(unit)], at / 1e9)
        made.push_sample([7.0], times[-1] / 1e9)
        # No spike follows: the last bins come out by the clock of this machine.
        frames = received.until(lambda got: got != [] and got[-1].sent_ns >= 51 * SECOND)
    edges = [frames[0].sent_ns - 10_000_000, *(frame.sent_ns for frame in frames)]
    assert edges == list(range(edges[0], edges[-1] + 1, 10_000_000))
    assert edges[0] < 50.1 * SECOND
    assert all(edge % 10_000_000 == 0 for edge in edges)
    due = np.stack([np.histogram(times[units == unit], edges)[0] for unit in range(3)], axis=1)
    np.testing.assert_array_equal([frame.y for frame in frames], due)
    assert received.odd["unknown_unit"] == 1
    assert "late_spike" not in log.read_text()


def test_the_oldest_comes_first_and_is_left_out():
    name, lines = named("old"), []
    made = outlet(name, 1, 100.0)
    plain, ours = inlet(name), inlet(name)
    for each in (plain, ours):
        each.open_stream(WAIT_S)
    assert made.wait_for_consumers(WAIT_S)
    for k in range(1, 201):
        made.push_sample([float(k)], k / 100)
    end = time.monotonic() + WAIT_S
    while ours.samples_available() + plain.samples_available() < 390:
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.1)
    # What a plain reader gets first is two seconds old.
    assert plain.pull_sample(timeout=5.0)[1] <= 0.02
    assert drain(ours, Notes(lines.append)) >= 199
    assert "from before left out" in lines[0]
    made.push_sample([201.0], 2.01)
    assert ours.pull_sample(timeout=5.0) == ([201.0], 2.01)
    assert drain(ours, Notes(lines.append)) == 0
    assert len(lines) == 1


def test_estimates_are_streamed_with_the_time_of_their_bins():
    name, rng = named("out"), np.random.default_rng(0)
    layout = channels(2, UNITS, 2, True)
    assert len(layout) == 4 + 2 + 3 + 3 + 2 * 2 * 2
    sink = LslSink(name, layout, 0.01, print)
    reader = inlet(name)
    reader.open_stream(WAIT_S)
    info = reader.info(WAIT_S)
    assert (info.source_id(), info.type()) == (f"evkf-{name}", "Latents")
    assert (info.channel_count(), info.nominal_srate()) == (len(layout), 100.0)
    channel = info.desc().child("channels").child("channel")
    labels, units = [], []
    for _ in layout:
        labels.append(channel.child_value("label"))
        units.append(channel.child_value("unit"))
        channel = channel.next_sibling()
    assert labels == [each.label for each in layout]
    assert units == [each.unit for each in layout]
    said = []
    for seq in range(100):
        cov = rng.normal(size=(2, 2))
        parts = rng.normal(size=2), cov + cov.T, rng.random(3), rng.normal(), 0
        ahead = rng.normal(size=(2, 2)), rng.random((2, 2))
        sent = 123_456_789_000_000 + seq * 10_000_000
        said.append(Estimate(seq, Flags.NOT_DURABLE, *parts, *ahead, sent, 1, 2))
    time.sleep(0.2)
    for each in said:
        sink.publish(each)
        time.sleep(0.002)
    got, end = [], time.monotonic() + WAIT_S
    while (not got or got[-1][0][0] != 99) and time.monotonic() < end:
        values, stamp = reader.pull_sample(timeout=0.5)
        if stamp is not None:
            got.append((values, stamp))
    assert len(got) >= 99
    for values, stamp in got:
        each = said[int(values[0])]
        assert values == flatten(each)
        assert round(stamp * 1e9) == each.sent_ns
        assert stamp == each.sent_ns / 1e9
    del reader
    sink.close()


def test_an_outlet_that_has_ended_is_told_of_and_the_session_goes_on():
    lines: list[str] = []
    sink = LslSink(named("gone"), channels(2, UNITS, 0, True), 0.01, lines.append)
    sink._process.kill()
    sink._process.join(WAIT_S)
    ahead = np.zeros((0, 2))
    parts = np.zeros(2), np.eye(2), np.ones(3), 0.0, 0, ahead, ahead
    for seq in range(9):
        sink.publish(Estimate(seq, Flags.NOTHING, *parts, 1, 1, 2))
    sink.close()
    assert len(lines) == 1
    assert "the process of --lsl-out has ended" in lines[0]
    assert sink._notes.counts == {"lsl_gone": 9}


def test_estimates_that_an_outlet_has_no_room_for_are_counted():
    lines: list[str] = []
    sink = LslSink(named("full"), channels(2, UNITS, 0, True), 0.01, lines.append)
    os.kill(sink._process.pid, signal.SIGSTOP)
    ahead = np.zeros((0, 2))
    parts = np.zeros(2), np.eye(2), np.ones(3), 0.0, 0, ahead, ahead
    seq = 0
    while not lines and seq < 1_000_000:
        sink.publish(Estimate(seq, Flags.NOTHING, *parts, 1, 1, 2))
        seq += 1
    os.kill(sink._process.pid, signal.SIGKILL)
    sink.close()
    assert "no room" in lines[0]


ODD = [math.nan, math.inf, -math.inf, -1.0, 0.5, 1e300, 3.0, 2**31, -0.5]


@pytest.mark.parametrize("value", ODD)
def test_no_spike_of_a_unit_that_is_none(value: float):
    notes = Notes(lambda _: None)
    spikes = Spikes(Setup(UNITS, 0.01), notes)
    assert spikes.take([value], 1.0, 0) == []
    assert notes.counts == {"unknown_unit": 1}
    assert spikes.take([], 1.0, 0) == []
    assert notes.counts == {"unknown_unit": 2}


@pytest.mark.parametrize("stamp", [math.nan, math.inf, -1.0, 0.0, 1e300])
def test_stamps_of_no_clock_are_refused(stamp: float):
    notes = Notes(lambda _: None)
    assert Spikes(Setup(UNITS, 0.01), notes).take([0.0], stamp, 0) == []
    assert Rows(Setup(UNITS, 0.01), notes).take([0.0] * 3, stamp, 0) == []
    assert notes.counts == {"bad_stamp": 2}


def rows(setup: Setup, stamps: np.ndarray, values: np.ndarray | None = None) -> tuple:
    lines: list[str] = []
    notes = Notes(lines.append)
    taker = Rows(setup, notes)
    frames: list[Frame] = []
    for number, stamp in enumerate(stamps.tolist()):
        row = np.zeros(3) if values is None else values[number]
        frames += taker.take(row.tolist(), stamp, number * SECOND // 100)
    return frames, notes, lines


def test_values_that_are_no_counts_are_masked():
    values = np.ones((len(ODD), 3))
    values[:, 1] = ODD
    frames, notes, _ = rows(Setup(UNITS, 0.01), 5 + np.arange(len(ODD)) / 100, values)
    masks = [frame.mask is not None for frame in frames]
    assert masks == [True, True, True, True, True, True, False, False, True]
    assert notes.counts == {"bad_value": 7}
    for frame in frames:
        assert encode(frame)


def test_stamps_that_jitter_lose_no_bin():
    rng = np.random.default_rng(0)
    stamps = 5 + np.arange(3000) * 0.010003 + rng.uniform(-0.003, 0.003, 3000)
    frames, notes, _ = rows(Setup(UNITS, 0.01), stamps)
    assert [frame.seq for frame in frames] == list(range(3000))
    assert notes.counts == {}


def test_a_step_of_a_stream_is_told_of_and_loses_no_bin():
    stamps = 5 + np.arange(3000) / 100
    stamps[2000:] -= 1
    frames, notes, lines = rows(Setup(UNITS, 0.01), stamps)
    assert [frame.seq for frame in frames] == list(range(3000))
    assert [frame.sent_ns for frame in frames] == [round(stamp * 1e9) for stamp in stamps]
    assert "stepped by -1.000 s" in lines[0]
    assert notes.counts == {}


@pytest.mark.parametrize("size", [-3.0, 3.0])
def test_a_stray_stamp_costs_its_bin_alone(size: float):
    stamps = 5 + np.arange(1000) / 100
    stamps[700] += size
    frames, notes, _ = rows(Setup(UNITS, 0.01), stamps)
    assert [frame.seq for frame in frames] == [k for k in range(1000) if k != 700]
    assert notes.counts == {"stray": 1, "lost_bin": 1}


def test_a_session_taken_up_again_counts_bins_it_missed():
    setup = Setup(UNITS, 0.01, first=70, since_ns=5 * SECOND)
    frames, notes, _ = rows(setup, 5.51 + np.arange(10) / 100)
    assert [frame.seq for frame in frames] == list(range(120, 130))
    assert notes.counts == {"lost_bin": 50}
    frames, notes, lines = rows(setup, 1 + np.arange(10) / 100)
    assert [frame.seq for frame in frames] == list(range(70, 80))
    assert "anew" in lines[0]


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(InputError, match=r"evkf\[lsl\]"):
        need("--source lsl", "lsl", "a_package_that_nobody_has")


@pytest.mark.parametrize(
    ("num", "rate", "kind", "words"),
    [
        (3, 50.0, pylsl.cf_float32, "50 samples a second.*--bin-width 0.02"),
        (4, 100.0, pylsl.cf_float32, "4 channels"),
        (1, 0.0, pylsl.cf_string, "text"),
    ],
)
def test_a_stream_that_does_not_fit_is_refused(num: int, rate: float, kind: int, words: str):
    info = pylsl.StreamInfo("unfit", "", num, rate, kind, "unfit")
    with pytest.raises(InputError, match=words):
        check(info, Setup(UNITS, 0.01, stream="unfit"))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a", "c", "b"], "channel 1 is 'c', the model's unit there is 'b': the same units"),
        (["a", "b", "d"], "channel 2 is 'd', the model's unit there is 'c' "),
    ],
)
def test_channels_that_are_not_the_units_are_refused(labels: list[str], words: str):
    notes = Notes(lambda _: None)
    with pytest.raises(InputError, match=re.escape(words)):
        check_labels(labels, Setup(UNITS, 0.01, stream="other"), notes)


@pytest.mark.parametrize("numbers", [("0", "1", "2"), ("1", "2", "3"), ("4", "17", "23")])
def test_labels_are_compared_only_where_there_are_names(numbers: tuple[str, ...]):
    lines: list[str] = []
    notes = Notes(lines.append)
    for labels in ([], UNITS, ["a", None, "c"]):
        check_labels(labels, Setup(UNITS, 0.01), notes)
    assert lines == []
    numbered = Setup(numbers, 0.01)
    check_labels(UNITS, numbered, notes)
    assert "the model only numbers its units" in lines[0]
    # These are numbers too, and the same ones.
    with pytest.raises(InputError, match="another order"):
        check_labels([numbers[1], numbers[0], numbers[2]], numbered, notes)


def test_a_gateway_that_waits_for_a_stream_notices_its_end_in_time():
    assert LOOK_S + OPEN_S + ASK_S < END_S


def test_a_stream_with_other_labels_ends_the_session(tmp_path: Path):
    name = named("labels")
    made = outlet(name, 3, 100.0, labels=["c", "a", "b"])
    with (
        gateway(run, Setup(UNITS, 0.01, stream=name, log=tmp_path / "log")) as received,
        pytest.raises(InputError, match="channel 0 is 'c'"),
    ):
        received.until(lambda frames: frames != [])
    del made


def test_streams_that_are_there_are_named():
    info = pylsl.StreamInfo("shuf", "", 50, 100.0, pylsl.cf_float32, "shuf")
    told = describe([info])
    assert told.startswith("'shuf' (50 channels, 100 Hz, on ")
    assert describe([]) == "no stream"
    assert describe([info] * 12).endswith("and 2 more")


def test_who_waits_for_a_stream_is_told_which_there_are(monkeypatch: pytest.MonkeyPatch):
    info = pylsl.StreamInfo("shuf", "", 50, 100.0, pylsl.cf_float32, "shuf")
    answers, lines = iter([[], [], [info]]), []
    monkeypatch.setattr(pylsl, "resolve_byprop", lambda *_: next(answers))
    monkeypatch.setattr(pylsl, "resolve_streams", lambda _: [info])
    assert _find("Shuf", SimpleNamespace(read=list), Notes(lines.append)) is info
    assert len(lines) == 2
    assert "none yet called 'Shuf'; waiting for it; found: 'shuf' (50 channels" in lines[1]
