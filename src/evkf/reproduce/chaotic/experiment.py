"""Table 1: errors of filtering a chaotic network whose dynamics are known.

The paper names no constants. `public` is the protocol of the work that it cites (Campbell et al.
2021): every latent is observed with Student-t noise, and the error is per dimension. `matched`
comes nearest to the printed figures: 100 channels, and the error of the whole state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evkf.dynamics import ChaoticRNN
from evkf.families import DiagonalGaussianFamily, GaussianFamily
from evkf.filters import (
    DirectVJF,
    EnsembleKalman,
    Filter,
    OnlineVariationalSmoother,
    ParticleFilter,
    StreamingVMC,
    VariationalKalmanFilter,
)
from evkf.likelihoods import StudentT
from evkf.model import Model, simulate
from evkf.reproduce.runner import Result, Spec, TimedCall, blocks, specification, timed_call
from evkf.reproduce.streams import pick, stack, stream
from evkf.reproduce.tables import Row
from evkf.types import Status

PROTOCOLS = ("public", "matched")
LATENTS, BINS, TRIALS = (2, 16, 32, 64, 128), 250, 10
QUICK_PROTOCOLS, QUICK_LATENTS, QUICK_BINS, QUICK_TRIALS = ("public",), (2, 16), 60, 2
BLOCK = 5
"""Trials that are filtered side by side."""
CHANNELS = 100
"""Channels of the matched protocol."""
TIMED = QUICK_TIMED = range(30, 120)
"""Bins whose steps are timed."""


class FilterMethod(NamedTuple):
    """A method that filters with a given model."""

    label: str
    make: Callable[[], Filter]
    diagonal: bool = False
    """True if its beliefs hold latents independent."""


METHODS = {
    "evkf": FilterMethod("eVKF", VariationalKalmanFilter),
    "ovs": FilterMethod("OVS", lambda: OnlineVariationalSmoother(learn=False)),
    "vjf": FilterMethod("VJF", lambda: DirectVJF(learn=False), diagonal=True),
    "svmc": FilterMethod("SVMC (5,000)", lambda: StreamingVMC(learn=False, iterations=15)),
    "enkf": FilterMethod("EnKF (1,000)", EnsembleKalman),
    "bpf": FilterMethod("BPF (10,000)", ParticleFilter),
}


def problem(protocol: str, L: int, bins: int, trial: int) -> tuple[Model, Array, Array]:
    """Return the model of a trial, a network of its own, with its states and observations."""
    key = jax.random.fold_in(jax.random.key(L), trial)
    weight_key, run_key = jax.random.split(key)
    weight = jax.random.normal(weight_key, (L, L)) / np.sqrt(L)
    if protocol == "public":
        likelihood = StudentT(np.eye(L), df=2.0, scale=0.1)
    else:
        C = np.random.default_rng([L, trial]).normal(size=(CHANNELS, L))
        likelihood = StudentT(C, df=2.0, scale=0.25)
    prior = GaussianFamily(L).from_moments(jnp.zeros(L), 0.01 * jnp.eye(L))
    model = Model(ChaoticRNN(weight), likelihood, prior)
    zs, ys = simulate(model, run_key, bins)
    return model, zs, ys


def diagonal(model: Model) -> Model:
    """Return a model whose beliefs hold latents independent."""
    family = DiagonalGaussianFamily(model.family.dim)
    return Model(model.dynamics, model.likelihood, family.from_moments(*model.prior), family)


def rmse(protocol: str, mean: Array, zs: Array) -> float:
    """Return the error by the definition of the protocol."""
    square = (mean - zs) ** 2
    if protocol == "public":
        return float(jnp.mean(jnp.sqrt(jnp.mean(square, axis=-1))))
    return float(jnp.sqrt(jnp.mean(jnp.sum(square, axis=-1))))


def tasks(methods: tuple[str, ...], trials: int, quick: bool) -> list[Spec]:
    """Specify every protocol and size by every method, the trials in blocks."""
    protocols, latents, bins = (
        (QUICK_PROTOCOLS, QUICK_LATENTS, QUICK_BINS) if quick else (PROTOCOLS, LATENTS, BINS)
    )
    return [
        specification(__name__, seeds, protocol=protocol, method=method, L=L, bins=bins)
        for protocol in protocols
        for L in latents
        for method in methods
        for seeds in blocks(trials, BLOCK)
    ]


def run(spec: Spec) -> Result:
    """Compute a task: filter a block of trials side by side."""
    protocol, name, L = spec["protocol"], spec["method"], spec["L"]
    rows = filter_trials(METHODS[name], protocol, L, spec["bins"], spec["seeds"])
    return {"rows": [{"protocol": protocol, "method": name, "L": L} | row for row in rows]}


def filter_trials(
    method: FilterMethod, protocol: str, L: int, bins: int, seeds: list[int]
) -> list[Row]:
    """Filter trials side by side, and return a row of figures for each."""
    problems = [problem(protocol, L, bins, seed) for seed in seeds]
    models = [diagonal(model) if method.diagonal else model for model, _, _ in problems]
    keys = stack([jax.random.key(seed) for seed in seeds])
    ran = stream(method.make(), stack(models), stack([ys for _, _, ys in problems]), keys)
    family, rows = models[0].family, []
    for i, (seed, (_, zs, _)) in enumerate(zip(seeds, problems, strict=True)):
        mean = jax.vmap(family.mean)(pick(ran.belief, i))
        std = jnp.sqrt(jax.vmap(family.var)(pick(ran.belief, i)))
        row: Row = {
            "trial": seed,
            "rmse": rmse(protocol, mean, zs),
            "coverage_90": float(jnp.mean(jnp.abs(mean - zs) < 1.6449 * std)),
            "fell_back": int(jnp.sum(ran.status[i] & int(Status.FELL_BACK) > 0)),
        }
        if ran.smoothed is not None:
            back = jax.vmap(family.mean)(pick(ran.smoothed, i))
            row["rmse_one_bin_back"] = rmse(protocol, back[1:], zs[:-1])
        rows.append(row)
    return rows


def timings(methods: tuple[str, ...], quick: bool) -> list[dict[str, Any]]:
    """List what is timed: every size, if quick the smallest alone, by every method."""
    latents = LATENTS[:1] if quick else LATENTS
    return [{"protocol": "public", "method": name, "L": L} for L in latents for name in methods]


def ready(what: dict[str, Any], bins: int) -> TimedCall:
    """Return a method that is ready to filter so many bins."""
    method = METHODS[what["method"]]
    model, _, ys = problem(what["protocol"], what["L"], bins, 0)
    return timed_call(method.make(), diagonal(model) if method.diagonal else model, np.asarray(ys))
