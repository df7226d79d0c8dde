"""Bad frames: named ones, and a million made by chance.

Every message must come out of the decoder as the frame that a plain reference reads in it, or as a
`FrameError` with the code and the number of the bin that the reference gives. No damaged frame may
pass for another one, and resident memory must not grow. As many go to a session, good bins among
them: it must name what is wrong with each to the sender, count it, keep the first thousand, and
filter the good ones as if nothing else came. Prints what it saw and exits non-zero when any of it
does not hold.

    python benchmarks/live_fuzz.py [--quick] [--json FILE]
"""

import argparse
import math
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bad_frames import SESSIONS, SMALL, Session, Verdict, expected, named, sealed
from closing import close
from live_faults import PLAN, open_memory

from evkf.live.disk import Disk
from evkf.live.frames import Code, Decoder, End, Frame, FrameError, encode, encode_end
from evkf.live.order import LARGEST_GAP, Counters
from evkf.live.plan import JOURNAL, build, parts
from evkf.live.records import Kind
from evkf.live.segments import read
from evkf.live.session import QUARANTINE
from evkf.numerics.jax_config import low_latency

FULL, QUICK = 1_000_000, 100_000
BETWEEN, FEWER = 50, 5
"""Bad frames between good ones in a session, and how many times fewer there are if quick."""
GROWTH = 4e6
"""Bytes by which resident memory may grow after the first tenth."""

FRAME_CODES = set(Code) - {Code.WRONG_TYPE, Code.BAD_TEXT}
"""What bytes can be refused for."""


def found(decoder: Decoder, data: Any) -> Verdict | str:
    """What a decoder makes of a message; a text is what it must not raise."""
    try:
        return decoder.decode(data)
    except FrameError as error:
        return (error.code, error.seq) if isinstance(error.code, Code) else repr(error.code)
    except Exception as error:
        return repr(error)


def same(one: Verdict | str, other: Verdict | str) -> bool:
    """Whether two verdicts are the same, to the value and type of every number."""
    if not (isinstance(one, Frame) and isinstance(other, Frame)):
        return one == other
    for a, b in zip(one, other, strict=True):
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if a.dtype != b.dtype or not np.array_equal(a, b):
                return False
        elif a != b:
            return False
    return True


def pool(session: Session, rng: np.random.Generator) -> list[bytes]:
    """Good frames of every type and kind."""
    made = [encode_end(rng.integers(2**40))]
    for dtype in (np.uint8, np.uint16, np.int32, np.float32, np.float64):
        for flags in range(4):
            y = rng.poisson(3.0, session.channels).astype(dtype)
            mask = rng.random(session.channels) < 0.8 if flags & 2 else None
            u = rng.normal(size=session.inputs) if session.inputs else None
            frame = Frame(int(rng.integers(2**40)), y, mask, u, bool(flags & 1), 12345)
            made.append(encode(frame))
    return made


def _flip(data: bytearray, rng: random.Random, _: bytes) -> bytearray:
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _cut(data: bytearray, rng: random.Random, _: bytes) -> bytearray:
    at = rng.randrange(len(data))
    return data[at:] if rng.random() < 0.2 else data[:at]


def _splice(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    at = rng.randrange(len(data))
    return data[:at] + other[at if rng.random() < 0.5 else rng.randrange(len(other)) :]


def _noise(data: bytearray, rng: random.Random, _: bytes) -> bytearray:
    if rng.random() < 0.2:
        return bytearray(rng.randbytes(rng.randrange(2 * len(data))))
    at, size = rng.randrange(len(data)), rng.randint(1, 16)
    data[at : at + size] = rng.randbytes(min(size, len(data) - at))
    return data


def _grow(data: bytearray, rng: random.Random, _: bytes) -> bytearray:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randint(1, 32))
    return data


def _field(data: bytearray, rng: random.Random, _: bytes) -> bytearray:
    data[rng.randrange(32)] = rng.choice((0, 1, 2, 3, 4, 5, 127, 255, rng.randrange(256)))
    return data


def _value(data: bytearray, rng: random.Random, _: bytes) -> bytearray:
    kind = rng.choice("fd")
    value = rng.choice((math.nan, math.inf, -1.0, -0.0, 0.5, 2.0**24 + 2, 2.0**62, 3e38, 7.0))
    word, at = struct.pack("<" + kind, value), 32 + 4 * rng.randrange(max(len(data) // 4 - 9, 1))
    data[at : at + len(word)] = word[: max(len(data) - at, 0)]
    return data


MUTATIONS: tuple[Callable[[bytearray, random.Random, bytes], bytearray], ...]
MUTATIONS = (_flip, _cut, _splice, _noise, _grow, _field, _value)


def mutated(good: list[bytes], rng: random.Random) -> tuple[bytes, bool]:
    """A frame with something wrong, most likely, and whether its checksum was mended."""
    data = rng.choice(MUTATIONS)(bytearray(rng.choice(good)), rng, rng.choice(good))
    again = rng.random() < 0.5
    return sealed(bytes(data[:-4])) if again else bytes(data), again


def fuzz(num: int, seed: int = 0) -> dict[str, Any]:
    """Mutated frames through the decoders, half of them with a checksum that holds again."""
    rng = random.Random(seed)
    decoders = [(session, Decoder(*session)) for session in SESSIONS]
    pools = [pool(session, np.random.default_rng(seed)) for session in SESSIONS]
    codes: Counter[str] = Counter()
    wrong, shown, forged, settled = 0, [], 0, 0
    for i in range(num):
        if i == num // 10:
            settled = resident()
        at = rng.randrange(len(SESSIONS))
        session, decoder = decoders[at]
        data, again = mutated(pools[at], rng)
        said, due = found(decoder, data), expected(session, data)
        taken = isinstance(said, Frame | End)
        codes["taken" if taken else "wrong" if isinstance(said, str) else said[0]] += 1
        forged += taken and not again and data not in pools[at]
        if not same(said, due):
            wrong += 1
            shown += [f"{data.hex()} came out as {said}, not {due}"] * (wrong <= 5)
    counts = {"frames": num, "wrong": wrong, "forged": forged, "grown": resident() - settled}
    return {**counts, "codes": codes, "shown": shown}


def through_session(num: int, folder: Path, seed: int = 1) -> tuple[dict[str, Any], list[str]]:
    """Bad frames to a session, with good bins among them: figures, and what does not hold."""
    engine = build(PLAN, parts(PLAN, folder))
    session, memory, _ = open_memory(folder, engine, Disk())
    like = Session(PLAN.channels, 0, True, engine.dtype.type)
    rng, good = random.Random(seed), pool(like, np.random.default_rng(seed))
    due: Counter[str] = Counter()
    bins = settled = 0
    while due.total() < num:
        for _ in range(BETWEEN):
            data, _ = mutated(good, rng)
            verdict = expected(like, data)
            # What is taken, or of a number that may be due, would change what the counts must be.
            if isinstance(verdict, Frame | End) or -1 < _number(verdict) < num + LARGEST_GAP:
                continue
            memory.due.append(data)
            due[verdict[0]] += 1
        memory.due.append(encode(Frame(bins, np.full(PLAN.channels, bins % 3, np.uint8))))
        bins += 1
        session.turn()
        settled = settled or (due.total() > num // 10 and resident())
    grown = resident() - settled
    memory.due = [encode_end(bins)]
    report = session.run()
    kept = sum(record.kind == Kind.REFUSED for record in read(folder / JOURNAL))
    missed = []
    if memory.refusals != due or report.refused != due.total():
        missed.append(f"refused {report.refused}, told {memory.refusals}, due were {due}")
    if memory.seqs != list(range(bins)) or memory.bridged or memory.acknowledged != bins - 1:
        missed.append(f"{len(memory.seqs)} bins filtered, {memory.acknowledged + 1} acknowledged")
    if report.counters != Counters(received=bins, delivered=bins):
        missed.append(f"counted {report.counters}, {bins} bins were sent")
    if kept != min(QUARANTINE, due.total()):
        missed.append(f"{kept} bad frames kept")
    if grown > GROWTH:
        missed.append(f"a session grew by more than {GROWTH / 1e6:.0f} MB")
    return {"refused": report.refused, "bins": bins, "kept": kept, "grown": grown}, missed


def _number(verdict: tuple[str, int | None]) -> int:
    return -1 if verdict[1] is None else verdict[1]


def resident() -> int:
    """Memory that this process takes, in bytes; where the system does not say, its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except OSError:
        # macOS tells bytes, others KiB.
        unit = 1 if sys.platform == "darwin" else 1 << 10
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def microseconds(dtype: type, masked: bool) -> float:
    """Median time to decode 200 channels."""
    decoder, mask = Decoder(200, dtype=np.float32), np.arange(200) % 7 > 0
    data = encode(Frame(7, np.arange(200).astype(dtype), mask if masked else None))
    spent = []
    for _ in range(5_000):
        begin = time.perf_counter_ns()
        decoder.decode(data)
        spent.append(time.perf_counter_ns() - begin)
    return float(np.median(spent)) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} frames, not {FULL:,}")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    low_latency()
    decoder, cases, missed = Decoder(*SMALL), named(), []
    for name, (data, *due) in cases.items():
        if (said := found(decoder, data)) != tuple(due):
            missed.append(f"{name} came out as {said}, not {due}")
    speed = {
        f"{dtype.__name__}{', masked' * masked}": microseconds(dtype, masked)
        for dtype in (np.uint8, np.float32)
        for masked in (False, True)
    }
    print("us a frame of 200 channels:", *(f"{name} {us:.1f}" for name, us in speed.items()))
    result = fuzz(QUICK if options.quick else FULL)
    print(", ".join(f"{code} {num}" for code, num in result["codes"].most_common()))
    missed += result["shown"]
    with tempfile.TemporaryDirectory() as made:
        num = QUICK // FEWER if options.quick else FULL
        session, fell = through_session(num, Path(made))
    missed += fell
    told = f"{session['refused']} refused and {session['kept']} kept"
    print(f"session: {told} beside {session['bins']} bins, {session['grown'] / 1e6:.1f} MB grown")
    if result["forged"]:
        missed.append(f"{result['forged']} damaged frames passed for others")
    if result["grown"] > GROWTH:
        missed.append(f"memory grew by more than {GROWTH / 1e6:.0f} MB")
    missed += [f"no frame was refused as {code}" for code in FRAME_CODES - set(result["codes"])]
    wrong = f"{result['wrong']} wrong, {result['forged']} forged"
    grown = f"memory grew by {result['grown'] / 1e6:.1f} MB"
    print(f"{len(cases)} named and {result['frames']} made frames: {wrong}, {grown}")
    figures = {"named": len(cases), "us": speed, **result, "session": session}
    return close(figures, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
