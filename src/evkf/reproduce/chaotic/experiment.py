"""Table 1: errors of filtering a chaotic network with known dynamics.

The paper does not give its constants, so there are two protocols (settings of data and error).
`public` is the protocol of Campbell et al. (2021), which the paper cites: every latent is observed
directly, with Student-t noise, and the error is per dimension. `matched` gives the numbers closest
to those in the paper: 100 channels, and the error of the whole state vector.
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
"""Number of trials that one task filters in parallel (vmap)."""
CHANNELS = 100
"""Number of channels in the matched protocol."""
TIMED = QUICK_TIMED = range(30, 120)
"""Bins whose steps are timed."""


class FilterMethod(NamedTuple):
    """A method that filters with a given model: its label and the function that makes it."""

    label: str
    make: Callable[[], Filter]
    diagonal: bool = False
    """True if the latents are independent in the beliefs of the method."""


METHODS = {
    "evkf": FilterMethod("eVKF", VariationalKalmanFilter),
    "ovs": FilterMethod("OVS", lambda: OnlineVariationalSmoother(learn=False)),
    "vjf": FilterMethod("VJF", lambda: DirectVJF(learn=False), diagonal=True),
    "svmc": FilterMethod("SVMC (5,000)", lambda: StreamingVMC(learn=False, iterations=15)),
    "enkf": FilterMethod("EnKF (1,000)", EnsembleKalman),
    "bpf": FilterMethod("BPF (10,000)", ParticleFilter),
}


def problem(protocol: str, L: int, bins: int, trial: int) -> tuple[Model, Array, Array]:
    """Return the true model of a trial, its latent states and its observations.

    Each trial has a random network of its own.

    Args:
        protocol: "public" or "matched".
        L: Number of latents.
        bins: Number of bins.
        trial: Number of the trial.
    """
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
    """Return the same model, but with beliefs in which latents are independent."""
    family = DiagonalGaussianFamily(model.family.dim)
    return Model(model.dynamics, model.likelihood, family.from_moments(*model.prior), family)


def rmse(protocol: str, mean: Array, zs: Array) -> float:
    """Return the root-mean-square error of filtered means, as the protocol defines it.

    For "public", the error of a bin is the square root of the mean square over latents, and the
    result is its mean over bins. For "matched", the squared error is summed over latents and
    averaged over bins before the square root.

    Args:
        protocol: "public" or "matched".
        mean: Filtered means, one row per bin.
        zs: True latent states.
    """
    square = (mean - zs) ** 2
    if protocol == "public":
        return float(jnp.mean(jnp.sqrt(jnp.mean(square, axis=-1))))
    return float(jnp.sqrt(jnp.mean(jnp.sum(square, axis=-1))))


def tasks(methods: tuple[str, ...], trials: int, quick: bool) -> list[Spec]:
    """Return the specifications of all tasks of Table 1.

    There is one task for each protocol, number of latents, method and block of trials.
    """
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
    """Run a task of Table 1, and return its rows, one for each trial.

    One method filters a block of trials in parallel (vmap).
    """
    protocol, name, L = spec["protocol"], spec["method"], spec["L"]
    rows = filter_trials(METHODS[name], protocol, L, spec["bins"], spec["seeds"])
    return {"rows": [{"protocol": protocol, "method": name, "L": L} | row for row in rows]}


def filter_trials(
    method: FilterMethod, protocol: str, L: int, bins: int, seeds: list[int]
) -> list[Row]:
    """Filter trials in parallel (vmap), and return one row of numbers for each trial.

    A row has the error, the coverage of 90 % intervals and the number of steps that fell back to
    the prediction. For methods that also estimate the previous bin, it has the error of that
    estimate.
    """
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
    """Return the settings of Table 1 whose steps are timed: each number of latents and method.

    If quick, only the smallest number of latents is timed. The protocol is always "public".
    """
    latents = LATENTS[:1] if quick else LATENTS
    return [{"protocol": "public", "method": name, "L": L} for L in latents for name in methods]


def ready(what: dict[str, Any], bins: int) -> TimedCall:
    """Return a function that filters one bin of Table 1, for timing.

    Args:
        what: One setting from `timings`.
        bins: Number of bins to simulate, at least as many as are timed.
    """
    method = METHODS[what["method"]]
    model, _, ys = problem(what["protocol"], what["L"], bins, 0)
    return timed_call(method.make(), diagonal(model) if method.diagonal else model, np.asarray(ys))
