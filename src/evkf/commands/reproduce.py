"""Commands that compute the paper's tables and figures anew, and say what came out."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from evkf.bench.core import device
from evkf.commands.console import (
    FELL_SHORT,
    Config,
    Force,
    Json,
    Quiet,
    check_free,
    claim,
    console,
    emit,
    json_target,
    to_json,
    versions,
)
from evkf.commands.console import progress_bar as bar
from evkf.data.files import replacing
from evkf.errors import InputError
from evkf.experiments.catalogue import EXPERIMENTS
from evkf.experiments.runner import run_tasks
from evkf.latency import low_latency

Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder to write into.")]
Quick = Annotated[bool, typer.Option("--quick", help="Few trials and small sizes, in 2 minutes.")]
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
    run.__doc__ = f"""{experiment.title}

    Written into the folder: {name}.json with all rows, {name}.md with the table beside the paper's
    numbers, and the figure as {name}.png and {name}.svg. What is computed is kept in its folder
    tasks, so that a run that was interrupted goes on where it was.

    \b
    Methods: {", ".join(experiment.module.METHODS)}

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

    The same as `evkf reproduce NAME` for every name, into one folder; what is there already stays.
    Reaching needs a recording, and has a command of its own: evkf reproduce reaching --data FILE.

    \b
    Examples:
      evkf reproduce all --quick
      evkf reproduce all --out out/paper

    Exits with 1 if a target is missed; with --quick there are none.
    """
    every = {name: files(name, out) for name in EXPERIMENTS}
    written = [path for paths in every.values() for path in paths]
    names = [name for name in every if force or not all(path.exists() for path in every[name])]
    wanted = [path for name in names for path in every[name]]
    check_free([*wanted, *json_target(json_file, *written)], force)
    say = console(quiet, json_file)
    low_latency()
    found = {}
    for name in every:
        if name not in names:
            say.print(f"{name} is there already; --force computes it anew")
            continue
        effort = read_effort(name, quick, trials, None)
        found[name] = reproduce(name, effort, out, scheduler, force, say)
    emit(json_file, found)
    if any(result["missed"] for result in found.values()):
        raise typer.Exit(FELL_SHORT)


def files(name: str, out: Path) -> list[Path]:
    """What is written."""
    return [out / f"{name}.{end}" for end in ("json", "md", "png", "svg")]


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
    module = experiment.module
    specs = module.tasks(effort.methods, effort.trials, effort.quick)
    with bar(say, f"{name}: tasks") as tell:
        results = run_tasks(specs, out / "tasks", scheduler, tell, anew=force)
    rows = [row for result in results for row in result["rows"]]
    timing = _time(name, effort, say) if experiment.timed else []
    missed = experiment.shortfalls(rows, timing) if effort.judged else []
    text = experiment.report(rows, timing, effort.trials, effort.quick)
    figure = experiment.draw(results)
    result = {
        "name": name,
        "config": {
            "quick": effort.quick,
            "trials": effort.trials,
            "methods": list(effort.methods),
            "tasks": len(specs),
        },
        "versions": versions(),
        "device": device(),
        "rows": rows,
        "timing": timing,
        "missed": missed,
    }
    paths = files(name, out)
    claim(paths, force)
    with ExitStack() as stack:  # all or none: with some of them the command could not go on
        parts = [stack.enter_context(replacing(path, overwrite=force)) for path in paths]
        for part, content in zip(parts, (to_json(result) + "\n", text), strict=False):
            part.write_text(content, encoding="utf-8")
        for part in parts[2:]:
            figure.savefig(part, format=part.suffix[1:], dpi=200)
    told = "\n".join(f"missed: {words}" for words in missed)
    told = told or ("all targets met" if effort.judged else "no targets for this run")
    say.print(f"\n{text}\n{told}\nwritten: {', '.join(map(str, paths))}")
    return result


def _time(name: str, effort: Effort, say: Console) -> list[dict[str, Any]]:
    """One after another, with nothing else running."""
    module = EXPERIMENTS[name].module
    whats = module.timings(effort.methods, effort.quick)
    timing = []
    with bar(say, f"{name}: times") as tell:
        for what in whats:
            timing.append(what | module.time_one(what)._asdict())
            tell(len(timing), len(whats))
    return timing
