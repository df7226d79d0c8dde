"""Gamma dynamics (appendix sec:gamma): how much the variance correction helps for positive states.

Given the latent state z, the next latent state is Gamma(b0 f(z)^2, b0 f(z)): its mean is f(z), and
its variance is 1/b0, the noise of the dynamics. Observations are Poisson spike counts. The paper
says only that f is a network of 64 SiLU units with softplus. Here f turns states about the centre
(1.5, 1.5) by 0.3 rad per bin, onto a cycle of radius 1. There are 50 neurons, with preferred
directions of length 1 and 5 to 10 spikes per second at the centre, in bins of 20 ms. With so few
spikes, a belief is wider than the noise of the dynamics, except at the lowest b0. Filters are given
the true dynamics.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import gammainc

from evkf.analysis.metrics import mean_log_density
from evkf.dynamics import GammaDynamics, Network
from evkf.families import GammaFamily
from evkf.filters import ParticleFilter
from evkf.filters import VariationalKalmanFilter as EVKF
from evkf.filters.peers.particle import ParticleState
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from evkf.reproduce.runner import Result, Spec, blocks, specification
from evkf.reproduce.streams import pick, stack, stream
from evkf.reproduce.tables import rounded
from evkf.types import Key, Status

PRECISIONS, BINS, TRIALS = (5, 20, 80, 320), 400, 10
"""Values of b0 (precision, 1 / variance of the dynamics), number of bins, and number of trials."""
QUICK_PRECISIONS, QUICK_BINS, QUICK_TRIALS = (20, 80), 100, 2
BLOCK = 5
"""Number of trials that one task filters in parallel (vmap)."""
CENTRE, RADIUS, TURN, PULL = 1.5, 1.0, 0.3, 0.25
"""Constants of the true cycle: the centre, the radius, the turn per bin in rad, and the strength of
the pull towards the cycle."""
HIDDEN, STEEPNESS, WIDTH, RIDGE = 64, 2.0, 4.0, 1e-4
"""Constants of the network: number of units, length of their weights, width of the square [0,
WIDTH]^2 in which the units bend, and penalty of the ridge regression."""
NEURONS, BIN = 50, 0.02
PARTICLES = 10_000
GRID = np.stack(np.meshgrid(np.linspace(0.05, 3.5, 24), np.linspace(0.05, 3.5, 24)), axis=-1)
"""Grid of latent states at which the flow is plotted."""

METHODS = {
    "corrected": "eVKF",
    "uncorrected": "eVKF without correction",
    "matching": "eVKF, moment matching",
}
FILTERS = {
    "corrected": EVKF(correct=True),
    "uncorrected": EVKF(correct=False),
    "matching": EVKF(rule="moment_matching"),
}
"""Filters. They differ in how they predict the next latent state."""
PARTICLE = "particle"
"""Name of the task that runs the particle filter. Its rows are those of `REFERENCES`."""
REFERENCES = {
    "mean_log": "particles, by mean and mean log",
    "moments": "particles, by mean and variance",
}
"""Gamma distributions matched to the particles in two ways. The first has the smallest KL
divergence from the particles among all products of Gammas."""


def network() -> Network:
    """Return the network f of the true dynamics.

    Its hidden units are random. Its output weights are fitted by ridge regression, on a grid of
    states, to a map that turns states about the centre and pulls them towards a circle. The network
    itself is the truth, so the quality of this fit does not matter.

    Example:
        >>> network()(jnp.full(2, 1.5)).shape
        (2,)
    """
    # where the states of a grid move to; all stay positive
    side = np.linspace(0.02, WIDTH, 40)
    points = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    off = points - CENTRE
    square = np.sum(off**2, axis=-1, keepdims=True) / RADIUS**2
    cos, sin = np.cos(TURN), np.sin(TURN)
    rotated = off @ np.array([[cos, sin], [-sin, cos]])
    moved = np.maximum(CENTRE + rotated * (1 + PULL) / (1 + PULL * square), 0.05)

    rng = np.random.default_rng(0)
    weight = rng.normal(size=(HIDDEN, 2))
    weight *= STEEPNESS / np.linalg.norm(weight, axis=1, keepdims=True)
    bias = -np.sum(weight * rng.uniform(0, WIDTH, (HIDDEN, 2)), axis=1)
    inner = points @ weight.T + bias
    units = np.append(inner / (1 + np.exp(-inner)), np.ones((len(points), 1)), axis=1)
    gram = units.T @ units + RIDGE * len(points) * np.eye(HIDDEN + 1)
    out = np.linalg.solve(gram, units.T @ np.log(np.expm1(moved)))
    parts = (weight, out[:-1].T), (bias, out[-1])
    parts = jax.tree.map(lambda part: jnp.asarray(part, float), parts)
    made = Network([2, HIDDEN, 2], jax.random.key(0))
    return eqx.tree_at(lambda net: (net.weights, net.biases), made, parts)


def prior() -> Float[Array, "2 2"]:
    """Return the natural parameters of the prior of the first latent state, near the cycle."""
    return GammaFamily(2).from_moments(jnp.array([CENTRE + RADIUS, CENTRE]), 0.1 * jnp.eye(2))


def problem(precision: float, bins: int, trial: int) -> tuple[Model, Array, Array]:
    """Return the true model of a trial, its latent states and its spike counts.

    Args:
        precision: The value of b0.
        bins: Number of bins.
        trial: Number of the trial.

    Example:
        >>> model, states, ys = problem(20, 30, 0)
        >>> states.shape, ys.shape, bool(jnp.all(states > 0))
        ((30, 2), (30, 50), True)
    """
    rng = np.random.default_rng(trial)
    C = rng.normal(size=(NEURONS, 2))
    C /= np.linalg.norm(C, axis=1, keepdims=True)
    b = np.log(5 + 5 * rng.random(NEURONS)) - C @ np.full(2, CENTRE)
    dynamics = GammaDynamics(network(), 2, precision)
    model = Model(dynamics, Poisson(C, b, bin_width=BIN), prior())
    states, ys = simulate(model, jax.random.key(trial), bins)
    return model, states, ys


def tasks(methods: tuple[str, ...], trials: int, quick: bool) -> list[Spec]:
    """Return the specifications of all tasks of the Gamma experiment.

    There is one task for each b0, method and block of trials. The particle filter, which is the
    reference, is always one of the methods.

    Example:
        >>> [spec["method"] for spec in tasks(("corrected",), 1, True)]
        ['particle', 'corrected', 'particle', 'corrected']
    """
    bins = QUICK_BINS if quick else BINS
    return [
        specification(__name__, seeds, b0=b0, method=method, bins=bins)
        for b0 in (QUICK_PRECISIONS if quick else PRECISIONS)
        for method in (PARTICLE, *methods)
        for seeds in blocks(trials, BLOCK)
    ]


class MatchedGammas(NamedTuple):
    """Gamma distributions matched to the particles of every bin. The first axis is trials."""

    mean_log: Float[Array, "S T L 2"]
    moments: Float[Array, "S T L 2"]
    correlation: Float[Array, "S T"]
    """Correlation between the two latents under the particles. A product of Gammas has no
    correlation."""
    status: Int[Array, "S T"]


@jax.jit
def match(
    filter: ParticleFilter, models: Model, ys: Float[Array, "S T N"], keys: Key
) -> MatchedGammas:
    """Filter trials by particles in parallel (vmap), and return Gammas matched to the particles.

    The Gammas of every bin are matched in two ways: by mean and mean logarithm, and by mean and
    variance.
    """

    def one(model: Model, ys: Array, key: Key) -> MatchedGammas:
        family = model.family

        def body(carry: tuple, y: Array) -> tuple:
            state, t = carry
            state, info = filter.step(model, state, y, None, jax.random.fold_in(key, t))
            assert isinstance(state, ParticleState)
            weights, stats = jnp.exp(state.log_weights), jax.vmap(family.stats)(state.particles)
            mean = jnp.tensordot(weights, stats, 1)
            off = (state.particles - mean[:, 1]) / jnp.sqrt(family.var(state.belief))
            correlation = weights @ jnp.prod(off, axis=1)
            now = MatchedGammas(family.to_nat(mean), state.belief, correlation, info.status)
            return (state, t + 1), now

        return jax.lax.scan(body, (filter.init(model), 0), ys)[1]

    return jax.vmap(one)(models, ys, keys)


def run(spec: Spec) -> Result:
    """Run a task of the Gamma experiment, and return its rows and series.

    One method filters a block of trials in parallel (vmap). There is one row of numbers for each
    trial (see `judge`), and a series of arrays to plot for trial 0. The task of the particle filter
    has rows and series for each of the two references.
    """
    problems = [problem(spec["b0"], spec["bins"], seed) for seed in spec["seeds"]]
    models, ys = stack([model for model, _, _ in problems]), stack([ys for _, _, ys in problems])
    keys = stack([jax.random.key(seed) for seed in spec["seeds"]])
    if spec["method"] == PARTICLE:
        ran = match(ParticleFilter(PARTICLES), models, ys, keys)
        every = {name: getattr(ran, name) for name in REFERENCES}
    else:
        ran = stream(FILTERS[spec["method"]], models, ys, keys)
        every = {spec["method"]: ran.belief}
    rows, series = [], []
    for name, beliefs in every.items():
        for i, seed in enumerate(spec["seeds"]):
            named = {"b0": spec["b0"], "method": name, "trial": seed}
            model, states, _ = problems[i]
            fell = int(jnp.sum(ran.status[i] & int(Status.FELL_BACK) > 0))
            rows.append(named | judge(model, pick(beliefs, i), states) | {"fell_back": fell})
            if isinstance(ran, MatchedGammas):
                rows[-1]["correlation"] = float(jnp.mean(jnp.abs(ran.correlation[i])))
            if seed == 0:
                points = jnp.asarray(GRID.reshape(-1, 2))
                move = jax.vmap(lambda z, m=model: m.transition(z, jnp.zeros(0)))(points)
                shown = {
                    "states": states,
                    "mean": jax.vmap(model.family.mean)(pick(beliefs, i)),
                    "std": jnp.sqrt(jax.vmap(model.family.var)(pick(beliefs, i))),
                    "field": jax.vmap(model.family.mean)(move) - points,
                }
                series.append(named | {key: rounded(array) for key, array in shown.items()})
    return {"rows": rows, "series": series}


def judge(
    model: Model, beliefs: Float[Array, "T L 2"], states: Float[Array, "T L"]
) -> dict[str, float]:
    """Return numbers that say how good the beliefs of a trial are.

    - "log_q": log density of the true state, in nats per bin.
    - "rmse": root-mean-square error of the mean.
    - "coverage_90": share of true values inside the central 90 % intervals.
    - "carried": variance that beliefs pass on through the dynamics, divided by the noise 1/b0.

    Example:
        >>> model, states, _ = problem(20, 30, 0)
        >>> sharp = jax.vmap(lambda z: GammaFamily(2).from_moments(z, 0.01 * jnp.eye(2)))(states)
        >>> round(judge(model, sharp, states)["log_q"], 1)
        2.8
    """
    family, dynamics = model.family, model.dynamics
    assert isinstance(dynamics, GammaDynamics)
    mean = jax.vmap(family.mean)(beliefs)

    def carried(belief: Array) -> Array:
        def f(z: Array) -> Array:
            return family.mean(model.transition(z, jnp.zeros(0)))

        jacobian = jax.jacfwd(f)(family.mean(belief))
        return jacobian**2 @ family.var(belief) * jnp.exp(dynamics.log_precision)

    nat = np.asarray(beliefs)
    below = gammainc(nat[..., 0] + 1, -nat[..., 1] * np.asarray(states))
    return {
        "log_q": mean_log_density(family, beliefs, states),
        "rmse": float(jnp.sqrt(jnp.mean((mean - states) ** 2))),
        "coverage_90": float(np.mean((below > 0.05) & (below < 0.95))),
        "carried": float(jnp.mean(jax.vmap(carried)(beliefs))),
    }
