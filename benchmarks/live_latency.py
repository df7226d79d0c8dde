"""From a bin sent to its estimate received, at the pace of an experiment, beside an empty loop.

10 ms bins of 200 channels and 10 latents: none lost, learning after at least 90 % of bins, and the
99.9th percentile at most 5 ms above that of a process that answers frames without filtering, in
turn with it. 1 ms bins of 100 channels and 4 latents: none lost, backlog bounded, learning after
some. Frames and estimates go over ZeroMQ, both ends on one clock; what sends and hears them has
real-time priority where that is permitted, as a rig would.

With --pin the session and the empty loop stay on one core, to see whether that is any better.

    python benchmarks/live_latency.py [--quick] [--only 10ms|1ms] [--pin CORE] [--json FILE]
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from closing import close
from live_kit import Server

from evkf.live.feed import Tape
from evkf.live.frames import encode, encode_end
from evkf.live.machine import measure_hiccups, real_time
from evkf.live.plan import Plan
from evkf.live.rig import rig_counts, rig_model
from evkf.live.zeromq import ZmqReader, ZmqSender

ABOVE_MS, LEARNED, TAPE, ROUNDS = 5.0, 0.9, 6000, (12, 2)
PARTS = {
    "10ms": (
        Plan("zeromq", 0.01, latents=10, channels=200),
        (50.0, 10.0, 1.0),
        (5.0, 2.0, 0.2),
    ),
    "1ms": (
        Plan("zeromq", 0.001, latents=4, channels=100),
        (5.0, 2.0, 0.5),
        (2.0, 1.0, 0.2),
    ),
}
"""Plan, and in each round seconds of the session, of an empty loop, and of what comes before that;
the same with --quick."""
SMALL = {"num_windows": 2, "window": 4}
"""Gradient steps with --quick, to compile once: else they are made to fit the bin."""
PLAIN = "--xla_cpu_use_fusion_emitters=false"
"""With --quick, has XLA compile in half the time."""

LOCAL = "tcp://127.0.0.1:0"


class Line:
    """A rig's two ends of a session: sends bins to a rhythm, hears estimates as they come.

    What hears is a thread of its own, and both sleep while there is nothing to do: Linux holds up
    a real-time process that never sleeps for 50 ms in every second.

    Args:
        where: Frames go to and estimates come from.
        tape: What is sent.
        period: Seconds from one to the next.
    """

    def __init__(self, where: tuple[str, str], tape: Tape, period: float):
        self.tape, self.period, self.seq = tape, period, 0
        self.sender, self.reader = ZmqSender(where[0]), ZmqReader(where[1])
        self.sent: dict[int, int] = {}
        self.found: dict[int, int] = {}
        self.closed = False
        self.hearing = threading.Thread(target=self._hear, daemon=True)
        self.hearing.start()
        time.sleep(0.5)  # for the subscription to arrive

    def _hear(self) -> None:
        while not self.closed:
            for said in self.reader.read(0.1):
                now = time.monotonic_ns()
                self.found.setdefault(said.seq, now - self.sent[said.seq])

    def drive(self, num: int) -> np.ndarray:
        """Send so many bins; nanoseconds until the estimate of each, infinite if none came."""
        begin, first = time.perf_counter() + 0.1, self.seq
        for seq in range(first, first + num):
            time.sleep(max(begin + (seq - first) * self.period - time.perf_counter(), 0.0))
            self.sent[seq] = time.monotonic_ns()
            self.sender.send_raw(encode(self.tape.frame(seq)))
            if seq % 16 == 0:
                self.sender.read()
        self.seq, until = first + num, time.monotonic() + 5
        while self.seq - 1 not in self.found and time.monotonic() < until:
            time.sleep(0.01)
        return np.array([self.found.get(seq, np.inf) for seq in range(first, self.seq)])

    def end(self) -> int:
        """Say that no bin follows; how many were acknowledged."""
        self.sender.send_raw(encode_end(self.seq))
        until = time.monotonic() + 10
        while self.sender.acknowledged < self.seq - 1 and time.monotonic() < until:
            self.sender.read(0.1)
        return self.sender.acknowledged + 1

    def close(self) -> None:
        self.closed = True
        self.hearing.join()
        self.sender.close()
        self.reader.close()


def quantiles(found: np.ndarray) -> dict[str, float]:
    """In milliseconds."""
    shares = {"median": 0.5, "p99": 0.99, "p999": 0.999, "worst": 1.0}
    return {name: float(np.quantile(found, share)) / 1e6 for name, share in shares.items()}


def start(name: str, quick: bool, core: int | None, folder: Path) -> tuple[Server, Server]:
    """An empty loop and a session, each in a process of its own."""
    plan = PARTS[name][0]._replace(address=LOCAL, publish=LOCAL, **SMALL if quick else {})
    echo = Server(folder / f"{name} echo", plan, "echo", core)
    return echo, Server(folder / name, plan, core=core)


def measure(name: str, quick: bool, echo: Server, server: Server) -> dict[str, Any]:
    """The empty loop and the session in turn, so that both see the machine as it is."""
    plan, *lengths = PARTS[name]
    num, num_empty, warm = (int(seconds / plan.period) for seconds in lengths[quick])
    true = rig_model(plan.latents, plan.channels, plan.bin_width)
    tape = Tape(rig_counts(true, TAPE), np.arange(TAPE) == 0)
    session, empty = (Line(each.wait(), tape, plan.period) for each in (server, echo))
    found, floor = [], []
    for _ in range(ROUNDS[quick]):
        # Where a process has waited for long, its memory may have to be fetched first.
        floor.append(empty.drive(warm + num_empty)[warm:])
        found.append(session.drive(num))
    acknowledged, report = session.end(), server.end()
    session.close()
    empty.close()
    echo.stop()
    both, all_found = np.concatenate(floor), np.concatenate(found)
    return {
        "bins": len(all_found),
        "lost": int(np.isinf(all_found).sum()) + report["counters"]["lost"],
        "acknowledged": acknowledged,
        "session": quantiles(all_found),
        "floor": quantiles(both[np.isfinite(both)]) | {"lost": int(np.isinf(both).sum())},
        "learned": report["learned"] / len(all_found),
        "windows": report["windows"],
        "backlog": report["backlog"],
        "costs_ms": {key: 1e3 * value for key, value in report["costs"].items()},
    }


def judge(name: str, found: dict[str, Any]) -> list[str]:
    """What falls short."""
    missed = []
    if found["lost"] or found["acknowledged"] != found["bins"]:
        missed.append(f"{name}: {found['lost']} lost, {found['acknowledged']} acknowledged")
    above = found["session"]["p999"] - found["floor"]["p999"]
    if name == "10ms" and not above <= ABOVE_MS:
        missed.append(f"{name}: p99.9 is {above:.2f} ms above the floor, not {ABOVE_MS}")
    if name == "10ms" and found["learned"] < LEARNED:
        missed.append(f"{name}: learned after {found['learned']:.1%} of bins, not {LEARNED:.0%}")
    if not found["backlog"] < PARTS[name][0].settings.backlog:
        missed.append(f"{name}: {found['backlog']} bins waited at once")
    if name == "1ms" and not found["learned"] > 0:
        missed.append(f"{name}: never learned")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="seconds, not minutes")
    parser.add_argument("--only", choices=list(PARTS), help="one of the two")
    parser.add_argument("--pin", type=int, metavar="CORE", help="keep the session on this core")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if options.quick:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {PLAIN}"
    result: dict[str, Any] = {"hiccups": measure_hiccups(0.001, 2.0)._asdict()}
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        names = [options.only] if options.only else list(PARTS)
        servers = {name: start(name, options.quick, options.pin, Path(folder)) for name in names}
        for name in names:
            with real_time() as refused:
                found = measure(name, options.quick, *servers[name])
            result[name] = found | {"real_time": refused is None}
            missed += judge(name, found)
            session, floor = found["session"], found["floor"]
            learned = f"learned {found['learned']:.1%} (windows {found['windows']})"
            p999 = f"{session['p999']:.2f} ms, floor {floor['p999']:.2f}"
            rest = f"median {session['median']:.2f}, floor {floor['median']:.2f}"
            counts = f"{found['bins']} bins, {found['lost']} lost, backlog {found['backlog']}"
            print(f"{name}: {counts}, {learned}; p99.9 {p999} ({rest})", flush=True)
    return close(result, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
