"""Two million bins as fast as they go: memory, compilation, and a subscriber that does not read.

Resident memory may grow by less than 2 % after the first tenth, nothing may be compiled, and a
subscriber that stalls may add at most 5 % to the 99th percentile of a step, against none. That is
measured in many short blocks, in turn, with real-time priority where permitted: on a shared
machine one tenth of a second is not like the next.

    python benchmarks/live_soak.py [--quick] [--json FILE]
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from closing import close

from evkf.live.answers import Estimate
from evkf.live.engine import Engine
from evkf.live.feed import Tape
from evkf.live.frames import encode, encode_end
from evkf.live.machine import real_time
from evkf.live.plan import Plan, build, parts
from evkf.live.rig import rig_counts, rig_model
from evkf.live.run import open_session
from evkf.live.zeromq import ZmqReader, ZmqSink
from evkf.numerics.jax_config import low_latency

BINS, QUICK, TAPE = 2_000_000, 30_000, 2000
GROWTH, STALLED = 0.02, 0.05
FILL = 50_000
"""Estimates after which there is room for none with a subscriber that does not read."""
BLOCK, BLOCKS = 50, (4000, 800)
"""Bins in a row with and without a stalled subscriber, and how often each; how often if quick."""

PLAN = Plan("rig", 0.01, latents=2, channels=100, num_windows=2, window=4)


class Tapped:
    """A source that makes bins as they are asked for; learning has its turn in some."""

    gone = False

    def __init__(self, tape: Tape, num: int):
        self.tape, self.num, self.seq, self.resident = tape, num, 0, []
        self.odd: dict[str, int] = {}

    def receive(self, timeout: float, most: int) -> list[tuple[Any, bytes]]:
        if self.seq >= self.num:
            return [(None, encode_end(self.num))]
        if self.seq % (self.num // 100) == 0:
            self.resident.append(resident())
        self.seq += 1
        return [(None, encode(self.tape.frame(self.seq - 1)))]

    def answer(self, peer: Any, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


def resident() -> int:
    """Bytes of memory that this process takes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def soak(engine: Engine, tape: Tape, num: int, folder: Path) -> dict[str, Any]:
    """Memory and compilations over a long session, which learns too."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "compile" in event else None
    )
    costs = engine.rehearse(50)
    PLAN.write(folder)
    source = Tapped(tape, num)
    sink = ZmqSink("tcp://127.0.0.1:0")
    session = open_session(folder, PLAN, engine, costs, True, source, [sink])
    before, begin = len(compiled), time.monotonic()
    report = session.run()
    seconds, held = time.monotonic() - begin, source.resident[len(source.resident) // 10 :]
    return {
        "bins": report.bins,
        "learned": report.learned,
        "bins_per_s": report.bins / seconds,
        "growth": max(held) / held[0] - 1,
        "resident_mb": [each / 1e6 for each in (held[0], max(held))],
        "compiled": len(compiled) - before,
    }


def stalled(engine: Engine, tape: Tape, blocks: int) -> dict[str, Any]:
    """99th percentiles of a step without a subscriber and with a stalled one, block by block."""
    frames = [tape.frame(seq) for seq in range(BLOCK)]
    sinks = [ZmqSink("tcp://127.0.0.1:0") for _ in range(2)]
    reader = ZmqReader(sinks[1].address)  # which never reads
    time.sleep(0.5)
    latent, zero = engine.observe(frames[0].y.astype(engine.dtype)), (0, 0, 0)
    for _ in range(FILL):
        sinks[1].publish(Estimate(0, 0, *latent, *zero))  # type: ignore[arg-type]
    spent = np.zeros((blocks, 2, BLOCK))
    with real_time() as refused:
        for block in range(blocks):
            for which in (0, 1) if block % 2 else (1, 0):
                sink = sinks[which]
                for frame in frames:
                    begin = time.perf_counter_ns()
                    latent = engine.observe(frame.y.astype(engine.dtype))
                    now = time.monotonic_ns()
                    sink.publish(Estimate(frame.seq, 0, *latent, 0, now, now))  # type: ignore[arg-type]
                    spent[block, which, frame.seq] = time.perf_counter_ns() - begin
    for end in (reader, *sinks):
        end.close()
    alone, stuck = np.quantile(spent, 0.99, axis=(0, 2)) / 1e6
    return {
        "steps": blocks * BLOCK,
        "alone_p99_ms": float(alone),
        "stalled_p99_ms": float(stuck),
        "added": float(stuck / alone - 1),
        "real_time": refused is None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} bins, not {BINS:,}")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    low_latency()
    true = rig_model(PLAN.latents, PLAN.channels, PLAN.bin_width)
    tape = Tape(rig_counts(true, TAPE), np.arange(TAPE) == 0)
    engine = build(PLAN, parts(PLAN, Path()))
    with tempfile.TemporaryDirectory() as folder:
        found = soak(engine, tape, QUICK if options.quick else BINS, Path(folder))
    found |= stalled(engine, tape, BLOCKS[options.quick])
    missed = []
    if found["growth"] >= GROWTH:
        missed.append(f"memory grew by {found['growth']:.1%}, not under {GROWTH:.0%}")
    if found["compiled"]:
        missed.append(f"{found['compiled']} compilations on the way")
    if found["added"] > STALLED:
        missed.append(f"a stalled subscriber adds {found['added']:.1%} to p99, not {STALLED:.0%}")
    print(
        f"{found['bins']} bins at {found['bins_per_s']:.0f} a second, {found['learned']} steps: "
        f"memory {found['growth']:+.2%}, {found['compiled']} compilations, "
        f"stalled subscriber {found['added']:+.1%} of p99"
    )
    return close(found, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
