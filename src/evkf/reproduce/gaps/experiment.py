"""The gaps between bounds and log evidence in every bin (appendix, fig:supp:gaps).

The letters: y is the observation and z the latent state of a bin. The belief about z is q, and the
belief about the latent state z' of the previous bin is q'. The push-forward of q' is p~(z) =
E_q'[p(z|z')], the exact prediction. The prediction that the filter makes is q-bar, with natural
parameters lambda-bar. A is the log-partition function of the family.

L is the bound that eVKF maximises, and M the bound of methods without a prediction step. E and F
are their slacks: the gaps that the two bounds leave, apart from the error of q.

    L = E_q[log p(y|z)] - KL(q || q-bar)          M = L - (E_q'[A] - A(lambda-bar))
    E = E_q[log p~(z) - E_q' log p(z|z')]         F = E_q[log p~(z) - log q-bar(z)]

It follows that E - F = L - M, and that M + E = L + F = log p~(y) - KL(q || p~(z|y)). M is never
above log p~(y), the log evidence under the push-forward. L is never above the log evidence under
q-bar. Neither M nor L is a bound on log p(y_t|y_<t), because q' is not the true filtering
distribution.

Expectations are Gauss-Hermite sums over two latents, with many nodes. The log evidence log
p(y_t|y_<t) comes from particle filters, or from the Kalman filter for the linear system, where the
Kalman filter is exact.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from scipy.special import gammainccinv, gammaincinv
from scipy.stats import norm

from evkf.families import Family, GaussianBelief
from evkf.filters import Kalman, ParticleFilter, scan_filter
from evkf.filters import VariationalKalmanFilter as EVKF
from evkf.likelihoods import Gaussian
from evkf.model import Model, simulate
from evkf.reproduce.gamma import experiment as gamma
from evkf.reproduce.runner import Result, Spec, blocks, specification
from evkf.reproduce.streams import pick
from evkf.reproduce.tables import rounded
from evkf.reproduce.variance.experiment import slow_turn
from evkf.reproduce.vdp import experiment as vdp
from evkf.types import Belief

SYSTEMS = {
    "linear": "linear, Gaussian",
    "vdp": "Van der Pol, Poisson",
    "gamma": "Gamma, Poisson",
}
BINS, TRIALS, RUNS, PARTICLES = 300, 4, 8, 20_000
"""Number of bins, of trials, of runs of the particle filter for each trial, and of particles in
each run."""
QUICK_BINS, QUICK_TRIALS, QUICK_RUNS, QUICK_PARTICLES = 60, 1, 4, 2_000
BLOCK = 2
"""Number of trials in a task."""
INNER, OUTER = 40, 16
"""Number of quadrature nodes for each latent: under the belief about the previous bin (q'), and
under the belief about the current bin (q)."""
PRECISION = 20
"""The value of b0 (1 / variance) of the Gamma dynamics."""
ROUNDING, EXACT = 1e-9, 1e-5
"""Tolerances. ROUNDING: L may be below M by this much, times the larger of 1 and |L|. EXACT: a
bound may be above the log evidence by this many nats."""
SKIP = 5
"""Number of first bins in which only L >= M is checked. Beliefs of these bins are as wide as the
prior, too wide for the number of quadrature nodes."""
SHOWN = 100
"""Number of plotted bins of trial 0."""

METHODS = {"uncorrected": "without correction", "corrected": "with correction"}


def problem(system: str, bins: int, trial: int) -> tuple[Model, Array, Array]:
    """Return the true model of a trial, its latent states and its observations.

    Args:
        system: Name of the system, one of `SYSTEMS`.
        bins: Number of bins.
        trial: Number of the trial.

    Example:
        >>> model, states, ys = problem("linear", 20, 0)
        >>> states.shape, ys.shape
        ((20, 2), (20, 5))
    """
    if system == "vdp":
        model, states, ys = vdp.problem("poisson", bins, trial)
        return model, jnp.asarray(states), jnp.asarray(ys, float)
    if system == "gamma":
        return gamma.problem(PRECISION, bins, trial)
    C = np.random.default_rng(trial).normal(size=(5, 2))
    model = Model(slow_turn(0.04), Gaussian(C, noise=1.0))
    return model, *simulate(model, jax.random.key(trial), bins)


def tasks(methods: tuple[str, ...], trials: int, quick: bool) -> list[Spec]:
    """Return the specifications of all tasks of the gaps experiment.

    There is one task for each system and block of trials. A task runs all methods.

    Example:
        >>> [spec["system"] for spec in tasks(("uncorrected",), 1, True)]
        ['linear', 'vdp', 'gamma']
    """
    sizes = (QUICK_BINS, QUICK_RUNS, QUICK_PARTICLES) if quick else (BINS, RUNS, PARTICLES)
    given = dict(zip(("bins", "runs", "particles"), sizes, strict=True))
    return [
        specification(__name__, seeds, system=system, methods=list(methods), **given)
        for system in SYSTEMS
        for seeds in blocks(trials, BLOCK)
    ]


class BinBeliefs(NamedTuple):
    """Beliefs and bounds of every bin, from the eVKF filter. `gap` is L - M, in nats."""

    before: Belief
    """Belief about the previous bin, q'."""
    predicted: Belief
    belief: Belief
    L: Float[Array, " T"]
    gap: Float[Array, " T"]


@jax.jit
def follow(filter: EVKF, model: Model, ys: Float[Array, "T N"]) -> BinBeliefs:
    """Filter a trial, and return the beliefs and bounds of every bin."""

    def body(state: Any, y: Array) -> tuple:
        prediction = filter.predict(model, state)
        new, info = filter.update(model, prediction, y)
        return new, BinBeliefs(state.belief, prediction.belief, new.belief, info.elbo, info.gap)

    return jax.lax.scan(body, filter.init(model), ys)[1]


def nodes(
    family: Family, beliefs: Belief, num: int
) -> tuple[Float[Array, "T S L"], Float[Array, " S"]]:
    """Return Gauss-Hermite nodes and weights, for expectations under beliefs over two latents.

    The nodes of a standard normal distribution are mapped to the belief: by the Cholesky factor of
    the covariance for a Gaussian belief, and by quantiles for a Gamma belief.

    Args:
        family: Family of the beliefs.
        beliefs: Beliefs of several bins.
        num: Number of nodes for each latent.

    Example:
        >>> from evkf.families import GammaFamily
        >>> belief = GammaFamily(2).from_moments(jnp.array([2.0, 1.0]), 0.25 * jnp.eye(2))
        >>> points, weights = nodes(GammaFamily(2), belief[None], 16)
        >>> mean = weights @ points[0]
        >>> (weights @ (points[0] - mean) ** 2).round(3)
        Array([0.25, 0.25], dtype=float32)
    """
    line, weights = np.polynomial.hermite_e.hermegauss(num)
    weights = weights / weights.sum()
    plane = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    product = np.outer(weights, weights).ravel()
    if isinstance(beliefs, GaussianBelief):
        root = np.linalg.cholesky(np.asarray(beliefs.cov))
        points = np.asarray(beliefs.mean)[:, None] + plane @ np.swapaxes(root, -1, -2)
    else:
        nat = np.asarray(jax.vmap(family.nat)(beliefs))[:, None]
        shape, rate = nat[..., 0] + 1, -nat[..., 1]
        low = gammaincinv(shape, norm.cdf(np.minimum(plane, 0)))
        high = gammainccinv(shape, norm.sf(np.maximum(plane, 0)))
        points = np.where(plane < 0, low, high) / rate
    return jnp.asarray(points, float), jnp.asarray(product, float)


class Slacks(NamedTuple):
    """Slacks E and F (gaps that the bounds leave) and log evidence of every bin, in nats."""

    E: Float[Array, " T"]
    F: Float[Array, " T"]
    pushed: Float[Array, " T"]
    """Log evidence under the push-forward of the belief about the previous bin, log p~(y)."""
    predicted: Float[Array, " T"]
    """Log evidence under the prediction q-bar."""


def slacks(model: Model, bins: BinBeliefs, ys: Float[Array, "T N"]) -> Slacks:
    """Return the slacks E and F, and the log evidence under push-forward and prediction.

    Example:
        >>> model, _, ys = problem("linear", 20, 0)
        >>> bins = pick(follow(EVKF(correct=False), model, ys), slice(SKIP, None))
        >>> found = slacks(model, bins, ys[SKIP:])
        >>> bool(jnp.allclose(found.E - found.F, bins.gap, atol=1e-3))
        True
    """
    inner, outer = nodes(model.family, bins.before, INNER), nodes(model.family, bins.belief, OUTER)
    return _slacks(model, bins, ys, inner, outer)


@jax.jit
def _slacks(model: Model, bins: BinBeliefs, ys: Array, inner: tuple, outer: tuple) -> Slacks:
    """Compute the slacks from nodes under the beliefs q' (inner) and q (outer), and return them."""
    family, none = model.family, jnp.zeros(0)
    log_inner, log_outer = jnp.log(inner[1]), jnp.log(outer[1])

    def flat(tree: Any) -> Array:
        return ravel_pytree(tree)[0]

    def one(inputs: tuple) -> Slacks:
        bin, y, before, points = inputs
        nats = jax.vmap(lambda z: family.nat(model.transition(z, none)))(before)
        stats = jax.vmap(lambda z: flat(family.stats(z)))(points)
        norms = jax.vmap(family.log_partition)(nats)
        moves = jax.vmap(flat)(nats) @ stats.T - norms[:, None] + family.log_base
        pushed = jax.nn.logsumexp(log_inner[:, None] + moves, axis=0)
        predicted = jax.vmap(family.log_prob, (None, 0))(bin.predicted, points)
        own = jax.vmap(family.log_prob, (None, 0))(bin.belief, points)
        seen = jnp.ones(len(y), bool)
        likely = jax.vmap(model.likelihood.log_prob, (0, None, None))(points, y, seen)
        weight = log_outer + likely - own
        return Slacks(
            outer[1] @ (pushed - inner[1] @ moves),
            outer[1] @ (pushed - predicted),
            jax.nn.logsumexp(weight + pushed),
            jax.nn.logsumexp(weight + predicted),
        )

    return jax.lax.map(one, (bins, ys, inner[0], outer[0]))


class Evidence(NamedTuple):
    """Log evidence log p(y_t | y_<t) of every bin, and its standard error over particle filters."""

    value: Float[np.ndarray, " T"]
    error: Float[np.ndarray, " T"]


def evidence(
    model: Model, ys: Float[Array, "T N"], seed: int, runs: int, particles: int
) -> Evidence:
    """Estimate the log evidence of every bin by particle filters, and return it.

    The particle filters differ only in their random draws. Random draws also differ between trials.

    Args:
        model: The true model.
        ys: Observations.
        seed: Number of the trial.
        runs: Number of particle filters.
        particles: Number of particles in each filter.

    Example:
        >>> model, _, ys = problem("linear", 10, 0)
        >>> exact = exact_evidence(model, ys)
        >>> rough = evidence(model, ys, 0, 4, 500)
        >>> bool(np.all(np.abs(rough.value - exact) < 0.3))
        True
    """
    filter, keys = ParticleFilter(particles), jax.random.split(jax.random.key(1000 + seed), runs)
    every = [np.asarray(scan_filter(filter, model, ys, key=key)[1].info.elbo) for key in keys]
    return Evidence(np.mean(every, axis=0), np.std(every, axis=0, ddof=1) / np.sqrt(runs))


def exact_evidence(model: Model, ys: Float[Array, "T N"]) -> Float[np.ndarray, " T"]:
    """Return the log evidence of every bin from the Kalman filter, for a linear Gaussian model."""
    return np.asarray(scan_filter(Kalman(), model, ys)[1].info.elbo)


def run(spec: Spec) -> Result:
    """Run a task of the gaps experiment, and return its rows and series.

    For each trial of one system, every method filters the trial, and the bounds, slacks and log
    evidence are computed in every bin. There is one row of numbers for each trial and method (see
    `judge` and `count`), and a series of arrays to plot for each method on trial 0.
    """
    rows, series = [], []
    for seed in spec["seeds"]:
        model, _, ys = problem(spec["system"], spec["bins"], seed)
        rough = evidence(model, ys, seed, spec["runs"], spec["particles"])
        rough = Evidence(*(part[SKIP:] for part in rough))
        exact = exact_evidence(model, ys)[SKIP:] if spec["system"] == "linear" else None
        for method in spec["methods"]:
            bins = follow(EVKF(correct=method == "corrected"), model, ys)
            late = pick(bins, slice(SKIP, None))
            terms = jax.tree.map(np.asarray, slacks(model, late, ys[SKIP:]))
            L, gap = np.asarray(late.L), np.asarray(late.gap)
            named = {"system": spec["system"], "method": method, "trial": seed}
            row = judge(L, gap, terms, rough, exact)
            rows.append(named | row | count(np.asarray(bins.L), np.asarray(bins.gap)))
            if seed == 0:
                value = rough.value if exact is None else exact
                shown = {"L": L, "M": L - gap, "E": terms.E, "F": terms.F}
                shown |= {"pushed": terms.pushed, "evidence": value}
                series.append(named | {key: rounded(x[:SHOWN]) for key, x in shown.items()})
    return {"rows": rows, "series": series}


def judge(
    L: np.ndarray, gap: np.ndarray, terms: Slacks, rough: Evidence, exact: np.ndarray | None
) -> dict[str, Any]:
    """Return means over bins, how often bounds are broken, and the largest error of E - F = L - M.

    Args:
        L: The bound L of every bin.
        gap: L - M of every bin.
        terms: Slacks and log evidence of every bin.
        rough: Log evidence estimated by particle filters.
        exact: Exact log evidence, or None if it is not known.

    Example:
        >>> L, gap, nothing = np.array([-2.0, -1.0]), np.array([0.5, 0.1]), np.zeros(2)
        >>> rough = Evidence(np.array([-1.0, -1.5]), nothing)
        >>> slacks = Slacks(np.array([0.6, 0.2]), np.array([0.1, 0.1]), nothing, nothing)
        >>> row = judge(L, gap, slacks, rough, None)
        >>> row["L_above_evidence"], round(row["adds_up"], 3)
        (0.5, 0.0)
    """
    M = L - gap
    value, error = rough if exact is None else Evidence(exact, np.zeros(len(L)))
    row = {
        "L": L.mean(),
        "M": M.mean(),
        "pushed": terms.pushed.mean(),
        "predicted": terms.predicted.mean(),
        "evidence": value.mean(),
        "evidence_error": error.mean(),
        "E": terms.E.mean(),
        "F": terms.F.mean(),
        "F_least": terms.F.min(),
        "M_above_pushed": int(np.sum(~(terms.pushed - M >= -EXACT))),
        "L_above_predicted": int(np.sum(~(terms.predicted - L >= -EXACT))),
        "F_negative": np.mean(terms.F < -EXACT),
        "L_above_pushed": np.mean(terms.pushed - L < -EXACT),
        "L_above_evidence": np.mean(value - L < -2 * error - EXACT),
        "adds_up": np.max(np.abs(terms.E - terms.F - gap)),
    }
    if exact is not None:
        row["particle_bias"] = np.mean(rough.value - exact)
        row["particle_error"] = rough.error.mean()
    return {name: x if isinstance(x, int) else float(x) for name, x in row.items()}


def count(L: np.ndarray, gap: np.ndarray) -> dict[str, Any]:
    """Count the bins in which L < M, and return this number and the smallest L - M.

    Bins in which L is below M only by rounding are not counted. Bins in which a bound is NaN are
    counted.

    Example:
        >>> count(np.zeros(3), np.array([0.1, -0.1, np.nan]))
        {'bins': 3, 'gap_least': -0.1, 'violations': 2}
    """
    broken = ~(gap >= -ROUNDING * np.maximum(1, np.abs(L)))
    least = float(np.nanmin(gap))
    return {"bins": len(L), "gap_least": least, "violations": int(np.sum(broken))}
