"""Tables of the pages, made from the JSON that long checks wrote into `results/`.

`fill_in.py` puts `tables()[NAME]` where a page has `<!-- results: NAME # table -->`.
"""

from collections.abc import Callable, Iterable
from math import sqrt
from typing import Any

DIVERGED = 500.0
"""Nats beyond which the pages say "diverged"."""

FILTERS = {
    "evkf": "`VariationalKalmanFilter`",
    "extended": "`ExtendedKalman`",
    "unscented": "`UnscentedKalman`",
    "ensemble": "`EnsembleKalman`, 1,000 members",
    "particle": "`ParticleFilter`, 10,000 particles",
    "vjf_direct": "`DirectVJF`",
    "svmc": "`StreamingVMC`, 5,000 particles, 15 iterations",
    "ovs": "`OnlineVariationalSmoother`",
}
LEARNERS = {
    "oracle": "eVKF, true dynamics",
    "evkf": "`VariationalKalmanFilter` with `Learner`",
    "vjf": "`VJF`",
    "vjf_direct": "`DirectVJF`",
    "svmc": "`StreamingVMC`",
    "ovs": "`OnlineVariationalSmoother`",
}
KINDS = ("poisson", "gaussian")


def tables() -> dict[str, Callable[[Any], str]]:
    """What makes a table of a file, by the name of the file."""
    return {
        "losses.json": losses,
        "vdp_learning.json": vdp_learning,
        "attractors.json": attractors,
        "filters_rnn.json": filters_rnn,
        "filters_vdp.json": filters_vdp,
        "bench/gpu.json": sessions,
    }


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """In Markdown, the first column to the left and the others to the right."""
    head = list(head)
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    lines.insert(1, f"|---|{'---:|' * (len(head) - 1)}")
    return "\n".join(lines)


def losses(found: dict) -> str:
    """A row for every learner, Poisson beside Gaussian observations."""

    def cells(row: dict) -> list[str]:
        far = ["diverged" if row[x] > DIVERGED else f"{row[x]:.2f}" for x in ("gap", "kl")]
        return [*far, f"{row['chamfer_above_floor']:.2f}", f"{row['std']:.3f}"]

    figures = ("gap in log q", "KL", "log Chamfer above floor", r"$\sqrt Q$")
    head = ["learner", *(f"{kind.capitalize()}: {x}" for kind in KINDS for x in figures)]
    names = [name.removeprefix("poisson, ") for name in found if name.startswith("poisson")]
    return table(head, ([n, *(c for k in KINDS for c in cells(found[f"{k}, {n}"]))] for n in names))


def vdp_learning(found: dict) -> str:
    """How well the oscillator is learned."""
    said = [found["known_readout"][kind]["summary"] for kind in KINDS]
    rows = [
        ["gap in mean log q to the filter with the true model, mean"],
        ["this gap, worst seed"],
        ["KL of one-bin transitions, mean"],
        ["log Chamfer above its floor, median"],
    ]
    names = ("gap_mean", "gap_worst", "kl_mean", "chamfer_median")
    for row, name in zip(rows, names, strict=True):
        row += [f"{each[name]:.3f}" for each in said]
    rows.append(["seeds that diverged", *(str(each["diverged"]) for each in said)])
    num = len(found["known_readout"]["poisson"]["rows"])
    head = f"after {found['learned_bins']} bins, readout known, {num} seeds"
    return table([head, "Poisson, 150 neurons", "Gaussian, 30 channels"], rows)


def attractors(found: dict) -> str:
    """Forecasts and portraits, over seeds."""

    def gain(rows: list[dict], over: str) -> str:
        gains = [row["learned"] - row[over] for row in rows]
        mean = sum(gains) / len(gains)
        error = sqrt(sum((x - mean) ** 2 for x in gains) / (len(gains) - 1) / len(gains))
        return f"{mean:.2f} ± {error:.2f}"

    head = ["system", "over persistence", "over the best linear model", "farthest point"]
    rows = [
        [name, *(gain(rows, over) for over in ("persistence", "linear")),
         f"{max(row['distance'] for row in rows):.3f}"]
        for name, rows in (("Lorenz", found["lorenz"]), ("ring attractor", found["ring"]))
    ]  # fmt: skip
    return table(head, rows)


def filters_rnn(found: dict) -> str:
    """Accuracy, coverage and time of every filter."""
    by = {(row["method"], row["L"]): row for row in found["rows"]}
    sizes = sorted({size for _, size in by})
    least, most = sizes[0], sizes[-1]
    head = ["filter", *(f"RMSE, L = {size}" for size in sizes), f"inside 90 %, L = {most}"]
    head += [f"a step, L = {size}" for size in (least, most)]
    return table(
        head,
        (
            [
                name,
                *(f"{by[key, size]['rmse']:.4f}" for size in sizes),
                f"{by[key, most]['coverage_90']:.2f}",
                *(f"{by[key, size]['step_ms']:.2g} ms" for size in (least, most)),
            ]
            for key, name in FILTERS.items()
        ),
    )


def filters_vdp(found: dict) -> str:
    """What learns while it filters."""
    columns = {"rmse_late": ".3f", "rmse_test": ".3f", "log_q": ".2f", "kl": ".2f"}
    figures = ("RMSE late", "RMSE after", "log q", "KL")
    head = ["filter", *(f"{kind.capitalize()}: {x}" for kind in KINDS for x in figures)]
    rows = []
    for key, name in LEARNERS.items():
        means = [found[f"{kind} {key}"]["mean"] for kind in KINDS]
        cells = [
            format(m[x], form) if x in m else "–" for m in means for x, form in columns.items()
        ]
        rows.append([name, *cells])
    return table(head, rows)


def sessions(found: dict) -> str:
    """Steps per second by how many sessions are filtered at once."""
    rows = found["parts"]["sessions"]["rows"]
    head = ["sessions at once", "million filter steps per second"]
    return table(head, ([f"{r['sessions']:,}", f"{r['steps_per_s'] / 1e6:.1f}"] for r in rows))
