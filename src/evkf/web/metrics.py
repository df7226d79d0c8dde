"""Figures of a session for Prometheus, in its text format."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from evkf.live.ports import Phase

QUANTILES = "0.5", "0.99", "0.999", "1"
TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what is answered."""


class Figure(NamedTuple):
    """One figure, maybe of several things.

    Example:
        >>> print(Figure("evkf_bins_total", "counter", "Bins.", [({}, 7)]).text)
        # HELP evkf_bins_total Bins.
        # TYPE evkf_bins_total counter
        evkf_bins_total 7
    """

    name: str
    kind: str
    help: str
    samples: Iterable[tuple[Mapping[str, str], float]]
    """Labels and value of each."""

    @property
    def text(self) -> str:
        """Its lines."""
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"]
        for labels, value in self.samples:
            inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{self.name}{'{' + inner + '}' if inner else ''} {_number(value)}")
        return "\n".join(lines)


def render(figures: Iterable[Figure]) -> str:
    """All figures as they are answered."""
    return "".join(f"{figure.text}\n" for figure in figures)


def of_session(report: Mapping[str, Any]) -> list[Figure]:
    """Figures of what a session told of itself.

    Args:
        report: `evkf.live.ports.Report.plain`.
    """
    counters = report["counters"]
    latency = zip(QUANTILES, report["latency_ns"], strict=True)
    found = [
        _one("bins_total", "counter", "Bins since the stream began.", report["bins"]),
        _one("bins_taken_total", "counter", "Bins since this process began.", report["taken"]),
        _one("bins_per_second", "gauge", "Rate of bins.", report["rate"]),
        Figure(
            "evkf_latency_seconds",
            "gauge",
            "From a bin taken in to its estimate published.",
            [({"quantile": share}, value / 1e9) for share, value in latency],
        ),
    ]
    found += [
        _one(f"frames_{name}_total", "counter", f"Bins {text}.", counters[name])
        for name, text in (
            ("received", "that came"),
            ("delivered", "filtered with what was observed"),
            ("duplicates", "that came twice"),
            ("late", "that came when they had been given up"),
            ("reordered", "that came after a later one"),
            ("lost", "given up and bridged"),
            ("restarts", "at which their numbers began anew"),
        )
    ]
    odd = [({"what": code}, num) for code, num in (report["odd"] or {}).items()]
    phases = [({"phase": phase.value}, float(phase == report["phase"])) for phase in Phase]
    return [
        *found,
        _one("frames_refused_total", "counter", "Frames refused.", report["refused"]),
        Figure("evkf_source_odd_total", "counter", "What the source of bins noted as odd.", odd),
        _one("backlog_frames", "gauge", "Most frames waiting at once.", report["backlog"]),
        _one("learned_total", "counter", "Bins after which it learned.", report["learned"]),
        _one("elbo_nats", "gauge", "Evidence lower bound of the last bin.", report["elbo"]),
        _one("acknowledged_bin", "gauge", "Last durable bin; -1: none.", report["acknowledged"]),
        _one(
            "exposure_seconds",
            "gauge",
            "Longest time from taken in to durable.",
            report["exposure_ms"] / 1e3,
        ),
        _one("frozen", "gauge", "Whether learning is frozen.", report["frozen"]),
        Figure("evkf_phase", "gauge", "State of the session.", phases),
    ]


def _one(name: str, kind: str, text: str, value: float) -> Figure:
    return Figure(f"evkf_{name}", kind, text, [({}, value)])


def _number(value: float) -> str:
    if isinstance(value, bool | int):
        return str(int(value))
    if math.isfinite(value):
        return f"{value:.10g}" if value != int(value) else str(int(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
