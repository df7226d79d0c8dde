"""Table 2 in words, and its targets."""

import numpy as np

from evkf.reproduce.streams import TOGETHER
from evkf.reproduce.tables import (
    Found,
    Row,
    best,
    leads,
    markdown,
    mean,
    plus_minus,
    select,
    values,
)
from evkf.reproduce.vdp.experiment import (
    JUDGED,
    KINDS,
    LEARNED,
    METHODS,
    MOVING,
    ORACLE,
    QUICK_LEARNED,
    drawn,
)

PAPER = {
    "gaussian": {
        "evkf": (1.15, 6.817, 5.66, 104),
        "ovs": (-0.92, 13.48, 7.76, 6270),
        "vjf": (-3.58, 134.3, 6.61, 30),
        "svmc": (None, 84.83, 5.85, 314),
    },
    "poisson": {
        "evkf": (0.57, 7.131, 2.30, 13),
        "ovs": (-0.21, 9.132, 3.76, 4150),
        "vjf": (-1.24, 325.5, 3.99, 100),
        "svmc": (None, 410.2, 4.06, 730),
    },
}
"""As printed: log q, KL, log Chamfer, ms."""
TIMES_AHEAD = 20
"""How many times faster eVKF must be than OVS and SVMC."""
OTHERS = ("ovs", "vjf", "svmc")
HIGHER = {"log_q": True, "kl": False, "log_chamfer": False}


def report(found: Found) -> str:
    """Both likelihoods beside the paper's numbers."""
    learned = QUICK_LEARNED if found.quick else LEARNED
    parts = [
        "# Table 2: learning the Van der Pol oscillator",
        f"{learned} bins learned in one pass, then frozen and judged on {JUDGED} more; "
        f"{found.averaged}. The oracle is eVKF's filter given the true dynamics; in its row the "
        "Chamfer distance is the floor, between two sets of true trajectories. Roughness is that "
        "of the inferred path relative to the true one. The paper's numbers are of its own data "
        "and units, and stand in brackets."
        + (" Quick: too few bins to judge anything by." if found.quick else ""),
    ]
    for kind in KINDS:
        own, timing = (select(some, kind=kind) for some in (found.rows, found.timing))
        if own:
            parts += [f"## {kind.capitalize()} observations", _table(own, timing, PAPER[kind])]
    if found.timing:
        empty = float(np.median(values(found.timing, "empty_us")))
        parts.append(
            "Times are of compiled steps that infer and learn, in float32, the methods in turn: "
            f"medians over means of {TOGETHER} steps. An empty compiled call takes {empty:.0f} µs."
        )
    return "\n\n".join(parts) + "\n"


def report_figure(found: Found) -> str:
    """What the figure of the first trial shows."""
    trials = f"{found.trials} trials" if found.trials > 1 else "one trial"
    effort = f"{'a quick run' if found.quick else 'the full protocol'}, {trials}"
    return f"""# The Van der Pol oscillator, learned

{drawn(found.quick).capitalize()} observations of the first trial, of {effort}.

- **A** States of the last bins: true in black, eVKF's filtering distribution with its 95 % band.
- **B, C** Forecasts of five bins by the dynamics of that moment, while learning began and when it
  ended; crosses where they end.
- **D** True and learned velocities, over the states that were visited.
- **E** Errors of the filtered means, averaged over {MOVING} bins and over trials, with bars of two
  standard errors.
- **F** Velocities that every method learned, and the states it inferred after they were frozen.
"""


def _table(rows: list[Row], timing: list[Row], paper: dict[str, tuple]) -> str:
    names = [name for name in METHODS if select(rows, method=name)]
    columns = []
    for index, (figure, higher) in enumerate(HIGHER.items()):
        each = [select(rows, method=name) for name in names]
        cells = [plus_minus(own, figure, 3) for own in each]
        cells = best(cells, [mean(own, figure) for own in each], least=not higher)
        printed = (paper[name][index] if name in paper else None for name in names)
        columns.append(
            [
                cell + ("" if p is None else f" ({p:g})")
                for cell, p in zip(cells, printed, strict=True)
            ]
        )
    columns += [
        [plus_minus(select(rows, method=name), figure, 3) for name in names]
        for figure in ("rmse_judged", "roughness")
    ]
    columns.append(
        [
            (f"{mean(own, 'step_ms'):.3g}" if (own := select(timing, method=name)) else "—")
            + (f" ({paper[name][3]:g})" if name in paper else "")
            for name in names
        ]
    )
    body = [
        list(row) for row in zip([METHODS[name].label for name in names], *columns, strict=True)
    ]
    oracle = select(rows, method=ORACLE)
    if oracle:
        figures = ("log_q", "kl", "log_chamfer", "rmse_judged", "roughness")
        body.append([ORACLE, *(plus_minus(oracle, figure, 3) for figure in figures), "—"])
    headings = ["method", "log q ↑", "KL ↓", "log Chamfer ↓", "RMSE", "roughness", "ms per step"]
    return markdown(headings, body)


def shortfalls(found: Found) -> list[str]:
    """Targets that were missed."""
    rows, missed = found.rows, []
    for kind in KINDS:
        ours = select(rows, kind=kind, method="evkf")
        for name in OTHERS:
            method, theirs = METHODS[name], select(rows, kind=kind, method=name)
            if not theirs or not ours:
                continue
            for figure, higher in HIGHER.items():
                own, other = mean(ours, figure), mean(theirs, figure)
                if not leads(own, other, higher):
                    missed.append(
                        f"{kind}: {figure} of eVKF {own:.3f}, of {method.label} {other:.3f}"
                    )
            missed += _slower(select(found.timing, kind=kind), kind, name)
    return missed


def _slower(timing: list[Row], kind: str, name: str) -> list[str]:
    own, other = (mean(select(timing, method=each), "step_ms") for each in ("evkf", name))
    least = TIMES_AHEAD if name in ("ovs", "svmc") else 1
    if other >= least * own:
        return []
    words = f"{kind}: a step of eVKF {own:.3g} ms, of {METHODS[name].label} {other:.3g} ms"
    return [f"{words}, not {least} times as long" if least > 1 else words]
