"""The reaches of the paper's Figure 4, decoded anew from a recording."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

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
from evkf.cli.options import Behaviour, Condition, noting
from evkf.data.installed import versions
from evkf.errors import InputError
from evkf.reproduce.reaching import experiment as protocol
from evkf.reproduce.reaching.experiment import Reaches
from evkf.reproduce.reaching.figure import draw, show
from evkf.reproduce.reaching.report import report

Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="EVKF_DATA",
        help=f"A recording of reaches, or a folder that has {protocol.SUBSET}.",
    ),
]


def reaching(
    data: Data = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write into.")] = Path(
        "out/reaching"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Splits of the trials, one a seed.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few passes.")] = False,
    behaviour: Behaviour = None,
    condition: Condition = None,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Decode reaches from the rates of motor cortex, beside what people use today (Figure 4).

    Half of the trials train every method, 250 where there are 500; the others judge it. Written
    into the folder: reaching.json with the rows of every seed, reaching.md with their means, and
    the figure as reaching.png and reaching.svg. Trials of NWB files are cut around move_onset_time
    where they have it, and are whole otherwise.

    \b
    Examples:
      evkf reproduce reaching --data mc_maze_large_9cond_5ms.npz
      EVKF_DATA=recordings evkf reproduce reaching --quick --force
      evkf reproduce reaching --data day1.nwb --behaviour hand_vel --condition target

    Exits with 1 if a target is missed. Targets are those of the subset of MC_Maze, known by the
    name mc_maze_large_9cond_5ms.npz; for other recordings, and with --quick, there are none.
    """
    files = result_files(out, "reaching", ["reaching"])
    path = _find(data)
    check_free([*files, *json_target(json_file, path, *files)], force)
    say = console(quiet, json_file)
    reaches = _read(say, path, behaviour, condition)
    effort, num = (protocol.QUICK, 1) if quick else (protocol.FULL, seeds)
    rows, figure = [], None
    for seed in range(num):
        began = time.perf_counter()
        with bar(say, f"seed {seed}") as tell:
            scores, parts, model = protocol.one_seed(reaches, seed, effort, tell)
        rows.append(scores)
        own, took = scores[0], time.perf_counter() - began
        found = f"R² from rates {own.rates_r2:.3f}, held-out units {own.co_smoothing:.3f}"
        say.print(f"seed {seed} ({seed + 1} of {num}): {found} bits/spike, {took:.0f} s")
        if figure is None:
            figure = draw(reaches, parts, show(reaches, parts, model))
    assert figure is not None
    means = protocol.summarise(rows)
    judged = reaches.subset and not quick
    missed = protocol.shortfalls(means) if judged else []
    result = {
        "command": "reproduce reaching",
        "config": _config(path, reaches, effort, num, quick),
        "versions": versions(),
        "rows": [{"seed": k} | row._asdict() for k, scores in enumerate(rows) for row in scores],
        "means": means,
        "targets": protocol.TARGETS if judged else None,
        "missed": missed,
    }
    text = report(means, reaches, num, quick)
    write_results(out, "reaching", result, text, {"reaching": figure}, force)
    say.print(f"\n{text}\n{verdict(missed, judged)}\nwritten: {', '.join(map(str, files))}")
    emit(json_file, result)
    if missed:
        raise typer.Exit(FELL_SHORT)


def _find(data: Path | None) -> Path:
    if data is None:
        remedy = "pass --data FILE or set EVKF_DATA; `evkf data mc_maze_large` gets a recording"
        raise InputError("no recording named", "--data", remedy)
    if data.is_dir():
        data = data / protocol.SUBSET
    if not data.is_file():
        raise InputError("no such file", str(data), "check --data or EVKF_DATA")
    return data


def _read(say: Console, path: Path, behaviour: str | None, condition: str | None) -> Reaches:
    with noting(say):
        reaches = protocol.read_reaches(path, behaviour, condition)
    recording = reaches.recording
    told = f"{recording.num_trials} trials, {recording.num_units} units"
    say.print(f"{path}: {told}; {reaches.velocity} by {reaches.condition or 'no condition'}")
    return reaches


def _config(
    path: Path, reaches: Reaches, effort: protocol.Effort, seeds: int, quick: bool
) -> dict[str, Any]:
    parts = protocol.split(reaches, 0)
    return {
        "data": path.name,
        "behaviour": reaches.velocity,
        "condition": reaches.condition,
        "seeds": list(range(seeds)),
        "quick": quick,
        "trials": [parts.train.num_trials, parts.test.num_trials],
        "units": reaches.recording.num_units,
        "hidden_units": int(parts.hide.sum()),
        "bin_width": reaches.recording.bin_width,
        "latents": protocol.LATENTS,
        "network": protocol.NETWORK,
        **effort._asdict(),
    }
