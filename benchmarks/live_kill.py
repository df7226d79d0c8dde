"""A session killed at random instants, and taken up again each time.

A sender keeps bins until they are acknowledged and sends them again. No bin that was acknowledged
may be missing from the journal, the first estimate after a resume must come within 15 s, and the
session computed again without interruption must agree to the last bit with all that was published.

    python benchmarks/live_kill.py [--quick] [--kills N] [--json FILE]
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from closing import close
from live_kit import Server

from evkf.live.feed import Tape
from evkf.live.frames import Decoder
from evkf.live.plan import JOURNAL, Plan, keep_compiled
from evkf.live.records import Bin, Kind, decode
from evkf.live.rig import rig_counts, rig_model
from evkf.live.run import replay
from evkf.live.segments import read
from evkf.live.zeromq import ZmqReader, ZmqSender
from evkf.numerics.jax_config import low_latency

KILLS, QUICK, TAPE, FIRST_S = 300, 3, 5000, 15.0
PERIOD = 0.005
PLAN = Plan("zeromq", PERIOD, latents=2, channels=50, checkpoint_every=0.5)


class Rig(threading.Thread):
    """Sends bins without end, and keeps those that are not acknowledged."""

    def __init__(self, address: str, tape: Tape):
        super().__init__(daemon=True)
        self.sender, self.tape = ZmqSender(address), tape
        self.seq, self.ends = 0, False

    def run(self) -> None:
        begin, first = time.perf_counter(), self.seq
        while not self.ends:
            ahead = begin + (self.seq - first) * PERIOD - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
            self.sender.send(self.tape.frame(self.seq))
            self.sender.read()
            self.seq += 1
        self.sender.end(self.seq, timeout=60)


def bins_kept(
    folder: Path, position: int = 0, due: int = 0, channels: int = PLAN.channels
) -> tuple[int, int]:
    """How far a journal goes, and how many bins it holds, without a gap from the first.

    Args:
        folder: Of the session.
        position: How far it went when it was last looked at.
        due: How many bins there were.
        channels: Of its bins.
    """
    decoder = Decoder(channels)
    for record in read(folder / JOURNAL, first=position):
        position = record.position + 1
        if record.kind == Kind.BIN:
            bin: Bin = decode(record.kind, record.payload)
            due += decoder.decode(bin.frame).seq == due
    return position, due


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} kills, not {KILLS}")
    parser.add_argument("--kills", type=int, help="so many")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    kills = options.kills or (QUICK if options.quick else KILLS)
    low_latency()
    rng, missed = np.random.default_rng(0), []
    true = rig_model(PLAN.latents, PLAN.channels, PLAN.bin_width)
    tape = Tape(rig_counts(true, TAPE), np.arange(TAPE) == 0)
    gone, position, kept, first_s = 0, 0, 0, []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "session"
        plan = PLAN._replace(address="tcp://127.0.0.1:0", publish="tcp://127.0.0.1:0")
        server = Server(folder, plan)
        where = server.wait()
        plan = plan._replace(address=where[0], publish=where[1])
        rig = Rig(where[0], tape)
        rig.start()
        for kill in range(kills):
            time.sleep(rng.uniform(0.0, 2.0))
            server.kill()
            acknowledged = rig.sender.acknowledged + 1
            position, kept = bins_kept(folder, position, kept)
            gone += max(acknowledged - kept, 0)
            begin = time.monotonic()
            server = Server(folder, plan, "resume")
            reader = ZmqReader(plan.publish or "")
            while not reader.read(0.05) and time.monotonic() - begin < 10 * FIRST_S:
                pass
            first_s.append(time.monotonic() - begin)
            reader.close()
            if kill % 20 == 19 or options.quick:
                words = f"{kill + 1} kills, {kept} bins kept, {gone} lost"
                print(f"{words}, first estimate after {first_s[-1]:.1f} s", flush=True)
        rig.ends = True
        rig.join()
        left = rig.sender.unacknowledged
        server.end()
        keep_compiled(folder)
        found = replay(folder, Plan.read(folder))
    worst = max(first_s)
    result = {
        "kills": kills,
        "bins": found.bins,
        "compared": found.compared,
        "acknowledged_lost": gone,
        "unacknowledged": left,
        "differ": list(found.differ),
        "first_estimate_s": {"median": float(np.median(first_s)), "worst": worst},
    }
    if gone or left:
        missed.append(f"{gone} acknowledged bins lost, {left} never acknowledged")
    if found.lost:
        missed.append(f"{found.lost} bins given up, of which none was lost")
    if found.bins != rig.seq:
        missed.append(f"{found.bins} bins in the journal, {rig.seq} were sent")
    missed += list(found.differ)
    if worst > FIRST_S:
        missed.append(f"first estimate after {worst:.1f} s, not {FIRST_S:.0f}")
    print(json.dumps(result["first_estimate_s"]))
    print(
        f"{kills} kills, {found.bins} bins: {gone} acknowledged bins lost, "
        f"{len(found.differ)} differ, first estimate within {worst:.1f} s"
    )
    return close(result, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
