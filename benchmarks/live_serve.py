"""Three sessions under `evkf serve`, of which one is killed again and again.

The other two may lose nothing, and the 99th percentile from a bin sent to its estimate published
may move by less than 10 % from that without kills, in minutes of either kind by turns. The one that
is killed loses no bin that was acknowledged. Every session has a rig of its own, a process with
real-time priority where that is permitted; their bins do not end at the same moment.

    python benchmarks/live_serve.py [--quick] [--json FILE]
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from closing import close
from live_kill import bins_kept

from evkf.live.feed import Tape
from evkf.live.machine import real_time
from evkf.live.plan import JOURNAL
from evkf.live.zeromq import ZmqReader, ZmqSender

NAMES, KILLED = ("left", "right", "third"), "third"
MINUTES, EVERY, KILLS = (5, 1), 20.0, (3, 1)
"""Spells with kills, and as many without; seconds between kills; kills in a spell; with --quick."""
MOVED, PERIOD, UNITS, TAPE = 0.1, 0.01, 40, 3000
READY_S = 120.0
SPAWN = multiprocessing.get_context("spawn")


class Line:
    """A rig's two ends of a session: what it sends, and what it hears.

    Args:
        port: Frames go there, estimates come from the next.
        acknowledged: Where others see how many bins are.
    """

    def __init__(self, port: int, acknowledged: Any):
        rng = np.random.default_rng(port)
        counts = rng.poisson(0.2, (TAPE, UNITS)).astype(np.uint8)
        self.tape, self.acknowledged = Tape(counts, np.arange(TAPE) == 0), acknowledged
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
        self.acknowledged.value = self.sender.acknowledged + 1
        for said in self.reader.read():
            if said.seq >= self.heard:
                self.heard = said.seq + 1
                self.latencies.append(said.published_ns - said.sent_ns)

    def begin(self) -> None:
        """Send until the session answers."""
        until = time.monotonic() + READY_S
        self.turn()
        while self.sender.acknowledged < 0 and time.monotonic() < until:
            time.sleep(0.05)
            self.hear()
        for _ in range(300):
            time.sleep(PERIOD)
            self.turn()

    def drive(self, num: int, begin: float) -> list[int]:
        """Send so many bins to a rhythm, from then on; the latencies."""
        self.latencies = []
        for turn in range(num):
            time.sleep(max(begin + turn * PERIOD - time.monotonic(), 0.0))
            self.turn()
        return self.latencies

    def end(self) -> tuple[int, int]:
        """Wait for what is not acknowledged; how many were sent, and are not."""
        until = time.monotonic() + READY_S
        while self.sender.unacknowledged and time.monotonic() < until:
            self.hear()
            time.sleep(0.02)
        self.sender.close()
        self.reader.close()
        return self.seq, self.sender.unacknowledged


def rig(port: int, acknowledged: Any, orders: Any) -> None:
    """Be a rig: a process of its own, which does what it is told to."""
    with real_time():
        line = Line(port, acknowledged)
        while True:
            what, *given = orders.recv()
            orders.send(getattr(line, what)(*given))
            if what == "end":
                return


class Rig:
    """One of them, as this process sees it."""

    def __init__(self, number: int, port: int, folder: Path):
        self.name, self.folder = NAMES[number], folder / NAMES[number]
        self.acknowledged = SPAWN.Value("q", 0)
        self._orders, other = SPAWN.Pipe()
        args = port, self.acknowledged, other
        self.process = SPAWN.Process(target=rig, args=args, daemon=True)
        self.process.start()

    def tell(self, *what: Any) -> None:
        self._orders.send(what)

    def said(self) -> Any:
        return self._orders.recv()


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

    def __init__(self, killed: Rig):
        self._killed, self.done = killed, []

    def kill(self) -> None:
        """Now; what is left of it is looked at later."""
        folder = self._killed.folder
        if pid := pid_of(folder):
            acknowledged = self._killed.acknowledged.value
            os.kill(pid, signal.SIGKILL)
            copy = folder.with_name(f"{folder.name} {len(self.done)}")
            copy.mkdir()
            subprocess.run(["cp", "-r", folder / JOURNAL, copy / JOURNAL], check=True)
            self.done.append((acknowledged, copy))

    def gone(self) -> int:
        """Bins that had been acknowledged and were not in the journal."""
        kept = [(told, bins_kept(copy, channels=UNITS)[1]) for told, copy in self.done]
        return sum(max(told - there, 0) for told, there in kept)


def drive(rigs: list[Rig], num_kills: int, kills: Kills | None = None) -> dict[str, list[int]]:
    """Send to a rhythm for so many times 20 s, with a kill at the start of each; the latencies."""
    begin = time.monotonic() + 0.1
    for each in rigs:
        each.tell("drive", num_kills * int(EVERY / PERIOD), begin)
    for number in range(num_kills if kills else 0):
        time.sleep(max(begin + number * EVERY - time.monotonic(), 0.0))
        assert kills is not None
        kills.kill()
    return {each.name: each.said() for each in rigs}


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
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        ports = prepare(folder)
        with serving(folder):
            rigs = [Rig(number, port, folder) for number, port in enumerate(ports)]
            for each in rigs:
                each.tell("begin")
            for each in rigs:
                each.said()
            kills = Kills(rigs[NAMES.index(KILLED)])
            without, during = [], []
            for _ in range(MINUTES[options.quick]):
                without.append(drive(rigs, KILLS[options.quick]))
                during.append(drive(rigs, KILLS[options.quick], kills))
            for each in rigs:
                each.tell("end")
            ends = {each.name: each.said() for each in rigs}
        gone = kills.gone()
        left = {name: unacknowledged for name, (_, unacknowledged) in ends.items()}
        missing = {
            each.name: ends[each.name][0] - bins_kept(each.folder, channels=UNITS)[1]
            for each in rigs
        }
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


if __name__ == "__main__":
    sys.exit(main())
