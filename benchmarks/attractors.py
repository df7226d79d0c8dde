"""Lorenz and ring attractor behind Poisson neurons, everything unknown, against targets.

150 neurons with random preferred directions, bins of 10 ms, one pass over 8000 bins: the readout
from the first 1000, then dynamics, noise and readout learned while they stream. Judged: forecasts
of 10 bins in predictive nats against persistence and the best linear model, both given the learned
readout and beliefs and the covariances of their own errors; and the learned portrait after the best
affine map onto the true states.

    python benchmarks/attractors.py [--quick] [--json FILE]
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from closing import close

from evkf.analysis.forecasting import forecast, predictive_log_prob
from evkf.analysis.metrics import affine_map, affine_r2
from evkf.analysis.phase import fixed_points
from evkf.dynamics import Lorenz, ResidualMLP, RingAttractor
from evkf.families import GaussianBelief
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.learning import Learner, warm_up
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate

BIN, NEURONS, LEARNED, HELD_OUT, WARM_UP, AHEAD = 0.01, 150, 8000, 1000, 1000, 10
FILTER = VariationalKalmanFilter()
SYSTEMS = {
    "lorenz": (Lorenz(), jnp.array([0.5, 0.5, 2.0]), np.array([0.0, 0.0, 2.4]), 3**-0.5),
    "ring": (RingAttractor(noise=1e-2), jnp.array([1.0, 0.0]), np.zeros(2), 2.0),
}
"""Dynamics, first state, the state at which neurons fire at their base rate, norm of the rows of C.
On the ring the last makes von Mises tuning of concentration 2."""

SLOW = 0.02
"""Where states move less in a bin is the slow set. A fifth of the ring's noise, which is twice the
standard error of a drift where states have been for a hundred bins, as in the least visited parts.
"""


def recording(name: str, seed: int) -> tuple[Model, np.ndarray, np.ndarray]:
    """The true model, states and counts; 500 bins before are dropped."""
    dynamics, z0, centre, gain = SYSTEMS[name]
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(NEURONS, dynamics.dim))
    C *= gain / np.linalg.norm(C, axis=1, keepdims=True)
    b = np.log(25 + 25 * rng.random(NEURONS)) - C @ centre
    b -= np.log(np.i0(gain)) if name == "ring" else 0
    true = Model(dynamics, Poisson(C, b, bin_width=BIN))
    zs, ys = simulate(true, jax.random.key(seed), 500 + LEARNED + HELD_OUT, z0=z0)
    return true, np.asarray(zs)[500:], np.asarray(ys)[500:]


@jax.jit
def score(model: Model, beliefs: GaussianBelief, ys: jax.Array) -> jax.Array:
    """Predictive nats of every bin under a belief about it."""
    seen = jnp.ones(ys.shape[1], bool)
    key = jax.random.key(0)
    return jax.vmap(lambda q, y: predictive_log_prob(model, q, y, seen, key, 256))(beliefs, ys)


@jax.jit
def learned_forecast(model: Model, beliefs: GaussianBelief) -> GaussianBelief:
    """The learned model's belief about the bin `AHEAD` bins later."""

    def one(belief: GaussianBelief) -> GaussianBelief:
        coming = forecast(FILTER, model, belief, AHEAD)
        return GaussianBelief(coming.mean[-1], coming.cov[-1])

    return jax.vmap(one)(beliefs)


def linear_forecast(past: np.ndarray, now: GaussianBelief, persist: bool) -> GaussianBelief:
    """Persistence, or the best linear map over the horizon, with the covariance of its errors: of
    the estimate ahead, and of the state around that estimate.
    """
    present = np.asarray(now.mean)
    before, after = past[:-AHEAD], past[AHEAD:]
    dim = past.shape[1]
    weight, offset = (np.eye(dim), np.zeros(dim)) if persist else affine_map(before, after)
    cov = np.cov((after - before @ weight - offset).T) + np.mean(now.cov, axis=0)
    mean = present @ weight + offset
    return GaussianBelief(
        jnp.asarray(mean), jnp.broadcast_to(jnp.asarray(cov), (len(mean), dim, dim))
    )


def portrait(name: str, model: Model, means: np.ndarray, states: np.ndarray) -> dict:
    """Fixed points of Lorenz, or where the ring's states come to rest, in true coordinates."""
    weight, offset = affine_map(means, states)
    if name == "lorenz":
        true = SYSTEMS[name][0]
        found = fixed_points(model.dynamics, jnp.asarray(means[::40]))
        points = np.asarray(found.points) @ weight + offset
        radius = np.sqrt(np.mean(np.sum((states - states.mean(axis=0)) ** 2, axis=1)))
        side = np.sqrt(float(true.beta * (true.rho - 1))) / float(true.scale)
        height = float((true.rho - 1) / true.scale)
        distances, unstable = [], []
        for sign in (1, -1):
            target = np.array([sign * side, sign * side, height])
            gaps = np.linalg.norm(points - target, axis=1) / radius
            nearest = int(np.argmin(gaps)) if len(gaps) else None
            distances.append(float(gaps[nearest]) if nearest is not None else np.inf)
            sizes = np.abs(found.eigenvalues[nearest]) if nearest is not None else np.zeros(3)
            # A saddle-focus: a slowly growing spiral, and one direction that falls in.
            unstable.append(bool(np.sum(sizes > 1) == 2))
        return {"distance": max(distances), "right_stability": all(unstable)}

    def rest(z: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 30, lambda _, z: model.dynamics.mean(z, jnp.zeros(0)), z)

    settled = jax.jit(jax.vmap(rest))(jnp.asarray(means[::10]))
    moved = jax.vmap(lambda z: model.dynamics.mean(z, jnp.zeros(0)))(settled) - settled
    speed = np.linalg.norm(np.asarray(moved) @ weight, axis=1)
    slow = (np.asarray(settled) @ weight + offset)[speed <= SLOW]
    angles = np.unique(np.floor(np.arctan2(slow[:, 1], slow[:, 0]) * 6 / np.pi))
    off = np.abs(np.linalg.norm(slow, axis=1) - 1)
    return {
        "distance": float(np.quantile(off, 0.95)) if len(slow) else np.inf,
        "sectors_of_12": len(angles),
        "slow_share": len(slow) / len(speed),
    }


def run(name: str, seed: int) -> dict:
    """Learn one recording and judge it."""
    true, states, ys = recording(name, seed)
    found = warm_up(ys[:WARM_UP], true.family.dim, "poisson", BIN)
    model = Model(ResidualMLP(true.family.dim, 0.05, jax.random.key(seed)), found)
    learner = Learner(parts=("dynamics", "noise", "readout"))
    state, trace = learner.scan(learner.init(model), ys[:LEARNED])
    _, after = scan_filter(FILTER, state.model, ys[LEARNED:], state=state.filter)
    means = np.asarray(trace.belief.mean[LEARNED // 2 :])
    starts = jax.tree.map(lambda leaf: leaf[:-AHEAD:2], after.belief)
    coming = jnp.asarray(ys[LEARNED:][AHEAD::2])
    nats = {
        "learned": learned_forecast(state.model, starts),
        "persistence": linear_forecast(means, starts, persist=True),
        "linear": linear_forecast(means, starts, persist=False),
    }
    row = {who: float(np.mean(score(state.model, q, coming))) for who, q in nats.items()}
    row["r2"] = affine_r2(after.belief.mean, states[LEARNED:])
    return row | portrait(name, state.model, means, states[LEARNED // 2 : LEARNED])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seeds")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    result, missed = {}, []
    for name in SYSTEMS:
        rows = []
        for seed in range(2 if options.quick else 10):
            rows.append(run(name, seed))
            print(name, seed, *(f"{k} {v:.3f}" for k, v in rows[-1].items()), flush=True)
        result[name] = rows
        for other in ("persistence", "linear"):
            better = np.array([row["learned"] - row[other] for row in rows])
            error = better.std(ddof=1) / np.sqrt(len(better))
            print(f"{name}: {better.mean():.4f} +- {error:.4f} nats per bin better than {other}")
            if not better.mean() > 2 * error:
                missed.append(f"{name}: not better than {other}")
        far = max(row["distance"] for row in rows)
        print(f"{name}: fixed points or slow set off by at most {far:.3f} of the radius")
        if not far <= 0.1:
            missed.append(f"{name}: portrait off by {far:.3f}")
        if not all(row.get("sectors_of_12", 12) == 12 for row in rows):
            missed.append(f"{name}: the slow set is no ring")
        if not all(row.get("right_stability", True) for row in rows):
            missed.append(f"{name}: wrong stability of a fixed point")
    return close(result, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
