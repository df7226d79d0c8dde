"""The command that shows what the library does."""

import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console

from evkf.cli.console import (
    FELL_SHORT,
    Force,
    Json,
    Quiet,
    Seed,
    check_free,
    console,
    emit,
    json_target,
    write_json,
)
from evkf.cli.live_options import AHEAD
from evkf.cli.running import run_new
from evkf.cli.showcase import session_beside_truth
from evkf.data.files import replacing
from evkf.data.installed import versions
from evkf.errors import InputError
from evkf.live.plan import PLAN, Plan, new_folder
from evkf.numerics.jax_config import low_latency
from evkf.recordings import demonstration as demo
from evkf.web.process import check_installed

SECONDS, BIN_WIDTH = 120.0, 0.01
"""Of the session."""

BINS = 4000
"""Of the run without one."""

HOST, PORT = "127.0.0.1", 8765
SESSION = "session"
"""Folder of the session."""

END_S = 20.0
"""Seconds that the page has to end in good order when it is interrupted."""


def run_demo(
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("out/demo"),
    seconds: Annotated[
        float, typer.Option(min=1, help="Seconds, without --offline; its bins are 10 ms wide.")
    ] = SECONDS,
    neurons: Annotated[int, typer.Option(min=1, help="Number of neurons.")] = 150,
    seed: Seed = 1,
    keep: Annotated[
        bool | None,
        typer.Option(
            envvar="KEEP",
            help="Keep the page up until Ctrl-C.",
            show_default="in a terminal",
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="No session and no page; nothing is known but spikes, not the readout.",
        ),
    ] = False,
    bins: Annotated[int, typer.Option(min=64, help="Bins of 5 ms, with --offline.")] = BINS,
    float64: Annotated[
        bool, typer.Option("--float64", help="With --offline: compute in double precision.")
    ] = False,
    realtime: Annotated[
        bool | None,
        typer.Option(
            "--realtime/--fast",
            help="With --offline: feed one bin every 5 ms, or as fast as possible.",
            show_default="real time in a terminal, else fast",
        ),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
) -> None:
    """Find a hidden oscillator and its dynamics in simulated spikes, bin by bin.

    Poisson neurons are driven by a Van der Pol oscillator. A live session filters their spikes and
    learns the dynamics, on a page that it prints the address of; the page needs the extra "web".
    Written into the folder: demo.png, demo.svg, summary.json, config.json, and the session, which
    `evkf view` shows again.

    \b
    Examples:
      evkf demo
      evkf demo --seconds 30 --no-keep --out out/short
      evkf demo --offline --bins 6000 --neurons 80 --seed 7 --out out/eighty
      evkf demo --offline --force --quiet --json - | python -m json.tool

    Exits with 1 if an estimate is not finite or the filter had to fall back to its prediction.
    """
    files = {name: out / name for name in ("demo.png", "demo.svg", "summary.json", "config.json")}
    say = console(quiet, json_file)
    check_free([*files.values(), *json_target(json_file, *files.values())], force)
    options = {"neurons": neurons, "seed": seed, "out": str(out)}
    after = None
    if offline:
        realtime = say.is_terminal and not quiet if realtime is None else realtime
        options |= {"bins": bins, "dtype": "float64" if float64 else "float32"}
        options |= {"realtime": realtime}
        with jax.enable_x64(float64):
            recording, estimate = _stream(bins, neurons, seed, realtime, say)
            summary, figure = demo.summarise(recording, estimate), demo.draw(recording, estimate)
    else:
        folder, web = _free_folder(out, force), _web(say)
        options |= {"seconds": seconds, "bin_width": BIN_WIDTH}
        told = _session(folder, seconds, neurons, seed, web, say)
        recording, estimate = session_beside_truth(folder)
        summary, figure = demo.summarise(recording, estimate), demo.draw(recording, estimate)
        summary["timing"] |= told
        after = folder, web
    write_json(
        files["config.json"], {"command": "demo", "options": options, "versions": versions()}
    )
    write_json(files["summary.json"], summary)
    for end in ("png", "svg"):
        with replacing(files[f"demo.{end}"], overwrite=force) as part:
            figure.savefig(part, format=end, dpi=200)
    say.print(f"\n{demo.describe(summary)}\n\nwritten: {', '.join(map(str, files.values()))}")
    emit(json_file, summary)
    if not demo.sound(summary):
        raise typer.Exit(FELL_SHORT)
    if after is not None and after[1] and (sys.stdin.isatty() if keep is None else keep):
        _stay(*after, quiet)


def _stream(
    bins: int, neurons: int, seed: int, realtime: bool, say: Console
) -> tuple[demo.Recording, demo.Estimate]:
    """Without a session: everything in this process."""
    say.print(f"simulating {neurons} neurons, {bins} bins of {1e3 * demo.BIN_WIDTH:g} ms")
    recording = demo.record(bins, neurons, seed)
    say.print("finding a readout from the first bins, compiling")
    with demo.Ticker(say, bins) as ticker:
        estimate = demo.stream(recording.counts, seed, realtime, ticker)
    return recording, estimate


def _free_folder(out: Path, force: bool) -> Path:
    """The folder of the session; one of an earlier run is removed if that is allowed."""
    folder = out / SESSION
    if folder.exists() and any(folder.iterdir()):
        if not force or not (folder / PLAN).exists():
            raise InputError("a folder that holds something", str(folder), "name another --out")
        shutil.rmtree(folder)
    return folder


def _web(say: Console) -> str:
    """Where the page is to be; nowhere without the packages that it needs."""
    try:
        check_installed()
    except InputError as error:
        say.print(f"no page: {error}")
        return ""
    for port in (PORT, 0):
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((HOST, port))
            return f"{HOST}:{trial.getsockname()[1]}"
    return ""


def _session(folder: Path, seconds: float, neurons: int, seed: int, web: str, say: Console) -> dict:
    """Run a session to its end; how long bins took in it."""
    low_latency()
    bins = round(seconds / BIN_WIDTH)
    plan = Plan(
        source="rig",
        bin_width=BIN_WIDTH,
        channels=neurons,
        seed=seed,
        bins=bins,
        horizon=AHEAD if web else 0,
        web=web or None,
        id=secrets.token_hex(8),
    )
    report = run_new(new_folder(folder), plan, say, overload=True)
    if report.bins < bins:
        # It was told to end: what was learned by then is not what is to be shown.
        raise KeyboardInterrupt
    median, high = (each / 1e3 for each in report.latency_ns[:2])
    estimate = {"median_us": median, "p99_us": high}
    late = report.counters.late + report.counters.lost
    return {"estimate": estimate, "learned_bins": report.learned, "late_bins": late}


def _stay(folder: Path, web: str, quiet: bool) -> None:
    """Show the session where it was, until Ctrl-C; an interrupt of the terminal is for both."""
    command = [sys.executable, "-m", "evkf", "view", str(folder), "--web", web]
    process = subprocess.Popen([*command, *(["--quiet"] if quiet else [])])
    try:
        with contextlib.suppress(KeyboardInterrupt):
            if code := process.wait():
                raise typer.Exit(code)
    finally:
        if process.poll() is None:
            with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
                process.wait(END_S)
            process.terminate()
            process.wait()
