"""Table 2: learning the Van der Pol oscillator from a stream, and what methods make of it.

gamma 1.5, tau 0.1, noise 0.1, bins of 5 ms. Poisson: 150 neurons with preferred directions of
length 1/sqrt(3), 25 to 50 spikes per second at the origin. Gaussian: 30 channels of variance 0.5.
The readout is known. 3500 bins are learned from in one pass, then dynamics are frozen and 500 bins
judged.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evkf.analysis.metrics import log_chamfer, mean_log_density, roughness, transition_kl
from evkf.dynamics import ResidualMLP, ResidualRBF, VanDerPol
from evkf.families import DiagonalGaussianFamily
from evkf.filters import VJF, Filter, OnlineVariationalSmoother, StreamingVMC
from evkf.filters import VariationalKalmanFilter as EVKF
from evkf.learning import Learner, adam
from evkf.likelihoods import Gaussian, Likelihood, Poisson
from evkf.model import Model, simulate
from evkf.reproduce.runner import Result, Spec, blocks, specification
from evkf.reproduce.streams import (
    Call,
    learn,
    pick,
    ready_filter,
    ready_learner,
    stack,
    stream,
)
from evkf.reproduce.tables import rounded
from evkf.types import Belief, Key

KINDS = ("gaussian", "poisson")
BIN, LEARNED, JUDGED, LATE, TRIALS = 0.005, 3500, 500, 1000, 10
QUICK_KINDS, QUICK_LEARNED, QUICK_TRIALS = ("gaussian",), 200, 1
BLOCK = 5
"""Trials that are learned from side by side."""
MOVING = 50
"""Bins over which errors are averaged."""
GRID = np.stack(np.meshgrid(np.linspace(-3, 3, 24), np.linspace(-5, 5, 24)), axis=-1)
"""Where velocities are drawn."""
FAR = 10.0
"""Edge of the box in which trajectories are compared; the limit cycle reaches 5."""
AHEAD = 5
"""Bins that snapshots forecast."""
TIMED, QUICK_TIMED = range(1008, 1648), range(16, 48)
"""Bins whose steps are timed: after the first 1000, in which VJF does not learn dynamics."""


class Method(NamedTuple):
    """How a method of the table is made."""

    label: str
    start: Callable[[Likelihood, int], Model]
    make: Callable[[bool], Filter] | Learner
    """eVKF's learner, or the filter that learns, or no more."""


def start(likelihood: Likelihood, seed: int, hidden: int | tuple[int, ...] = 32) -> Model:
    """A random walk with Q drawn log-uniform in [0.05^2, 0.3^2]."""
    low, high = 2 * np.log(0.05), 2 * np.log(0.3)
    noise = np.exp(np.random.default_rng(10_000 + seed).uniform(low, high))
    return Model(ResidualMLP(2, noise, jax.random.key(1000 + seed), hidden), likelihood)


def start_rbf(likelihood: Likelihood, seed: int) -> Model:
    """Radial basis functions, as in the published code of VJF."""
    dynamics = ResidualRBF(2, 0.04, jax.random.key(1000 + seed))
    return Model(dynamics, likelihood, family=DiagonalGaussianFamily(2))


def start_deep(likelihood: Likelihood, seed: int) -> Model:
    """Two layers: with one, SVMC's steps of a single bin learn more slowly."""
    return start(likelihood, seed, (32, 32))


EVERY = 8
"""Bins from one gradient step of eVKF to the next; the paper has 150."""
THRIFTY = Learner(
    every=EVERY,
    average=0.04,
    optimiser=adam(2e-2, decay=LEARNED // EVERY, floor=0.1, warm_up=36),
)
METHODS = {
    "evkf": Method(f"eVKF, a step every {EVERY} bins", start, THRIFTY),
    "evkf_every_bin": Method("eVKF, a step every bin", start, Learner()),
    "ovs": Method("OVS", start, lambda learn: OnlineVariationalSmoother(learn=learn)),
    "vjf": Method("VJF", start_rbf, lambda learn: VJF(learn=learn)),
    "svmc": Method("SVMC (5,000)", start_deep, lambda learn: StreamingVMC(learn=learn)),
}
ORACLE = "oracle"
"""The filter of eVKF, given the true dynamics."""


def readout(kind: str, seed: int) -> Poisson | Gaussian:
    """The observation model of a trial."""
    rng = np.random.default_rng(seed)
    num = 150 if kind == "poisson" else 30
    C = rng.normal(size=(num, 2))
    C /= np.sqrt(3) * np.linalg.norm(C, axis=1, keepdims=True)
    b = np.log(25 + 25 * rng.random(num))
    return Poisson(C, b, bin_width=BIN) if kind == "poisson" else Gaussian(C, noise=0.5)


def problem(kind: str, bins: int, seed: int) -> tuple[Model, np.ndarray, np.ndarray]:
    """The true model of a trial, its states and observations; drawn again if it escapes."""
    true, key = Model(VanDerPol(), readout(kind, seed)), jax.random.key(seed)
    states, ys = simulate(true, key, bins)
    while not np.abs(states).max() < FAR:
        key = jax.random.fold_in(key, bins)
        states, ys = simulate(true, key, bins)
    return true, np.asarray(states), np.asarray(ys)


def tasks(methods: tuple[str, ...], trials: int, quick: bool) -> list[Spec]:
    """Every likelihood by every method and the oracle, the trials in blocks."""
    kinds, learned = (QUICK_KINDS, QUICK_LEARNED) if quick else (KINDS, LEARNED)
    return [
        specification(__name__, seeds, kind=kind, method=method, learned=learned)
        for kind in kinds
        for method in (ORACLE, *methods)
        for seeds in blocks(trials, BLOCK)
    ]


def drawn(quick: bool) -> str:
    """The likelihood whose first trial is drawn."""
    return (QUICK_KINDS if quick else KINDS)[-1]


class Ran(NamedTuple):
    """What a method made of trials, each the first axis: of all bins, and what it learned."""

    belief: Belief
    models: Model
    ahead: Float[Array, "S T K L"] | None = None


def run(spec: Spec) -> Result:
    """Learn from a block of trials side by side, and judge what was learned."""
    seeds, num = spec["seeds"], spec["learned"]
    problems = [problem(spec["kind"], num + JUDGED, seed) for seed in seeds]
    ran = _run(spec, problems)
    rows, series = [], []
    for i, seed in enumerate(seeds):
        true, states, _ = problems[i]
        one = Ran(*pick(tuple(ran), i))
        rows.append({"kind": spec["kind"], "method": spec["method"], "trial": seed})
        rows[-1] |= _judge(true, one, states, num, seed, spec["method"] == ORACLE)
        series.append(_series(one, states, seed == 0))
    return {"rows": rows, "series": series}


def _run(spec: Spec, problems: list[tuple[Model, np.ndarray, np.ndarray]]) -> Ran:
    seeds, num = spec["seeds"], spec["learned"]
    ys = jnp.stack([jnp.asarray(ys, float) for _, _, ys in problems])
    keys = stack([jax.random.key(seed) for seed in seeds])
    if spec["method"] == ORACLE:
        models = stack([true for true, _, _ in problems])
        return Ran(stream(EVKF(), models, ys, keys).belief, models)
    method = METHODS[spec["method"]]
    starts = [
        method.start(true.likelihood, s) for s, (true, _, _) in zip(seeds, problems, strict=True)
    ]
    models = stack(starts)
    if isinstance(method.make, Learner):
        first = learn(method.make, models, ys[:, :num], AHEAD)
        rest = stream(EVKF(), first.models, ys[:, num:], keys, first.filters)
        return Ran(_join(first.belief, rest.belief), first.models, first.ahead)
    first = stream(method.make(True), models, ys[:, :num], keys)
    later = jax.vmap(jax.random.fold_in, (0, None))(keys, num)
    learned = first.state.model
    rest = stream(method.make(False), learned, ys[:, num:], later, first.state)
    return Ran(_join(first.belief, rest.belief), learned)


def _join(first: Belief, rest: Belief) -> Belief:
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), first, rest)


def rmse(mean: Array, states: np.ndarray) -> np.ndarray:
    """Of every bin: the root of the mean square over coordinates."""
    return np.sqrt(np.mean((np.asarray(mean) - states) ** 2, axis=-1))


def _judge(
    true: Model, ran: Ran, states: np.ndarray, num: int, seed: int, oracle: bool
) -> dict[str, float]:
    family = ran.models.family
    mean, judged = jax.vmap(family.mean)(ran.belief), pick(ran.belief, slice(num, None))
    error = rmse(mean, states)
    found = {
        "log_q": mean_log_density(family, judged, jnp.asarray(states[num:])),
        "rmse_late": float(error[num - min(LATE, num // 2) : num].mean()),
        "rmse_judged": float(error[num:].mean()),
        "roughness": roughness(np.asarray(mean[num:]), states[num:]),
    }
    return found | judge_dynamics(true, ran.models, states[:num], seed, oracle)


def judge_dynamics(
    true: Model, learned: Model, states: np.ndarray, seed: int, oracle: bool
) -> dict[str, float]:
    """How near learned dynamics are to the true ones; for an oracle, what is between true ones.

    All methods of a trial are judged on the same places and by the same true trajectories.
    """
    rng, keys = np.random.default_rng(seed), jax.random.split(jax.random.key(seed), 3)
    early = len(states) // 7
    near = states[early::10]
    near = near + 0.1 * rng.normal(size=near.shape)
    picks = states[rng.integers(early, len(states), (3, 10))]
    first = trajectories(true, picks[0], keys[0], stay=True)
    if oracle:
        second = trajectories(true, picks[1], keys[1], stay=True)
        return {"kl": 0.0, "log_chamfer": log_chamfer(first, second)}
    return {
        "kl": transition_kl(true.dynamics, learned.dynamics, jnp.asarray(near)),
        "log_chamfer": log_chamfer(first, trajectories(learned, picks[2], keys[2])),
    }


def trajectories(model: Model, starts: np.ndarray, key: Key, stay: bool = False) -> np.ndarray:
    """Of 500 bins, one from every start.

    In steps of 5 ms the true system itself escapes once in some 10,000 bins. Its trajectories are
    drawn again until they stay; those of learned dynamics end at the edge of a box.
    """
    runs = []
    for i, start in enumerate(starts):
        own = jax.random.fold_in(key, i)
        run = _trajectory(model, own, start)
        while stay and np.abs(run).max() >= FAR:
            own = jax.random.fold_in(own, 0)
            run = _trajectory(model, own, start)
        runs.append(run)
    return np.concatenate(runs)


def _trajectory(model: Model, key: Key, start: np.ndarray) -> np.ndarray:
    run = np.asarray(simulate(model, key, 500, z0=jnp.asarray(start))[0])
    return np.clip(np.nan_to_num(run, nan=FAR), -FAR, FAR)


def _series(ran: Ran, states: np.ndarray, drawn: bool) -> Result:
    """What figures show: errors of every trial; of the first also states and velocities."""
    family = ran.models.family
    mean = jax.vmap(family.mean)(ran.belief)
    error = rmse(mean, states)
    found: Result = {"moving_rmse": rounded(error.reshape(-1, MOVING).mean(axis=1))}
    if not drawn:
        return found
    std = jnp.sqrt(jax.vmap(family.var)(ran.belief))
    points = jnp.asarray(GRID.reshape(-1, 2))
    move = jax.vmap(lambda z: ran.models.dynamics.transition(z, jnp.zeros(0)))(points)
    field = jax.vmap(ran.models.dynamics.family.mean)(move) - points
    found |= {"mean": rounded(mean), "std": rounded(std), "states": rounded(states)}
    found |= {"field": rounded(field)}
    if ran.ahead is not None:
        found["ahead"] = rounded(ran.ahead)
    return found


def timings(methods: tuple[str, ...], quick: bool) -> list[dict[str, Any]]:
    """What is to be timed."""
    kinds = QUICK_KINDS if quick else KINDS
    return [{"kind": kind, "method": name} for kind in kinds for name in methods]


def ready(what: dict[str, Any], bins: int) -> Call:
    """A method at work on so many bins: it infers and learns."""
    method = METHODS[what["method"]]
    true, _, ys = problem(what["kind"], bins, 0)
    model = method.start(true.likelihood, 0)
    if isinstance(method.make, Learner):
        return ready_learner(method.make, model, ys)
    return ready_filter(method.make(True), model, ys)
