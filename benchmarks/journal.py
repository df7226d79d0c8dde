"""What the journal costs the thread that appends, and how long a record takes to be durable.

Records of the size of a bin of 128 channels are appended at 1 kHz under both policies. Beside them,
in the same run, stands the floor: a bare write and fdatasync of as many bytes. The median append
must cost no more than 20 µs.

    python benchmarks/journal.py [--quick] [--folder FOLDER] [--json FILE]
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from closing import close

from evkf.live.journal import Journal, Policy
from evkf.live.segments import frame, read

KIND, PAYLOAD = 9, 292
"""A frame of 128 counts of 16 bits: header, values, checksum."""
RATE = 1000
FULL, QUICK = 20_000, 3_000
BAR_US = 20.0


def floor(folder: Path, num: int) -> np.ndarray:
    """Milliseconds of a bare write and fdatasync, at the rate of the records."""
    data = frame(KIND, bytes(PAYLOAD))
    handle = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    taken = np.zeros(num)
    for i in range(num):
        begin = time.perf_counter_ns()
        os.write(handle, data)
        os.fdatasync(handle)
        taken[i] = time.perf_counter_ns() - begin
        time.sleep(max(0.0, 1 / RATE - taken[i] / 1e9))
    os.close(handle)
    return taken / 1e6


def journal(folder: Path, policy: Policy, num: int) -> dict[str, float]:
    """Figures of a journal that is appended to at the rate of the records."""
    appended, durable, costs = np.zeros(num), np.zeros(num), np.zeros(num)
    known = 0

    def tell(position: int) -> None:
        nonlocal known
        durable[known:position] = time.perf_counter_ns()
        known = position

    payloads = np.random.default_rng(0).bytes(num * PAYLOAD)
    with Journal.open(folder / policy, policy, on_durable=tell) as log:
        due = time.perf_counter_ns()
        for i in range(num):
            payload = payloads[i * PAYLOAD : (i + 1) * PAYLOAD]
            appended[i] = time.perf_counter_ns()
            log.append(KIND, payload)
            costs[i] = time.perf_counter_ns() - appended[i]
            due += 10**9 // RATE
            time.sleep(max(0, due - time.perf_counter_ns()) / 1e9)
        exposure = log.exposure_ms
    kept = b"".join(record.payload for record in read(folder / policy))
    assert kept == payloads, "not all records came back"
    waits = (durable - appended) / 1e6
    return {
        "append_us": float(np.median(costs)) / 1e3,
        "append_p99_us": float(np.quantile(costs, 0.99)) / 1e3,
        "durable_ms": float(np.median(waits)),
        "durable_p99_ms": float(np.quantile(waits, 0.99)),
        "exposure_ms": exposure,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 seconds a policy, in place of 20")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; else a temporary one")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    num = QUICK if options.quick else FULL
    result, missed = {}, []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        bare = floor(Path(name), num // 10)
        result["bare fdatasync"] = {
            "durable_ms": float(np.median(bare)),
            "durable_p99_ms": float(np.quantile(bare, 0.99)),
        }
        for policy in ("process-crash", "power-loss"):
            result[policy] = journal(Path(name), policy, num)
    for kind, figures in result.items():
        print(f"{kind}: " + " ".join(f"{key} {value:.3f}" for key, value in figures.items()))
        cost = figures.get("append_us", 0.0)
        if cost > BAR_US:
            missed.append(f"{kind}: an append costs {cost:.1f} µs, above {BAR_US:.0f} µs")
    return close(result, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
