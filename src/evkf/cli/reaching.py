"""The command `evkf reproduce reaching`: decoding of reaches (Figure 4 of the paper)."""

import time
from pathlib import Path
from typing import Annotated

import typer

from evkf.cli.console import (
    FELL_SHORT,
    Behaviour,
    Condition,
    Run,
    expanded,
    noting,
    progress_bar,
    result_files,
    verdict,
    write_results,
)
from evkf.errors import InputError

Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="EVKF_DATA",
        help="A recording of reaches, or a folder that has mc_maze_large_9cond_5ms.npz.",
    ),
]


@expanded
def reaching(
    data: Data = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write into.")] = Path(
        "out/reaching"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Splits of the trials, one a seed.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few passes.")] = False,
    behaviour: Behaviour = None,
    condition: Condition = None,
    *,
    run: Run,
) -> None:
    """Decode reaches from rates of motor cortex, and compare with usual methods (Figure 4).

    Every method is trained on half of the trials and scored on the other half; of 500 trials or
    more, on 250 and 250. The folder gets reaching.json with the scores of every seed, reaching.md
    with the means over seeds, and the figure as reaching.png and reaching.svg. Trials of an NWB
    file are cut around move_onset_time if the file has this column, and are whole otherwise.

    \b
    Examples:
      evkf reproduce reaching --data mc_maze_large_9cond_5ms.npz
      EVKF_DATA=recordings evkf reproduce reaching --quick --force
      evkf reproduce reaching --data day1.nwb --behaviour hand_vel --condition target

    Exits with 1 if a target is missed. There are targets only for the subset of MC_Maze in a file
    named mc_maze_large_9cond_5ms.npz, and only without --quick.
    """
    from evkf.data.files import versions
    from evkf.reproduce.reaching import experiment
    from evkf.reproduce.reaching.figure import decode_reaches, draw
    from evkf.reproduce.reaching.report import report

    if data is None:
        remedy = "pass --data FILE or set EVKF_DATA; `evkf data mc_maze_large` gets a recording"
        raise InputError("no recording named", "--data", remedy)
    path = data / experiment.SUBSET if data.is_dir() else data
    if not path.is_file():
        raise InputError("no such file", str(path), "check --data or EVKF_DATA")
    files = result_files(out, "reaching", ["reaching"])
    say = run.start(files, path)
    with noting(say):
        reaches = experiment.read_reaches(path, behaviour, condition)
    recording = reaches.recording
    size = f"{recording.num_trials} trials, {recording.num_units} units"
    say.print(f"{path}: {size}; {reaches.velocity} by {reaches.condition or 'no condition'}")

    effort, num = (experiment.QUICK, 1) if quick else (experiment.FULL, seeds)
    rows, figure = [], None
    for seed in range(num):
        began = time.perf_counter()
        with progress_bar(say, f"seed {seed}") as show:
            scores, parts, model = experiment.one_seed(reaches, seed, effort, show)
        rows.append(scores)
        own, took = scores[0], time.perf_counter() - began
        result = f"R² from rates {own.rates_r2:.3f}, held-out units {own.co_smoothing:.3f}"
        say.print(f"seed {seed} ({seed + 1} of {num}): {result} bits/spike, {took:.0f} s")
        if figure is None:
            figure = draw(reaches, parts, decode_reaches(reaches, parts, model))
    assert figure is not None

    means = experiment.summarise(rows)
    judged = reaches.subset and not quick
    missed = experiment.shortfalls(means) if judged else []
    parts = experiment.split(reaches, 0)
    result = {
        "command": "reproduce reaching",
        "config": {
            "data": path.name,
            "behaviour": reaches.velocity,
            "condition": reaches.condition,
            "seeds": list(range(num)),
            "quick": quick,
            "trials": [parts.train.num_trials, parts.test.num_trials],
            "units": recording.num_units,
            "hidden_units": int(parts.hide.sum()),
            "bin_width": recording.bin_width,
            "latents": experiment.LATENTS,
            "network": experiment.NETWORK,
            **effort._asdict(),
        },
        "versions": versions(),
        "rows": [{"seed": k} | row._asdict() for k, scores in enumerate(rows) for row in scores],
        "means": means,
        "targets": experiment.TARGETS if judged else None,
        "missed": missed,
    }
    text = report(means, reaches, num, quick)
    write_results(out, "reaching", result, text, {"reaching": figure}, run.force)
    say.print(f"\n{text}\n{verdict(missed, judged)}\nwritten: {', '.join(map(str, files))}")
    run.emit(result)
    if missed:
        raise typer.Exit(FELL_SHORT)
