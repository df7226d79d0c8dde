"""The command that shows what the library does."""

from pathlib import Path
from typing import Annotated

import jax
import typer

from evkf import demo
from evkf.commands.console import (
    FELL_SHORT,
    Force,
    Json,
    Quiet,
    Seed,
    claim,
    console,
    emit,
    json_target,
    versions,
    write_json,
)


def run_demo(
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("out/demo"),
    bins: Annotated[int, typer.Option(min=64, help="Length in bins of 5 ms.")] = 4000,
    neurons: Annotated[int, typer.Option(min=1, help="Number of neurons.")] = 150,
    seed: Seed = 2,
    float64: Annotated[
        bool, typer.Option("--float64", help="Compute in double precision.")
    ] = False,
    realtime: Annotated[
        bool | None,
        typer.Option(
            "--realtime/--fast",
            help="Feed one bin every 5 ms, or as fast as possible.",
            show_default="real time in a terminal, else fast",
        ),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
) -> None:
    """Find a hidden oscillator and its dynamics in simulated spikes, bin by bin.

    Poisson neurons are driven by a Van der Pol oscillator. Nothing else is known: the readout is
    found from the first bins, then dynamics, noise and readout are learned while the spike counts
    stream. Written into the folder: demo.png, demo.svg, summary.json, config.json.

    \b
    Examples:
      evkf demo
      evkf demo --bins 6000 --neurons 80 --seed 7 --out out/eighty
      evkf demo --force --quiet --json - | python -m json.tool

    Exits with 1 if an estimate is not finite or the filter had to fall back to its prediction.
    """
    files = {name: out / name for name in ("demo.png", "demo.svg", "summary.json", "config.json")}
    say = console(quiet, json_file)
    claim([*files.values(), *json_target(json_file)], force)
    if realtime is None:
        realtime = say.is_terminal and not quiet
    options = {
        "bins": bins,
        "neurons": neurons,
        "seed": seed,
        "dtype": "float64" if float64 else "float32",
        "realtime": realtime,
        "out": str(out),
    }
    with jax.enable_x64(float64):
        say.print(f"simulating {neurons} neurons, {bins} bins of {1e3 * demo.BIN_WIDTH:g} ms")
        recording = demo.record(bins, neurons, seed)
        say.print("finding a readout from the first bins, compiling")
        with demo.Ticker(say, bins) as ticker:
            estimate = demo.stream(recording.counts, seed, realtime, ticker)
        summary = demo.summarise(recording, estimate)
        figure = demo.draw(recording, estimate)
    write_json(
        files["config.json"], {"command": "demo", "options": options, "versions": versions()}
    )
    write_json(files["summary.json"], summary)
    figure.savefig(files["demo.png"], dpi=200)
    figure.savefig(files["demo.svg"])
    say.print(f"\n{demo.describe(summary)}\n\nwritten: {', '.join(map(str, files.values()))}")
    emit(json_file, summary)
    if not demo.sound(summary):
        raise typer.Exit(FELL_SHORT)
