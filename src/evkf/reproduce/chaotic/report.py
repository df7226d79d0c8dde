"""Table 1 in words, its targets and its figure."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evkf.plotting.colours import OKABE_ITO
from evkf.plotting.style import MUTED, STYLE, log_numbers, styled
from evkf.reproduce.chaotic.experiment import METHODS, PROTOCOLS
from evkf.reproduce.tables import Found, Row, best, markdown, mean, plus_minus, select, values

PAPER = {
    "evkf": {2: 0.047, 16: 0.150, 32: 0.250, 64: 0.450},
    "ovs": {2: 0.103, 16: 0.178, 32: 0.302, 64: 0.323},
    "vjf": {2: 0.105, 16: 0.288, 32: 0.400, 64: 0.711},
    "enkf": {2: 0.115, 16: 0.437, 32: 0.619, 64: 0.620},
    "bpf": {2: 0.047, 16: 0.422, 32: 0.877, 64: 1.660},
}
"""As printed."""
WITHIN = 1.02
"""Of the best method, that eVKF must come."""
GROWTH, NARROW, WIDE = 1.05, 16, 128
"""Between these latents its error per dimension may grow so much, on the public protocol."""
TITLES = {
    "public": "Public protocol: error per dimension",
    "matched": "Matched protocol: error of the whole state",
}
COLOURS = dict(zip(METHODS, OKABE_ITO, strict=False))


def latents(rows: Sequence[Row]) -> list[int]:
    """Sizes that rows are of."""
    return sorted({row["L"] for row in rows})


def report(found: Found) -> str:
    """Both protocols beside the paper's numbers, and the time of a step."""
    rows, few = found.rows, " Quick: short trials, to see that it runs." if found.quick else ""
    parts = [
        "# Table 1: filtering a chaotic network",
        f"Root mean square errors with the true model, {found.averaged}; the best of a column in "
        f"bold.{few}",
    ]
    for protocol in PROTOCOLS:
        own = select(rows, protocol=protocol)
        if own:
            parts += [f"## {TITLES[protocol]}", _table(own, protocol == "matched")]
    smoothed = [row for row in rows if "rmse_one_bin_back" in row]
    if smoothed:
        parts += ["OVS also looks back one bin, which is smoothing:", _back(smoothed)]
    parts += [_soundness(rows), "## Time of a step", _times(found.timing)]
    return "\n\n".join(parts) + "\n"


def _soundness(rows: Sequence[Row]) -> str:
    """How far beliefs can be trusted, and how often steps had to fall back."""
    names = [name for name in METHODS if select(rows, method=name)]
    inside = [
        f"{METHODS[name].label} {mean(select(rows, method=name), 'coverage_90'):.2f}"
        for name in names
    ]
    fell = sum(values(rows, "fell_back"))
    return (
        f"Share of the true states within 90 % intervals, over all trials and sizes: "
        f"{', '.join(inside)}. Steps that fell back to the prediction: {fell:.0f}."
    )


def _table(rows: list[Row], with_paper: bool) -> str:
    sizes = latents(rows)
    names = [name for name in METHODS if select(rows, method=name)]
    columns = []
    for L in sizes:
        each = [select(rows, method=name, L=L) for name in names]
        cells = [plus_minus(own, "rmse", 4) for own in each]
        columns.append(best(cells, [mean(own, "rmse") for own in each]))
        if with_paper and L in PAPER["evkf"]:
            printed = (PAPER.get(name, {}).get(L) for name in names)
            columns.append(["—" if value is None else f"{value:.3f}" for value in printed])
    headings = ["method"]
    for L in sizes:
        headings += [f"L = {L}", "paper"] if with_paper and L in PAPER["evkf"] else [f"L = {L}"]
    labels = [METHODS[name].label for name in names]
    return markdown(headings, zip(labels, *columns, strict=True))


def _back(rows: list[Row]) -> str:
    headings = ["protocol", *(f"L = {L}" for L in latents(rows))]
    return markdown(
        headings,
        [
            [
                protocol,
                *(plus_minus(select(own, L=L), "rmse_one_bin_back", 4) for L in latents(rows)),
            ]
            for protocol in PROTOCOLS
            if (own := select(rows, protocol=protocol))
        ],
    )


def _times(timing: Sequence[Row]) -> str:
    sizes = latents(timing)
    names = [name for name in METHODS if select(timing, method=name)]
    table = markdown(
        ["method, ms", *(f"L = {L}" for L in sizes)],
        [
            [METHODS[name].label]
            + [f"{mean(select(timing, method=name, L=L), 'step_ms'):.3g}" for L in sizes]
            for name in names
        ],
    )
    floor = np.median(values(timing, "empty_us"))
    return f"{table}\n\nMedians of compiled steps in float32, public protocol, one method after \
another; an empty compiled call takes {floor:.0f} µs."


def shortfalls(found: Found) -> list[str]:
    """Targets that were missed."""
    rows, missed = found.rows, []
    for protocol in PROTOCOLS:
        own = select(rows, protocol=protocol)
        for L in latents(own):
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


def draw(found: Found) -> Figure:
    """Errors against latents by every method, both protocols."""
    rows = found.rows
    shown = [protocol for protocol in PROTOCOLS if select(rows, protocol=protocol)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.1 * len(shown), 3.5), layout="constrained")
        axes = figure.subplots(1, len(shown), squeeze=False)[0]
        for ax, protocol in zip(axes, shown, strict=True):
            ax.set_title(TITLES[protocol])
            _panel(ax, select(rows, protocol=protocol))
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3 * len(shown))
    return figure


@styled
def _panel(ax: Axes, rows: list[Row]) -> Axes:
    sizes = latents(rows)
    for name, method in METHODS.items():
        each = [values(select(rows, method=name, L=L), "rmse") for L in sizes]
        if not all(len(found) for found in each):
            continue
        middle, spread = [found.mean() for found in each], [found.std() for found in each]
        own = {"color": COLOURS[name], "lw": 2.2 if name == "evkf" else 1.2}
        ax.errorbar(sizes, middle, spread, fmt="o-", ms=3.5, capsize=2, label=method.label, **own)
    ax.set(xscale="log", xlabel="latents", ylabel="RMSE")
    ax.set_xticks(sizes, [str(L) for L in sizes])
    log_numbers(ax)
    ax.minorticks_off()
    ax.grid(axis="y", color=MUTED, alpha=0.2, lw=0.5)
    return ax
