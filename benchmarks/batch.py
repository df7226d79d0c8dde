"""Filter steps per second over many sessions at once, on whatever device JAX has.

Every session has its own spikes; the model is shared. L = 10 latents, N = 200 Poisson neurons,
float32. Prints its figures and exits non-zero when one falls short: on a GPU 2e7 steps a second.

    python benchmarks/batch.py [--sessions B ...] [--bins T] [--json FILE]
"""

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from closing import close

from evkf.dynamics import ResidualMLP
from evkf.filters import VariationalKalmanFilter
from evkf.likelihoods import Poisson
from evkf.model import Model

LATENTS, NEURONS, TARGET, REPEATS = 10, 200, 2e7, 5


def make() -> Model:
    rng = np.random.default_rng(0)
    C = rng.normal(size=(NEURONS, LATENTS)) / np.sqrt(LATENTS)
    dynamics = ResidualMLP(LATENTS, 0.05, jax.random.key(0), 32)
    return Model(dynamics, Poisson(C, np.log(10.0) * np.ones(NEURONS), bin_width=0.02))


@jax.jit
def run(model: Model, ys: jax.Array) -> tuple[jax.Array, jax.Array]:
    filter = VariationalKalmanFilter()
    step = jax.vmap(filter.step, (None, 0, 0))
    start = jax.vmap(lambda _: filter.init(model))(ys[0, :, 0])

    def body(state, y):
        state, info = step(model, state, y)
        return state, (state.belief.mean, info.status)

    _, (means, status) = jax.lax.scan(body, start, ys)
    return means, status


def measure(model: Model, sessions: int, bins: int) -> dict:
    rate = 0.02 * 10 * np.exp(0.5)
    ys = jax.random.poisson(jax.random.key(1), rate, (bins, sessions, NEURONS)).astype(jnp.float32)
    means, status = jax.block_until_ready(run(model, ys))
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(run(model, ys))
        times.append(time.perf_counter() - begin)
    row = {
        "sessions": sessions,
        "bins": bins,
        "steps_per_s": sessions * bins / float(np.median(times)),
        "not_ok": int(jnp.sum(status != 0)),
        "finite": bool(jnp.all(jnp.isfinite(means))),
    }
    print(", ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, nargs="+", default=[256, 4096, 16384, 65536])
    parser.add_argument("--bins", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = jax.devices()[0]
    print(device.device_kind)
    rows = [measure(make(), sessions, options.bins) for sessions in options.sessions]
    best = max(row["steps_per_s"] for row in rows)
    missed = []
    if device.platform == "gpu" and best < TARGET:
        missed = [f"{best:.3g} steps a second, target {TARGET:g}"]
    result = {"device": device.device_kind, "date": f"{datetime.now(UTC):%Y-%m-%d}", "rows": rows}
    return close(result, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
