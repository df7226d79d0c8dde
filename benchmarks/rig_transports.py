"""Rig transports: real peers on loopback, clocks that drift and jump, and a million odd messages.

Spikes and bins that real peers send (an Open Ephys emulator, pylsl and pyzmq in and out) must come
out with the same counts and time stamps, to the last bit. A clock that drifts by 100 parts in a
million and jumps by a second must be told of, and bins stay within one of where they belong. What
LSL hands out first is shown to be old, and left out. No message, however odd, may crash a
transport, hold it up for a second, or make it grow.

    python benchmarks/rig_transports.py [--quick] [--json FILE]
"""

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pylsl
from closing import close
from odd_messages import odd_messages, odd_rows, odd_spikes
from open_ephys_emulator import Emulator, continuous
from rig_peers import WAIT_S, gateway
from zmq_peers import fuzz_zmq, peer_zmq

from evkf.live.answers import Estimate, Flags
from evkf.live.frames import Decoder, Frame, encode
from evkf.rigs import lsl, open_ephys
from evkf.rigs.clock import SECOND
from evkf.rigs.gateway import Notes, Setup
from evkf.rigs.intake import Intake, Moment
from evkf.rigs.lsl_out import LslSink, channels, flatten

RATE, WIDTH, UNITS = 30_000, 0.01, tuple(f"unit {n}" for n in range(20))
FUZZ, QUICK = 1_000_000, 20_000
THROUGH, QUICK_THROUGH = 50_000, 3000
"""Odd messages for what decodes them (of ZeroMQ by a real socket), and through real gateways."""

BLANK = 3, 0.005
"""Line of edges that mask, and seconds around them."""

TRIES, SILENT_S = 5, 0.1
"""A sender of spikes that this machine held up for longer looks silent, and is tried again."""

BEGIN_S = 10
"""What a clock that will jump shows at first."""

SLOWEST_S, GROWTH = 1.0, 8e6
"""A message may take so long; resident memory may grow by so many bytes after the first tenth."""


def within(frames: list[Frame], source: np.ndarray) -> bool:
    """Whether all bins are there, and none holds spikes that belong more than one away.

    Args:
        frames: Bins of one unit, the first on the clock as it was before it jumped.
        source: Samples of its spikes, as if it had not jumped.
    """
    width = round(WIDTH * RATE)
    first = frames[0].sent_ns // round(WIDTH * SECOND) - round(BEGIN_S / WIDTH)
    ends = (np.arange(len(frames)) + first) * width
    before = int(np.searchsorted(source, ends[0] - width))
    got = before + np.cumsum([frame.y[0] for frame in frames])
    low, high = (np.searchsorted(source, ends + way * width) for way in (-1, 1))
    numbers = [frame.seq for frame in frames] == list(range(len(frames)))
    return bool(numbers and np.all((low <= got) & (got <= high)))


def aligned(ppm: float, jump: float, seconds: int, seed: int) -> dict[str, Any]:
    """Spikes on a clock that drifts and jumps: what was told, and how far bins are off."""
    rng = np.random.default_rng(seed)
    flags: list[str] = []
    intake = Intake(Setup(UNITS[:1], WIDTH), RATE, Notes(flags.append))
    num = 200 * seconds
    # Times on the source's clock without its jump; bins are right if they are those of it.
    source = np.sort(rng.integers(0, seconds * RATE, num))
    true = source / (1 + ppm * 1e-6) / RATE
    host = 1000 + np.maximum.accumulate(true + rng.exponential(0.002, num).clip(0, 0.02))
    told = source + np.where(np.arange(num) >= num // 2, round(jump * RATE), 0) + BEGIN_S * RATE
    frames: list[Frame] = []
    for sample, at in zip(told.tolist(), (host * 1e9).astype(int).tolist(), strict=True):
        frames += intake.take(Moment(sample, 0), at)
    return {
        "ppm": ppm,
        "step_s": jump,
        "ppm_found": round(intake.clock.drift_ppm, 1),
        "drift_told": any("ppm" in line for line in flags),
        "steps_told": sum("stepped" in line for line in flags),
        "within_a_bin": within(frames, source),
        "late": intake.binner.late,
    }


def clocks(quick: bool, missed: list[str]) -> list[dict[str, Any]]:
    """Drift of either sign with steps of either sign."""
    found = []
    for number, (ppm, jump) in enumerate(((100, 1), (100, -1), (-100, 1), (-100, -1))):
        row = aligned(ppm, jump, 60 if quick else 600, number)
        found.append(row)
        if not row["drift_told"] or abs(row["ppm_found"] - ppm) > 20:
            missed.append(f"drift of {ppm} ppm: told {row['drift_told']}, {row['ppm_found']}")
        if row["steps_told"] != 1 or not row["within_a_bin"]:
            missed.append(f"step of {jump} s at {ppm} ppm: {row}")
        print(f"drift {ppm:+} ppm, step {jump:+} s: {row}")
    return found


def played(seconds: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Times in seconds, and units, of 1000 spikes a second."""
    times = np.sort(rng.random(int(1000 * seconds))) * seconds
    return times, rng.integers(0, len(UNITS), len(times))


def pace(seconds: float, every: float = 0.01) -> Iterator[tuple[float, float]]:
    """Stretches of time, each when it is over."""
    begin, last = time.monotonic(), 0.0
    while last < seconds:
        time.sleep(every)
        now = min(time.monotonic() - begin, seconds)
        yield last, now
        last = now


def compared(frames: list[Frame], ticks: np.ndarray, units: np.ndarray, per_bin: int) -> bool:
    """Whether bins are exactly those of a histogram, and end where they say."""
    width = round(WIDTH * SECOND)
    k = np.array([frame.sent_ns // width - 1 for frame in frames])
    right = np.array([frame.sent_ns % width == 0 for frame in frames])
    seqs = np.array([frame.seq for frame in frames])
    found = np.zeros((int(k.max()) + 1, len(UNITS)), int)
    inside = ticks // per_bin <= k.max()
    np.add.at(found, ((ticks // per_bin)[inside], units[inside]), 1)
    same = np.array_equal([frame.y for frame in frames], found[k])
    return bool(right.all() and np.all(np.diff(k) == 1) and np.all(np.diff(seqs) == 1) and same)


def peer_open_ephys(seconds: float, log: Path, num_odd: int) -> dict[str, Any]:
    """The emulator in: first what is right, then odd messages among it."""
    times, units = played(seconds, np.random.default_rng(0))
    ticks = (times * RATE).astype(int)
    emulator = Emulator()
    setup = Setup(UNITS, WIDTH, address=emulator.address, log=log)
    with gateway(open_ephys.run, setup) as received:
        emulator.wait()
        emulator.continuous(0, 0)
        done = sample = 0
        for _, now in pace(seconds):
            end = int(now * RATE)
            until = int(np.searchsorted(ticks, end))
            for at, unit in zip(ticks[done:until], units[done:until], strict=True):
                emulator.spike(UNITS[unit], int(at))
            emulator.continuous(sample, end - sample)
            done, sample = until, end
        begin, last = time.monotonic(), int(seconds / WIDTH) - 10
        frames = list(received.until(lambda got: len(got) >= last))[:last]
        exact = compared(frames, ticks, units, round(WIDTH * RATE))
        odd = odd_messages(1)
        for number in range(num_odd):
            emulator.send(next(odd))
            if number % 100 == 0:
                now = int((seconds + time.monotonic() - begin) * RATE)
                emulator.send(continuous(10**6 + number, now, 0))
                time.sleep(0.001)
        longest = after_all(received, lambda: _tick(emulator, seconds, begin))
    emulator.close()
    return {"bins": len(frames), "spikes": done, "exact": exact, "odd": num_odd, "gap_s": longest}


def peer_stepping(seconds: float, log: Path) -> dict[str, Any]:
    """The emulator in, with a clock that runs 100 ppm fast and jumps by a second."""
    source = np.sort(np.random.default_rng(4).integers(0, int(seconds * RATE), int(200 * seconds)))
    emulator = Emulator()
    setup = Setup(UNITS[:1], WIDTH, address=emulator.address, log=log, sample_rate=RATE)
    with gateway(open_ephys.run, setup) as received:
        emulator.wait()
        done = 0
        for _, now in pace(seconds):
            until = int(np.searchsorted(source, now * RATE * (1 + 1e-4)))
            jump = RATE if now > seconds / 2 else 0
            for at in source[done:until]:
                emulator.spike(UNITS[0], int(at) + BEGIN_S * RATE + jump)
            emulator.continuous(int(now * RATE * (1 + 1e-4)) + BEGIN_S * RATE + jump, 0)
            done = until
        last = int(seconds / WIDTH) - 10
        frames = list(received.until(lambda got: len(got) >= last))[:last]
    emulator.close()
    noted = log.read_text()
    row = {"bins": len(frames), "exact": within(frames, source), "steps": noted.count("stepped")}
    return row | {"drift_told": "ppm fast" in noted, "late": noted.count("late_spike")}


def _tick(emulator: Emulator, seconds: float, begin: float) -> None:
    now = int((seconds + time.monotonic() - begin) * RATE)
    emulator.send(continuous(2 * 10**6, now, 0))


def after_all(received: Any, tick: Callable[[], None]) -> float:
    """Seconds until a bin came again after odd messages, if the source goes on."""
    before = -1
    while len(received.frames) > before:
        before = len(received.frames)
        received.some(0.02)
    begin = time.monotonic()
    while len(received.frames) <= before + 5:
        tick()
        received.some(0.05)
        if time.monotonic() - begin > WAIT_S:
            return float("inf")
    return round(time.monotonic() - begin, 3)


def outlet(name: str, num: int, rate: float) -> pylsl.StreamOutlet:
    """A stream of numbers."""
    info = pylsl.StreamInfo(name, "Spikes", num, rate, pylsl.cf_double64, name)
    return pylsl.StreamOutlet(info)


def connected(made: pylsl.StreamOutlet, log: Path) -> None:
    """Wait until the gateway listens."""
    made.wait_for_consumers(WAIT_S)
    while not log.exists() or "connected" not in log.read_text():
        time.sleep(0.01)
    time.sleep(0.2)


def peer_lsl_spikes(seconds: float, log: Path, num_odd: int) -> dict[str, Any]:
    """A real outlet of spikes in: first what is right, then odd samples."""
    name = f"evkf-check-spikes-{os.getpid()}"
    times, units = played(seconds, np.random.default_rng(1))
    ticks = (times * SECOND).astype(int) + 100 * SECOND
    made = outlet(name, 1, pylsl.IRREGULAR_RATE)
    with gateway(lsl.run, Setup(UNITS, WIDTH, stream=name, log=log)) as received:
        connected(made, log)
        done, held_up = 0, 0.0
        for last, now in pace(seconds):
            held_up = max(held_up, now - last)
            until = int(np.searchsorted(times, now))
            for at, unit in zip(ticks[done:until], units[done:until], strict=True):
                made.push_sample([float(unit)], float(at) / 1e9)
            done = until
        begin, last = time.monotonic(), int(seconds / WIDTH) - 15
        frames = list(received.until(lambda got: len(got) >= last))[:last]
        exact = compared(frames, ticks, units, round(WIDTH * SECOND))
        odd = odd_spikes(2)
        for number in range(num_odd):
            values, stamp = next(odd)
            made.push_sample(values, stamp)
            if number % 100 == 0:
                made.push_sample([0.0], 100 + seconds + time.monotonic() - begin)
                time.sleep(0.001)
        moment = lambda: 100 + seconds + time.monotonic() - begin  # noqa: E731
        longest = after_all(received, lambda: made.push_sample([0.0], moment()))
    row = {"bins": len(frames), "spikes": done, "exact": exact, "odd": num_odd, "gap_s": longest}
    return row | {"held_up_s": round(held_up, 3)}


def peer_lsl_rows(seconds: float, log: Path) -> dict[str, Any]:
    """A real outlet of bins in."""
    name, rng = f"evkf-check-rows-{os.getpid()}", np.random.default_rng(2)
    counts = rng.poisson(2.0, (int(seconds / WIDTH), len(UNITS))).astype(float)
    made = outlet(name, len(UNITS), 1 / WIDTH)
    with gateway(lsl.run, Setup(UNITS, WIDTH, stream=name, log=log)) as received:
        connected(made, log)
        sent = 0
        for _, now in pace(seconds):
            while sent < min(now / WIDTH, len(counts)):
                made.push_sample(counts[sent].tolist(), 100 + sent / 100)
                sent += 1
        end = 100 * SECOND + (len(counts) - 1) * 10_000_000
        frames = received.until(lambda got: got != [] and got[-1].sent_ns >= end)
    first = (frames[0].sent_ns - 100 * SECOND) // 10_000_000
    at = np.arange(first, len(counts))
    exact = [frame.sent_ns for frame in frames] == (100 * SECOND + at * 10_000_000).tolist()
    exact &= np.array_equal([frame.y for frame in frames], counts[first:])
    exact &= [frame.seq for frame in frames] == list(range(len(frames)))
    return {"bins": len(frames), "first_lost": int(first), "exact": bool(exact and first <= 1)}


def peer_lsl_out(seconds: float) -> dict[str, Any]:
    """Estimates out to a real inlet."""
    name, rng = f"evkf-check-out-{os.getpid()}", np.random.default_rng(3)
    sink = LslSink(name, channels(3, UNITS, 5, True), WIDTH, print)
    reader = pylsl.StreamInlet(pylsl.resolve_byprop("name", name, 1, WAIT_S)[0])
    reader.open_stream(WAIT_S)
    time.sleep(0.2)
    said, got = [], []
    for seq in range(int(seconds / WIDTH)):
        parts = rng.normal(size=3), rng.normal(size=(3, 3)), rng.random(20), rng.normal(), 0
        ahead = rng.normal(size=(5, 3)), rng.random((5, 3))
        sent = 123_456_789 * 10**6 + seq * 10_000_000
        said.append(Estimate(seq, Flags.NOTHING, *parts, *ahead, sent, 1, 2))
        sink.publish(said[-1])
        time.sleep(0.001)
        got += zip(*reader.pull_chunk(timeout=0.0), strict=True)
    until = time.monotonic() + WAIT_S
    while (not got or got[-1][0][0] < len(said) - 1) and time.monotonic() < until:
        got += zip(*reader.pull_chunk(timeout=0.0), strict=True)
        time.sleep(0.01)
    exact = [values for values, _ in got] == [flatten(said[int(v[0])]) for v, _ in got]
    exact &= [stamp for _, stamp in got] == [said[int(v[0])].sent_ns / 1e9 for v, _ in got]
    sink.close()
    return {"estimates": len(got), "first_lost": len(said) - len(got), "exact": bool(exact)}


def oldest_first() -> dict[str, Any]:
    """How old is what LSL hands out first, plainly and after what waited was left out."""
    name, lines = f"evkf-check-old-{os.getpid()}", []
    made = outlet(name, 1, 100.0)
    info = pylsl.resolve_byprop("name", name, 1, WAIT_S)[0]
    plain, ours = pylsl.StreamInlet(info), pylsl.StreamInlet(info)
    for each in (plain, ours):
        each.open_stream(WAIT_S)
    made.wait_for_consumers(WAIT_S)
    for k in range(1, 501):
        made.push_sample([float(k)], k / 100)
    time.sleep(1.0)
    left_out = lsl.drain(ours, Notes(lines.append))
    made.push_sample([501.0], 5.01)
    ages = [5.01 - each.pull_sample(timeout=5.0)[1] for each in (plain, ours)]
    return {"plain_age_s": round(ages[0], 3), "our_age_s": ages[1], "left_out": left_out}


def fuzz(what: str, num: int, take: Callable[[Any, int], list[Frame]], odd: Iterator) -> dict:
    """Odd messages, one after the other: crashes, the slowest (of this process alone), growth."""
    decoder, slowest, bins, crashes = Decoder(len(UNITS)), 0.0, 0, []
    resident = 0
    for number in range(num):
        if number == num // 10:
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        message, host = next(odd), 10**9 * 1000 + number * 1_000_000
        begin = time.thread_time()
        try:
            frames = take(message, host)
        except Exception as error:
            crashes.append(f"{error!r} for {message!r:.200}")
            frames = []
        slowest = max(slowest, time.thread_time() - begin)
        for frame in frames:
            decoder.decode(encode(frame))
        bins += len(frames)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) * 1024
    row = {"what": what, "num": num, "crashes": len(crashes), "bins": bins}
    row |= {"slowest_ms": round(slowest * 1e3, 2), "growth": growth}
    print(row, *crashes[:3], sep="\n")
    return row


def fuzzed(num: int, missed: list[str]) -> list[dict]:
    """What decodes, fed with odd messages among good ones."""
    quiet = Notes(lambda _: None)
    rig = open_ephys.OpenEphys(Setup(UNITS, WIDTH, sample_rate=RATE, blank=BLANK), quiet)
    spikes, rows = lsl.Spikes(Setup(UNITS, WIDTH), quiet), lsl.Rows(Setup(UNITS, WIDTH), quiet)
    found = [
        fuzz("Open Ephys", num, rig.take, odd_messages(0, good=0.2)),
        fuzz("LSL spikes", num, lambda each, at: spikes.take(*each, at), odd_spikes(0, good=0.2)),
        fuzz(
            "LSL bins",
            num,
            lambda each, at: rows.take(*each, at),
            odd_rows(0, len(UNITS), good=0.2),
        ),
        fuzz_zmq(num),
    ]
    for row in found:
        slow = row["slowest_ms"] > SLOWEST_S * 1e3
        odd = row["wrong"] if "wrong" in row else not row["bins"]
        if row["crashes"] or slow or row["growth"] > GROWTH or odd:
            missed.append(f"odd messages: {row}")
    print(dict(quiet.counts))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    quick, missed = options.quick, []
    seconds, through = (2.0, QUICK_THROUGH) if quick else (30.0, THROUGH)
    found: dict[str, Any] = {"clocks": clocks(quick, missed)}
    found["fuzz"] = fuzzed(QUICK if quick else FUZZ, missed)
    with TemporaryDirectory() as folder:
        logs = Path(folder)
        found["open_ephys_in"] = peer_open_ephys(seconds, logs / "open_ephys", through)
        for number in range(TRIES):
            found["lsl_spikes_in"] = peer_lsl_spikes(seconds, logs / f"spikes{number}", through)
            if found["lsl_spikes_in"]["held_up_s"] < SILENT_S:
                break
        found["lsl_bins_in"] = peer_lsl_rows(seconds, logs / "rows")
        found["stepping"] = peer_stepping(6.0 if quick else 40.0, logs / "stepping")
    found["lsl_out"] = peer_lsl_out(seconds)
    found["zmq"] = row = peer_zmq(through)
    print(f"pyzmq: {row}")
    if not (row["exact_in"] and row["exact_out"]):
        missed.append(f"pyzmq: {row}")
    found["oldest_first"] = oldest_first()
    for name in ("open_ephys_in", "lsl_spikes_in", "lsl_bins_in", "lsl_out"):
        row = found[name]
        print(f"{name}: {row}")
        if not row["exact"] or row.get("gap_s", 0.0) > SLOWEST_S:
            missed.append(f"{name}: {row}")
    row = found["stepping"]
    print(f"a peer whose clock jumps: {row}")
    if not row["exact"] or row["steps"] != 1 or not (row["drift_told"] or quick):
        missed.append(f"a peer whose clock jumps: {row}")
    old = found["oldest_first"]
    print(f"first from LSL: {old['plain_age_s']} s old; after what waited is left out: 0 s")
    if old["plain_age_s"] < 4 or abs(old["our_age_s"]) > 1e-9:
        missed.append(f"oldest first: {old}")
    exact = sum(found[name]["exact"] for name in found if "_in" in name or name == "lsl_out")
    print(f"{exact} of 4 peers exact, {sum(row['num'] for row in found['fuzz'])} odd messages")
    return close(found, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
