"""The tables of bounds and slacks in words."""

from evkf.reproduce.gaps import experiment as protocol
from evkf.reproduce.tables import Found, Row, markdown, mean, plus_minus, select, values


def report(found: Found) -> str:
    """Markdown: bounds and evidence, slacks, and how often bounds hold.

    Example:
        >>> "No bound was tested" in report(Found([]))
        True
    """
    rows, missed = found.rows, shortfalls(found)
    groups = [
        (f"{label}, {words}", select(rows, system=system, method=method))
        for system, label in protocol.SYSTEMS.items()
        for method, words in protocol.METHODS.items()
    ]
    groups = [(name, own) for name, own in groups if own]
    names = ("M", "L", "predicted", "pushed", "evidence")
    bounds = [
        [name, *(plus_minus(own, column) for column in names), _error(own)] for name, own in groups
    ]
    slack = [[name, *_slack(own)] for name, own in groups]
    return "\n".join(
        [
            "# Gaps between bounds and evidence",
            "",
            f"Nats per bin, {found.averaged}. L ≥ M is counted in "
            f"all bins, the rest is of those after the first {protocol.SKIP}."
            + (" Quick: few bins and particles." if found.quick else ""),
            "",
            markdown(
                [
                    "system",
                    "M",
                    "L",
                    "log evidence under the prediction",
                    "under the push-forward",
                    "log p(y_t given the past)",
                    "its Monte-Carlo error",
                ],
                bounds,
            ),
            "",
            markdown(
                [
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
                ],
                slack,
            ),
            "",
            _verdict(rows, missed),
            "",
            _words(rows),
            "",
        ]
    )


def _verdict(rows: list[Row], missed: list[str]) -> str:
    """Bounds that do not hold; where there are none, which were asked."""
    if missed:
        return "; ".join(missed) + "."
    if select(rows, method="uncorrected"):
        return "No bound was found violated."
    if rows:
        return (
            "L ≤ log evidence under the prediction was not found violated. L ≥ M and M ≤ log "
            "evidence under the push-forward were not tested: they are asked of predictions "
            "without the correction alone."
        )
    return "No bound was tested."


def _error(own: list[Row]) -> str:
    error = mean(own, "evidence_error")
    return "exact" if error == 0 else f"{error:.1e}"


def _slack(own: list[Row]) -> list[str]:
    bins = sum(row["bins"] for row in own)
    return [
        plus_minus(own, "E"),
        plus_minus(own, "F"),
        f"{values(own, 'F_least').min():.3f}",
        f"{values(own, 'gap_least').min():.1e}",
        f"{sum(row['violations'] for row in own)} of {bins}",
        *(
            f"{100 * mean(own, name):.0f} %"
            for name in ("F_negative", "L_above_pushed", "L_above_evidence")
        ),
        f"{values(own, 'adds_up').max():.1e}",
    ]


def shortfalls(found: Found) -> list[str]:
    """Systems in which a bound that must hold does not.

    Example:
        >>> row = {"system": "vdp", "method": "uncorrected", "violations": 2, "bins": 60}
        >>> row |= {"M_above_pushed": 0, "L_above_predicted": 0}
        >>> shortfalls(Found([{"rows": [row]}]))
        ['Van der Pol, Poisson: L < M in 2 of 60 bins']
    """
    rows, missed = found.rows, []
    for system, label in protocol.SYSTEMS.items():
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


def _words(rows: list[Row]) -> str:
    exact = [row for row in rows if "particle_bias" in row]
    checked = ""
    if exact:
        checked = (
            " In the linear system the same particle filters are off by "
            f"{mean(exact, 'particle_bias'):+.1e} nats per bin from the exact evidence, with a "
            f"standard error per bin of {mean(exact, 'particle_error'):.1e}."
        )
    return (
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
        "is what that makes." + checked
    )
