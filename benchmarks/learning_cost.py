"""What learning costs: per step against an empty call, over time, and after a restart.

    python benchmarks/learning_cost.py [--quick] [--json FILE]

Checked: a learning step at the default setting (8 windows of 10 bins, L = 2, N = 150, Poisson,
float32) takes at most 80 empty calls; time per bin at bin 100,000 is within 10 % of that at bin
1000 and memory is flat; a session stored at some bin and loaded in a new process goes on bit for
bit as if it had never stopped.
"""

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from closing import close

from evkf.data.storage import load_tree, save_tree
from evkf.learning import CompiledLearner, Learner
from evkf.reproduce.vdp.experiment import problem, start

MOST_EMPTY_CALLS, MOST_SLOWER = 80, 1.1


def median_us(call: Callable, num: int) -> float:
    """Median time of a call."""
    times = []
    for _ in range(num):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begin)
    return 1e6 * float(np.median(times))


def step_cost(num: int) -> tuple[dict, list[str]]:
    """Observing and learning, beside an empty call measured in turn with them."""
    true, _, ys = problem("poisson", 300, 0)
    live = CompiledLearner(Learner(), start(true.likelihood, 0))
    x = jnp.zeros(1)
    empty = jax.jit(lambda x: x + 1).lower(x).compile()
    for y in ys:
        live.observe(y)
        live.learn()
    rounds = [
        (
            median_us(lambda: empty(x), num),
            median_us(lambda: live.observe(ys[0]), num),
            median_us(live.learn, num),
        )
        for _ in range(7)
    ]
    floor, observe, learn = (float(value) for value in np.median(rounds, axis=0))
    ratio = float(np.median([learn / floor for floor, _, learn in rounds]))
    print(
        f"empty call {floor:.1f} us, estimate {observe:.0f} us, learning step {learn:.0f} us: "
        f"{ratio:.1f} empty calls (at most {MOST_EMPTY_CALLS})"
    )
    figures = {"empty_us": floor, "observe_us": observe, "learn_us": learn, "ratio": ratio}
    return figures, ["a learning step costs too much"] * (ratio > MOST_EMPTY_CALLS)


def over_time(num_bins: int) -> tuple[dict, list[str]]:
    """Time and memory per bin, early and late in a long stream."""
    true, _, ys = problem("poisson", 4000, 0)
    live = CompiledLearner(Learner(), start(true.likelihood, 0))
    times, memory = np.zeros(num_bins), {}
    for t in range(num_bins):
        begin = time.perf_counter()
        live.observe(ys[t % len(ys)])
        jax.block_until_ready(live.learn())
        times[t] = time.perf_counter() - begin
        if t + 1 in (1000 + 500, num_bins):
            memory[t + 1] = resident_mb()
    early = 1e6 * float(np.median(times[500:1500]))
    late = 1e6 * float(np.median(times[-1000:]))
    grown = memory[num_bins] - memory[1500]
    print(
        f"time per bin {early:.0f} us around bin 1000, {late:.0f} us at bin {num_bins}: "
        f"{late / early:.3f} times; memory grew by {grown:.1f} MB of {memory[num_bins]:.0f}"
    )
    missed = ["slower with time"] * (late > MOST_SLOWER * early)
    missed += ["memory grows"] * (grown > 0.02 * memory[num_bins])
    figures = {"early_us": early, "late_us": late, "bins": num_bins, "grown_mb": grown}
    return figures, missed


def resident_mb() -> float:
    """Memory in use now."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def go_on(path: Path, first: int, last: int) -> str:
    """Go on from a file, or from the start, and print what is known at the end."""
    true, _, ys = problem("poisson", 600, 0)
    learner = Learner()
    state = learner.init(start(true.likelihood, 0))
    if first:
        state, _ = load_tree(path, state)
    live = CompiledLearner(learner, state)
    for y in ys[first:last]:
        live.observe(y)
        live.learn()
    if last < len(ys):
        save_tree(path, live.state, {"bins": last})
    flat = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(live.state)]
    return hashlib.sha256(b"".join(flat)).hexdigest()


def restart() -> tuple[dict, list[str]]:
    """Stored at bin 217 and at bin 400, loaded in new processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        digests = []
        for first, last in ((0, 217), (217, 400), (400, 600)):
            command = [sys.executable, __file__, "--go-on", str(path), str(first), str(last)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            digests.append(done.stdout.split()[-1])
        never_stopped = go_on(path, 0, 600)
    same = digests[-1] == never_stopped
    print(f"stored and loaded twice: {'bit-identical' if same else 'NOT identical'}")
    return {"bit_identical": same}, ["a restart changes what follows"] * (not same)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10,000 bins instead of 100,000")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--go-on", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if options.go_on:
        path, first, last = options.go_on
        print(go_on(Path(path), int(first), int(last)))
        return 0
    result, missed = {}, []
    for name, part in (
        ("step", lambda: step_cost(100 if options.quick else 300)),
        ("restart", restart),
        ("over_time", lambda: over_time(10_000 if options.quick else 100_000)),
    ):
        result[name], short = part()
        missed += short
    return close(result, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
