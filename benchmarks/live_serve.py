"""Three sessions under `evkf serve`, of which one is killed again and again.

The other two may lose nothing, and the 99th percentile from a bin sent to its estimate published
may move by less than 10 % from that without kills, in minutes of either kind by turns. The one that
is killed loses no bin that was acknowledged. What sends and hears bins has real-time priority where
that is permitted, as a rig would.

    python benchmarks/live_serve.py [--quick] [--json FILE]
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from closing import close
from live_kill import bins_kept

from evkf.live.answers import Estimate
from evkf.live.feed import Tape
from evkf.live.machine import aside, real_time
from evkf.live.plan import JOURNAL
from evkf.live.zeromq import ZmqReader, ZmqSender

NAMES, KILLED = ("left", "right", "third"), "third"
MINUTES, EVERY, KILLS = (5, 1), 20.0, (3, 1)
"""Spells with kills, and as many without; seconds between kills; kills in a spell; with --quick."""
MOVED, PERIOD, UNITS, TAPE = 0.1, 0.01, 40, 3000
READY_S = 120.0


class Line:
    """A rig's two ends of a session: what it sends, and what it hears."""

    def __init__(self, name: str, port: int, folder: Path, tape: Tape):
        self.name, self.folder, self.tape = name, folder / name, tape
        self.sender = ZmqSender(f"tcp://127.0.0.1:{port}")
        self.reader = ZmqReader(f"tcp://127.0.0.1:{port + 1}")
        self.seq, self.heard = 0, 0
        self.latencies: list[int] = []

    def turn(self) -> None:
        """Send a bin, and hear what there is."""
        self.sender.send(self.tape.frame(self.seq))
        self.seq += 1
        self.hear()

    def hear(self) -> None:
        self.sender.read()
        for said in self.reader.read():
            if said.seq >= self.heard:
                self.heard = said.seq + 1
                self.latencies.append(_latency(said))

    def close(self) -> None:
        self.sender.close()
        self.reader.close()


def _latency(said: Estimate) -> int:
    return said.published_ns - said.sent_ns


def pid_of(folder: Path) -> int | None:
    """Of the process that runs a session."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if str(folder).encode() in words and (b"live" in words or b"resume" in words):
                return int(entry.name)
    return None


class Kills:
    """Ends a session as the kernel would, and knows what it had acknowledged."""

    def __init__(self, line: Line):
        self.line, self.done = line, []

    def kill(self) -> None:
        """Now; what is left of it is looked at later: bins are due here."""
        folder = self.line.folder
        if pid := pid_of(folder):
            acknowledged = self.line.sender.acknowledged + 1
            os.kill(pid, signal.SIGKILL)
            copy = folder.with_name(f"{folder.name} {len(self.done)}")
            copy.mkdir()
            with aside():
                process = subprocess.Popen(["cp", "-r", folder / JOURNAL, copy / JOURNAL])
            self.done.append((acknowledged, copy, process))

    def gone(self) -> int:
        """Bins that had been acknowledged and were not in the journal."""
        num = 0
        for acknowledged, copy, process in self.done:
            process.wait()
            num += max(acknowledged - bins_kept(copy, channels=UNITS)[1], 0)
        return num


def drive(lines: list[Line], num_kills: int, kills: Kills | None = None) -> dict[str, list[int]]:
    """Send to a rhythm for so many times 20 s, with a kill at the start of each; the latencies."""
    for line in lines:
        line.latencies = []
    begin, every = time.perf_counter(), int(EVERY / PERIOD)
    for turn in range(num_kills * every):
        time.sleep(max(begin + turn * PERIOD - time.perf_counter(), 0.0))
        for line in lines:
            line.turn()
        if kills is not None and turn % every == 0:
            kills.kill()
    return {line.name: line.latencies for line in lines}


def pooled(spells: list[dict[str, list[int]]]) -> dict[str, dict[str, float]]:
    """Milliseconds of each session, over spells of one kind."""
    shares = {"median_ms": 0.5, "p99_ms": 0.99}
    return {
        name: {
            label: float(np.quantile(np.concatenate([spell[name] for spell in spells]), share))
            / 1e6
            for label, share in shares.items()
        }
        for name in NAMES
    }


def prepare(folder: Path) -> list[int]:
    """A model, and what `evkf serve` is given; the ports."""
    evkf = [sys.executable, "-m", "evkf"]
    sizes = ("--neurons", str(UNITS), "--trials", "12", "--bins", "60", "--seed", "1")
    recording, model = str(folder / "r.nwb"), str(folder / "m.safetensors")
    subprocess.run([*evkf, "simulate", "--out", recording, *sizes, "-q"], check=True)
    more = ("--bin-width", str(PERIOD), "--latents", "2", "--passes", "3")
    subprocess.run([*evkf, "fit", recording, "--out", model, *more, "-q"], check=True)
    ports = [5701, 5711, 5721]
    for name, port in zip(NAMES, ports, strict=True):
        (folder / f"{name}.toml").write_text(
            f'source = "zeromq"\nmodel = "{model}"\naddress = "tcp://127.0.0.1:{port}"\n'
            f'publish = "tcp://127.0.0.1:{port + 1}"\n'
        )
    return ports


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[None]:
    """`evkf serve` meanwhile."""
    process = subprocess.Popen([sys.executable, "-m", "evkf", "serve", str(folder)])
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="seconds, and a kill")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    tape = Tape(rng.poisson(0.2, (TAPE, UNITS)).astype(np.uint8), np.arange(TAPE) == 0)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        ports = prepare(folder)
        with serving(folder), real_time():
            lines = [Line(*each, folder, tape) for each in zip(NAMES, ports, strict=True)]
            _until_ready(lines)
            kills = Kills(next(line for line in lines if line.name == KILLED))
            without, during = [], []
            for _ in range(MINUTES[options.quick]):
                without.append(drive(lines, KILLS[options.quick]))
                during.append(drive(lines, KILLS[options.quick], kills))
            _drain(lines)
        gone = kills.gone()
        left = {line.name: line.sender.unacknowledged for line in lines}
        missing = {
            line.name: line.seq - bins_kept(line.folder, channels=UNITS)[1] for line in lines
        }
        for line in lines:
            line.close()
    before, after = pooled(without), pooled(during)
    moved = {
        name: after[name]["p99_ms"] / before[name]["p99_ms"] - 1 for name in NAMES if name != KILLED
    }
    result = {
        "kills": len(kills.done),
        "acknowledged_lost": gone,
        "missing": missing,
        "without": before,
        "during": after,
        "moved": moved,
    }
    missed = [f"{name}: p99 moved by {by:+.1%}" for name, by in moved.items() if by >= MOVED]
    missed += [f"{name}: {num} bins missing" for name, num in missing.items() if num]
    missed += [f"{name}: {num} never acknowledged" for name, num in left.items() if num]
    if gone:
        missed.append(f"{gone} acknowledged bins lost by {KILLED}")
    if len(kills.done) < KILLS[options.quick] * MINUTES[options.quick]:
        missed.append(f"{KILLED} was there to be killed only {len(kills.done)} times")
    told = ", ".join(f"{name} {by:+.1%}" for name, by in moved.items())
    print(
        f"{len(kills.done)} kills of {KILLED}: {gone} acknowledged bins lost, "
        f"{sum(missing.values())} missing in all; p99 of the others: {told}"
    )
    return close(result, missed, options.json)


def _until_ready(lines: list[Line]) -> None:
    """Send bins until every session answers."""
    until = time.monotonic() + READY_S
    while any(line.sender.acknowledged < 0 for line in lines):
        if time.monotonic() > until:
            raise TimeoutError("the sessions did not begin")
        for line in lines:
            if line.seq == 0:
                line.turn()
            line.hear()
        time.sleep(0.05)
    for _ in range(300):
        for line in lines:
            line.turn()
        time.sleep(PERIOD)


def _drain(lines: list[Line]) -> None:
    until = time.monotonic() + READY_S
    while any(line.sender.unacknowledged for line in lines) and time.monotonic() < until:
        for line in lines:
            line.hear()
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
