"""Methods that learn while they filter, on the Van der Pol stream, beside eVKF.

3500 bins learned in one pass, readout known; then frozen and judged on 500 more. RMSE is the root
of the mean square over bins and coordinates, "late" over the last 500 learned bins; log q is of the
500 judged bins; times are of a compiled scan. Prints its figures, last those that were missed, and
exits non-zero if there are any.

    python benchmarks/filters_vdp.py [--quick] [--json FILE] [--methods NAME ...]
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from vdp import FILTER, HELD_OUT, LEARNED, judge_dynamics, recording, start

from evkf.dynamics import ResidualMLP, ResidualRBF
from evkf.families import DiagonalGaussian
from evkf.filters import VJF, DirectVJF, Filter, scan_filter
from evkf.learning import Learner
from evkf.likelihoods import Likelihood
from evkf.metrics import mean_log_density
from evkf.model import Model
from evkf.types import Belief

LATE, SEEDS = 500, 5


class Ran(NamedTuple):
    """What a method made of a recording."""

    learned: Belief
    """Of the learned bins."""
    judged: Belief
    model: Model
    seconds: float
    """Per learned bin."""


def timed(run: Callable):
    """The result and the time of a second call, when all is compiled."""
    jax.block_until_ready(run())
    begin = time.perf_counter()
    result = jax.block_until_ready(run())
    return result, (time.perf_counter() - begin) / LEARNED


def evkf(likelihood: Likelihood, ys: np.ndarray, seed: int) -> Ran:
    learner = Learner()
    first = learner.init(start(likelihood, seed))
    (state, trace), seconds = timed(lambda: learner.scan(first, ys[:LEARNED]))
    _, rest = scan_filter(FILTER, state.model, ys[LEARNED:], state=state.filter)
    return Ran(trace.belief, rest.belief, state.model, seconds)


def learning_filter(make: Callable[[bool], Filter], model: Model, ys: np.ndarray, seed: int) -> Ran:
    """A filter whose state holds the model it learns; `make` takes whether it learns."""
    key = jax.random.key(seed)
    (state, trace), seconds = timed(lambda: scan_filter(make(True), model, ys[:LEARNED], key=key))
    frozen = {"state": state, "key": key, "first": LEARNED}
    _, rest = scan_filter(make(False), state.model, ys[LEARNED:], **frozen)
    return Ran(trace.belief, rest.belief, state.model, seconds)


def vjf(likelihood: Likelihood, ys: np.ndarray, seed: int) -> Ran:
    dynamics = ResidualRBF(2, 0.04, jax.random.key(1000 + seed))
    model = Model(dynamics, likelihood, family=DiagonalGaussian(2))
    return learning_filter(lambda learn: VJF(learn=learn), model, ys, seed)


def vjf_direct(likelihood: Likelihood, ys: np.ndarray, seed: int) -> Ran:
    dynamics = ResidualMLP(2, 0.04, jax.random.key(1000 + seed))
    model = Model(dynamics, likelihood, family=DiagonalGaussian(2))
    return learning_filter(lambda learn: DirectVJF(learn=learn), model, ys, seed)


METHODS = {"evkf": evkf, "vjf": vjf, "vjf_direct": vjf_direct}

MOST = {
    ("vjf", "poisson"): {"rmse_late": 0.39, "kl": 72.0},
    ("vjf", "gaussian"): {"rmse_late": 0.30, "kl": 41.0},
}
LEAST = {("vjf", "poisson"): {"log_q": -3.9}}
"""What the published code of a method reaches."""


def figures(kind: str, method: str, seed: int) -> dict:
    """One method on one recording."""
    true, states, ys = recording(kind, seed, LEARNED + HELD_OUT)
    ran = METHODS[method](true.likelihood, ys, seed)
    family = ran.model.family

    def rmse(beliefs: Belief, bins: slice) -> float:
        return float(np.sqrt(np.mean((jax.vmap(family.mean)(beliefs) - states[bins]) ** 2)))

    late = jax.tree.map(lambda x: x[-LATE:], ran.learned)
    judged = judge_dynamics(true, ran.model, states)
    return {
        "rmse_late": rmse(late, slice(LEARNED - LATE, LEARNED)),
        "rmse_test": rmse(ran.judged, slice(LEARNED, None)),
        "log_q": mean_log_density(family, ran.judged, states[LEARNED:]),
        "kl": judged["kl"],
        "chamfer_above_floor": judged["chamfer_above_floor"],
        "ms_per_step": 1e3 * ran.seconds,
    }


def shortfalls(kind: str, method: str, mean: dict) -> list[str]:
    """Every figure that was missed."""
    above = [
        f"{method}, {kind}: {name} {mean[name]:.3f} above {most}"
        for name, most in MOST.get((method, kind), {}).items()
        if not mean[name] <= most
    ]
    below = [
        f"{method}, {kind}: {name} {mean[name]:.3f} below {least}"
        for name, least in LEAST.get((method, kind), {}).items()
        if not mean[name] >= least
    ]
    return above + below


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options = parser.parse_args()
    result, missed = {}, []
    for kind in ("poisson", "gaussian"):
        for method in options.methods:
            rows = [figures(kind, method, s) for s in range(1 if options.quick else SEEDS)]
            mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
            result[f"{kind} {method}"] = {"mean": mean, "rows": rows}
            said = ", ".join(f"{name} {value:.3f}" for name, value in mean.items())
            print(f"{kind} {method}: {said}", flush=True)
            missed += shortfalls(kind, method, mean)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(missed) if missed else "all figures met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
