"""Streams with bins lost, doubled and out of order, bad frames, and a disk that fills up.

The processed sequence and every count must be exact; every bad frame gets its named refusal and
the stream goes on; on a full or failing disk acknowledgements stop, filtering does not, and both
are as before when there is space again.

    python benchmarks/live_faults.py [--quick] [--json FILE]
"""

import argparse
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bad_frames import named
from closing import close

from evkf.live.answers import Ack, Estimate, Flags, Refusal, decode_answer
from evkf.live.disk import Disk
from evkf.live.engine import Costs, Engine
from evkf.live.feed import Tape
from evkf.live.frames import encode, encode_end
from evkf.live.order import Counters
from evkf.live.plan import Plan, build, parts
from evkf.live.ports import Phase
from evkf.live.rig import rig_counts, rig_model
from evkf.live.run import open_session, recall
from evkf.live.session import Session
from evkf.numerics.jax_config import low_latency

BINS, QUICK, TAPE = 200_000, 20_000, 2000
SHARE, AHEAD = 0.01, 3
"""Of bins with each fault, and how far a bin may come too late."""

PLAN = Plan("zeromq", 0.01, latents=2, channels=20, learn=False, reorder=8, patience=1e9)
COSTS = Costs(1e-4, 1e-4, 1e-3, 1e-3, 1.0)


class Memory:
    """A source and a sink that keep everything in this process."""

    gone = False

    def __init__(self) -> None:
        self.due: list[bytes] = []
        self.acknowledged, self.refusals = -1, Counter()
        self.seqs, self.bridged = [], []
        self.odd: dict[str, int] = {}

    def receive(self, timeout: float, most: int) -> list[tuple[Any, bytes]]:
        taken, self.due = self.due[:most], self.due[most:]
        if not taken:
            time.sleep(min(timeout, 0.001))
        return [("rig", data) for data in taken]

    def answer(self, peer: Any, data: bytes) -> None:
        said = decode_answer(data)
        if isinstance(said, Ack):
            self.acknowledged = max(self.acknowledged, said.seq)
        elif isinstance(said, Refusal):
            self.refusals[said.code] += 1

    def publish(self, estimate: Estimate) -> None:
        self.seqs.append(estimate.seq)
        if Flags.BRIDGED in estimate.flags:
            self.bridged.append(estimate.seq)

    def close(self) -> None:
        pass


class Refusing(Disk):
    """A disk that can be told to refuse."""

    error: int | None = None

    def write(self, handle: int, data: bytes | memoryview) -> int:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return super().write(handle, data)


def disordered(num: int, seed: int) -> tuple[list[int], list[int], Counters]:
    """The order in which bins come, those that never do, and the counts that are due."""
    rng = np.random.default_rng(seed)
    fate = rng.choice(4, size=num, p=[1 - 3 * SHARE, SHARE, SHARE, SHARE])
    fate[[0, -1]] = 0
    lost = np.flatnonzero(fate == 1)
    key = np.arange(num, dtype=float)
    moved = fate == 2
    key[moved] += rng.integers(1, AHEAD + 1, moved.sum()) + 0.5
    seqs = np.concatenate([np.flatnonzero(fate != 1), np.flatnonzero(fate == 3)])
    when = np.concatenate([key[fate != 1], key[fate == 3] + 0.25])
    order = seqs[np.argsort(when, kind="stable")].tolist()
    highest, seen, reordered = -1, set(), 0
    for seq in order:
        reordered += seq < highest and seq not in seen
        seen.add(seq)
        highest = max(highest, seq)
    doubled = int((fate == 3).sum())
    due = Counters(len(order), num - len(lost), doubled, 0, reordered, len(lost), 0)
    return order, lost.tolist(), due


def open_memory(folder: Path, engine: Engine, disk: Disk) -> tuple[Session, Memory, list[str]]:
    """A session in this process, at its first bin."""
    memory, lines = Memory(), []
    PLAN.write(folder)
    session = open_session(
        folder, PLAN, engine, COSTS, True, memory, [memory], log=lines.append, disk=disk
    )
    return session, memory, lines


def check_order(engine: Engine, start: Any, tape: Tape, num: int, folder: Path) -> list[str]:
    """Lost, doubled and disordered bins, with bad frames between them."""
    engine.state = start
    folder.mkdir()
    order, lost, due = disordered(num, 0)
    session, memory, _ = open_memory(folder, engine, Disk())
    bad = [data for data, *_ in named().values() if isinstance(data, bytes)]
    given = [encode(tape.frame(seq)) for seq in order]
    every = max(len(given) // len(bad), 1)
    for i, data in enumerate(bad):
        given.insert((i + 1) * every + i, data)
    memory.due = [*given, encode_end(num)]
    report = session.run()
    missed = []
    if memory.seqs != list(range(num)):
        missed.append("the processed sequence is not that of the bins")
    if memory.bridged != lost:
        missed.append(f"{len(memory.bridged)} bins bridged, {len(lost)} were lost")
    if report.counters != due:
        missed.append(f"counted {report.counters}, not {due}")
    if report.refused != len(bad) or memory.refusals.total() != len(bad):
        missed.append(f"{report.refused} frames refused of {len(bad)} bad ones")
    if memory.acknowledged != num - 1:
        missed.append(f"acknowledged up to {memory.acknowledged} of {num - 1}")
    engine.state = start
    agreement = recall(folder, engine, True, whole=True).agreement
    missed += list(agreement.differ)
    print(f"order: {report.counters}, {report.refused} refused, {agreement.compared} compared")
    return missed


def check_trouble(
    name: str,
    engine: Engine,
    start: Any,
    tape: Tape,
    folder: Path,
    disk: Disk,
    hurt: Callable[[], None],
    heal: Callable[[], None],
) -> list[str]:
    """A disk that refuses for a while."""
    engine.state = start
    session, memory, lines = open_memory(folder, engine, disk)
    session._enter(Phase.READY, "")
    missed, seq = [], 0

    def give(num: int) -> None:
        nonlocal seq
        for _ in range(num):
            memory.due = [encode(tape.frame(seq))]
            session.turn()
            seq += 1

    def until(condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 20
        while not condition() and time.monotonic() < end:
            give(1)
        if not condition():
            missed.append(f"{name}: {what} never came")

    give(200)
    until(lambda: memory.acknowledged > 100, "an acknowledgement")
    hurt()
    until(lambda: session.phase == Phase.DEGRADED, "degraded")
    why, at = session.why, memory.acknowledged
    give(300)
    silent = memory.acknowledged == at
    heal()
    until(lambda: session.phase == Phase.READY, "ready again")
    until(lambda: memory.acknowledged >= seq - 2, "the last acknowledgement")
    memory.due = [encode_end(seq)]
    report = session.run()
    if not silent:
        missed.append(f"{name}: something was acknowledged meanwhile")
    if memory.seqs != list(range(seq)) or report.acknowledged != seq - 1:
        missed.append(f"{name}: {len(memory.seqs)} of {seq} filtered, {report.acknowledged} kept")
    if sum("degraded" in line for line in lines) < 2:
        missed.append(f"{name}: the operator was told {lines}")
    engine.state = start
    agreement = recall(folder, engine, True, whole=True).agreement
    missed += list(agreement.differ)
    if agreement.bins != seq:
        missed.append(f"{name}: {agreement.bins} bins in the journal, {seq} were sent")
    print(f"{name}: {why}; {seq} bins filtered, {agreement.bins} kept")
    return missed


def check_full(engine: Engine, start: Any, tape: Tape, folder: Path) -> list[str]:
    """A file system of 4 MB that something else fills up; if that may not be, a stand-in."""
    folder.mkdir()
    filler = folder / "filler"
    mounted = _mount(folder)
    disk = Refusing()

    def hurt() -> None:
        if mounted:
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
        else:
            disk.error = errno.ENOSPC

    def heal() -> None:
        disk.error = None
        filler.unlink(missing_ok=True)

    name = "full disk" if mounted else "full disk (stand-in)"
    try:
        return check_trouble(name, engine, start, tape, folder / "session", disk, hurt, heal)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def _mount(folder: Path) -> bool:
    (folder / "session").mkdir()
    if shutil.which("mount") is None or os.geteuid():
        return False
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return False
    (folder / "session").mkdir()
    return True


def check_read_only(engine: Engine, start: Any, tape: Tape, folder: Path) -> list[str]:
    """A file system that turns read-only, as one with errors does."""
    folder.mkdir()
    disk = Refusing()

    def hurt() -> None:
        disk.error = errno.EROFS

    def heal() -> None:
        disk.error = None

    return check_trouble("read-only", engine, start, tape, folder, disk, hurt, heal)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} bins, not {BINS:,}")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    low_latency()
    num = QUICK if options.quick else BINS
    true = rig_model(PLAN.latents, PLAN.channels, PLAN.bin_width)
    tape = Tape(rig_counts(true, TAPE), np.arange(TAPE) == 0)
    engine = build(PLAN, parts(PLAN, Path()))
    start = engine.state
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        missed = check_order(engine, start, tape, num, folder / "order")
        missed += check_full(engine, start, tape, folder / "full")
        missed += check_read_only(engine, start, tape, folder / "read_only")
    print(f"{num} disordered bins, a full disk, a read-only one: {len(missed)} faults")
    return close({"bins": num, "faults": missed}, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
