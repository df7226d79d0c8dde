"""Report, targets and figure of the gaps experiment (fig:supp:gaps)."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from evkf.plotting.colours import OKABE_ITO
from evkf.plotting.style import MUTED, STYLE, TRUTH
from evkf.reproduce.gaps import experiment
from evkf.reproduce.gaps.experiment import METHODS, SKIP, SYSTEMS
from evkf.reproduce.tables import (
    Experiment,
    ExperimentResult,
    Picture,
    markdown,
    mean,
    plus_minus,
    select,
    values,
)

BLUE, ORANGE = OKABE_ITO[:2]
BOUNDS = (
    "system",
    "M",
    "L",
    "log evidence under the prediction",
    "under the push-forward",
    "log p(y_t given the past)",
    "its Monte-Carlo error",
)
SLACKS = (
    "system",
    "E",
    "F",
    "least F",
    "least L − M",
    "bins with L < M",
    "F < 0",
    "L above the evidence under the push-forward",
    "L above log p(y_t given the past)",
    "largest error of E − F = L − M",
)
"""Headings of the two tables: bounds with the log evidence, and slacks."""
EXPLANATION = (
    "Why F can be negative: F compares the push-forward of the last belief with the "
    "prediction, at the states that the new belief holds likely. The uncorrected prediction is "
    "too narrow, so that near its mean, where most beliefs end up, its density is above that "
    "of the push-forward. L then exceeds the evidence under the push-forward: it is a bound on "
    "the evidence under the prediction alone, which it never exceeds. M stays below the "
    "evidence under the push-forward always, for E is a divergence of Jensen's kind and not "
    "negative. Neither bounds log p(y_t given the past), for the last belief is not the true "
    "filtering distribution: the paper's “log p(y) ≥ L ≥ M” holds in its second half. The "
    "paper's slacks leave out one part: L + F = M + E is below the evidence under the "
    "push-forward by the divergence of the belief from that posterior. With the correction "
    "L − M is not bound to be positive, and is not a gain of tightness: the prediction is "
    "another. L − M comes from the filter's own nodes, E and F from many more; the last column "
    "is what that makes."
)


def report(result: ExperimentResult) -> str:
    """Return the page of the gaps experiment in Markdown.

    It has a table of the bounds L and M with the log evidence, a table of the slacks E and F (the
    gaps below the log evidence), and says whether the bounds hold.

    Example:
        >>> "No bound was tested" in report(ExperimentResult([]))
        True
    """
    rows, missed = result.rows, shortfalls(result)
    bounds, slacks = [], []
    for system, label in SYSTEMS.items():
        for method, words in METHODS.items():
            own = select(rows, system=system, method=method)
            if not own:
                continue
            error = mean(own, "evidence_error")
            columns = ("M", "L", "predicted", "pushed", "evidence")
            cells = [plus_minus(own, column) for column in columns]
            cells.append("exact" if error == 0 else f"{error:.1e}")
            bounds.append([f"{label}, {words}", *cells])
            broken, bins = (sum(row[name] for row in own) for name in ("violations", "bins"))
            cells = [plus_minus(own, "E"), plus_minus(own, "F")]
            cells += [f"{values(own, 'F_least').min():.3f}"]
            cells += [f"{values(own, 'gap_least').min():.1e}", f"{broken} of {bins}"]
            shares = ("F_negative", "L_above_pushed", "L_above_evidence")
            cells += [f"{100 * mean(own, share):.0f} %" for share in shares]
            slacks.append([f"{label}, {words}", *cells, f"{values(own, 'adds_up').max():.1e}"])

    verdict = "No bound was tested."
    if missed:
        verdict = "; ".join(missed) + "."
    elif select(rows, method="uncorrected"):
        verdict = "No bound was found violated."
    elif rows:
        verdict = (
            "L ≤ log evidence under the prediction was not found violated. L ≥ M and M ≤ log "
            "evidence under the push-forward were not tested: they are asked of predictions "
            "without the correction alone."
        )
    explanation = EXPLANATION
    exact = [row for row in rows if "particle_bias" in row]
    if exact:
        explanation += (
            " In the linear system the same particle filters are off by "
            f"{mean(exact, 'particle_bias'):+.1e} nats per bin from the exact evidence, with a "
            f"standard error per bin of {mean(exact, 'particle_error'):.1e}."
        )
    head = (
        f"Nats per bin, {result.averaged}. L ≥ M is counted in "
        f"all bins, the rest is of those after the first {SKIP}."
        + (" Quick: few bins and particles." if result.quick else "")
    )
    parts = ["# Gaps between bounds and evidence", head, markdown(BOUNDS, bounds)]
    return "\n\n".join([*parts, markdown(SLACKS, slacks), verdict, explanation]) + "\n"


def shortfalls(result: ExperimentResult) -> list[str]:
    """Return one message for each system and bound of the gaps experiment that is broken.

    L >= M, and M below the log evidence under the push-forward, must hold without the correction. L
    below the log evidence under the prediction must hold for every method.

    Example:
        >>> row = {"system": "vdp", "method": "uncorrected", "violations": 2, "bins": 60}
        >>> row |= {"M_above_pushed": 0, "L_above_predicted": 0}
        >>> shortfalls(ExperimentResult([{"rows": [row]}]))
        ['Van der Pol, Poisson: L < M in 2 of 60 bins']
    """
    rows, missed = result.rows, []
    for system, label in SYSTEMS.items():
        own = select(rows, system=system, method="uncorrected")
        broken = {
            "L < M": own,
            "M above the evidence under the push-forward": own,
            "L above the evidence under the prediction": select(rows, system=system),
        }
        counts = zip(broken, ("violations", "M_above_pushed", "L_above_predicted"), strict=True)
        for what, name in counts:
            num = sum(row[name] for row in broken[what])
            bins = sum(row["bins"] for row in broken[what])
            if num:
                missed.append(f"{label}: {what} in {num} of {bins} bins")
    return missed


def draw(result: ExperimentResult) -> Figure:
    """Plot the figure of the gaps experiment, for the filter without correction, and return it.

    There is one column of panels for each system. The upper panel shows the bounds L and M minus
    the log evidence log p(y_t | y_<t), in every bin. The lower panel shows the slacks E and F (the
    gaps below the log evidence).
    """
    names = [name for name in SYSTEMS if select(result.series, system=name, method="uncorrected")]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 5.8), layout="constrained")
        axes = figure.subplots(2, len(names), sharex="col", squeeze=False)
        for column, name in enumerate(names):
            own = select(result.series, system=name, method="uncorrected")[0]
            own = {key: np.array(own[key]) for key in ("L", "M", "E", "F", "pushed", "evidence")}
            bins = SKIP + 1 + np.arange(len(own["L"]))
            above, below = axes[:, column]
            above.axhline(0, color=TRUTH, lw=0.8, label="$\\log p(y_t | y_{<t})$")
            for key, label, colour, width, style in (
                ("pushed", "evidence under the push-forward", MUTED, 0.9, ":"),
                ("M", "$M_t$", ORANGE, 1.1, "-"),
                ("L", "$L_t$", BLUE, 1.1, "-"),
            ):
                line = {"color": colour, "lw": width, "label": label}
                above.plot(bins, own[key] - own["evidence"], style, **line)
            above.set_xlim(bins[0], bins[-1])
            title = SYSTEMS[name][0].upper() + SYSTEMS[name][1:]
            above.set_title(f"{'ABC'[column]}  {title}")
            below.axhline(0, color=TRUTH, lw=0.8)
            below.plot(bins, own["E"], color=ORANGE, lw=1.1, label="$\\mathcal{E}_t$, of $M_t$")
            below.plot(bins, own["F"], color=BLUE, lw=1.1, label="$\\mathcal{F}_t$, of $L_t$")
            shade = {"color": BLUE, "alpha": 0.25, "lw": 0, "label": "$\\mathcal{F}_t < 0$"}
            below.fill_between(bins, np.minimum(own["F"], 0), 0, **shade)
            below.set_xlabel("bin")
        axes[0, 0].set_ylabel("nats above $\\log p(y_t | y_{<t})$")
        axes[1, 0].set_ylabel("slack (nats)")
        upper, lower = (ax.get_legend_handles_labels() for ax in axes[:, 0])
        figure.legend(*upper, loc="outside upper center", ncols=len(upper[1]))
        figure.legend(*lower, loc="outside lower center", ncols=len(lower[1]))
    return figure


PICTURES = {"gaps": Picture("Bounds, evidence and slacks", draw)}
EXPERIMENTS = {"gaps": Experiment(experiment, report, PICTURES, shortfalls, needs=("uncorrected",))}
