"""Table 1: errors of filtering a chaotic network whose dynamics are known.

The paper names no constants. `public` is the protocol of the work that it cites (Campbell et al.
2021): every latent is seen with Student-t noise, and the error is per dimension. `matched` comes
nearest to the printed figures: 100 channels, and the error of the whole state.
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
from evkf.reproduce.runner import Result, Spec, blocks, specification
from evkf.reproduce.streams import Call, pick, ready_filter, stack, stream
from evkf.types import Status

PROTOCOLS = ("public", "matched")
LATENTS, BINS, TRIALS = (2, 16, 32, 64, 128), 250, 10
QUICK_PROTOCOLS, QUICK_LATENTS, QUICK_BINS, QUICK_TRIALS = ("public",), (2, 16), 60, 2
BLOCK = 5
"""Trials that are filtered side by side."""
CHANNELS = 100
"""Of the matched protocol."""
TIMED = QUICK_TIMED = range(30, 120)
"""Bins whose steps are timed."""


class Method(NamedTuple):
    """How a method of the table is made."""

    label: str
    make: Callable[[], Filter]
    diagonal: bool = False
    """Whether it has beliefs of independent latents."""


METHODS = {
    "evkf": Method("eVKF", VariationalKalmanFilter),
    "ovs": Method("OVS", lambda: OnlineVariationalSmoother(learn=False)),
    "vjf": Method("VJF", lambda: DirectVJF(learn=False), diagonal=True),
    "svmc": Method("SVMC (5,000)", lambda: StreamingVMC(learn=False, iterations=15)),
    "enkf": Method("EnKF (1,000)", EnsembleKalman),
    "bpf": Method("BPF (10,000)", ParticleFilter),
}


def problem(protocol: str, L: int, bins: int, trial: int) -> tuple[Model, Array, Array]:
    """A network of its own, its states, and what is observed of them."""
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


def rmse(protocol: str, mean: Array, zs: Array) -> float:
    """The error as the protocol has it."""
    square = (mean - zs) ** 2
    if protocol == "public":
        return float(jnp.mean(jnp.sqrt(jnp.mean(square, axis=-1))))
    return float(jnp.sqrt(jnp.mean(jnp.sum(square, axis=-1))))


def tasks(methods: tuple[str, ...], trials: int, quick: bool) -> list[Spec]:
    """Every protocol and size by every method, the trials in blocks."""
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
    """Filter a block of trials side by side."""
    method, given = METHODS[spec["method"]], (spec["protocol"], spec["L"], spec["bins"])
    problems = [problem(*given, seed) for seed in spec["seeds"]]
    models = stack([_model(method, model) for model, _, _ in problems])
    keys = stack([jax.random.key(seed) for seed in spec["seeds"]])
    ran = stream(method.make(), models, stack([ys for _, _, ys in problems]), keys)
    rows = []
    for i, (seed, (model, zs, _)) in enumerate(zip(spec["seeds"], problems, strict=True)):
        family = _model(method, model).family
        mean = jax.vmap(family.mean)(pick(ran.belief, i))
        std = jnp.sqrt(jax.vmap(family.var)(pick(ran.belief, i)))
        row: dict[str, Any] = {name: spec[name] for name in ("protocol", "method", "L")}
        row |= {
            "trial": seed,
            "rmse": rmse(given[0], mean, zs),
            "coverage_90": float(jnp.mean(jnp.abs(mean - zs) < 1.6449 * std)),
            "fell_back": int(jnp.sum(ran.status[i] & int(Status.FELL_BACK) > 0)),
        }
        if ran.smoothed is not None:
            back = jax.vmap(family.mean)(pick(ran.smoothed, i))
            row["rmse_one_bin_back"] = rmse(given[0], back[1:], zs[:-1])
        rows.append(row)
    return {"rows": rows}


def _model(method: Method, model: Model) -> Model:
    if not method.diagonal:
        return model
    family = DiagonalGaussianFamily(model.family.dim)
    prior = family.from_moments(*model.prior)
    return Model(model.dynamics, model.likelihood, prior, family)


def timings(methods: tuple[str, ...], quick: bool) -> list[dict[str, Any]]:
    """What is to be timed; if quick, the smallest size."""
    latents = LATENTS[:1] if quick else LATENTS
    return [{"protocol": "public", "method": name, "L": L} for L in latents for name in methods]


def ready(what: dict[str, Any], bins: int) -> Call:
    """A method at work on so many bins."""
    method = METHODS[what["method"]]
    model, _, ys = problem(what["protocol"], what["L"], bins, 0)
    return ready_filter(method.make(), _model(method, model), np.asarray(ys))
