"""Report, targets and figure of Table 1."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from evkf.plotting.colours import OKABE_ITO
from evkf.plotting.style import MUTED, STYLE, log_numbers
from evkf.reproduce.chaotic import experiment
from evkf.reproduce.chaotic.experiment import METHODS, PROTOCOLS
from evkf.reproduce.tables import (
    Experiment,
    ExperimentResult,
    Picture,
    Row,
    best,
    markdown,
    mean,
    plus_minus,
    select,
    values,
)

PAPER = {
    "evkf": {2: 0.047, 16: 0.150, 32: 0.250, 64: 0.450},
    "ovs": {2: 0.103, 16: 0.178, 32: 0.302, 64: 0.323},
    "vjf": {2: 0.105, 16: 0.288, 32: 0.400, 64: 0.711},
    "enkf": {2: 0.115, 16: 0.437, 32: 0.619, 64: 0.620},
    "bpf": {2: 0.047, 16: 0.422, 32: 0.877, 64: 1.660},
}
"""Errors as printed in the paper, by method and number of latents."""
WITHIN = 1.02
"""Target: eVKF's error divided by the smallest error of any method must be at most this."""
GROWTH, NARROW, WIDE = 1.05, 16, 128
"""Target for the public protocol: eVKF's error per dimension at WIDE latents must be at most GROWTH
times its error at NARROW latents."""
TITLES = {
    "public": "Public protocol: error per dimension",
    "matched": "Matched protocol: error of the whole state",
}
COLOURS = dict(zip(METHODS, OKABE_ITO, strict=False))


def sizes(rows: Sequence[Row]) -> list[int]:
    """Return the numbers of latents that occur in the rows, in increasing order."""
    return sorted({row["L"] for row in rows})


def report(result: ExperimentResult) -> str:
    """Return the page of Table 1 in Markdown.

    It has the errors of both protocols, the numbers of the paper, the coverage, and the time of a
    step.
    """
    rows = result.rows
    few = " Quick: short trials, to see that it runs." if result.quick else ""
    parts = [
        "# Table 1: filtering a chaotic network",
        f"Root mean square errors with the true model, {result.averaged}; the best of a column in "
        f"bold.{few}",
    ]
    for protocol in PROTOCOLS:
        if own := select(rows, protocol=protocol):
            parts += [f"## {TITLES[protocol]}", _errors(own, with_paper=protocol == "matched")]

    smoothed = [row for row in rows if "rmse_one_bin_back" in row]
    if smoothed:
        headings = ["protocol", *(f"L = {L}" for L in sizes(smoothed))]
        lines = []
        for protocol in PROTOCOLS:
            if own := select(smoothed, protocol=protocol):
                each = [select(own, L=L) for L in sizes(smoothed)]
                lines.append([protocol, *(plus_minus(r, "rmse_one_bin_back", 4) for r in each)])
        parts += ["OVS also looks back one bin, which is smoothing:", markdown(headings, lines)]

    names = [name for name in METHODS if select(rows, method=name)]
    inside = [
        f"{METHODS[name].label} {mean(select(rows, method=name), 'coverage_90'):.2f}"
        for name in names
    ]
    fell = sum(values(rows, "fell_back"))
    parts.append(
        f"Share of the true states within 90 % intervals, over all trials and sizes: "
        f"{', '.join(inside)}. Steps that fell back to the prediction: {fell:.0f}."
    )

    timed = sizes(result.timing)
    lines = []
    for name in METHODS:
        if own := select(result.timing, method=name):
            times = [mean(select(own, L=L), "step_ms") for L in timed]
            lines.append([METHODS[name].label, *(f"{time:.3g}" for time in times)])
    floor = np.median(values(result.timing, "empty_us"))
    parts += [
        "## Time of a step",
        markdown(["method, ms", *(f"L = {L}" for L in timed)], lines),
        "Medians of compiled steps in float32, public protocol, one method after another; an empty "
        f"compiled call takes {floor:.0f} µs.",
    ]
    return "\n\n".join(parts) + "\n"


def _errors(rows: list[Row], with_paper: bool) -> str:
    """Return the table of errors of one protocol in Markdown: methods by number of latents.

    Args:
        rows: Rows of the protocol.
        with_paper: Whether to add columns with the numbers of the paper.
    """
    names = [name for name in METHODS if select(rows, method=name)]
    headings, columns = ["method"], [[METHODS[name].label for name in names]]
    for L in sizes(rows):
        each = [select(rows, method=name, L=L) for name in names]
        cells = [plus_minus(own, "rmse", 4) for own in each]
        columns.append(best(cells, [mean(own, "rmse") for own in each]))
        headings.append(f"L = {L}")
        if with_paper and L in PAPER["evkf"]:
            printed = (PAPER.get(name, {}).get(L) for name in names)
            columns.append(["—" if value is None else f"{value:.3f}" for value in printed])
            headings.append("paper")
    return markdown(headings, zip(*columns, strict=True))


def shortfalls(result: ExperimentResult) -> list[str]:
    """Return one message for each target of Table 1 that is missed."""
    rows, missed = result.rows, []
    for protocol in PROTOCOLS:
        own = select(rows, protocol=protocol)
        for L in sizes(own):
            errors = {
                name: mean(select(own, L=L, method=name), "rmse")
                for name in METHODS
                if select(own, L=L, method=name)
            }
            least = min(errors.values())
            if not errors.get("evkf", least) <= WITHIN * least:
                words = f"eVKF {errors['evkf']:.4f} is not within {WITHIN} times {least:.4f}"
                missed.append(f"{protocol}, L = {L}: {words}")
    public = select(rows, protocol="public", method="evkf")
    narrow, wide = (mean(select(public, L=L), "rmse") for L in (NARROW, WIDE))
    if len(select(public, L=WIDE)) and not wide <= GROWTH * narrow:
        missed.append(f"public: {wide:.4f} at L = {WIDE} is above {GROWTH} times {narrow:.4f}")
    return missed


def draw(result: ExperimentResult) -> Figure:
    """Plot the errors of Table 1 against the number of latents, and return the figure.

    There is one panel for each protocol, and one line for each method.
    """
    shown = [protocol for protocol in PROTOCOLS if select(result.rows, protocol=protocol)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.1 * len(shown), 3.5), layout="constrained")
        axes = figure.subplots(1, len(shown), squeeze=False)[0]
        for ax, protocol in zip(axes, shown, strict=True):
            rows = select(result.rows, protocol=protocol)
            every = sizes(rows)
            for name, method in METHODS.items():
                each = [values(select(rows, method=name, L=L), "rmse") for L in every]
                if not all(len(errors) for errors in each):
                    continue
                middle, spread = [x.mean() for x in each], [x.std() for x in each]
                line = {"color": COLOURS[name], "lw": 2.2 if name == "evkf" else 1.2}
                line |= {"fmt": "o-", "ms": 3.5, "capsize": 2, "label": method.label}
                ax.errorbar(every, middle, spread, **line)
            ax.set(xscale="log", xlabel="latents", ylabel="RMSE", title=TITLES[protocol])
            ax.set_xticks(every, [str(L) for L in every])
            log_numbers(ax)
            ax.minorticks_off()
            ax.grid(axis="y", color=MUTED, alpha=0.2, lw=0.5)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3 * len(shown))
    return figure


PICTURES = {"table1": Picture("Errors against latents", draw)}
EXPERIMENTS = {"table1": Experiment(experiment, report, PICTURES, shortfalls, timed=True)}
