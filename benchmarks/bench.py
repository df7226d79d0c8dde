"""Speed of evkf, every figure beside its target (`make bench` runs all parts).

    python benchmarks/bench.py [PART ...] [--quick] [--out DIR] [--force] [--json FILE]

Parts:
  step        one compiled step and the scan, in calls of an empty program
  products    a step of 64 latents and 1000 units beside its matrix products alone
  low-rank    beliefs of low rank beside full covariances: time and accuracy
  stability   low rank over 10,000 bins of 10,000 units (a quarter of an hour)
  sizes       how the cost grows with latents and units
  precision   float32 beside float64
  sessions    filter steps per second over many sessions at once
  others      dynamax, filterpy and particles, in an environment of their own

Written into the folder: bench.json with all rows, bench.md with the figures and, from the part
sizes, bench.png and bench.svg. Parts named on the command line replace those of an earlier run on
the same machine (with --force); the other parts of that run stay. All targets but those of the part
sessions are for a CPU. Exits with 1 if a target is missed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from speed import PARTS, others, sessions
from speed.core import Figure, Part
from speed.report import draw, markdown, table

from evkf.cli.console import (
    FELL_SHORT,
    check_free,
    console,
    emit,
    json_target,
    result_files,
    write_results,
)
from evkf.data.files import versions
from evkf.errors import EvkfError, InputError
from evkf.numerics.jax_config import low_latency
from evkf.reproduce.runner import device

BAD_INPUT, INTERRUPTED = 2, 130


def bench(options: argparse.Namespace) -> bool:
    """Measure, write and print; True if all targets are met."""
    for name in options.part:
        if name not in PARTS:
            raise InputError(f"unknown part {name!r}", "PART", f"choose from {', '.join(PARTS)}")
    names = [name for name in PARTS if not options.part or name in options.part]
    figures_of = ["bench"] if "sizes" in names else []
    files = result_files(options.out, "bench", figures_of)
    check_free([*files, *json_target(options.json, *files)], options.force)
    runs = dict(PARTS)
    if options.others is not None:
        runs["others"] = partial(others.run, folder=options.others)
    if options.against is not None:
        if "sessions" not in names:
            what = "--against without the part sessions"
            raise InputError(what, "--against", "add sessions to the parts")
        runs["sessions"] = partial(sessions.run, cpu=sessions.read_steps(options.against))
    low_latency()
    where = device()
    if options.against is not None and where["platform"] != "gpu":
        raise InputError("no GPU to compare", "--against", "leave it out, or run on a GPU")

    say = console(options.quiet, options.json)
    found = stored_parts(files[0], where) if options.part else {}
    for i, name in enumerate(names):
        gap = "\n" if i else ""
        say.print(f"{gap}{name} ({i + 1} of {len(names)})")
        found[name] = runs[name](options.quick, options.seed, say.print)

    found = {name: found[name] for name in PARTS if name in found}
    figures = [figure for part in found.values() for figure in part.figures]
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    against = None if options.against is None else options.against.name
    result = {
        "command": "bench",
        "config": {
            "parts": list(found),
            "quick": options.quick,
            "seed": options.seed,
            "against": against,
        },
        "versions": versions(),
        "device": where,
        "date": date,
        "parts": {
            name: {"rows": part.rows, "figures": [figure.row() for figure in part.figures]}
            for name, part in found.items()
        },
    }
    text = markdown(figures, where, date, options.quick, drawn="sizes" in found)
    drawn = {name: draw(found["sizes"].rows) for name in figures_of}
    write_results(options.out, "bench", result, text, drawn, options.force)
    say.print()
    say.print(table(figures))
    missed = [figure for figure in figures if not figure.met]
    for figure in missed:
        say.print(f"missed: {figure.name}: {figure.found}, target {figure.wanted}")
    if not missed:
        say.print("all targets met")
    say.print(f"written: {', '.join(map(str, files))}")
    emit(options.json, result)
    return not missed


def stored_parts(file: Path, where: dict) -> dict[str, Part]:
    """Parts of an earlier run on the same machine, which stay while others are measured again."""
    if not file.is_file():
        return {}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["device"] != where:
            return {}
        return {
            name: Part(part["rows"], [Figure.of(row) for row in part["figures"]])
            for name, part in stored["parts"].items()
        }
    except (ValueError, KeyError, TypeError) as error:
        remedy = "name another folder with --out"
        raise InputError("not a result of benchmarks/bench.py", str(file), remedy) from error


def main(args: Sequence[str] | None = None) -> int:
    """Read the options, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", metavar="PART", help="all when left out")
    parser.add_argument("--quick", action="store_true", help="few calls and small sizes")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder to write into")
    parser.add_argument(
        "--others",
        type=Path,
        help="environment of other packages, made on first use (in the user's folder of caches)",
    )
    parser.add_argument("--against", type=Path, help="bench.json of a CPU, to compare a GPU with")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    parser.add_argument("-f", "--force", action="store_true", help="overwrite files that exist")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--json", type=Path, help="also write the result to a file; - prints it")
    try:
        return 0 if bench(parser.parse_args(args)) else FELL_SHORT
    except (EvkfError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
