"""The command that measures speed."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from evkf.bench import PARTS, parts
from evkf.bench.core import Figure, Part, device
from evkf.bench.others import cache_folder
from evkf.bench.report import draw, markdown, table
from evkf.bench.sessions import read_steps
from evkf.cli.console import (
    FELL_SHORT,
    Force,
    Json,
    Quiet,
    Seed,
    check_free,
    claim,
    console,
    emit,
    json_target,
    to_json,
)
from evkf.data.files import replacing
from evkf.data.installed import versions
from evkf.errors import InputError
from evkf.numerics.jax_config import low_latency


def bench(
    part: Annotated[
        list[str] | None,
        typer.Argument(metavar="PART", help=f"{', '.join(PARTS)}; all when left out."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few calls and small sizes, to see that it runs.")
    ] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write into.")] = Path(
        "out/bench"
    ),
    others: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Environment of other packages, made on first use.",
            show_default="in the user's folder of caches",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="bench.json of a CPU, to compare a GPU with."),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
) -> None:
    """Measure speed on this machine, every figure beside its target.

    \b
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
    sizes, bench.png and bench.svg. Parts named on the command line replace those of an earlier run
    on the same machine (with --force); its other parts stay. All targets but those of sessions are
    for a CPU.

    \b
    Examples:
      evkf bench --quick
      evkf bench step products --out out/steps
      evkf bench sessions --against results/bench/bench.json

    Exits with 1 if a target is missed.
    """
    names = _chosen(part)
    drawn = "sizes" in names
    ends = ("json", "md", "png", "svg") if drawn else ("json", "md")
    files = {end: out / f"bench.{end}" for end in ends}
    check_free([*files.values(), *json_target(json_file, *files.values())], force)
    cpu = _read_cpu(against, names)
    low_latency()
    where = device()
    if cpu is not None and where["platform"] != "gpu":
        raise InputError("no GPU to compare", "--against", "leave it out, or run on a GPU")
    say = console(quiet, json_file)
    kept = _kept(files["json"], where) if part else {}
    folder = others or cache_folder()
    found = kept | _measure(names, quick, seed, say, parts(folder, cpu))
    found = {name: found[name] for name in PARTS if name in found}
    figures = [figure for each in found.values() for figure in each.figures]
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    result = {
        "command": "bench",
        "config": {"parts": list(found), "quick": quick, "seed": seed, "against": _name(against)},
        "versions": versions(),
        "device": where,
        "date": date,
        "parts": {
            name: {"rows": rows, "figures": [figure.row() for figure in some]}
            for name, (rows, some) in found.items()
        },
    }
    _write(files, force, result, markdown(figures, where, date, quick, "sizes" in found), found)
    say.print()
    say.print(table(figures))
    missed = [figure for figure in figures if not figure.met]
    for figure in missed:
        say.print(f"missed: {figure.name}: {figure.found}, target {figure.wanted}")
    if not missed:
        say.print("all targets met")
    say.print(f"written: {', '.join(map(str, files.values()))}")
    emit(json_file, result)
    if missed:
        raise typer.Exit(FELL_SHORT)


def _chosen(part: list[str] | None) -> list[str]:
    """The parts asked for, in the order in which they run."""
    for name in part or ():
        if name not in PARTS:
            remedy = f"choose from {', '.join(PARTS)}"
            raise InputError(f"unknown part {name!r}", "PART", remedy)
    return [name for name in PARTS if not part or name in part]


def _read_cpu(against: Path | None, names: list[str]) -> float | None:
    if against is None:
        return None
    if "sessions" not in names:
        what = "--against without the part sessions"
        raise InputError(what, "--against", "add sessions to the parts")
    return read_steps(against)


def _measure(names: list[str], quick: bool, seed: int, say: Console, runs: dict) -> dict[str, Part]:
    found = {}
    for i, name in enumerate(names):
        gap = "\n" if i else ""
        say.print(f"{gap}{name} ({i + 1} of {len(names)})")
        found[name] = runs[name](quick, seed, say.print)
    return found


def _kept(file: Path, where: dict) -> dict[str, Part]:
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
        raise InputError("not a result of evkf bench", str(file), remedy) from error


def _write(
    files: dict[str, Path], force: bool, result: dict, text: str, found: dict[str, Part]
) -> None:
    """All at the end, each file whole or not at all."""
    claim(files.values(), force)
    for end, content in (("json", to_json(result) + "\n"), ("md", text)):
        with replacing(files[end], overwrite=force) as place:
            place.write_text(content, encoding="utf-8")
    if "png" in files:
        picture = draw(found["sizes"].rows)
        for end in ("png", "svg"):
            with replacing(files[end], overwrite=force) as place:
                picture.savefig(place, format=end, dpi=200)


def _name(file: Path | None) -> str | None:
    return None if file is None else file.name
