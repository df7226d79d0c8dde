"""The command `evkf demo`: a live session on simulated neurons, or offline without a session."""

import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
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
    expanded,
    json_target,
    write_json,
)
from evkf.cli.live_options import AHEAD
from evkf.cli.running import run_new
from evkf.cli.showcase import session_beside_truth
from evkf.data.files import replacing, versions
from evkf.errors import InputError
from evkf.live.plan import PLAN, Plan, new_folder
from evkf.numerics.jax_config import low_latency
from evkf.recordings import demonstration as demo
from evkf.web.process import check_installed

SECONDS, BIN_WIDTH = 120.0, 0.01
"""Default length of the session, and its bin width, in seconds."""

BINS = 4000
"""Default number of bins with `--offline`, which runs without a session."""

HOST, PORT = "127.0.0.1", 8765
SESSION = "session"
"""Name of the folder of the session, inside the output folder."""

END_S = 20.0
"""Seconds to wait, after Ctrl-C, for the process that serves the page to end."""


@dataclass(frozen=True)
class DemoOptions:
    """Options of `evkf demo`: the simulated neurons, the length of the run and the page."""

    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("out/demo")
    seconds: Annotated[
        float, typer.Option(min=1, help="Seconds, without --offline; its bins are 10 ms wide.")
    ] = SECONDS
    neurons: Annotated[int, typer.Option(min=1, help="Number of neurons.")] = 150
    seed: Seed = 1
    keep: Annotated[
        bool | None,
        typer.Option(
            envvar="KEEP",
            help="Keep the page up until Ctrl-C.",
            show_default="in a terminal",
        ),
    ] = None
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="No session and no page; the readout is learned from the spikes as well.",
        ),
    ] = False
    bins: Annotated[int, typer.Option(min=64, help="Bins of 5 ms, with --offline.")] = BINS
    float64: Annotated[
        bool, typer.Option("--float64", help="With --offline: compute in double precision.")
    ] = False
    realtime: Annotated[
        bool | None,
        typer.Option(
            "--realtime/--fast",
            help="With --offline: feed one bin every 5 ms, or as fast as possible.",
            show_default="real time in a terminal, else fast",
        ),
    ] = None


@expanded
def run_demo(
    demonstration: DemoOptions,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
) -> None:
    """Find a hidden oscillator and its dynamics in simulated spikes, bin by bin.

    A Van der Pol oscillator drives Poisson neurons. A live session filters the spikes and learns
    the dynamics. A web page shows the session, and the command prints the address of the page. The
    page needs pip install "evkf[web]". The folder gets demo.png, demo.svg, summary.json,
    config.json and the folder of the session, which `evkf view` can show again.

    \b
    Examples:
      evkf demo
      evkf demo --seconds 30 --no-keep --out out/short
      evkf demo --offline --bins 6000 --neurons 80 --seed 7 --out out/eighty
      evkf demo --offline --force --quiet --json - | python -m json.tool

    Exits with 1 if an estimate is not finite, or if the filter could not use an observation and
    kept its prediction.
    """
    out, neurons, seed = demonstration.out, demonstration.neurons, demonstration.seed
    keep, realtime, seconds = demonstration.keep, demonstration.realtime, demonstration.seconds
    bins, float64 = demonstration.bins, demonstration.float64
    files = {name: out / name for name in ("demo.png", "demo.svg", "summary.json", "config.json")}
    say = console(quiet, json_file)
    check_free([*files.values(), *json_target(json_file, *files.values())], force)
    options = {"neurons": neurons, "seed": seed, "out": str(out)}
    after = None
    if demonstration.offline:
        realtime = say.is_terminal and not quiet if realtime is None else realtime
        options |= {"bins": bins, "dtype": "float64" if float64 else "float32"}
        options |= {"realtime": realtime}
        with jax.enable_x64(float64):
            say.print(f"simulating {neurons} neurons, {bins} bins of {1e3 * demo.BIN_WIDTH:g} ms")
            recording = demo.simulate_neurons(bins, neurons, seed)
            say.print("finding a readout from the first bins, compiling")
            with demo.Ticker(say, bins) as ticker:
                estimate = demo.stream(recording.counts, seed, realtime, ticker)
            summary, figure = demo.summarise(recording, estimate), demo.draw(recording, estimate)
    else:
        options |= {"seconds": seconds, "bin_width": BIN_WIDTH}
        folder = out / SESSION
        if folder.exists() and any(folder.iterdir()):
            if not force or not (folder / PLAN).exists():
                raise InputError("a folder that holds something", str(folder), "name another --out")
            shutil.rmtree(folder)
        web, timing = _run_session(folder, seconds, neurons, seed, say)
        recording, estimate = session_beside_truth(folder)
        summary, figure = demo.summarise(recording, estimate), demo.draw(recording, estimate)
        summary["timing"] |= timing
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


def _run_session(
    folder: Path, seconds: float, neurons: int, seed: int, say: Console
) -> tuple[str, dict]:
    """Run a live session to its end, and return the address of its page and the timing of bins.

    Returns:
        Address of the page as host:port, empty if packages for the page are missing, and a
        dictionary of median and 99th percentile of the time per bin in microseconds, and of the
        numbers of learned and of late bins.
    """
    web = ""
    try:
        check_installed()
        for port in (PORT, 0):
            with socket.socket() as trial, contextlib.suppress(OSError):
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((HOST, port))
                web = f"{HOST}:{trial.getsockname()[1]}"
                break
    except InputError as error:
        say.print(f"no page: {error}")
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
        # interrupted: the figure needs a whole session
        raise KeyboardInterrupt
    median, high = (each / 1e3 for each in report.latency_ns[:2])
    estimate = {"median_us": median, "p99_us": high}
    late = report.counters.late + report.counters.lost
    return web, {"estimate": estimate, "learned_bins": report.learned, "late_bins": late}


def _stay(folder: Path, web: str, quiet: bool) -> None:
    """Serve the page of the finished session with `evkf view` until Ctrl-C.

    The page has the same address as during the session. In a terminal Ctrl-C also reaches the
    process of `evkf view`, which has `END_S` seconds to end before it is terminated.

    Args:
        folder: Folder of the session.
        web: Address of the page as host:port.
        quiet: True to print nothing but errors.
    """
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
