"""What an operator sees of a session, drawn by a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from evkf.live.ports import Report

COLOURS = {"ready": "green", "degraded": "yellow", "failed": "red"}
EVERY = 10
"""Reports to a line, where there is no terminal to draw in."""


class Status:
    """Hands reports to a process that shows them; it never waits for it.

    Args:
        err: Whether to draw on standard error.
    """

    def __init__(self, err: bool = False):
        command = [sys.executable, "-m", "evkf.live.status", *(["--err"] if err else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        os.set_blocking(self._pipe.fileno(), False)

    def tell(self, report: Report) -> None:
        """Show a report, unless the last is not read yet."""
        line = json.dumps(report.plain)
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ValueError):
            self._pipe.write(line.encode() + b"\n")

    def close(self) -> None:
        """Wait until the last is drawn."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            self._pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()


def line(report: dict[str, Any]) -> str:
    """A report in a line.

    Example:
        >>> line({"phase": "ready", "bins": 500, "taken": 500, "rate": 100.0,
        ...     "learned": 450, "latency_ns": [200_000, 400_000], "refused": 0, "odd": {},
        ...     "counters": {"lost": 1, "late": 0, "duplicates": 0, "reordered": 0},
        ...     "exposure_ms": 2.1})
        'ready: 500 bins, 100/s; estimates in 0.20 ms (p99 0.40), \
durable in 2.1 ms at most; learned after 90%; 1 lost'
    """
    odd = _odd(report)
    if not report["taken"]:
        yet = "no bins came" if report["phase"] == "closed" else "no bins yet"
        yet += _since(report)
        return f"{report['phase']}: {yet}{odd and f'; {odd}'}"
    median, high = (each / 1e6 for each in report["latency_ns"][:2])
    share, rate = report["learned"] / report["taken"], f", {report['rate']:.0f}/s"
    wrong = report["counters"] | {"refused": report["refused"]}
    names = ("lost", "late", "duplicates", "reordered", "refused")
    told = ", ".join(f"{wrong[name]} {name}" for name in names if wrong[name])
    return (
        f"{report['phase']}: {report['bins']} bins{rate if report['phase'] == 'ready' else ''}; "
        f"estimates in {median:.2f} ms (p99 {high:.2f}), "
        f"durable in {report['exposure_ms']:.1f} ms at most; learned after {share:.0%}; "
        f"{told or 'none lost'}{odd and f'; {odd}'}{_since(report)}"
    )


def _odd(report: dict[str, Any]) -> str:
    """What the source noted, in words."""
    told = ", ".join(f"{num} {code}" for code, num in report["odd"].items())
    return f"at the source {told}" if told else ""


def _since(report: dict[str, Any]) -> str:
    """What counts are of, where the session had bins before this process."""
    return " since the resume" if report["bins"] > report["taken"] else ""


def table(report: dict[str, Any]) -> Table:
    """A report as a table."""
    found = Table(box=None, show_header=False, pad_edge=False)
    phase, counters = report["phase"], report["counters"]
    median, high, higher, worst = (each / 1e6 for each in report["latency_ns"])
    share = report["learned"] / max(report["taken"], 1)
    colour = COLOURS.get(phase, "default")
    found.add_row("state", f"[{colour}]{phase}[/]  {report['why']}")
    found.add_row("bins", f"{report['bins']}  ({report['rate']:.1f} a second)")
    shown = f"median {median:.2f} ms, p99 {high:.2f}, p99.9 {higher:.2f}, worst {worst:.2f}"
    found.add_row("taken in to published", shown if report["taken"] else "none yet")
    missing = f"{counters['lost']} lost, {counters['late']} late, {report['refused']} refused"
    mended = f"{counters['duplicates']} duplicates, {counters['reordered']} reordered"
    found.add_row("bins not as they should be", f"{missing}, {mended}{_since(report)}")
    if odd := _odd(report):
        found.add_row("odd", f"{odd}{_since(report)}")
    found.add_row("waiting at most", f"{report['backlog']} frames")
    frozen = ", frozen by the operator" if report["frozen"] else ""
    found.add_row("learned", f"{share:.1%} of bins{_since(report)}{frozen}")
    if report["stimulation"]:
        found.add_row("stimulation", report["stimulation"])
    found.add_row("bound of the last bin", f"{report['elbo']:.3f} nats")
    durable = f"up to bin {report['acknowledged']}, {report['exposure_ms']:.1f} ms at most"
    found.add_row("durable", durable if report["acknowledged"] >= 0 else "none yet")
    return found


def show(lines: Iterable[str], say: Console) -> None:
    """Show reports as they come."""
    if not say.is_terminal:
        for number, text in enumerate(lines):
            if number % EVERY == 0:
                say.print(line(json.loads(text)), markup=False)
        return
    with Live(console=say, auto_refresh=False) as drawn:
        for text in lines:
            drawn.update(table(json.loads(text)), refresh=True)


if __name__ == "__main__":
    # An interrupt of the terminal is the session's: its end is shown too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    show(sys.stdin, Console(stderr="--err" in sys.argv, highlight=False, soft_wrap=True))
