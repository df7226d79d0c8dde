"""The command that says whether this machine can hold a rate of bins."""

from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.table import Table

from evkf.cli.console import (
    FELL_SHORT,
    Config,
    ForceJson,
    Json,
    Quiet,
    check_free,
    console,
    emit,
    json_target,
    load_model,
    result,
)
from evkf.errors import InputError
from evkf.live.engine import Engine
from evkf.live.machine import MOST, measure_hiccups, real_time, reckon, rehearse
from evkf.live.plan import Plan, parts
from evkf.numerics.jax_config import low_latency
from evkf.recordings.units import UnitModel


def doctor(
    latents: Annotated[
        int | None, typer.Option(min=2, help="Latent dimensions.", show_default="2")
    ] = None,
    neurons: Annotated[int | None, typer.Option(min=1, help="Neurons.", show_default="100")] = None,
    bin_width: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Width of a bin to hold.", show_default="the model's; 0.01"
        ),
    ] = None,
    model_file: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="MODEL", help="Measure with this model: what `evkf fit` wrote."
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="How long to listen for hiccups of the machine.")
    ] = 3.0,
    overload: Annotated[
        bool,
        typer.Option("--overload", help=f"Accept that filtering takes over {MOST:.0%} of a bin."),
    ] = False,
    force: ForceJson = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Measure this machine, and say whether it can hold the wanted rate of bins.

    Exits with 1 if it cannot. Measure while nothing else runs, or what will run in the experiment.

    \b
    Examples:
      evkf doctor --latents 10 --neurons 200 --bin-width 0.01
      evkf doctor --model m.safetensors
    """
    options = dict(locals())
    low_latency()
    check_free(json_target(json_file), force)
    say = console(quiet, json_file)
    unit = None if model_file is None else load_model(model_file)
    if unit is not None and (latents is not None or neurons is not None):
        raise InputError("sizes of a model", "--latents, --neurons", "leave them out with --model")
    known = 0.01 if unit is None else unit.bin_width
    width = known if bin_width is None else bin_width
    if not 0 < width < 1e3:
        raise InputError(f"{width} s", "--bin-width", "pass seconds above zero")
    say.print("measuring, for half a minute or so")
    # With the priority that a session has.
    with real_time() as refused:
        hiccups = measure_hiccups(width, seconds)
    engine = _engine(unit, latents or 2, neurons or 100, width)
    costs = rehearse(engine, num=500)
    load = reckon(costs, width)
    table = Table(box=None, show_header=False, pad_edge=False)
    ms = [f"{each * 1e3:.2f}" for each in hiccups]
    table.add_row("wakes late by", f"{ms[0]} ms, p99 {ms[1]}, p99.9 {ms[2]}, worst {ms[3]}")
    table.add_row("compiling", f"{costs.compile:.1f} s")
    size = f"{engine.num_latents} latents, {engine.num_channels} channels"
    observe, observe_p99 = costs.observe * 1e3, costs.observe_p99 * 1e3
    table.add_row("filtering a bin", f"{observe:.3f} ms, p99 {observe_p99:.3f} ({size})")
    table.add_row("a gradient step", f"{costs.learn * 1e3:.3f} ms, p99 {costs.learn_p99 * 1e3:.3f}")
    table.add_row("real-time priority", "permitted" if refused is None else f"no: {refused}")
    share = (
        f"filtering {load.filtering:.0%} at p99, a gradient step {load.learning:.0%} at the median"
    )
    table.add_row(f"of a bin of {width * 1e3:g} ms", share)
    say.print(table)
    held = load.holds or overload
    most = MOST if not overload else None
    say.print(_verdict(load.filtering, load.learning, most, width, hiccups.p999))
    found = {"hiccups": hiccups._asdict(), "costs": costs._asdict(), "load": load._asdict()}
    emit(json_file, result("doctor", options, real_time=refused is None, holds=held, **found))
    if not held:
        raise typer.Exit(FELL_SHORT)


def _engine(unit: UnitModel | None, latents: int, neurons: int, width: float) -> Engine:
    if unit is None:
        plan = Plan("rig", width, latents=latents, channels=neurons)
        made = parts(plan, Path())
        return Engine(made.learner, made.model, jax.random.key(0))
    assert unit.estimator is not None
    return Engine(unit.estimator.learner_, unit.model, jax.random.key(0))


def _verdict(
    filtering: float, learning: float, most: float | None, width: float, late: float
) -> str:
    if most is not None and filtering > most:
        told = f"cannot hold bins of {width * 1e3:g} ms: filtering may take {most:.0%} of them"
        return f"{told}; if the machine was busy, measure again"
    learns = "learning in most bins" if filtering + learning < 1 else "learning in some bins"
    wait = f"; expect single bins {late * 1e3:.1f} ms late" if late > width else ""
    return f"holds bins of {width * 1e3:g} ms, {learns}{wait}"
