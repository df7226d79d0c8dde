"""Table 2: learn the Van der Pol oscillator from a stream of observations, by several methods.

The true system has damping gamma = 1.5, time constant tau = 0.1 and noise 0.1, in bins of 5 ms.
Poisson observations: 150 neurons, with preferred directions of length 1/sqrt(3) and 25 to 50 spikes
per second at the origin. Gaussian observations: 30 channels, noise variance 0.5. The readout
(weights and offsets of the observations) is known. Each method learns from 3500 bins in one pass.
Then the dynamics are frozen, and 500 more bins are used to judge the method.
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
"""Number of trials that one task learns from in parallel (vmap)."""
MOVING = 50
"""Number of bins in each moving average of the error."""
GRID = np.stack(np.meshgrid(np.linspace(-3, 3, 24), np.linspace(-5, 5, 24)), axis=-1)
"""Grid of latent states at which velocities are plotted."""
FAR = 10.0
"""Trajectories are clipped to [-FAR, FAR] before they are compared. The limit cycle reaches 5."""
AHEAD = 5
"""Number of bins that are forecast from every bin of learning."""
TIMED, QUICK_TIMED = range(1008, 1648), range(16, 48)
"""Bins whose steps are timed. They come after the first 1000 bins, in which VJF does not yet learn
the dynamics."""


def start(likelihood: Likelihood, seed: int, hidden: int | tuple[int, ...] = 32) -> Model:
    """Return an untrained initial model: a random walk plus the output of a network.

    The noise variance Q is random, log-uniform between 0.05^2 and 0.3^2.

    Args:
        likelihood: Likelihood of the true model.
        seed: Number of the trial.
        hidden: Number of hidden units, or a tuple with the number in each layer.
    """
    low, high = 2 * np.log(0.05), 2 * np.log(0.3)
    noise = np.exp(np.random.default_rng(10_000 + seed).uniform(low, high))
    return Model(ResidualMLP(2, noise, jax.random.key(1000 + seed), hidden), likelihood)


def start_rbf(likelihood: Likelihood, seed: int) -> Model:
    """Return an initial model with radial basis functions, as in the published code of VJF."""
    dynamics = ResidualRBF(2, 0.04, jax.random.key(1000 + seed))
    return Model(dynamics, likelihood, family=DiagonalGaussianFamily(2))


EVERY = 8
"""Number of bins between gradient steps of eVKF. The paper uses 150."""
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
"""Name of the reference: the eVKF filter with the true dynamics."""


def readout(kind: str, seed: int) -> Poisson | Gaussian:
    """Return the true likelihood (observation model) of a trial.

    Args:
        kind: "poisson" or "gaussian".
        seed: Number of the trial.
    """
    rng = np.random.default_rng(seed)
    num = 150 if kind == "poisson" else 30
    C = rng.normal(size=(num, 2))
    C /= np.sqrt(3) * np.linalg.norm(C, axis=1, keepdims=True)
    b = np.log(25 + 25 * rng.random(num))
    return Poisson(C, b, bin_width=BIN) if kind == "poisson" else Gaussian(C, noise=0.5)


def problem(kind: str, bins: int, seed: int) -> tuple[Model, np.ndarray, np.ndarray]:
    """Return the true model of a trial, its latent states and its observations.

    If the latent states leave [-10, 10], the trial is simulated again with another random key.

    Args:
        kind: "poisson" or "gaussian".
        bins: Number of bins.
        seed: Number of the trial.
    """
    true, key = Model(VanDerPol(), readout(kind, seed)), jax.random.key(seed)
    states, ys = simulate(true, key, bins)
    while not np.abs(states).max() < FAR:
        key = jax.random.fold_in(key, bins)
        states, ys = simulate(true, key, bins)
    return true, np.asarray(states), np.asarray(ys)


def tasks(methods: tuple[str, ...], trials: int, quick: bool) -> list[Spec]:
    """Return the specifications of all tasks of Table 2.

    There is one task for each likelihood, method (including the oracle) and block of trials.
    """
    kinds, learned = (QUICK_KINDS, QUICK_LEARNED) if quick else (KINDS, LEARNED)
    return [
        specification(__name__, seeds, kind=kind, method=method, learned=learned)
        for kind in kinds
        for method in (ORACLE, *methods)
        for seeds in blocks(trials, BLOCK)
    ]


def run(spec: Spec) -> Result:
    """Run a task of Table 2, and return its rows and series, one of each for every trial.

    The method learns from a block of trials in parallel (vmap), then filters the judged bins.
    """
    kind, name = spec["kind"], spec["method"]
    method = None if name == ORACLE else METHODS[name]
    rows, series = learn_and_judge(kind, method, spec["seeds"], spec["learned"])
    return {"rows": [{"kind": kind, "method": name} | row for row in rows], "series": series}


def learn_and_judge(
    kind: str, method: LearningMethod | None, seeds: list[int], num: int
) -> tuple[list[Row], list[Row]]:
    """Learn from the first bins of trials, judge the result, and return rows and series.

    There is one row of numbers and one series of arrays to plot for each trial. The series of trial
    0 also has the filtered states and velocities.

    Args:
        kind: "poisson" or "gaussian".
        method: The method. None means the oracle.
        seeds: Numbers of the trials.
        num: Number of bins to learn from.
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
    """Return the error of every bin: the square root of the mean squared error over latents."""
    return np.sqrt(np.mean((np.asarray(mean) - states) ** 2, axis=-1))


def judge_dynamics(
    true: Model, learned: Model | None, states: np.ndarray, seed: int
) -> dict[str, float]:
    """Measure how close the learned dynamics are to the true dynamics, and return the numbers.

    "kl" is the mean KL divergence from true to learned transitions, from noisy true states.
    "log_chamfer" is the logarithm of the Chamfer distance between generated trajectories. All
    methods of a trial are judged at the same states and against the same true trajectories.

    Args:
        true: The true model.
        learned: The learned model. None gives the distance between two sets of true trajectories.
        states: True latent states of the bins of learning.
        seed: Number of the trial.
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
    """Simulate a trajectory of 500 bins from every start, and return all of them concatenated.

    Values are clipped to [-10, 10]. In steps of 5 ms, even the true system diverges about once in
    10,000 bins.

    Args:
        model: Model to simulate.
        starts: First latent states.
        key: JAX random key.
        stay: Whether to simulate a trajectory that reaches the edge of the box again.
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
    """Return the settings of Table 2 whose steps are timed: each likelihood with each method."""
    kinds = QUICK_KINDS if quick else KINDS
    return [{"kind": kind, "method": name} for kind in kinds for name in methods]


def ready(what: dict[str, Any], bins: int) -> TimedCall:
    """Return a function that filters and learns from one bin of Table 2, for timing.

    Args:
        what: One setting from `timings`.
        bins: Number of bins to simulate, at least as many as are timed.
    """
    method = METHODS[what["method"]]
    true, _, ys = problem(what["kind"], bins, 0)
    return timed_call(method.learning, method.start(true.likelihood, 0), ys)
