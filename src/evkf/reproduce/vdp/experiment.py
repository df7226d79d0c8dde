"""Table 2: learning the Van der Pol oscillator from a stream, by several methods.

gamma 1.5, tau 0.1, noise 0.1, bins of 5 ms. Poisson: 150 neurons with preferred directions of
length 1/sqrt(3), 25 to 50 spikes per second at the origin. Gaussian: 30 channels of variance 0.5.
The readout is known. 3500 bins are learned from in one pass, then dynamics are frozen and 500 bins
judged.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evkf.analysis.metrics import log_chamfer, mean_log_density, roughness, transition_kl
from evkf.dynamics import ResidualMLP, ResidualRBF, VanDerPol
from evkf.families import DiagonalGaussianFamily
from evkf.filters import VJF, OnlineVariationalSmoother, StreamingVMC
from evkf.learning import Learner, adam
from evkf.likelihoods import Gaussian, Likelihood, Poisson
from evkf.model import Model, simulate
from evkf.reproduce.runner import Result, Spec, TimedCall, blocks, specification, timed_call
from evkf.reproduce.streams import LearnedTrials, LearningMethod, learn_and_freeze, pick
from evkf.reproduce.tables import Row, rounded
from evkf.types import Key

KINDS = ("gaussian", "poisson")
BIN, LEARNED, JUDGED, LATE, TRIALS = 0.005, 3500, 500, 1000, 10
QUICK_KINDS, QUICK_LEARNED, QUICK_TRIALS = ("gaussian",), 200, 1
BLOCK = 5
"""Trials that are learned from side by side."""
MOVING = 50
"""Bins over which errors are averaged."""
GRID = np.stack(np.meshgrid(np.linspace(-3, 3, 24), np.linspace(-5, 5, 24)), axis=-1)
"""States at which velocities are drawn."""
FAR = 10.0
"""Edge of the box in which trajectories are compared; the limit cycle reaches 5."""
AHEAD = 5
"""Bins that snapshots forecast."""
TIMED, QUICK_TIMED = range(1008, 1648), range(16, 48)
"""Bins whose steps are timed: after the first 1000, in which VJF does not learn dynamics."""


def start(likelihood: Likelihood, seed: int, hidden: int | tuple[int, ...] = 32) -> Model:
    """Return an untrained model: a random walk with Q drawn log-uniform in [0.05^2, 0.3^2]."""
    low, high = 2 * np.log(0.05), 2 * np.log(0.3)
    noise = np.exp(np.random.default_rng(10_000 + seed).uniform(low, high))
    return Model(ResidualMLP(2, noise, jax.random.key(1000 + seed), hidden), likelihood)


def start_rbf(likelihood: Likelihood, seed: int) -> Model:
    """Return a model with radial basis functions, as in the published code of VJF."""
    dynamics = ResidualRBF(2, 0.04, jax.random.key(1000 + seed))
    return Model(dynamics, likelihood, family=DiagonalGaussianFamily(2))


EVERY = 8
"""Bins from one gradient step of eVKF to the next; the paper has 150."""
THRIFTY = Learner(
    every=EVERY,
    average=0.04,
    optimiser=adam(2e-2, decay=LEARNED // EVERY, floor=0.1, warm_up=36),
)
METHODS = {
    "evkf": LearningMethod(f"eVKF, a step every {EVERY} bins", start, THRIFTY),
    "evkf_every_bin": LearningMethod("eVKF, a step every bin", start, Learner()),
    "ovs": LearningMethod("OVS", start, lambda learn: OnlineVariationalSmoother(learn=learn)),
    "vjf": LearningMethod("VJF", start_rbf, lambda learn: VJF(learn=learn)),
    "svmc": LearningMethod(
        "SVMC (5,000)",
        lambda likelihood, seed: start(likelihood, seed, (32, 32)),  # with one layer it learns less
        lambda learn: StreamingVMC(learn=learn),
    ),
}
ORACLE = "oracle"
"""The filter of eVKF, given the true dynamics."""


def readout(kind: str, seed: int) -> Poisson | Gaussian:
    """Return the observation model of a trial."""
    rng = np.random.default_rng(seed)
    num = 150 if kind == "poisson" else 30
    C = rng.normal(size=(num, 2))
    C /= np.sqrt(3) * np.linalg.norm(C, axis=1, keepdims=True)
    b = np.log(25 + 25 * rng.random(num))
    return Poisson(C, b, bin_width=BIN) if kind == "poisson" else Gaussian(C, noise=0.5)


def problem(kind: str, bins: int, seed: int) -> tuple[Model, np.ndarray, np.ndarray]:
    """Return the true model of a trial, its states and observations; drawn again if it escapes."""
    true, key = Model(VanDerPol(), readout(kind, seed)), jax.random.key(seed)
    states, ys = simulate(true, key, bins)
    while not np.abs(states).max() < FAR:
        key = jax.random.fold_in(key, bins)
        states, ys = simulate(true, key, bins)
    return true, np.asarray(states), np.asarray(ys)


def tasks(methods: tuple[str, ...], trials: int, quick: bool) -> list[Spec]:
    """Specify every likelihood by every method and the oracle, the trials in blocks."""
    kinds, learned = (QUICK_KINDS, QUICK_LEARNED) if quick else (KINDS, LEARNED)
    return [
        specification(__name__, seeds, kind=kind, method=method, learned=learned)
        for kind in kinds
        for method in (ORACLE, *methods)
        for seeds in blocks(trials, BLOCK)
    ]


def run(spec: Spec) -> Result:
    """Compute a task: learn from a block of trials side by side, and judge what was learned."""
    kind, name = spec["kind"], spec["method"]
    method = None if name == ORACLE else METHODS[name]
    rows, series = learn_and_judge(kind, method, spec["seeds"], spec["learned"])
    return {"rows": [{"kind": kind, "method": name} | row for row in rows], "series": series}


def learn_and_judge(
    kind: str, method: LearningMethod | None, seeds: list[int], num: int
) -> tuple[list[Row], list[Row]]:
    """Learn from the first bins of trials, and return a row and a series for each.

    Args:
        kind: The likelihood.
        method: The method; None is the oracle.
        seeds: Trials.
        num: Bins that are learned from.
    """
    problems = [problem(kind, num + JUDGED, seed) for seed in seeds]
    ran = learn_and_freeze(method, problems, seeds, num, AHEAD)
    rows, series = [], []
    for i, seed in enumerate(seeds):
        true, states, _ = problems[i]
        one = LearnedTrials(*pick(tuple(ran), i))
        family = one.models.family
        mean = jax.vmap(family.mean)(one.belief)
        error = rmse(mean, states)
        judged = pick(one.belief, slice(num, None))
        row = {
            "trial": seed,
            "log_q": mean_log_density(family, judged, jnp.asarray(states[num:])),
            "rmse_late": float(error[num - min(LATE, num // 2) : num].mean()),
            "rmse_judged": float(error[num:].mean()),
            "roughness": roughness(np.asarray(mean[num:]), states[num:]),
        }
        learned = one.models if method else None
        rows.append(row | judge_dynamics(true, learned, states[:num], seed))
        shown = {"moving_rmse": error.reshape(-1, MOVING).mean(axis=1)}
        if seed == 0:  # what figures show of the first trial
            dynamics, points = one.models.dynamics, jnp.asarray(GRID.reshape(-1, 2))
            move = jax.vmap(lambda z, own=dynamics: own.transition(z, jnp.zeros(0)))(points)
            shown |= {"mean": mean, "std": jnp.sqrt(jax.vmap(family.var)(one.belief))}
            shown |= {"states": states, "field": jax.vmap(dynamics.family.mean)(move) - points}
            if one.ahead is not None:
                shown["ahead"] = one.ahead
        series.append({name: rounded(array) for name, array in shown.items()})
    return rows, series


def rmse(mean: Array, states: np.ndarray) -> np.ndarray:
    """Return the error of every bin: the root of the mean square over coordinates."""
    return np.sqrt(np.mean((np.asarray(mean) - states) ** 2, axis=-1))


def judge_dynamics(
    true: Model, learned: Model | None, states: np.ndarray, seed: int
) -> dict[str, float]:
    """Measure how near learned dynamics are to the true ones.

    All methods of a trial are judged on the same places and by the same true trajectories.

    Args:
        true: The true model.
        learned: The learned model; None for the distance between two sets of true trajectories.
        states: True states of the learned bins.
        seed: Of the trial.
    """
    rng, keys = np.random.default_rng(seed), jax.random.split(jax.random.key(seed), 3)
    early = len(states) // 7
    near = states[early::10]
    near = near + 0.1 * rng.normal(size=near.shape)
    picks = states[rng.integers(early, len(states), (3, 10))]
    first = trajectories(true, picks[0], keys[0], stay=True)
    if learned is None:
        second = trajectories(true, picks[1], keys[1], stay=True)
        return {"kl": 0.0, "log_chamfer": log_chamfer(first, second)}
    return {
        "kl": transition_kl(true.dynamics, learned.dynamics, jnp.asarray(near)),
        "log_chamfer": log_chamfer(first, trajectories(learned, picks[2], keys[2])),
    }


def trajectories(model: Model, starts: np.ndarray, key: Key, stay: bool = False) -> np.ndarray:
    """Return trajectories of 500 bins, one from every start, one after another.

    In steps of 5 ms the true system itself escapes once in some 10,000 bins. With `stay`, such a
    trajectory is drawn again; without, it ends at the edge of a box.
    """

    def draw(key: Key, start: np.ndarray) -> np.ndarray:
        path = np.asarray(simulate(model, key, 500, z0=jnp.asarray(start))[0])
        return np.clip(np.nan_to_num(path, nan=FAR), -FAR, FAR)

    paths = []
    for i, start in enumerate(starts):
        own = jax.random.fold_in(key, i)
        path = draw(own, start)
        while stay and np.abs(path).max() >= FAR:
            own = jax.random.fold_in(own, 0)
            path = draw(own, start)
        paths.append(path)
    return np.concatenate(paths)


def timings(methods: tuple[str, ...], quick: bool) -> list[dict[str, Any]]:
    """List what is timed: every likelihood by every method."""
    kinds = QUICK_KINDS if quick else KINDS
    return [{"kind": kind, "method": name} for kind in kinds for name in methods]


def ready(what: dict[str, Any], bins: int) -> TimedCall:
    """Return a method that is ready to filter so many bins and to learn from them."""
    method = METHODS[what["method"]]
    true, _, ys = problem(what["kind"], bins, 0)
    return timed_call(method.learning, method.start(true.likelihood, 0), ys)
