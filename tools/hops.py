"""Count the functions and modules of evkf that one call enters, to see how far a reader must look.

    python tools/hops.py [--before REV] [--list] [--only PATH ...] [--json FILE]

Every path is called twice in a process of its own, and the second call is counted, so that compiled
programs count as one call into JAX. What runs while a module is imported does not count. Commands
are counted without the core (`CORE`), whose programs they run; processes that a command starts are
counted with it. With --before, a revision is counted first, by the same rule, in a worktree of its
own, and every path must enter at most half of its modules.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from revision import worktree

ROOT = Path(__file__).resolve().parent.parent
MOST = 0.5
"""Modules entered now, as a share of those before."""
CORE = {
    *("analysis", "learning", "filters", "expectations", "parameters", "model", "likelihoods"),
    *("dynamics", "families", "numerics", "types", "errors"),
    # Version 1 had these modules at its root.
    *("checks", "covariance", "decoding", "draws", "forecasting", "latency", "metrics", "parts"),
    *("phase", "product_expectations", "quadrature", "ragged", "sites", "smoothing", "special"),
    "spike_metrics",
}
LOG, SOURCE = "EVKF_HOPS_LOG", "EVKF_HOPS_SOURCE"
"""Environment of processes that are counted: the file to write to, and the folder of evkf."""
START = """
import sys
sys.path.insert(0, {tools!r})
import hops
sys.path.pop(0)
hops.count()
"""
"""Counts in processes that a command starts, as `sitecustomize.py`."""


def count() -> None:
    """Write each function of evkf to the log when it is first entered."""
    package = os.environ[SOURCE] + os.sep
    log = open(os.environ[LOG], "a", buffering=1)  # noqa: SIM115 - until the process ends
    counted = set()

    def enter(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code in counted or not code.co_filename.startswith(package):
            return
        outer: FrameType | None = frame
        while outer is not None:
            if outer.f_code.co_name == "<module>" and outer.f_code.co_filename.startswith(package):
                return
            outer = outer.f_back
        counted.add(code)
        if not code.co_name.startswith("<"):
            name = code.co_filename.removeprefix(package).removesuffix(".py")
            log.write(f"{name.replace(os.sep, '.')}:{code.co_qualname}:{code.co_firstlineno}\n")

    threading.setprofile(enter)
    sys.setprofile(enter)


def command(*args: str) -> None:
    """Run a command of evkf in this process."""
    try:
        module = importlib.import_module("evkf.cli.app")
    except ModuleNotFoundError:
        module = importlib.import_module("evkf.cli")  # in version 1
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            module.main(args)
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"evkf {' '.join(args)}: exit code {ended.code}") from ended


def filter_file() -> Callable[[], None]:
    """Return a call of `evkf filter` on a small NWB file."""
    small = ("--neurons", "8", "--trials", "6", "--bins", "20")
    command("simulate", "--out", "day.nwb", *small)
    command("fit", "day.nwb", "--latents", "2", "--out", "model.safetensors")
    args = ("day.nwb", "--model", "model.safetensors", "--out", "latents.nwb", "--force")
    return lambda: command("filter", *args)


def estimator() -> tuple[Any, Any]:
    """Return an estimator that has learned, and counts."""
    import numpy as np

    from evkf import EVKF

    angle = 0.1 * np.arange(1500)
    tuning = np.random.default_rng(0).normal(size=(2, 20))
    rates = np.exp(np.column_stack([np.cos(angle), np.sin(angle)]) @ tuning - 1)
    counts = np.random.default_rng(1).poisson(rates)
    return EVKF(latents=2).partial_fit(counts), counts


def learning_step() -> Callable[[], None]:
    """Return a call of `EVKF.partial_fit` with one bin more."""
    model, counts = estimator()
    return lambda: model.partial_fit(counts[:1])


def single_bin() -> Callable[[], None]:
    """Return a call of `EVKF.learn_one`."""
    model, counts = estimator()
    return lambda: model.learn_one(counts[0])


def table() -> Callable[[], None]:
    """Return a call of `evkf reproduce table1 --quick` for one method."""
    args = ("--quick", "--trials", "1", "--methods", "evkf", "--force")
    return lambda: command("reproduce", "table1", *args)


PATHS = {
    "evkf filter x.nwb": (filter_file, True),
    "EVKF.partial_fit": (learning_step, False),
    "EVKF.learn_one": (single_bin, False),
    "evkf reproduce table1": (table, True),
}
"""How each path is prepared, and whether it is a command."""


def measure(path: str) -> None:
    """Count the second call of a path; the log and the working directory are this process's own."""
    call = PATHS[path][0]()
    call()
    Path("sitecustomize.py").write_text(START.format(tools=str(Path(__file__).parent)))
    os.environ["PYTHONPATH"] = f"{os.getcwd()}{os.pathsep}{os.environ['PYTHONPATH']}"
    count()
    call()
    sys.setprofile(None)


def entered(tree: Path, path: str) -> list[str]:
    """Return the functions that a path of a tree enters, as `module:function:line`."""
    source = tree / "src"
    with tempfile.TemporaryDirectory(prefix="evkf-hops-") as folder:
        log = Path(folder) / "log"
        log.touch()
        settings = {"PYTHONPATH": str(source), LOG: str(log), SOURCE: str(source / "evkf")}
        done = subprocess.run(
            [sys.executable, __file__, "--measure", path],
            cwd=folder,
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{path} of {tree}:\n{done.stderr}")
        functions = sorted(set(log.read_text().splitlines()))
    _, is_command = PATHS[path]
    room = (lambda name: name.partition(":")[0].partition(".")[0]) if is_command else None
    return [name for name in functions if room is None or room(name) not in CORE]


def modules(functions: list[str]) -> list[str]:
    """Return the modules of functions."""
    return sorted({name.partition(":")[0] for name in functions})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="REV", help="count this revision first")
    parser.add_argument("--list", action="store_true", help="name modules and functions")
    parser.add_argument("--only", metavar="PATH", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--measure", metavar="PATH", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure)
        return 0
    found: dict[str, dict[str, list[str]]] = {}
    if args.before:
        with worktree(args.before) as tree:
            found["before"] = {path: entered(tree, path) for path in args.only}
    found["now"] = {path: entered(ROOT, path) for path in args.only}
    if args.list:
        for version, paths in found.items():
            for path, functions in paths.items():
                print(f"\n{version}: {path}", *functions, sep="\n  ")
        print()
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    columns = " ".join(f"{f'{version}: functions':>18} {'modules':>7}" for version in found)
    print(f"{'path':24} {columns}" + ("   modules now / before" if args.before else ""))
    missed = 0
    for path in args.only:
        numbers = {v: (len(paths[path]), len(modules(paths[path]))) for v, paths in found.items()}
        row = " ".join(f"{functions:18} {files:7}" for functions, files in numbers.values())
        if args.before:
            ratio = numbers["now"][1] / numbers["before"][1]
            missed += ratio > MOST
            row += f"   {ratio:.2f}" + (f", above {MOST}" if ratio > MOST else "")
        print(f"{path:24} {row}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
