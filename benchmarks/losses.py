"""The four losses, and Algorithm 1 as printed, on the same streams.

Van der Pol, 3500 bins, readout known; means over seeds. Nothing is a target here: the paper claims
that the natural loss works better than the divergence, and this shows what was found.

    python benchmarks/losses.py [--quick] [--json FILE]
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from closing import close
from vdp_learning import judge

from evkf.learning import Learner
from evkf.reproduce.vdp.experiment import JUDGED, LEARNED, problem, start

LEARNERS = {
    "elbo": Learner(),
    "kl": Learner(loss="kl"),
    "natural": Learner(loss="natural"),
    "natural_literal": Learner(loss="natural_literal"),
    "kl, Algorithm 1": Learner(loss="kl", ring=0, every=150, average=1.0),
    "natural_literal, Algorithm 1": Learner(loss="natural_literal", ring=0, every=150, average=1.0),
}


def run(kind: str, learner: Learner, seeds: range) -> dict:
    """Means over seeds of the figures of the table."""
    rows = []
    for seed in seeds:
        true, states, ys = problem(kind, LEARNED + JUDGED, seed)
        state, trace = learner.scan(learner.init(start(true.likelihood, seed)), ys[:LEARNED])
        row = judge(true, state, states, ys, seed)
        noise = state.model.dynamics.noise.var()  # pyright: ignore[reportAttributeAccessIssue]
        row["std"] = float(np.sqrt(np.mean(noise)))
        row["skipped"] = int(np.sum(trace.learned.skipped))
        rows.append(row)
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    seeds = range(1 if options.quick else 4)
    result = {}
    for kind in ("poisson", "gaussian"):
        for name, learner in LEARNERS.items():
            figures = run(kind, learner, seeds)
            result[f"{kind}, {name}"] = figures
            shown = " ".join(f"{key} {value:.3f}" for key, value in figures.items())
            print(f"{kind}, {name}: {shown}", flush=True)
    return close(result, [], options.json)


if __name__ == "__main__":
    sys.exit(main())
