"""Open Ephys: messages of the plugin to bins, exact to the sample, whatever else comes."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import zmq
from open_ephys_emulator import Emulator, continuous, spike, ttl
from rig_peers import gateway

from evkf.errors import InputError
from evkf.live.frames import Frame
from evkf.rigs.clock import SECOND
from evkf.rigs.ephys_messages import Buffer, Edge, Spike, decode
from evkf.rigs.gateway import Notes, RigError, Setup
from evkf.rigs.open_ephys import Heart, OpenEphys, listening, run

RATE, BIN = 30_000, 300
SETUP = Setup(("a", "b#2", "c"), 0.01, sample_rate=RATE, lateness=0.0)


def opened(**changed: object) -> tuple[OpenEphys, Notes, list[str]]:
    lines: list[str] = []
    notes = Notes(lines.append)
    return OpenEphys(SETUP._replace(**changed), notes), notes, lines


def at(sample: int) -> int:
    """When a message of a sample comes."""
    return 99 * SECOND + sample * SECOND // RATE


def fed(rig: OpenEphys, *messages: tuple[int, list[bytes]]) -> list[Frame]:
    return [frame for sample, parts in messages for frame in rig.take(parts, at(sample))]


def test_messages_are_read():
    assert decode(spike(1, "a", 7, 2)).what == Spike(7, "a", 2)
    assert decode(ttl(2, 5, 1, 9)).what == Edge(9, 5)
    assert decode(continuous(3, 100, 64)).what == Buffer(164, 30_000.0)
    assert decode(spike(4, "a", 7)).number == 4
    param = [b"PARAM\0", json.dumps({"message_num": 5, "type": "param", "content": {}}).encode()]
    assert decode(param) == (5, "", None)


def _changed(parts: list[bytes], **fields: object) -> list[bytes]:
    header = json.loads(parts[1])
    header["spike"] |= fields
    return [parts[0], json.dumps(header).encode(), parts[2]]


GOOD = spike(1, "a", 7)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([], "bad_parts"),
        ([b"EVENT\0"], "bad_parts"),
        ([*GOOD, b""], "bad_parts"),
        ([b"HELLO\0", *GOOD[1:]], "bad_envelope"),
        ([b"\xff" * 1000, *GOOD[1:]], "bad_envelope"),
        ([GOOD[0], b"", b""], "bad_json"),
        ([GOOD[0], b"{", b""], "bad_json"),
        ([GOOD[0], b"[]", b""], "bad_json"),
        ([GOOD[0], b"[" * 60_000, b""], "bad_json"),
        ([GOOD[0], b'{"a": ' + b"9" * 10_000 + b"}"], "bad_json"),
        ([GOOD[0], b"\xff\xfe", b""], "bad_json"),
        ([GOOD[0], b" " * 70_000, b""], "long_header"),
        ([GOOD[0], b"{}", b""], "bad_type"),
        ([GOOD[0], b'{"type": ["spike"]}', b""], "bad_type"),
        ([GOOD[0], b'{"type": "spike"}', b""], "no_content"),
        ([GOOD[0], b'{"type": "spike", "spike": 3}', b""], "no_content"),
        (_changed(GOOD, sample_num=-1), "bad_sample"),
        (_changed(GOOD, sample_num=0.5), "bad_sample"),
        (_changed(GOOD, sample_num=float("nan")), "bad_sample"),
        (_changed(GOOD, sample_num=float("inf")), "bad_sample"),
        (_changed(GOOD, sample_num=2**60), "bad_sample"),
        (_changed(GOOD, sample_num="7"), "bad_sample"),
        (_changed(GOOD, sample_num=True), "bad_sample"),
        (_changed(GOOD, electrode=None), "bad_unit"),
        (_changed(GOOD, electrode="e" * 1000), "bad_unit"),
        (_changed(GOOD, sorted_id=-3), "bad_unit"),
        ([*ttl(1, 0, 1, 7)[:2], b"\1"], "bad_event"),
        (continuous(1, 0, 10, rate=float("nan")), "bad_data"),
        (continuous(1, 0, 10, rate=0.0), "bad_data"),
    ],
)
def test_bad_messages_are_named_and_the_stream_goes_on(parts: list[bytes], code: str):
    with pytest.raises(RigError) as caught:
        decode(parts)
    assert caught.value.code == code
    assert len(str(caught.value)) < 300
    rig, notes, lines = opened()
    fed(rig, (0, spike(1, "a", 0)), (1, parts))
    frames = fed(rig, (310, spike(2, "a", 310)))
    assert [frame.y.tolist() for frame in frames] == [[1, 0, 0]]
    assert notes.counts == {code: 1}
    assert len(lines) == 1


def test_units_are_found_by_electrode_and_sorted_id():
    rig, notes, lines = opened()
    sent = [("a", 0), ("a", 5), ("b", 2), ("b", 1), ("c", 0), ("d", 0)]
    messages = [(k, spike(k + 1, name, k, sort)) for k, (name, sort) in enumerate(sent)]
    frames = fed(rig, *messages, (300, continuous(7, 0, 300)))
    assert [frame.y.tolist() for frame in frames] == [[2, 1, 1]]
    assert notes.counts == {"unknown_unit": 2}
    assert "b#1" in lines[0]


def test_missing_messages_are_counted_and_their_bins_masked():
    rig, notes, _ = opened()
    frames = fed(
        rig,
        (0, continuous(1, 0, 0)),
        (350, spike(2, "a", 350)),
        (950, spike(7, "a", 950)),
        (1600, continuous(8, 1300, 300)),
    )
    assert [frame.mask is None for frame in frames] == [True, False, False, False, True]
    assert notes.counts == {"lost_message": 4}


@pytest.mark.parametrize("seed", range(10))
def test_every_bin_that_may_miss_a_spike_is_masked(seed: int):
    """Messages out of order by as much as bins wait, some of them lost."""
    rng, wait = np.random.default_rng(seed), 0.025
    times = np.sort(rng.integers(0, 200 * BIN, 400))
    sent = times + rng.uniform(0, wait * RATE - 1, len(times))
    order, lost = np.argsort(sent), rng.random(len(times)) < 0.03
    rig, _, _ = opened(lateness=wait)
    frames = fed(rig, (0, continuous(1, 0, 0)))
    for number, k in enumerate(order.tolist(), start=2):
        if not lost[k]:
            frames += fed(rig, (int(sent[k]), spike(number, "a", int(times[k]))))
    due = np.bincount(times // BIN, minlength=200)
    whole = [frame for frame in frames if frame.mask is None]
    assert [frame.y[0] for frame in whole] == [due[frame.seq] for frame in whole]
    assert 0 < len(whole) < len(frames)


def test_a_loss_told_of_by_a_stray_message_masks_too():
    rig, notes, _ = opened()
    frames = fed(
        rig,
        (0, continuous(1, 0, 0)),
        (350, spike(2, "a", 350)),
        (400, spike(7, "a", 10**8)),
        (950, spike(8, "a", 950)),
        (1600, continuous(9, 1300, 300)),
    )
    assert [frame.mask is None for frame in frames] == [True, False, False, False, True]
    assert notes.counts == {"lost_message": 4, "stray": 1}


def test_a_loss_at_a_step_of_the_clock_masks_too():
    rig, notes, lines = opened()
    frames = []
    for k in range(2000):
        jump, missing = (RATE, 5) if k >= 1000 else (0, 0)
        if k != 1000:
            frames += fed(rig, (k * 30, spike(k + 1 + missing, "a", k * 30 + jump)))
    assert any("stepped by +1.000 s" in line for line in lines)
    assert notes.counts == {"lost_message": 6}
    masked = [frame.seq for frame in frames if frame.mask is not None]
    short = [frame.seq for frame in frames if frame.y[0] < 10]
    assert set(short) <= set(masked)
    assert 100 in masked
    assert len(masked) < 20


def test_numbers_that_begin_anew_are_no_loss():
    rig, notes, _ = opened()
    fed(rig, (0, spike(1000, "a", 0)), (10, spike(1, "a", 10)), (20, spike(2, "a", 20)))
    assert notes.counts == {"anew": 1}


def test_edges_of_a_line_mask_bins_and_other_lines_do_not():
    rig, _, _ = opened(blank=(4, 0.005))
    frames = fed(
        rig,
        (0, continuous(1, 0, 0)),
        (100, ttl(2, 3, 1, 100)),
        (1000, ttl(3, 4, 1, 1000)),
        (2000, continuous(4, 0, 2000)),
    )
    assert [frame.seq for frame in frames if frame.mask is not None] == [2, 3]


def test_the_sample_rate_comes_with_continuous_data():
    rig, notes, lines = opened(sample_rate=None)
    frames = fed(rig, (0, spike(1, "a", 0)), (200, continuous(2, 0, 200, 20_000.0)))
    frames += fed(rig, (410, continuous(3, 200, 210, 20_000.0)))
    assert [frame.sent_ns for frame in frames] == [20_000_000]
    assert notes.counts == {"no_sample_rate": 1}
    assert "--sample-rate" in lines[0]
    assert fed(rig, (500, continuous(4, 410, 90, 30_000.0))) == []
    assert notes.counts["other_rate"] == 1


def test_another_stream_is_left_out():
    rig, notes, _ = opened()
    fed(rig, (0, spike(1, "a", 0)), (1, spike(2, "a", 1, stream="other")))
    assert notes.counts == {"other_stream": 1}


def test_silence_is_zero_spikes_until_the_source_is_away():
    rig, notes, lines = opened()
    frames = fed(rig, *((k * 30, spike(k + 1, "a", k * 30)) for k in range(1000)))
    last = 999 * 30
    for sample in range(last, last + 5 * RATE, 100):
        frames += rig.idle(at(sample))
    # Two seconds less what silence is waited for.
    assert len(frames) == 289
    back = last + 5 * RATE
    frames += fed(rig, *((back + k, spike(1001 + k, "a", back + k)) for k in range(600)))
    assert [frame.seq for frame in frames[:289]] == list(range(289))
    assert frames[-1].seq > 590
    assert notes.counts == {"lost_bin": 309}
    assert any("nothing came for 5.0" in line for line in lines)


def test_bins_wait_for_continuous_data_that_tell_the_time():
    rig, notes, _ = opened()
    frames = fed(rig, *((k * 30, continuous(k + 1, k * 30, 30)) for k in range(1000)))
    # What came first was after the beginning of the first bin.
    assert len(frames) == 99
    for sample in range(30_000, 5 * RATE, 300):
        assert rig.idle(at(sample)) == []
    # A stall of four seconds, after which all that waited comes at once.
    now = 5 * RATE
    frames += fed(rig, (now, spike(1001, "a", 30_100)))
    frames += fed(rig, *((now, continuous(1002 + k, 30_000 + k * 30, 30)) for k in range(4000)))
    assert [frame.seq for frame in frames] == list(range(499))
    assert sum(frame.y[0] for frame in frames) == 1
    assert all(frame.mask is None for frame in frames)
    assert notes.counts == {}


def test_a_plugin_that_does_not_answer_is_told_of_and_asked_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("evkf.rigs.open_ephys.BEAT_S", 0.02)
    monkeypatch.setattr("evkf.rigs.open_ephys.LOST_S", 0.05)
    lines: list[str] = []
    context = zmq.Context()
    plugin = context.socket(zmq.REP)
    port = plugin.bind_to_random_port("tcp://127.0.0.1")
    heart = Heart(context, f"tcp://127.0.0.1:{port}", Notes(lines.append))
    end = time.monotonic() + 30
    while len(lines) < 1 and time.monotonic() < end:
        heart.beat(time.monotonic())
    while len(lines) < 2 and time.monotonic() < end:
        heart.beat(time.monotonic())
        if plugin.poll(1):
            assert json.loads(plugin.recv())["type"] == "heartbeat"
            plugin.send(b"heartbeat received")
    heart.close()
    plugin.close(linger=0)
    context.term()
    assert "no answer" in lines[0]
    assert "answers again" in lines[1]


def test_a_step_is_told_of_and_no_bin_is_missing():
    rig, notes, lines = opened(lateness=0.025)
    frames = []
    for k in range(3000):
        jump = RATE if k >= 1500 else 0
        frames += fed(rig, (k * 30, spike(k + 1, "a", k * 30 + jump)))
    assert [frame.seq for frame in frames] == list(range(len(frames)))
    assert all(9 <= frame.y[0] <= 11 for frame in frames)
    assert sum(frame.y[0] for frame in frames) == 10 * len(frames)
    ends = np.diff([frame.sent_ns for frame in frames])
    assert sorted(set(ends.tolist()))[0] == 10_000_000
    assert (ends != 10_000_000).sum() == 1
    assert notes.counts == {}
    assert any("stepped by +1.000 s" in line for line in lines)


def test_an_address_without_a_port_is_refused():
    with pytest.raises(InputError, match=r"tcp://127\.0\.0\.1:5556"):
        listening("localhost")


def test_a_real_peer_is_binned_exactly(tmp_path: Path):
    emulator = Emulator()
    setup = SETUP._replace(address=emulator.address, sample_rate=None, log=tmp_path / "log")
    setup = setup._replace(blank=(1, 0.004), lateness=0.025)
    rng = np.random.default_rng(0)
    bins, units = 60, [("a", 0), ("b", 2), ("c", 0)]
    times = np.sort(rng.integers(0, bins * BIN, 400))
    which = rng.integers(0, 3, 400)
    with gateway(run, setup) as received:
        emulator.wait()
        emulator.continuous(0, 0)
        told, now = 0, time.monotonic()
        for buffer in range(bins):
            begin = buffer * BIN
            time.sleep(max(now + begin / RATE - time.monotonic(), 0))
            inside = (times >= begin) & (times < begin + BIN)
            # The plugin sends a buffer's spikes electrode by electrode.
            for unit, (name, sort) in enumerate(units):
                for sample in times[inside & (which == unit)]:
                    emulator.spike(name, int(sample), sort)
            if buffer == 30:
                emulator.ttl(1, 1, begin + 10)
                emulator.send([b"EVENT\0", b"{broken", b""])
            emulator.continuous(begin, BIN)
            told += inside.sum()
        assert told == 400
        emulator.continuous(bins * BIN, BIN * 4)
        frames = received.until(lambda frames: len(frames) >= bins)[:bins]
        assert emulator.alive == 1
    emulator.close()
    edges = np.arange(bins + 1) * BIN - 0.5
    due = np.stack([np.histogram(times[which == unit], edges)[0] for unit in range(3)], axis=1)
    masked = [frame.seq for frame in frames if frame.mask is not None]
    assert masked == [29, 30]
    due[masked] = 0
    np.testing.assert_array_equal([frame.y for frame in frames], due)
    assert [frame.seq for frame in frames] == list(range(bins))
    assert [frame.sent_ns for frame in frames] == [10_000_000 * (k + 1) for k in range(bins)]
    log = (tmp_path / "log").read_text()
    assert "bad_json" in log
    assert "late_spike" not in log
