"""The command line: `evkf COMMAND`.

Every command has `--quiet` and `--json`, refuses to overwrite without `--force`, and tells its
resolved configuration with its result. Bad input is answered in one line.
"""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import jax
import typer

import evkf
from evkf import bench, demo, recording_cli, reproduce_cli
from evkf.console import (
    Force,
    Json,
    Quiet,
    Seed,
    claim,
    console,
    emit,
    json_target,
    to_json,
    versions,
    write_json,
)
from evkf.errors import InputError

FELL_SHORT = 1
BAD_INPUT = 2
INTERRUPTED = 130

__all__ = ["app", "insistent_interrupt", "main", "to_json"]

EXIT_CODES = """\b
Exit codes:
  0    done
  1    done, but a check or a target fell short
  2    bad usage, bad input, or an output that cannot be written
  130  interrupted"""

app = typer.Typer(
    name="evkf",
    help=f"""Real-time inference of neural latent dynamics from spikes and other signals.

\b
Examples:
  evkf demo                          learn an oscillator from 150 simulated neurons
  evkf info day1.nwb                 what is in a recording
  evkf fit day1.nwb --out m.safetensors
  evkf filter day1.nwb --model m.safetensors --out day1-latents.nwb
  evkf bench step --quick            time one filter step on this machine
  evkf reproduce reaching --data day1.nwb
  evkf COMMAND --help                all options of a command

{EXIT_CODES}""",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench_app = typer.Typer(
    help="Measure speed on this machine.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(bench_app, name="bench")
app.add_typer(reproduce_cli.app, name="reproduce")
recording_cli.register(app)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit; the entry point of `evkf`.

    Args:
        args: What follows `evkf`; those of the process when left out.
    """
    # A step is short: run it in the calling thread, for waking another costs more than the step.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        with insistent_interrupt():
            app(args, prog_name="evkf")
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@contextmanager
def insistent_interrupt(every: float = 0.5) -> Iterator[None]:
    """Repeat an interrupt until the block ends.

    Python drops an exception raised inside a callback of native code, as JAX has many while it
    compiles; without repetition one Ctrl-C may not be heard.
    """
    ended, pressed = threading.Event(), threading.Event()

    def insist() -> None:
        pressed.wait()
        while not ended.wait(every):
            signal.raise_signal(signal.SIGINT)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        pressed.set()
        if not ended.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    threading.Thread(target=insist, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        pressed.set()
        signal.signal(signal.SIGINT, before)


def _fail(problem: str) -> NoReturn:
    print(f"evkf: {problem}", file=sys.stderr)
    sys.exit(BAD_INPUT)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"evkf {evkf.__version__}")
        raise typer.Exit()


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...


@app.command("demo")
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


@bench_app.command("step")
def run_bench_step(
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
