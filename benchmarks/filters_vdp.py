"""Methods that learn while they filter, on the Van der Pol stream, beside eVKF.

3500 bins learned in one pass, readout known; then frozen and judged on 500 more. RMSE is that of a
bin (root of the mean square over coordinates), averaged; "late" over the last 1000 learned bins.
log q is of the 500 judged bins, oracle the filter of eVKF given the true dynamics. Dynamics are
networks of 32 units, for SVMC of two layers of 32, for VJF radial basis functions. Prints its
figures, last those that were missed, and exits non-zero if there are any.

    python benchmarks/filters_vdp.py [--quick] [--json FILE] [--methods NAME ...] [--seeds N]
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from chaotic_rnn import rmse
from closing import close
from streams import Streamed
from vdp import FILTER, HELD_OUT, LEARNED, judge_dynamics, recording, start

from evkf.analysis.metrics import mean_log_density
from evkf.dynamics import ResidualMLP, ResidualRBF
from evkf.families import DiagonalGaussianFamily
from evkf.filters import (
    VJF,
    DirectVJF,
    Filter,
    OnlineVariationalSmoother,
    StreamingVMC,
    scan_filter,
)
from evkf.learning import Learner
from evkf.likelihoods import Likelihood
from evkf.model import Model
from evkf.types import Belief

LATE, SEEDS = 1000, 5


class Ran(NamedTuple):
    """What a method made of a recording."""

    learned: Belief
    """Of the learned bins."""
    judged: Belief
    model: Model


def evkf(likelihood: Likelihood, ys: np.ndarray, seed: int) -> Ran:
    learner, model = Learner(), start(likelihood, seed)
    state, trace = learner.scan(learner.init(model), ys[:LEARNED])
    _, rest = scan_filter(FILTER, state.model, ys[LEARNED:], state=state.filter)
    return Ran(trace.belief, rest.belief, state.model)


def learning_filter(make: Callable[[bool], Filter], model: Model, ys: np.ndarray, seed: int) -> Ran:
    """A filter whose state holds the model it learns; `make` takes whether it learns."""
    learning, frozen = make(True), make(False)
    ran = Streamed(learning, model)(model, ys[:LEARNED], seed)
    learned = ran.state.model
    rest = Streamed(frozen, learned)(learned, ys[LEARNED:], 1000 + seed, ran.state)
    return Ran(ran.belief, rest.belief, learned)


def vjf(likelihood: Likelihood, ys: np.ndarray, seed: int) -> Ran:
    dynamics = ResidualRBF(2, 0.04, jax.random.key(1000 + seed))
    model = Model(dynamics, likelihood, family=DiagonalGaussianFamily(2))
    return learning_filter(lambda learn: VJF(learn=learn), model, ys, seed)


def vjf_direct(likelihood: Likelihood, ys: np.ndarray, seed: int) -> Ran:
    dynamics = ResidualMLP(2, 0.04, jax.random.key(1000 + seed))
    model = Model(dynamics, likelihood, family=DiagonalGaussianFamily(2))
    return learning_filter(lambda learn: DirectVJF(learn=learn), model, ys, seed)


def svmc(likelihood: Likelihood, ys: np.ndarray, seed: int) -> Ran:
    # Two layers: with one, its steps of a single bin learn more slowly.
    model = start(likelihood, seed, (32, 32))
    return learning_filter(lambda learn: StreamingVMC(learn=learn), model, ys, seed)


def ovs(likelihood: Likelihood, ys: np.ndarray, seed: int) -> Ran:
    model = start(likelihood, seed)
    return learning_filter(lambda learn: OnlineVariationalSmoother(learn=learn), model, ys, seed)


METHODS = {"evkf": evkf, "vjf": vjf, "vjf_direct": vjf_direct, "svmc": svmc, "ovs": ovs}

MOST = {
    ("vjf", "poisson"): {"rmse_late": 0.39, "kl": 72.0},
    ("vjf", "gaussian"): {"rmse_late": 0.30, "kl": 41.0},
    ("svmc", "poisson"): {"rmse_late": 0.23, "rmse_test": 0.33, "kl": 12.0},
    ("svmc", "gaussian"): {"rmse_late": 0.16, "rmse_test": 0.25, "kl": 6.4},
}
LEAST = {("vjf", "poisson"): {"log_q": -3.9}}
"""What the published code of a method reaches."""


def figures(kind: str, method: str, seed: int) -> dict:
    """One method on one recording."""
    true, states, ys = recording(kind, seed, LEARNED + HELD_OUT)
    ran = METHODS[method](true.likelihood, ys, seed)
    family = ran.model.family
    late, learned = slice(LEARNED - LATE, LEARNED), jax.vmap(family.mean)(ran.learned)
    judged = judge_dynamics(true, ran.model, states)
    return {
        "rmse_late": rmse(learned[late], states[late]),
        "rmse_test": rmse(jax.vmap(family.mean)(ran.judged), states[LEARNED:]),
        "log_q": mean_log_density(family, ran.judged, states[LEARNED:]),
        "kl": judged["kl"],
        "chamfer_above_floor": judged["chamfer_above_floor"],
    }


def oracle(kind: str, seed: int) -> dict:
    """The filter given the true dynamics."""
    true, states, ys = recording(kind, seed, LEARNED + HELD_OUT)
    _, trace = scan_filter(FILTER, true, ys)
    mean, late = jax.vmap(true.family.mean)(trace.belief), slice(LEARNED - LATE, LEARNED)
    held_out = jax.tree.map(lambda x: x[LEARNED:], trace.belief)
    return {
        "rmse_late": rmse(mean[late], states[late]),
        "rmse_test": rmse(mean[LEARNED:], states[LEARNED:]),
        "log_q": mean_log_density(true.family, held_out, states[LEARNED:]),
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
    parser.add_argument("--seeds", type=int, default=SEEDS, help="recordings")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    seeds, result, missed = range(1 if options.quick else options.seeds), {}, []

    def say(name: str, rows: list[dict]) -> dict:
        mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        result[name] = {"mean": mean, "rows": rows}
        print(f"{name}: " + ", ".join(f"{k} {v:.3f}" for k, v in mean.items()), flush=True)
        return mean

    for kind in ("poisson", "gaussian"):
        say(f"{kind} oracle", [oracle(kind, seed) for seed in seeds])
        for method in options.methods:
            mean = say(f"{kind} {method}", [figures(kind, method, seed) for seed in seeds])
            missed += shortfalls(kind, method, mean)
    return close(result, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
