"""Speed of this version beside an earlier one, in one run.

    python benchmarks/house.py --before REV [--rounds N] [--quick] [--json FILE]

Every round starts a fresh process of each version, one after the other measures the same thing, and
the ratio of the two times is taken: a compiled step, a scan per bin and a learning step in blocks
that alternate, `EVKF.fit` of the README's example at its first call (with compilation) and at later
ones, and `evkf filter` of an NWB file with 30,000 bins of 100 units as a whole command. The
revision is checked out into a worktree of its own. Checked over at least seven rounds: the 90 %
interval of the median ratio (bootstrap over rounds) ends at or below 1.03, and `evkf filter` is at
least 1.5 times faster.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from closing import close

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from revision import worktree  # noqa: E402 - tools is no package

MOST_RATIO, LEAST_FASTER = 1.03, 1.5
ROUNDS, QUICK_ROUNDS = 7, 2
BLOCKS, QUICK_BLOCKS = 30, 5
FIT_BLOCKS = 5
"""Blocks of steps in a round, and calls of `EVKF.fit`, of which the median is taken."""
CALLS, BINS, CHANNELS = 200, 2000, 100
"""Steps in a block, bins of a scan, and channels of both."""
TRIALS = {False: 300, True: 20}
"""Trials of 100 bins for `evkf filter`, without and with --quick."""
STEPS = ("step", "scan per bin", "learning step")
FITS = ("EVKF.fit, first", "EVKF.fit, again")
FILTER = "evkf filter"


def prepare_steps() -> dict[str, Callable[[], float]]:
    """Return what times a block of each kind of step; everything is compiled."""
    import jax
    import jax.numpy as jnp

    from evkf import (
        CompiledLearner,
        CompiledStep,
        Learner,
        Model,
        VariationalKalmanFilter,
        scan_filter,
        simulate,
    )
    from evkf.dynamics import VanDerPol
    from evkf.likelihoods import Poisson

    readout = np.random.default_rng(0).normal(size=(CHANNELS, 2))
    likelihood = Poisson(readout, np.full(CHANNELS, 2.0), bin_width=0.005)
    model = Model(VanDerPol(), likelihood)
    _, ys = simulate(model, jax.random.key(0), BINS)
    bins = [jnp.asarray(y) for y in np.asarray(ys)[:CALLS]]
    seen = jnp.ones(CHANNELS, bool)
    filter = VariationalKalmanFilter()
    step = CompiledStep(filter, model)
    learner = CompiledLearner(Learner(), model)

    def time_step() -> float:
        carry = step.init()
        begin = time.perf_counter()
        for y in bins:
            carry = step(carry, y, seen)
            np.asarray(carry)
        return (time.perf_counter() - begin) / CALLS

    def time_scan() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(scan_filter(filter, model, ys))
        return (time.perf_counter() - begin) / BINS

    def time_learning() -> float:
        begin = time.perf_counter()
        for _ in range(CALLS // 4):
            jax.block_until_ready(learner.learn())
        return (time.perf_counter() - begin) / (CALLS // 4)

    for y in bins:
        learner.observe(y)
    calls = dict(zip(STEPS, (time_step, time_scan, time_learning), strict=True))
    for call in calls.values():
        call()
    return calls


def prepare_fit() -> Callable[[], float]:
    """Return what times `EVKF.fit` of the README's example."""
    from evkf import EVKF

    angle = 0.1 * np.arange(1000)
    tuning = np.random.default_rng(0).normal(size=(2, 40))
    rates = np.exp(np.column_stack([np.cos(angle), np.sin(angle)]) @ tuning - 1)
    counts = np.random.default_rng(1).poisson(rates)
    try:
        from evkf.learning import Learning  # type: ignore[attr-defined]
    except ImportError:  # version 1
        settings: dict[str, Any] = {"warm_up": 300}
    else:
        settings = {"learning": Learning(warm_up=300)}

    def time_fit() -> float:
        begin = time.perf_counter()
        EVKF(latents=2, **settings).fit(counts[:800])
        return time.perf_counter() - begin

    return time_fit


def serve() -> None:
    """Measure what is asked for, line by line, until there are no more lines."""
    fit = prepare_fit()
    calls: dict[str, Callable[[], float]] = dict.fromkeys(FITS, fit)
    for line in sys.stdin:
        name = line.strip()
        if name in STEPS and name not in calls:
            calls |= prepare_steps()
        print(calls[name](), flush=True)


class Version:
    """A tree of evkf, a recording to filter, and a model that it fitted.

    Args:
        tree: The root of the repository.
        folder: Where files go.
        recording: What to filter.
    """

    def __init__(self, tree: Path, folder: Path, recording: Path):
        self.environment = os.environ | {"PYTHONPATH": str(tree / "src")}
        self.recording, self.model = recording, folder / "model.safetensors"
        self.out = folder / "latents.nwb"

    def run(self, *args: str | Path) -> float:
        """Run a command of evkf; its seconds."""
        command = [sys.executable, "-m", "evkf", *map(str, args), "--quiet"]
        begin = time.perf_counter()
        subprocess.run(command, env=self.environment, check=True)
        return time.perf_counter() - begin

    def filter(self) -> float:
        """Filter the recording; seconds of the whole command."""
        args = ("--model", self.model, "--out", self.out, "--force")
        return self.run("filter", self.recording, *args)

    @contextlib.contextmanager
    def worker(self) -> Iterator[Callable[[str], float]]:
        """A fresh process that measures what it is asked for."""
        with subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def ask(name: str) -> float:
                print(name, file=process.stdin, flush=True)
                return float(process.stdout.readline())

            yield ask
            process.stdin.close()


def measure(before: Version, now: Version, first: int, blocks: int) -> dict[str, list[float]]:
    """Return times of one round, before and now; `first` says which of them begins."""
    times: dict[str, list[float]] = {}
    with before.worker() as ask_before, now.worker() as ask_now:
        asks = (ask_before, ask_now)
        order = (0, 1) if first == 0 else (1, 0)

        def pair(name: str) -> list[float]:
            return [value for _, value in sorted((i, asks[i](name)) for i in order)]

        first_fit, *steady = (*FITS, *STEPS)
        times[first_fit] = pair(first_fit)
        for name in steady:
            pair(name)  # compiles
            found = [pair(name) for _ in range(FIT_BLOCKS if name in FITS else blocks)]
            times[name] = np.median(found, axis=0).tolist()
    versions = (before, now)
    times[FILTER] = [value for _, value in sorted((i, versions[i].filter()) for i in order)]
    return times


def interval(ratios: np.ndarray) -> tuple[float, float, float]:
    """Return the median and its 90 % interval, by bootstrap over rounds."""
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.05, 0.95])
    return float(np.median(ratios)), float(low), float(high)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="REV", help="the revision to compare with")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 7 to be judged")
    parser.add_argument("--quick", action="store_true", help="two small rounds, not judged")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return 0
    if args.before is None:
        parser.error("name the revision to compare with: --before REV")
    rounds, blocks = (QUICK_ROUNDS, QUICK_BLOCKS) if args.quick else (args.rounds, BLOCKS)
    with worktree(args.before) as tree, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recording = folder / "recording.nwb"
        trees = {"before": tree, "now": ROOT}
        for version in trees:
            (folder / version).mkdir()
        versions = [Version(trees[name], folder / name, recording) for name in trees]
        size = ("--neurons", str(CHANNELS), "--bins", "100")
        versions[0].run(
            "simulate", "--nwb", "--out", recording, "--trials", str(TRIALS[args.quick]), *size
        )
        for version in versions:
            fit = ("--latents", "2", "--passes", "1", "--out", version.model)
            version.run("fit", recording, *fit)
        found = []
        for number in range(rounds):
            found.append(measure(versions[0], versions[1], number % 2, blocks))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    missed, rows = [], {}
    print(f"{'':16} {'before':>10} {'now':>10} {'now / before':>13}   90 % interval")
    for name in found[0]:
        times = np.array([values[name] for values in found])
        before, now = np.median(times, axis=0)
        ratio, low, high = interval(times[:, 1] / times[:, 0])
        rows[name] = {
            "before_s": before,
            "now_s": now,
            "ratio": ratio,
            "interval": [low, high],
            "rounds_s": times.tolist(),
        }
        scale, unit = (1, "s") if now > 0.1 else (1e6, "us")
        print(
            f"{name:16} {scale * before:7.2f} {unit:2} {scale * now:7.2f} {unit:2} "
            f"{ratio:13.3f}   {low:.3f} to {high:.3f}"
        )
        if args.quick or rounds < ROUNDS:
            continue
        if high > MOST_RATIO:
            missed.append(f"{name}: the interval ends at {high:.3f}, not {MOST_RATIO}")
        if name == FILTER and 1 / ratio < LEAST_FASTER:
            missed.append(f"{name}: {1 / ratio:.2f} times faster, not {LEAST_FASTER}")
    return close({"before": args.before, "rounds": rounds, "rows": rows}, missed, args.json)


if __name__ == "__main__":
    sys.exit(main())
