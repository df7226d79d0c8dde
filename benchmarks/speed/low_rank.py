"""Beliefs of low rank beside full covariances: the time of a step, and what is lost by it."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from evkf.dynamics import ResidualMLP
from evkf.families import GaussianFamily, LowRankGaussianFamily
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from evkf.reproduce.chaotic.experiment import problem
from speed.core import Figure, Part, Say, Stream, time_in_turn

RANK = 16
BESIDE, QUICK_BESIDE = (256, 2000), (32, 200)
"""Latent dimensions and channels at which both kinds are timed."""
LEAST_FASTER = 5.0
LARGE, QUICK_LARGE = (1024, 10_000), (64, 400)
MOST_MS = 100.0
CALLS, QUICK_CALLS, WARM_UP = 50, 5, 3
BINS = 20
"""Bins of the recording that steps are timed on, again and again."""
NETWORK, NETWORK_BINS, TRIALS = 64, 250, 10
"""Latents, bins and trials of the chaotic network on which accuracy is compared."""
QUICK_BINS, QUICK_TRIALS = 60, 1
MOST_ERROR, MOST_NATS = 1.05, 0.1


def build(L: int, N: int, seed: int, rank: int | None = RANK) -> Model:
    """A random network behind Poisson channels; full covariances where there is no rank."""
    rng = np.random.default_rng(seed)
    C = rng.standard_normal((N, L)) / math.sqrt(L)
    dynamics = ResidualMLP(L, 0.01, jax.random.key(seed), 64)
    family = GaussianFamily(L) if rank is None else LowRankGaussianFamily(L, rank)
    return Model(dynamics, Poisson(C, -np.ones(N)), family=family)


def stream(L: int, N: int, seed: int, rank: int | None = RANK) -> Stream:
    """A compiled step of that model, and bins simulated from it."""
    low = build(L, N, seed)
    _, ys = simulate(low, jax.random.key(seed), BINS)
    return Stream(low if rank == RANK else build(L, N, seed, rank), ys)


def run(quick: bool, seed: int, say: Say) -> Part:
    """Times at two sizes, and accuracy on a chaotic network."""
    num = QUICK_CALLS if quick else CALLS
    with jax.enable_x64(False):
        L, N = QUICK_BESIDE if quick else BESIDE
        both = [stream(L, N, seed), stream(L, N, seed, None)]
        times = 1e3 * np.median(time_in_turn(both, num, WARM_UP), axis=0)
        low, full = float(times[0]), float(times[1])
        say(f"L = {L}, N = {N}: rank {RANK} {low:.2f} ms, full covariance {full:.2f} ms")
        rows: list[dict] = [{"what": "step", "L": L, "N": N, "low_rank_ms": low, "full_ms": full}]
        size = f"rank {RANK}, L = {L}, N = {N}"
        name = f"a step of low rank is faster than one of full covariance, {size}"
        least, most = (None, None) if quick else (LEAST_FASTER, MOST_MS)
        figures = [Figure(name, full / low, "times", least, True, "low-rank")]
        L, N = QUICK_LARGE if quick else LARGE
        large = 1e3 * float(np.median(time_in_turn([stream(L, N, seed)], num, WARM_UP)))
        say(f"L = {L}, N = {N}: rank {RANK} {large:.1f} ms")
        rows.append({"what": "step", "L": L, "N": N, "low_rank_ms": large})
        name = f"one step, rank {RANK}, L = {L}, N = {N}"
        figures.append(Figure(name, large, "ms", most, False, "low-rank"))
        row = accuracy(
            QUICK_BINS if quick else NETWORK_BINS, QUICK_TRIALS if quick else TRIALS, seed
        )
    say(
        f"chaotic network, L = {NETWORK}: RMSE {row['low_rank_rmse']:.4f}, with full covariance "
        f"{row['full_rmse']:.4f}; {row['nats_lost']:.3f} nats per dimension lost"
    )
    ratio = row["low_rank_rmse"] / row["full_rmse"]
    where = f"of low rank against full covariance, chaotic network, L = {NETWORK}"
    figures += [
        Figure(f"RMSE {where}", ratio, "times", MOST_ERROR, False, "low-rank"),
        Figure(
            f"log density lost {where}",
            row["nats_lost"],
            "nats per dimension",
            MOST_NATS,
            False,
            "low-rank",
        ),
    ]
    return Part([*rows, row], figures)


def accuracy(num_bins: int, trials: int, seed: int) -> dict:
    """Errors and log densities of both kinds of beliefs, on the public protocol of Table 1."""
    L, filter = NETWORK, VariationalKalmanFilter()
    errors, densities = np.zeros((trials, 2)), np.zeros((trials, 2))
    for trial in range(trials):
        full, zs, ys = problem("public", L, num_bins, seed * TRIALS + trial)
        family = LowRankGaussianFamily(L, RANK)
        prior = family.from_moments(*full.prior)
        low = Model(full.dynamics, full.likelihood, prior, family)
        for i, model in enumerate((low, full)):
            belief = scan_filter(filter, model, ys)[1].belief
            off = jax.vmap(model.family.mean)(belief) - zs
            errors[trial, i] = jnp.mean(jnp.sqrt(jnp.mean(off**2, axis=-1)))
            density = jax.vmap(model.family.log_prob)(belief, zs)
            densities[trial, i] = jnp.mean(density) / L
    low, full = errors.mean(axis=0)
    return {
        "what": "chaotic network",
        "L": L,
        "bins": num_bins,
        "trials": trials,
        "low_rank_rmse": float(low),
        "full_rmse": float(full),
        "low_rank_log_density": float(densities[:, 0].mean()),
        "full_log_density": float(densities[:, 1].mean()),
        "nats_lost": float(np.mean(densities[:, 1] - densities[:, 0])),
    }
