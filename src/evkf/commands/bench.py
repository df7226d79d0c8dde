"""The command that measures speed."""

from typing import Annotated

import jax
import typer

from evkf import bench
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
)


def step(
    latents: Annotated[
        list[int] | None,
        typer.Option(
            "--latents",
            metavar="L",
            help="Latent dimensions; repeatable.",
            show_default="2, 10",
        ),
    ] = None,
    neurons: Annotated[
        list[int] | None,
        typer.Option(
            "--neurons", metavar="N", help="Channels; repeatable.", show_default="100, 200"
        ),
    ] = None,
    likelihood: Annotated[
        list[str] | None,
        typer.Option(
            "--likelihood",
            metavar="NAME",
            help=f"Observation model; repeatable: {', '.join(bench.LIKELIHOODS)}.",
            show_default="all",
        ),
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(min=10, help="Measured calls per row.", show_default="1000; 100 if quick"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few calls and, unless chosen, one size.")
    ] = False,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
) -> None:
    """Time one filter step: the compiled call, and the scan per step.

    Every combination of latents, neurons and likelihoods is one row. A stream simulated from the
    model is fed bin by bin in float32; calls of an empty program in between show the floor of this
    machine.

    \b
    Examples:
      evkf bench step --quick
      evkf bench step --latents 2 --neurons 200 --likelihood poisson
      evkf bench step --json out/bench.json

    Exits with 1 if a target is missed (L = 2, N = 200, poisson: 10 empty calls) or anything was
    compiled again after the first step.
    """
    say = console(quiet, json_file)
    claim(json_target(json_file), force)
    calls = calls or (100 if quick else 1000)
    config = {
        "latents": latents or ([2] if quick else [2, 10]),
        "neurons": neurons or ([200] if quick else [100, 200]),
        "likelihoods": likelihood or list(bench.LIKELIHOODS),
        "calls": calls,
        "seed": seed,
        "dtype": "float32",
        "platform": jax.default_backend(),
    }
    cells = bench.cells(config["latents"], config["neurons"], config["likelihoods"])
    say.print(bench.HEADER)
    rows = []
    for cell in cells:
        rows.append(bench.measure(cell, calls, seed))
        say.print(bench.line(rows[-1]))
    missed = bench.shortfalls(rows)
    say.print(
        "\n" + ("\n".join(missed) or "all targets met, nothing compiled after the first call")
    )
    result = {
        "command": "bench step",
        "config": config,
        "versions": versions(),
        "rows": [row._asdict() for row in rows],
    }
    emit(json_file, result)
    if missed:
        raise typer.Exit(FELL_SHORT)
