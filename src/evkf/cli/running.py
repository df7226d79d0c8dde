"""A live session as a command runs it: its processes, what the operator is told, and its end."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from evkf.cli.console import FELL_SHORT
from evkf.cli.wiring import (
    GATEWAYS,
    Sending,
    made_ready,
    open_loop,
    open_sinks,
    open_source,
    open_web,
)
from evkf.errors import InputError
from evkf.live.engine import Costs, Engine
from evkf.live.journal import Journal
from evkf.live.machine import Load, become_real_time, real_time, reckon
from evkf.live.plan import LOG, Parts, Plan, fitted, keep_compiled, parts
from evkf.live.ports import Due, Phase, Report
from evkf.live.recall import Player
from evkf.live.run import Logger, open_session
from evkf.live.status import Status, line
from evkf.web.process import WebProcess, page_address

END_S = 5.0
"""Seconds that the processes of a session have to end."""


@contextlib.contextmanager
def stopping(seconds: float | None = None) -> Iterator[Callable[[], bool]]:
    """Yield a function that is True after Ctrl-C, a termination signal, or some seconds."""
    asked = False
    until = None if seconds is None else time.monotonic() + seconds

    def ask(_number: int, _frame: Any) -> None:
        nonlocal asked
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked or (until is not None and time.monotonic() > until)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def serving(folder: Path, plan: Plan, made: Parts, say: Console) -> Iterator[WebProcess | None]:
    """The web process, if there is to be one: before all that takes long, which the page tells of,
    and before real-time priority is taken."""
    found = open_web(plan, folder, made, Logger(folder / LOG, say.print))
    if found is None:
        yield None
        return
    try:
        say.print(f"the page is at {page_address(found.address, found.token)}")
        found.desk.tell(Report.starting("programs are being compiled"))
        yield found
    except (InputError, KeyboardInterrupt) as error:
        why = f"it did not begin: {error or 'interrupted'}"
        found.desk.tell(Report.starting(why)._replace(phase=Phase.CLOSED))
        raise
    finally:
        found.close()


def run_new(
    folder: Path,
    plan: Plan,
    say: Console,
    overload: bool = False,
    seconds: float | None = None,
) -> Report:
    """Run a session that is planned; how it stood at its end.

    Args:
        folder: Of the session, with its model if it has one.
        plan: What it is made of.
        say: Where the operator is told of it.
        overload: Whether to begin even if this machine is too slow.
        seconds: To stop after.
    """
    keep_compiled(folder)
    say.print(f"starting: compiling, {folder}")
    made = parts(plan, folder)
    with serving(folder, plan, made, say) as page, made_ready(plan, folder, made) as sending:
        settled = sending.result if sending is not None else lambda: None
        plan, made, engine, costs = fitted(plan, folder, made, settled)
        _check_load(plan, costs, overload, say)
        ready = plan, made, engine, costs, None, None, sending
        return run(folder, *ready, page, seconds, say)


def run(
    folder: Path,
    plan: Plan,
    made: Parts,
    engine: Engine,
    costs: Costs,
    journal: Journal | None,
    player: Player | None,
    sending: Future[Sending] | None,
    web: WebProcess | None,
    seconds: float | None,
    say: Console,
) -> Report:
    """Run a session to its end; what there is to tell of it then.

    Args:
        folder: Of the session.
        plan: Its plan.
        made: What its engine is built from.
        engine: At the state to go on from.
        costs: Of the engine.
        journal: What was opened to recall it, if it is taken up again.
        player: What recalled it, likewise.
        sending: What sends its bins, if that was made ready before.
        web: The web process, if there is one.
        seconds: After which it is stopped, if not before.
        say: Where the operator is told.

    Raises:
        typer.Exit: It failed.
    """
    wanted = plan.real_time
    status = None if say.quiet else Status(err=say.stderr)
    model = engine.state.model if plan.stimulates else made.model
    opened = open_loop(plan, folder, model, wanted)
    rig = None if opened is None else opened.stimulation
    due = Due() if player is None else player.due
    log = Logger(folder / LOG, say.print)
    with real_time(wanted) as refused:
        source, feed = open_source(plan, folder, made, due, web, rig, wanted, sending)
        sinks = open_sinks(plan, made, log)
    if web is not None:
        sinks.append(web.desk)
    for where, each in (("frames to", source), *(("estimates at", sink) for sink in sinks)):
        if address := getattr(each, "address", None):
            say.print(f"{where} {address}")
    if refused:
        say.print(f"no real-time priority: {refused}")
    tells = [each.tell for each in (status, web and web.desk) if each is not None]

    def tell(report: Report) -> None:
        for each in tells:
            each(report)

    if player is None:
        plan.write(folder)
    try:
        session = open_session(
            folder,
            plan,
            engine,
            costs,
            made.counts,
            source,
            sinks,
            journal,
            player,
            tell if tells else None,
            list if web is None else web.desk.actions,
            closed=None if opened is None else opened.closed,
            log=say.print,
        )
        if opened is not None and wanted:
            # A command is sent when it is durable: what makes it so must not wait either.
            become_real_time(thread=session.journal.thread)
        with stopping(seconds) as stop, real_time(wanted):
            report = session.run(stop)
    finally:
        if status is not None:
            status.close()
        for process in (feed, None if opened is None else opened.guard):
            if process is not None:
                _end(process, say)
    say.print(line(report.plain))
    then = (
        f", `evkf replay {folder}` computes it again, `evkf export {folder} --nwb` writes it out"
        if report.bins
        else ""
    )
    ended = "" if plan.source in GATEWAYS else " unless its stream has ended"
    say.print(f"kept in {folder}: `evkf resume {folder}` goes on{ended}{then}")
    if report.phase == Phase.FAILED:
        raise typer.Exit(FELL_SHORT)
    return report


def _check_load(plan: Plan, costs: Costs, overload: bool, say: Console) -> None:
    load = reckon(costs, plan.period)
    tell_costs(costs, load, say)
    if not load.holds and not overload:
        what = f"filtering takes {load.filtering:.0%} of a bin at the 99th percentile"
        remedy = "try again when it is less busy, use wider bins, or pass --overload"
        raise InputError(what, "this machine", remedy)


def tell_costs(costs: Costs, load: Load, say: Console) -> None:
    """Say what a bin asks of this machine."""
    say.print(
        f"a bin: filtering {costs.observe * 1e3:.2f} ms ({load.filtering:.0%} of it at p99), "
        f"a gradient step {costs.learn * 1e3:.2f} ms"
    )


def _end(process: BaseProcess, say: Console) -> None:
    """End a process; one that does not is killed, and that is told."""
    process.terminate()
    process.join(END_S)
    if process.is_alive():
        process.kill()
        process.join(END_S)
        how = "is still there" if process.is_alive() else "was killed"
        say.print(f"{process.name} did not end within {END_S:g} s, and {how}")


def told(folder: Path, report: Report) -> dict[str, Any]:
    """A session's last report, as the result of a command."""
    plain = report.plain
    del plain["latency_ns"]
    latency = [each / 1e6 for each in report.latency_ns]
    return {"folder": str(folder), **plain, "latency_ms": latency}
