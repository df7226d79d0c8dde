"""The commands `evkf reproduce NAME` and `evkf reproduce all`; `reaching` has its own module."""

import json
from collections.abc import Callable
from inspect import cleandoc
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from typer.core import TyperCommand

from evkf.cli.console import (
    FELL_SHORT,
    Run,
    check_free,
    console,
    expanded,
    json_target,
    progress_bar,
    result_files,
    verdict,
    write_results,
)
from evkf.errors import InputError
from evkf.reproduce.catalogue import TITLES, load

# The runner and the experiments, which import JAX, are imported when a command runs.

Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder to write into.")]
Quick = Annotated[bool, typer.Option("--quick", help="Few trials, small sizes; 2 minutes a name.")]
Trials = Annotated[int | None, typer.Option(min=1, help="Trials, in place of the paper's.")]
Methods = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Only these methods; all without.")
]
Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Run on this Dask cluster, such as tcp://host:8786."),
]
DEFAULT_OUT = Path("out/reproduce")


class RunSize(NamedTuple):
    """Size of a run of an experiment: trials and methods."""

    quick: bool
    trials: int
    methods: tuple[str, ...]
    judged: bool
    """True if results are compared with the targets of the experiment: all methods, not quick."""


class ExperimentCommand(TyperCommand):
    """Command of an experiment, which imports the experiment only when its help is printed."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the methods and figures of the experiment."""
        name = str(self.name)
        experiment = load(name)
        pictures = " and ".join(f"{picture}.png and .svg" for picture in experiment.pictures)
        self.help = cleandoc(f"""{TITLES[name]}

    Written into the folder: {name}.json with all rows, {name}.md with what they show, beside the
    paper's numbers where it has some, and {pictures}. Results of tasks are kept in its folder
    tasks, so that an interrupted run continues where it was; to write the page and figures again
    from these results, delete {name}.* and run the same command.

    \b
    To choose from with --methods:
      {", ".join(experiment.module.METHODS)}

    \b
    Examples:
      evkf reproduce {name} --quick
      evkf reproduce {name} --trials 3 --out out/three
      evkf reproduce {name} --scheduler tcp://127.0.0.1:8786

    Exits with 1 if a target is missed; with --quick, or without all methods, there are no targets.
    With --force everything is computed again.
    """)
        super().format_help(ctx, formatter)


def command(name: str) -> Callable[..., None]:
    """Return the command that runs an experiment, given the name of the experiment."""

    def compute(
        quick: Quick = False,
        trials: Trials = None,
        methods: Methods = None,
        out: Out = DEFAULT_OUT,
        scheduler: Scheduler = None,
        *,
        run: Run,
    ) -> None:
        size = read_size(name, quick, trials, methods)
        say = run.start(files(name, out))
        result = reproduce(name, size, out, scheduler, run.force, say)
        run.emit(result)
        if result["missed"]:
            raise typer.Exit(FELL_SHORT)

    compute.__doc__ = TITLES[name]
    return expanded(compute)


@expanded
def run_all(
    quick: Quick = False,
    trials: Trials = None,
    out: Out = DEFAULT_OUT,
    scheduler: Scheduler = None,
    *,
    run: Run,
) -> None:
    """Compute every table and figure of the paper except that of reaching.

    This command does the same as `evkf reproduce NAME` for every name, and writes into one folder.
    Results that are already in the folder are kept; they must be of as many trials as asked for.
    Reaching needs a recording, and has its own command: evkf reproduce reaching --data FILE.

    \b
    Examples:
      evkf reproduce all --quick
      evkf reproduce all --out out/paper

    Exits with 1 if a target is missed. With --quick there are no targets.
    """
    every = {name: files(name, out) for name in TITLES}
    sizes = {name: read_size(name, quick, trials, None) for name in TITLES}
    results: dict[str, dict[str, Any]] = {}
    for name, paths in every.items():
        if run.force or not all(path.exists() for path in paths):
            continue
        remedy = "name another folder, or compute it again with --force"
        try:
            result = json.loads(paths[0].read_text(encoding="utf-8"))
            config, _ = result["config"], result["missed"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("not a result", str(paths[0]), remedy) from error
        size = sizes[name]
        wanted = {"quick": size.quick, "trials": size.trials, "methods": list(size.methods)}
        for key, value in wanted.items():
            if config.get(key) != value:
                what = f"a result with {key} = {config.get(key)}, not {value}"
                raise InputError(what, str(paths[0]), remedy)
        results[name] = result
    written = [path for paths in every.values() for path in paths]
    missing = [path for name in every if name not in results for path in every[name]]
    check_free([*missing, *json_target(run.json_file, *written)], run.force)
    say = console(run.quiet, run.json_file)
    for name, size in sizes.items():
        if name in results:
            missed = len(results[name]["missed"])
            words = f", which missed {missed} of its targets" if missed else ""
            say.print(f"{name} is there already{words}; --force computes it again")
        else:
            results[name] = reproduce(name, size, out, scheduler, run.force, say)
    say.print("not among these: reaching, which needs a recording: evkf reproduce reaching --help")
    run.emit(results)
    if any(result["missed"] for result in results.values()):
        raise typer.Exit(FELL_SHORT)


def files(name: str, out: Path) -> list[Path]:
    """Return the paths of the files that an experiment writes into the folder `out`."""
    return result_files(out, name, load(name).pictures)


def read_size(name: str, quick: bool, trials: int | None, methods: str | None) -> RunSize:
    """Return how much of an experiment the options ask for; raise InputError if they do not fit."""
    experiment = load(name)
    every = tuple(experiment.module.METHODS)
    chosen = every if methods is None else tuple(methods.split(","))
    for method in chosen:
        if method not in every:
            remedy = f"choose from {', '.join(every)}, with commas between"
            raise InputError(f"unknown method {method!r}", "--methods", remedy)
    if len(set(chosen)) < len(chosen):
        raise InputError(f"a method twice in {methods!r}", "--methods", "name every one once")
    for method in experiment.needs:
        if method not in chosen:
            raise InputError(f"{name} without {method}", "--methods", f"add {method}")
    usual = experiment.module.QUICK_TRIALS if quick else experiment.module.TRIALS
    return RunSize(quick, trials or usual, chosen, not quick and set(chosen) == set(every))


def reproduce(
    name: str, size: RunSize, out: Path, scheduler: str | None, force: bool, say: Console
) -> dict[str, Any]:
    """Run an experiment, write its files, print its report, and return the content of its JSON.

    Args:
        name: Name of the experiment, such as "table2".
        size: Trials and methods to run.
        out: Folder to write into. Results of finished tasks (parts of the experiment) are stored
            in the folder `tasks` inside.
        scheduler: Address of a Dask scheduler; None to run on this machine.
        force: True to run stored tasks again and to overwrite files.
        say: Console to print to.
    """
    from evkf.data.files import versions
    from evkf.numerics.jax_config import low_latency
    from evkf.reproduce.runner import device, run_tasks
    from evkf.reproduce.source import digest
    from evkf.reproduce.tables import ExperimentResult

    low_latency()
    experiment, done = load(name), 0
    specs = experiment.module.tasks(size.methods, size.trials, size.quick)
    try:
        with progress_bar(say, f"{name}: tasks") as show:

            def count(num: int, total: int) -> None:
                nonlocal done
                done = num
                show(num, total)

            results = run_tasks(specs, out / "tasks", scheduler, count, force)
    except KeyboardInterrupt:
        then = "with --force they are computed again" if force else "the same command continues"
        say.print(f"interrupted: {done} of {len(specs)} tasks are kept in {out / 'tasks'}; {then}")
        raise
    timing = _time(name, size, say) if experiment.timed else []

    computed = ExperimentResult(results, timing, size.trials, size.quick)
    targets = experiment.shortfalls if size.judged else None
    missed = targets(computed) if targets else []
    text = experiment.report(computed)
    result = {
        "name": name,
        "config": {
            "quick": size.quick,
            "trials": size.trials,
            "methods": list(size.methods),
            "tasks": len(specs),
        },
        "versions": versions() | {"source": digest(experiment.module.__name__)},
        "device": device(),
        "rows": computed.rows,
        "timing": timing,
        "missed": missed,
    }
    pictures = experiment.pictures.items()
    shown = [f"![{picture.caption}]({key}.png)\n" for key, picture in pictures]
    short = [f"Missed: {'; '.join(missed)}.\n"] if missed else []
    figures = {key: picture.draw(computed) for key, picture in pictures}
    write_results(out, name, result, "\n".join([text, *short, *shown]), figures, force)
    words = verdict(missed, judged=targets is not None)
    say.print(f"\n{text}\n{words}\nwritten: {', '.join(map(str, files(name, out)))}")
    return result


def _time(name: str, size: RunSize, say: Console) -> list[dict[str, Any]]:
    """Return the measured times of a step for each method, in float32.

    Nothing else runs meanwhile. Methods that solve the same problem are timed alternately.
    """
    import jax

    from evkf.reproduce.runner import time_steps

    module = load(name).module
    every = module.timings(size.methods, size.quick)
    bins = module.QUICK_TIMED if size.quick else module.TIMED
    timing: list[dict[str, Any]] = []

    def problem(what: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in what.items() if key != "method"}

    with progress_bar(say, f"{name}: times") as show, jax.enable_x64(False):
        for _, methods in groupby(every, problem):
            group = list(methods)
            times = time_steps([module.ready(what, bins.stop) for what in group], bins)
            timing += [what | time._asdict() for what, time in zip(group, times, strict=True)]
            show(len(timing), len(every))
    return timing
