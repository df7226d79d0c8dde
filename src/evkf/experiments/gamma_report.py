"""The table of Gamma dynamics in words."""

from evkf.experiments import gamma as protocol
from evkf.experiments.tables import Found, Row, best, markdown, mean, plus_minus, select

NEAR = 0.2
"""Nats per bin: how near eVKF is to come to Gammas matched to particles."""

LABELS = protocol.REFERENCES | protocol.METHODS


def report(found: Found) -> str:
    """Markdown: a table for every b0, and what was chosen.

    Example:
        >>> row = {"b0": 5, "method": "corrected", "trial": 0, "log_q": 1.0, "rmse": 0.2}
        >>> row |= {"coverage_90": 0.9, "carried": 0.7, "fell_back": 0}
        >>> "| **1.000** |" in report(Found([{"rows": [row]}]))
        True
    """
    rows = found.rows
    lines = [
        "# Gamma dynamics",
        "",
        f"{found.averaged.capitalize()}. Log density of the true state in nats "
        "per bin; “behind” is by how much it falls short of the better of the two Gammas matched "
        "to particles. “carried” is the variance that the beliefs hand on through the dynamics, "
        "in units of their noise 1/b0."
        + (" Quick: too few bins to judge by." if found.quick else ""),
    ]
    for b0 in sorted({row["b0"] for row in rows}):
        lines += ["", f"## b0 = {b0}, noise {b0**-0.5:.2f}", "", _table(select(rows, b0=b0))]
    lines += ["", _words(rows), "", _choices()]
    return "\n".join(lines) + "\n"


def _table(rows: list[Row]) -> str:
    found = {name: select(rows, method=name) for name in LABELS if select(rows, method=name)}
    top = reference(rows)
    density = [plus_minus(own, "log_q") for own in found.values()]
    density = best(density, [mean(own, "log_q") for own in found.values()], least=False)
    headings = ["method", "log density", "behind", "RMSE", "90 % coverage", "carried", "fell back"]
    lines = []
    for cell, (name, own) in zip(density, found.items(), strict=True):
        behind = top - mean(own, "log_q")
        rest = [plus_minus(own, column) for column in ("rmse", "coverage_90", "carried")]
        fell = sum(row["fell_back"] for row in own)
        lines.append([LABELS[name], cell, f"{behind:.3f}", *rest, str(fell)])
    return markdown(headings, lines)


def reference(rows: list[Row]) -> float:
    """Mean log density of the better of the Gammas matched to particles; NaN if there is none.

    Example:
        >>> reference([{"method": "moments", "log_q": 1.0}, {"method": "mean_log", "log_q": 2.0}])
        2.0
    """
    found = [mean(select(rows, method=name), "log_q") for name in protocol.REFERENCES]
    known = [value for value in found if value == value]
    return max(known, default=float("nan"))


def shortfalls(found: Found) -> list[str]:
    """Values of b0 at which a target is missed.

    Example:
        >>> rows = [{"b0": 5, "method": "mean_log", "log_q": 1.0}]
        >>> rows += [{"b0": 5, "method": "corrected", "log_q": 0.5}]
        >>> shortfalls(Found([{"rows": rows}]))
        ['b0 = 5: eVKF is 0.500 nats per bin behind Gammas matched to particles, more than 0.2']
    """
    rows, missed = found.rows, []
    for b0 in sorted({row["b0"] for row in rows}):
        own = select(rows, b0=b0)
        ours = mean(select(own, method="corrected"), "log_q")
        behind = reference(own) - ours
        if behind > NEAR:
            missed.append(
                f"b0 = {b0}: eVKF is {behind:.3f} nats per bin behind Gammas matched to particles, "
                f"more than {NEAR}"
            )
        plain = mean(select(own, method="uncorrected"), "log_q")
        if plain >= ours:
            missed.append(f"b0 = {b0}: eVKF is no better with the correction than without")
    return missed


def _words(rows: list[Row]) -> str:
    found = {b0: select(rows, b0=b0, method="mean_log") for b0 in {row["b0"] for row in rows}}
    sizes = [f"{mean(own, 'correlation'):.2f} at b0 = {b0}" for b0, own in sorted(found.items())]
    return (
        "Moment matching, which needs no formula, is hardly nearer to the particles than the "
        "correction: what is left is not the formula's fault. The likely reason is that a product "
        "of Gammas holds no correlation. The less noise there is, the more of what is unsure is "
        "where on the cycle the state is, and the more the two latents go together: under the "
        f"particles the mean size of their correlation is {', '.join(sizes)}. The optimum of an "
        "update by a product is narrower than the marginals, which are what is matched to "
        "particles, and its prediction lacks what the latents say of each other."
    )


def _choices() -> str:
    return (
        "What differs from the paper: it names the form of the dynamics and the size of the "
        f"network, and nothing else. Here the network turns states about ({protocol.CENTRE}, "
        f"{protocol.CENTRE}) by {protocol.TURN} rad a bin, onto a cycle of radius "
        f"{protocol.RADIUS:g}; {protocol.NEURONS} neurons fire 5 to 10 spikes per second at its "
        f"centre, in bins of {1e3 * protocol.BIN:g} ms. Spikes are few on purpose: where they pin "
        "the state down in every bin, little variance is handed on and the correction is worth "
        f"little. {protocol.PARTICLES:,} particles under the true dynamics are the reference; to "
        "those of every bin a product of Gammas is matched, by mean and mean log (the nearest in "
        "KL divergence) or by mean and variance. The paper shows a figure and no number."
    )
