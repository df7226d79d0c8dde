"""Whether an experiment gives the same rows wherever it runs, whatever is killed meanwhile.

`evkf reproduce variance --quick` runs on this machine, and on a Dask cluster of 4 workers. In the
middle of runs a process or a worker is killed; the command is killed, with its processes or alone;
it is interrupted by Ctrl-C, also before any result. Where that ends it, it is started again. Rows
must be the same to the last digit, and what was stored must not be computed again; of a command
that has ended nothing may run on, and Ctrl-C must end it in time, with code 130 and no traceback.

    python benchmarks/cluster.py [--json FILE]
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import distributed
from closing import close

EXPERIMENT, TASKS, WORKERS = "variance", 8, 4
PROMPT, PATIENCE = 5.0, 900.0
"""Seconds in which a command must end that is interrupted, and in which anything must."""
INTERRUPTED = 130


class Event(NamedTuple):
    """What happens to a command."""

    what: str
    do: Callable[[subprocess.Popen], None]
    code: int | None
    """With which it ends; None when it must go on."""
    more: int = 1
    """Results that it has stored by then, of those that are new."""


def kill_process(command: subprocess.Popen) -> None:
    os.kill(processes("ppid", command.pid)[0], signal.SIGKILL)


def kill_all(command: subprocess.Popen) -> None:
    os.killpg(command.pid, signal.SIGKILL)


def interrupt(command: subprocess.Popen) -> None:
    """As a terminal does: its processes hear it too."""
    os.killpg(command.pid, signal.SIGINT)


EARLY = Event("Ctrl-C before any result", interrupt, INTERRUPTED, 0)
CTRL_C = Event("Ctrl-C", interrupt, INTERRUPTED)
PROCESS_KILLED = Event("a process killed", kill_process, None)
ALL_KILLED = Event("command and processes killed", kill_all, -signal.SIGKILL)
COMMAND_KILLED = Event("command alone killed", subprocess.Popen.kill, -signal.SIGKILL)


def processes(kind: str, of: int) -> list[int]:
    """Those that compute, or all of a group, by the number of their parent or group (`kind`)."""
    line = ["ps", "-A", "-o", f"pid=,{kind}=,stat=,args="]
    listed = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    fields = [line.split(maxsplit=3) for line in listed.splitlines()]
    return [
        int(pid)
        for pid, which, state, *args in fields
        if int(which) == of and state[0] != "Z" and (kind == "pgid" or "spawn_main" in args[0])
    ]


def until(condition: Callable[[], Any], what: str) -> float:
    """Seconds until a condition holds."""
    begin = time.perf_counter()
    while not condition():
        if time.perf_counter() - begin > PATIENCE:
            raise SystemExit(f"{what}: not in {PATIENCE:.0f} s")
        time.sleep(0.02)
    return time.perf_counter() - begin


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[distributed.Client, list[subprocess.Popen]]]:
    """A scheduler and workers, each a process that nothing starts again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    started = []

    def begin(module: str, *given: str) -> None:
        line = [sys.executable, "-m", f"distributed.cli.{module}", *given, "--no-dashboard"]
        with (folder / "dask.txt").open("a") as log:
            started.append(subprocess.Popen(line, cwd=folder, stdout=log, stderr=log))

    try:
        begin("dask_scheduler", "--host", where, "--dashboard-address", "127.0.0.1:0")
        for i in range(WORKERS):
            begin("dask_worker", where, "--name", str(i), "--nthreads", "1", "--no-nanny")
        with distributed.Client(where, timeout=PATIENCE) as client:
            client.wait_for_workers(WORKERS, timeout=PATIENCE)
            yield client, started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()


def worker_killed(client: distributed.Client, workers: list[subprocess.Popen]) -> Event:
    """One that is at work."""

    def kill(command: subprocess.Popen) -> None:
        del command
        busy = next(where for where, tasks in client.processing().items() if tasks)
        workers[int(client.scheduler_info()["workers"][busy]["name"])].kill()

    return Event("a worker killed", kill, None)


def start(out: Path, scheduler: str | None) -> subprocess.Popen:
    """The command, with processes in a group of their own."""
    line = [str(Path(sys.executable).with_name("evkf")), "reproduce", EXPERIMENT, "--quick"]
    line += ["--quiet", "--out", str(out), *(["--scheduler", scheduler] if scheduler else [])]
    with out.with_suffix(".txt").open("a") as said:
        return subprocess.Popen(line, stdout=said, stderr=said, start_new_session=True)


def stored(out: Path) -> dict[str, tuple[int, int]]:
    """Results by name: which file, and when it was written."""
    found = {path.name: path.stat() for path in (out / "tasks").glob("[!.]*.json")}
    return {name: (file.st_ino, file.st_mtime_ns) for name, file in found.items()}


def happen(event: Event, command: subprocess.Popen, out: Path) -> tuple[dict, list[str]]:
    """Let it, in the middle of a run: figures, and what went wrong."""
    num = len(stored(out)) + event.more

    def ready() -> bool:
        begun = len(stored(out)) >= num if event.more else processes("ppid", command.pid)
        return bool(begun) or command.poll() is not None

    until(ready, event.what)
    figures: dict[str, Any] = {"what": event.what, "stored": len(stored(out))}
    if command.poll() is not None or figures["stored"] == TASKS:
        return figures, [f"{event.what}: the command was faster"]
    event.do(command)
    if event.code is None:
        return figures, []
    figures["seconds"] = until(lambda: command.poll() is not None, event.what)
    figures["seconds_processes"] = until(lambda: not processes("pgid", command.pid), event.what)
    figures["code"] = command.returncode
    wrong = []
    if command.returncode != event.code:
        wrong.append(f"{event.what}: exit code {command.returncode}, not {event.code}")
    if max(figures["seconds"], figures["seconds_processes"]) > PROMPT:
        wrong.append(f"{event.what}: not all had ended after {PROMPT:.0f} s")
    return figures, wrong


def run(
    out: Path, scheduler: str | None, events: list[Event], expected: list | None
) -> tuple[dict, list[str]]:
    """The command until it is done, started again where it was ended; figures and shortfalls."""
    begin, happened, wrong = time.perf_counter(), [], []
    kept: dict[str, tuple[int, int]] = {}
    command = start(out, scheduler)
    for event in events:
        figures, missed = happen(event, command, out)
        happened.append(figures)
        wrong += missed
        if event.code is not None:
            kept = stored(out) | kept
            command = start(out, scheduler)
    code = command.wait(PATIENCE)
    found = stored(out)
    again = sum(found.get(name) != file for name, file in kept.items())
    rows = json.loads((out / f"{EXPERIMENT}.json").read_text())["rows"] if code == 0 else []
    said = out.with_suffix(".txt").read_text()
    if code != 0:
        wrong.append(f"exit code {code}")
    if len(found) != TASKS:
        wrong.append(f"{len(found)} of {TASKS} results")
    if again:
        wrong.append(f"{again} of {len(kept)} stored results were computed again")
    if rows != (expected or rows) or not rows:
        wrong.append("other rows")
    if "Traceback" in said:
        wrong.append(f"a traceback: {said}")
    result = {
        "run": out.name,
        "events": happened,
        "seconds": time.perf_counter() - begin,
        "rows": len(rows),
        "same": rows == (expected or rows),
        "computed_again": again,
    }
    print(json.dumps(result), flush=True)
    return result, [f"{out.name}: {words}" for words in wrong]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    results, missed = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = None

        def judge(run_name: str, *events: Event, scheduler: str | None = None) -> None:
            result, wrong = run(folder / run_name, scheduler, list(events), expected)
            results.append(result)
            missed.extend(wrong)

        judge("here")
        expected = json.loads((folder / "here" / f"{EXPERIMENT}.json").read_text())["rows"]
        judge("here, a process killed", PROCESS_KILLED)
        judge("here, killed", ALL_KILLED, COMMAND_KILLED)
        judge("here, interrupted", EARLY, CTRL_C)
        with cluster(folder) as (client, workers):
            where = client.scheduler.address
            judge("cluster", scheduler=where)
            judge("cluster, interrupted", CTRL_C, scheduler=where)
            judge("cluster, a worker killed", worker_killed(client, workers), scheduler=where)
    return close({"runs": results}, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
