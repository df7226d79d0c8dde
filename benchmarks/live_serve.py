"""Three sessions under `evkf serve`, of which one is killed again and again.

The other two may lose nothing, and the 99th percentile from a bin sent to its estimate published
may move by less than 10 % from what it was before; the one that is killed loses no bin that was
acknowledged. What sends and hears bins has real-time priority where that is permitted, as a rig
would.

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
from pathlib import Path
from typing import Any

import numpy as np
from closing import close
from live_kill import bins_kept

from evkf.live.answers import Estimate
from evkf.live.feed import Tape
from evkf.live.machine import real_time
from evkf.live.zeromq import ZmqReader, ZmqSender

NAMES, KILLED = ("left", "right", "third"), "third"
SECONDS, EVERY, QUICK = 300.0, 20.0, 20.0
"""Seconds with kills and, before, as long without; between kills; and of each with --quick."""
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


def drive(lines: list[Line], seconds: float, kill: Path | None = None) -> dict[str, Any]:
    """Send to a rhythm, kill one now and then; 99th percentiles in milliseconds."""
    for line in lines:
        line.latencies.clear()
    begin, kills, gone, position, kept = time.perf_counter(), 0, 0, 0, 0
    for turn in range(int(seconds / PERIOD)):
        time.sleep(max(begin + turn * PERIOD - time.perf_counter(), 0.0))
        for line in lines:
            line.turn()
        if kill and turn * PERIOD >= (kills + 0.5) * EVERY and (pid := pid_of(kill)):
            killed = next(line for line in lines if line.name == KILLED)
            acknowledged = killed.sender.acknowledged + 1
            os.kill(pid, signal.SIGKILL)
            kills += 1
            position, kept = bins_kept(kill, position, kept, UNITS)
            gone += max(acknowledged - kept, 0)
    p99 = {line.name: float(np.quantile(line.latencies, 0.99)) / 1e6 for line in lines}
    median = {line.name: float(np.median(line.latencies)) / 1e6 for line in lines}
    return {"p99_ms": p99, "median_ms": median, "kills": kills, "gone": gone}


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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="seconds, and a kill")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    seconds = QUICK if options.quick else SECONDS
    rng = np.random.default_rng(0)
    tape = Tape(rng.poisson(0.2, (TAPE, UNITS)).astype(np.uint8), np.arange(TAPE) == 0)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        ports = prepare(folder)
        serve = subprocess.Popen([sys.executable, "-m", "evkf", "serve", str(folder)])
        with real_time():
            lines = [Line(*each, folder, tape) for each in zip(NAMES, ports, strict=True)]
            _until_ready(lines)
            before = drive(lines, seconds)
            during = drive(lines, seconds, folder / KILLED)
            _drain(lines)
        left = {line.name: line.sender.unacknowledged for line in lines}
        missing = {
            line.name: line.seq - bins_kept(line.folder, channels=UNITS)[1] for line in lines
        }
        serve.send_signal(signal.SIGTERM)
        serve.wait()
        for line in lines:
            line.close()
    others = [name for name in NAMES if name != KILLED]
    moved = {name: during["p99_ms"][name] / before["p99_ms"][name] - 1 for name in others}
    result = {"before": before, "during": during, "moved": moved, "missing": missing}
    missed = [f"{name}: p99 moved by {by:+.1%}" for name, by in moved.items() if by >= MOVED]
    missed += [f"{name}: {num} bins missing" for name, num in missing.items() if num]
    missed += [f"{name}: {num} never acknowledged" for name, num in left.items() if num]
    if during["gone"]:
        missed.append(f"{during['gone']} acknowledged bins lost by {KILLED}")
    told = ", ".join(f"{name} {by:+.1%}" for name, by in moved.items())
    print(
        f"{during['kills']} kills of {KILLED}: {during['gone']} acknowledged bins lost, "
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
