"""Commands that compute the paper's tables and figures anew, and say what came out."""

import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import typer
from rich.console import Console

from evkf.bench.core import device
from evkf.cli.console import (
    FELL_SHORT,
    Config,
    Force,
    Json,
    Quiet,
    check_free,
    console,
    emit,
    json_target,
    result_files,
    verdict,
    write_results,
)
from evkf.cli.console import progress_bar as bar
from evkf.data.installed import versions
from evkf.errors import InputError
from evkf.numerics.jax_config import low_latency
from evkf.reproduce.catalogue import EXPERIMENTS
from evkf.reproduce.runner import SOURCE, Spec, run_tasks
from evkf.reproduce.streams import time_steps
from evkf.reproduce.tables import Found, Row

Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder to write into.")]
Quick = Annotated[bool, typer.Option("--quick", help="Few trials, small sizes; 2 minutes a name.")]
Trials = Annotated[int | None, typer.Option(min=1, help="Trials, in place of the paper's.")]
Methods = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Of these methods alone; all without.")
]
Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Run on this Dask cluster, such as tcp://host:8786."),
]
DEFAULT_OUT = Path("out/reproduce")


class Effort(NamedTuple):
    """How much of an experiment is computed."""

    quick: bool
    trials: int
    methods: tuple[str, ...]
    judged: bool
    """Whether it is held to its targets."""


def command(name: str) -> Callable[..., None]:
    """The command that computes an experiment."""

    def run(
        quick: Quick = False,
        trials: Trials = None,
        methods: Methods = None,
        out: Out = DEFAULT_OUT,
        scheduler: Scheduler = None,
        force: Force = False,
        quiet: Quiet = False,
        json_file: Json = None,
        config: Config = None,
    ) -> None:
        effort = read_effort(name, quick, trials, methods)
        check_free([*files(name, out), *json_target(json_file, *files(name, out))], force)
        say = console(quiet, json_file)
        low_latency()
        result = reproduce(name, effort, out, scheduler, force, say)
        emit(json_file, result)
        if result["missed"]:
            raise typer.Exit(FELL_SHORT)

    experiment = EXPERIMENTS[name]
    figures = " and ".join(f"{figure}.png and .svg" for figure in experiment.pictures)
    run.__doc__ = f"""{experiment.title}

    Written into the folder: {name}.json with all rows, {name}.md with what they show, beside the
    paper's numbers where it has some, and {figures}. What is computed is kept in its
    folder tasks, so that a run that was interrupted goes on where it was; to write the page and
    figures anew from what is kept, delete {name}.* and run the same command.

    \b
    To choose from with --methods:
      {", ".join(experiment.module.METHODS)}

    \b
    Examples:
      evkf reproduce {name} --quick
      evkf reproduce {name} --trials 3 --out out/three
      evkf reproduce {name} --scheduler tcp://127.0.0.1:8786

    Exits with 1 if a target is missed; with --quick, or without all methods, there are none. With
    --force everything is computed anew.
    """
    return run


def run_all(
    quick: Quick = False,
    trials: Trials = None,
    out: Out = DEFAULT_OUT,
    scheduler: Scheduler = None,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Compute every table and figure of the paper but that of reaching.

    The same as `evkf reproduce NAME` for every name, into one folder; what is there already, of as
    many trials, stays.
    Reaching needs a recording, and has a command of its own: evkf reproduce reaching --data FILE.

    \b
    Examples:
      evkf reproduce all --quick
      evkf reproduce all --out out/paper

    Exits with 1 if a target is missed; with --quick there are none.
    """
    every = {name: files(name, out) for name in EXPERIMENTS}
    efforts = {name: read_effort(name, quick, trials, None) for name in EXPERIMENTS}
    found = {
        name: _read_result(paths[0], efforts[name])
        for name, paths in every.items()
        if not force and all(path.exists() for path in paths)
    }
    written = [path for paths in every.values() for path in paths]
    wanted = [path for name in every if name not in found for path in every[name]]
    check_free([*wanted, *json_target(json_file, *written)], force)
    say = console(quiet, json_file)
    low_latency()
    for name, effort in efforts.items():
        if name in found:
            missed = len(found[name]["missed"])
            told = f", which missed {missed} of its targets" if missed else ""
            say.print(f"{name} is there already{told}; --force computes it anew")
        else:
            found[name] = reproduce(name, effort, out, scheduler, force, say)
    say.print("not among these: reaching, which needs a recording: evkf reproduce reaching --help")
    emit(json_file, found)
    if any(result["missed"] for result in found.values()):
        raise typer.Exit(FELL_SHORT)


def _read_result(path: Path, effort: Effort) -> dict[str, Any]:
    """A result that is there, if it is of this effort."""
    remedy = "name another folder, or compute it anew with --force"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        config, _ = result["config"], result["missed"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("not a result", str(path), remedy) from error
    given = effort._asdict() | {"methods": list(effort.methods)}
    for key in ("quick", "trials", "methods"):
        if config.get(key) != given[key]:
            what = f"a result with {key} = {config.get(key)}, not {given[key]}"
            raise InputError(what, str(path), remedy)
    return result


def files(name: str, out: Path) -> list[Path]:
    """What is written."""
    return result_files(out, name, EXPERIMENTS[name].pictures)


def read_effort(name: str, quick: bool, trials: int | None, methods: str | None) -> Effort:
    """Read options, or refuse them."""
    module = EXPERIMENTS[name].module
    known = tuple(module.METHODS)
    chosen = known if methods is None else tuple(methods.split(","))
    for method in chosen:
        if method not in known:
            remedy = f"choose from {', '.join(known)}, with commas between"
            raise InputError(f"unknown method {method!r}", "--methods", remedy)
    if len(set(chosen)) < len(chosen):
        raise InputError(f"a method twice in {methods!r}", "--methods", "name every one once")
    for method in EXPERIMENTS[name].needs:
        if method not in chosen:
            raise InputError(f"{name} without {method}", "--methods", f"add {method}")
    usual = module.QUICK_TRIALS if quick else module.TRIALS
    return Effort(quick, trials or usual, chosen, not quick and set(chosen) == set(known))


def reproduce(
    name: str, effort: Effort, out: Path, scheduler: str | None, force: bool, say: Console
) -> dict[str, Any]:
    """Compute, write and tell; what is in the JSON file."""
    experiment = EXPERIMENTS[name]
    specs = experiment.module.tasks(effort.methods, effort.trials, effort.quick)
    results = _compute(name, specs, out / "tasks", scheduler, force, say)
    timing = _time(name, effort, say) if experiment.timed else []
    found = Found(results, timing, effort.trials, effort.quick)
    targets = experiment.shortfalls if effort.judged else None
    missed = targets(found) if targets else []
    shown = [f"![{picture.caption}]({key}.png)\n" for key, picture in experiment.pictures.items()]
    short = [f"Missed: {'; '.join(missed)}.\n"] if missed else []
    text = experiment.report(found)
    result = {
        "name": name,
        "config": {
            "quick": effort.quick,
            "trials": effort.trials,
            "methods": list(effort.methods),
            "tasks": len(specs),
        },
        "versions": versions() | {"source": SOURCE},
        "device": device(),
        "rows": found.rows,
        "timing": timing,
        "missed": missed,
    }
    figures = {key: picture.draw(found) for key, picture in experiment.pictures.items()}
    write_results(out, name, result, "\n".join([text, *short, *shown]), figures, force)
    told = verdict(missed, judged=targets is not None)
    say.print(f"\n{text}\n{told}\nwritten: {', '.join(map(str, files(name, out)))}")
    return result


def _compute(
    name: str,
    specs: list[Spec],
    store: Path,
    scheduler: str | None,
    anew: bool,
    say: Console,
) -> list[dict[str, Any]]:
    """The results of tasks; whoever interrupts them is told what is kept."""
    done = 0

    def count(num: int, total: int) -> None:
        nonlocal done
        done = num
        tell(num, total)

    try:
        with bar(say, f"{name}: tasks") as tell:
            return run_tasks(specs, store, scheduler, count, anew)
    except KeyboardInterrupt:
        then = "with --force they are computed again" if anew else "the same command goes on there"
        say.print(f"interrupted: {done} of {len(specs)} tasks are kept in {store}; {then}")
        raise


def _time(name: str, effort: Effort, say: Console) -> list[Row]:
    """In float32, with nothing else running; methods of one problem in turn."""
    module = EXPERIMENTS[name].module
    whats = module.timings(effort.methods, effort.quick)
    bins = module.QUICK_TIMED if effort.quick else module.TIMED
    timing: list[Row] = []

    def problem(what: Row) -> Row:
        return {key: value for key, value in what.items() if key != "method"}

    with bar(say, f"{name}: times") as tell, jax.enable_x64(False):
        for _, methods in groupby(whats, problem):
            group = list(methods)
            times = time_steps([module.ready(what, bins.stop) for what in group], bins)
            timing += [what | time._asdict() for what, time in zip(group, times, strict=True)]
            tell(len(timing), len(whats))
    return timing
