"""A session on a rig, stopped and resumed: spikes of Open Ephys in, estimates out by LSL."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pylsl
from open_ephys_emulator import Emulator
from rig_peers import WAIT_S

from evkf.cli.wiring import open_sinks, open_source
from evkf.live.engine import Costs, Engine
from evkf.live.frames import Decoder, Frame
from evkf.live.plan import JOURNAL, Parts, Plan, build, parts
from evkf.live.ports import Due, Report
from evkf.live.recall import Player as Recalled
from evkf.live.records import Kind, decode
from evkf.live.run import open_journal, open_session, recall
from evkf.live.segments import read
from tests.quick import quick_compilation  # noqa: F401

RATE, BIN, N = 30_000, 600, 4
"""Bins of 20 ms."""

COSTS = Costs(1e-4, 1e-4, 1e-4, 1e-4, 1.0)


class Player(threading.Thread):
    """Plays spikes at their time, from when it is told to until it is told to stop."""

    def __init__(self, emulator: Emulator):
        super().__init__(daemon=True)
        self._emulator, self._over = emulator, threading.Event()
        rng = np.random.default_rng(0)
        self.times = np.sort(rng.integers(0, 300 * RATE, 40 * 300))
        self.units = rng.integers(0, N, len(self.times))

    def run(self) -> None:
        begin, done, sample = time.monotonic(), 0, 0
        while not self._over.is_set():
            time.sleep(0.01)
            end = int((time.monotonic() - begin) * RATE)
            until = int(np.searchsorted(self.times, end))
            for at, unit in zip(self.times[done:until], self.units[done:until], strict=True):
                self._emulator.spike(str(unit), int(at))
            if done <= 20 < until:  # once its rate is known
                self._emulator.spike("stranger", end)
            self._emulator.continuous(sample, end - sample)
            done, sample = until, end

    def counts(self, bins: np.ndarray) -> np.ndarray:
        """Spikes in bins of the source."""
        found = np.zeros((len(bins), N), int)
        for row, k in enumerate(bins.tolist()):
            inside = (self.times >= k * BIN) & (self.times < (k + 1) * BIN)
            found[row] = np.bincount(self.units[inside], minlength=N)
        return found

    def stop(self) -> None:
        self._over.set()
        self.join()


class Estimates:
    """What a session streams: the number of each bin and when it ended."""

    def __init__(self, name: str):
        self._name, self._inlet = name, None
        self.bins: dict[int, float] = {}

    def until(self, num: int) -> None:
        """Read until so many more are there."""
        end, due = time.monotonic() + WAIT_S, len(self.bins) + num
        while len(self.bins) < due:
            assert time.monotonic() < end, "no estimates"
            if self._inlet is None:
                found = pylsl.resolve_byprop("name", self._name, 1, 1.0)
                self._inlet = pylsl.StreamInlet(found[0]) if found else None
                continue
            values, stamp = self._inlet.pull_sample(timeout=0.1)
            if stamp is not None:
                self.bins.setdefault(int(values[0]), stamp)


class Running(threading.Thread):
    """A session on a rig, in a thread."""

    def __init__(self, folder: Path, plan: Plan, made: Parts, engine: Engine, resumed: bool):
        super().__init__(daemon=True)
        self._over, self.report = threading.Event(), None
        journal = player = None
        if resumed:
            journal = open_journal(folder, plan)
            player: Recalled | None = recall(folder, engine, made.counts)
        due = Due() if player is None else player.due
        source, _ = open_source(plan, folder, made, due)
        sinks = open_sinks(plan, made, print)
        given = (folder, plan, engine, COSTS, made.counts, source, sinks, journal, player)
        self._session = open_session(*given)

    def run(self) -> None:
        self.report = self._session.run(self._over.is_set)

    def stop(self) -> Report:
        self._over.set()
        self.join()
        return self.report


def test_a_session_goes_on_by_the_clock_of_its_source(tmp_path: Path):
    emulator, name = Emulator(), f"evkf-test-live-{os.getpid()}"
    plan = Plan("open-ephys", 0.02, channels=N, address=emulator.address, lsl_out=name, learn=False)
    made = parts(plan, tmp_path)
    engine = build(plan, made)
    start = engine.state
    player, estimates = Player(emulator), Estimates(name)
    begun = Running(tmp_path, plan, made, engine, resumed=False)
    begun.start()
    emulator.wait(WAIT_S)
    player.start()
    estimates.until(50)
    before = begun.stop()
    assert before.counters.lost == 0
    assert before.odd["unknown_unit"] == 1
    engine.state = start
    again = Running(tmp_path, plan, made, engine, resumed=True)
    again.start()
    estimates.until(50)
    after = again.stop()
    player.stop()
    emulator.close()
    seqs = np.array(sorted(estimates.bins))
    ends = np.array([estimates.bins[seq] for seq in seqs])
    first = round(ends[0] / 0.02) - seqs[0]
    # Every bin ended when its number says, before and after, to the last bit of its stamp.
    np.testing.assert_array_equal(ends, (seqs + first) * 20_000_000 / 1e9)
    assert after.counters.lost > 5
    assert after.bins == before.bins + after.counters.delivered + after.counters.lost
    decoder = Decoder(N)
    frames = [
        decoder.decode(decode(record.kind, record.payload).frame)
        for record in read(tmp_path / JOURNAL)
        if record.kind == Kind.BIN
    ]
    assert len(frames) == before.counters.delivered + after.counters.delivered
    whole = [each for each in frames if isinstance(each, Frame) and each.mask is None]
    assert len(whole) >= len(frames) - 2
    due = player.counts(np.array([each.seq for each in whole]) + first - 1)
    np.testing.assert_array_equal([each.y for each in whole], due)
    assert "lost_bin" in (tmp_path / "session.log").read_text()
