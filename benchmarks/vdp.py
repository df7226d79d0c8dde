"""The Van der Pol protocol of the paper's second table, shared by the benchmarks of learning.

gamma 1.5, tau 0.1, noise 0.1, bins of 5 ms. Poisson: 150 neurons with unit preferred directions
over sqrt(3) and 25 to 50 spikes per second at the origin. Gaussian: 30 channels of variance 0.5.
"""

import jax
import jax.numpy as jnp
import numpy as np

from evkf.analysis.metrics import log_chamfer, mean_log_density, transition_kl
from evkf.dynamics import ResidualMLP, VanDerPol
from evkf.filters import State, VariationalKalmanFilter, scan_filter
from evkf.likelihoods import Gaussian, Likelihood, Poisson
from evkf.model import Model, simulate

BIN, LEARNED, HELD_OUT = 0.005, 3500, 500
FILTER = VariationalKalmanFilter()


def readout(kind: str, seed: int) -> Poisson | Gaussian:
    """The observation model of a seed."""
    rng = np.random.default_rng(seed)
    num = 150 if kind == "poisson" else 30
    C = rng.normal(size=(num, 2))
    C /= np.sqrt(3) * np.linalg.norm(C, axis=1, keepdims=True)
    b = np.log(25 + 25 * rng.random(num))
    return Poisson(C, b, bin_width=BIN) if kind == "poisson" else Gaussian(C, noise=0.5)


def recording(kind: str, seed: int, num_bins: int, gamma: float = 1.5, z0=None):
    """The true model, its states and observations."""
    true = Model(VanDerPol(gamma), readout(kind, seed))
    states, ys = simulate(true, jax.random.key(seed), num_bins, z0=z0)
    return true, np.asarray(states), np.asarray(ys)


def start(likelihood: Likelihood, seed: int, hidden: int | tuple[int, ...] = 32) -> Model:
    """A random walk with Q drawn log-uniform in [0.05^2, 0.3^2]."""
    low, high = 2 * np.log(0.05), 2 * np.log(0.3)
    noise = np.exp(np.random.default_rng(10_000 + seed).uniform(low, high))
    return Model(ResidualMLP(2, noise, jax.random.key(1000 + seed), hidden), likelihood)


def trajectories(model: Model, starts: np.ndarray, seed: int) -> np.ndarray:
    """Ten trajectories of 500 bins."""
    keys = jax.random.split(jax.random.key(seed), len(starts))
    runs = [
        simulate(model, key, 500, z0=jnp.asarray(z))[0] for key, z in zip(keys, starts, strict=True)
    ]
    return np.concatenate([np.asarray(run) for run in runs])


def judge(true: Model, learned: Model, states: np.ndarray, ys: np.ndarray, now: State) -> dict:
    """The figures of the table for dynamics learned from the first bins, now frozen.

    Args:
        true: The true model.
        learned: What was learned.
        states: True states of all bins.
        ys: Observations of all bins.
        now: The learner's filter state after the learned bins.
    """
    oracle, _ = scan_filter(FILTER, true, ys[:LEARNED])
    held_out = states[LEARNED:]

    def log_q(model: Model, state: State) -> float:
        _, trace = scan_filter(FILTER, model, ys[LEARNED:], state=state)
        return mean_log_density(model.family, trace.belief, held_out)

    return {
        "gap": log_q(true, oracle) - log_q(learned, now),
        **judge_dynamics(true, learned, states),
    }


def judge_dynamics(true: Model, learned: Model, states: np.ndarray) -> dict:
    """How near learned dynamics are to the true ones, by whatever method."""
    rng = np.random.default_rng(0)
    near = states[500:LEARNED:10]
    near = near + 0.1 * rng.normal(size=near.shape)
    picks = states[rng.integers(500, LEARNED, (3, 10))]
    first, second = trajectories(true, picks[0], 1), trajectories(true, picks[1], 2)
    ours = trajectories(learned, picks[2], 3)
    finite = bool(np.all(np.isfinite(ours)))
    floor = log_chamfer(first, second)
    return {
        "kl": transition_kl(true.dynamics, learned.dynamics, jnp.asarray(near)),
        "chamfer_above_floor": log_chamfer(first, ours) - floor if finite else np.inf,
        "finite": finite,
        "farthest": float(np.abs(ours).max()),
    }
