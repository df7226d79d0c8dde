"""Hostile float32 streams: silence, bursts, dead units, nothing observed, unstable dynamics.

Every belief must stay finite and positive definite, bin after bin. Prints what it saw and exits
non-zero when a belief was not.

    python benchmarks/adversarial.py [--quick] [--json FILE]
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from closing import close

from evkf.dynamics import ChaoticRNN, Linear
from evkf.filters import State, VariationalKalmanFilter
from evkf.likelihoods import NegativeBinomial, Poisson
from evkf.model import Model
from evkf.types import Status

L, N = 20, 200
CHUNK = 1000


def stream(rng: np.random.Generator, num: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Counts and masks of a hostile recording, in spells of 50 bins."""
    ys = rng.poisson(0.3, size=(num, N)).astype(np.float32)
    masks = np.ones((num, N), bool)
    if kind == "silence":
        ys[:] = 0
    if kind == "masked":
        masks[:] = False
    if kind == "dead_units":
        ys[:, : N // 2] = 0
        masks[:, N // 2 :] = rng.random((num, N - N // 2)) < 0.5
    if kind in ("bursts", "mixed"):
        for start in range(0, num, 50):
            spell = slice(start, start + 50)
            what = rng.integers(6)
            if what == 0:
                ys[spell] = 0
            elif what == 1:
                ys[spell] = 10_000
            elif what == 2:
                ys[spell] = rng.integers(0, 10_001, size=ys[spell].shape)
            elif what == 3:
                ys[spell, rng.integers(N)] = 10_000
            elif what == 4 and kind == "mixed":
                masks[spell] = False
            elif what == 5 and kind == "mixed":
                masks[spell] = rng.random((len(ys[spell]), N)) < 0.05
    return ys, masks


def models(rng: np.random.Generator) -> dict[str, Model]:
    """Chaotic, unstable and collinear; counts that are Poisson or overdispersed."""
    C = (rng.normal(size=(N, L)) / np.sqrt(L)).astype(np.float32)
    b = rng.normal(-1.5, 0.5, size=N).astype(np.float32)
    poisson = Poisson(C, b)
    flat = Poisson(np.repeat(C[:, :1], L, axis=1), b)
    weight = rng.normal(size=(L, L)) / np.sqrt(L)
    chaotic = ChaoticRNN(weight)
    return {
        "chaotic": Model(chaotic, poisson),
        "unstable": Model(Linear(1.05 * np.eye(L) + 0.02 * weight, noise=0.01), poisson),
        "collinear": Model(Linear(np.eye(L), noise=1e-4), flat),
        "overdispersed": Model(chaotic, NegativeBinomial(C, b, dispersion=0.5)),
    }


def hostile_run(model: Model, ys: np.ndarray, masks: np.ndarray) -> dict:
    """Filter a stream in chunks and count what went wrong."""
    filter = VariationalKalmanFilter()

    @jax.jit
    def chunk(state: State, ys: jax.Array, masks: jax.Array) -> tuple:
        def body(state: State, inputs: tuple) -> tuple:
            state, info = filter.step(model, state, *inputs)
            mean, cov = state.belief
            # Positive definite for anyone who factorises it, in the precision it is stored in.
            sound = jnp.all(jnp.isfinite(mean)) & jnp.all(jnp.isfinite(jnp.linalg.cholesky(cov)))
            return state, (sound, info.status, info.evaluations)

        return jax.lax.scan(body, state, (ys, masks))

    state = filter.init(model)
    seen = []
    for start in range(0, len(ys), CHUNK):
        part = slice(start, start + CHUNK)
        state, found = chunk(state, jnp.asarray(ys[part]), jnp.asarray(masks[part]))
        seen.append(jax.device_get(found))
    sound, status, evaluations = (np.concatenate(column) for column in zip(*seen, strict=True))
    return {
        "bins": len(ys),
        "unsound": int((~sound).sum()),
        "fell_back": int((status & Status.FELL_BACK > 0).sum()),
        "not_converged": int((status & Status.NOT_CONVERGED > 0).sum()),
        "capped": int((status & Status.CAPPED > 0).sum()),
        "evaluations": float(evaluations.mean()),
    }


def run(num: int) -> list[dict]:
    """Every stream through the chaotic model, the mixed one through all."""
    rng = np.random.default_rng(0)
    zoo = models(rng)
    pairs = [("chaotic", kind) for kind in ("silence", "bursts", "dead_units", "masked")]
    pairs += [("unstable", "masked"), *((name, "mixed") for name in zoo)]
    rows = []
    for name, kind in pairs:
        row = {"model": name, "stream": kind, **hostile_run(zoo[name], *stream(rng, num, kind))}
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2,000 bins a stream, not 100,000")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    rows = run(2_000 if options.quick else 100_000)
    unsound = sum(row["unsound"] for row in rows)
    told = f"{unsound} unsound beliefs in {sum(row['bins'] for row in rows)} bins"
    print(told)
    return close({"rows": rows}, [told] * (unsound > 0), options.json)


if __name__ == "__main__":
    sys.exit(main())
