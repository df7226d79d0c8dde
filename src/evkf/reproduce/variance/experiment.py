"""The variance that averaging natural parameters loses, and the formula that gives it back.

Section 3.6 adds M P M^T to the uncorrected prediction, M the Jacobian of the dynamics at the mean
of the belief and P its covariance. Here beliefs of known width stand at states that each system
visits; their true push-forward has the variance E[V(z)] + Var f(z), taken by many samples. What is
lost is that less the variance of the uncorrected prediction. Nonlinearity is the damping of Van der
Pol, the gain of a network; that of Gamma dynamics cannot be set.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evkf.dynamics import ChaoticRNN, Dynamics, GammaDynamics, Linear, VanDerPol
from evkf.filters import State
from evkf.filters import VariationalKalmanFilter as EVKF
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from evkf.reproduce.gamma import experiment as gamma
from evkf.reproduce.runner import Result, Spec, specification
from evkf.types import Key, Matrix, Scalar, Vector

SPREADS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Standard deviations of beliefs."""
NOISES = (0.05, 0.1)
"""Standard deviations of the dynamics' noise, for Gaussian states; the paper has 0.1."""
POINTS, EVERY, SETTLE = 40, 10, 100
"""Beliefs, their distance in bins along a run, and bins before the first."""
SAMPLES, TRIALS = 20_000, 5
QUICK_SPREADS, QUICK_SAMPLES, QUICK_TRIALS = (0.1, 0.4), 4_000, 1
OFF = 0.1
"""Relative error from which on a formula counts as too high or too low."""


def slow_turn(noise: float) -> Linear:
    """Return the linear system: a turn by 0.2 rad a bin, to 0.98 of the length.

    Example:
        >>> np.asarray(slow_turn(0.04).weight, float).round(3).tolist()
        [[0.96, -0.195], [0.195, 0.96]]
    """
    cos, sin = np.cos(0.2), np.sin(0.2)
    return Linear(0.98 * np.array([[cos, -sin], [sin, cos]]), noise=noise)


def dynamics(system: str, nonlinearity: float, noise: float, trial: int) -> Dynamics:
    """Return the dynamics of a system.

    Linear: a slow turn. Van der Pol: in the paper's bins of 5 ms, by its damping; at 5, runs leave
    for infinity. Network: z' = g W tanh z of 8 latents, by its gain g, far from a line in one bin.
    Gamma: as in the experiment of its own; the noise is 1 / sqrt(b0).
    """
    if system == "vdp":
        return VanDerPol(nonlinearity, noise=noise**2)
    if system == "network":
        weight = np.random.default_rng(trial).normal(size=(8, 8)) / np.sqrt(8)
        return ChaoticRNN(weight, gamma=nonlinearity, tau=1.0, dt=1.0, noise=noise**2)
    if system == "gamma":
        return GammaDynamics(gamma.network(), 2, 1 / noise**2)
    return slow_turn(noise**2)


class SweptSystem(NamedTuple):
    """A system, and the values at which it is measured."""

    label: str
    knob: str
    nonlinearities: tuple[float, ...]
    noises: tuple[float, ...]


SYSTEMS = {
    "linear": SweptSystem("linear", "", (0.0,), NOISES),
    "vdp": SweptSystem("Van der Pol", "damping", (0.5, 1.5, 3.0), NOISES),
    "network": SweptSystem("network", "gain", (0.5, 1.5, 4.0), NOISES),
    "gamma": SweptSystem("Gamma", "", (0.0,), tuple(float(b0) ** -0.5 for b0 in gamma.PRECISIONS)),
}
METHODS = SYSTEMS
"""Choices of --methods: there is only one method, eVKF."""


def tasks(methods: tuple[str, ...], trials: int, quick: bool) -> list[Spec]:
    """Specify every system by its nonlinearities.

    Example:
        >>> [spec["nonlinearity"] for spec in tasks(tuple(METHODS), 1, True)]
        [0.0, 0.5, 1.5, 3.0, 0.5, 1.5, 4.0, 0.0]
    """
    spreads, samples = (QUICK_SPREADS, QUICK_SAMPLES) if quick else (SPREADS, SAMPLES)
    given = {"spreads": list(spreads), "samples": samples}
    return [
        specification(__name__, range(trials), system=name, nonlinearity=nonlinearity, **given)
        for name in methods
        for nonlinearity in SYSTEMS[name].nonlinearities
    ]


class PredictedVariances(NamedTuple):
    """Total variances (traces) of predictions from a belief, and the error of the mean."""

    true: Scalar
    """Variance of the push-forward, by samples."""
    uncorrected: Scalar
    corrected: Scalar
    matching: Scalar
    formula: Scalar
    """tr(M P M^T)."""
    shift: Scalar
    """Distance of the uncorrected mean from the true one, in true standard deviations."""

    @property
    def lost(self) -> Scalar:
        """Variance that the uncorrected prediction lacks."""
        return self.true - self.uncorrected


@jax.jit
def measure(
    model: Model, points: Float[Array, "K L"], spread: Scalar, normal: Float[Array, "S L"], key: Key
) -> PredictedVariances:
    """Push beliefs of one width at some points forward, in truth and by every prediction.

    Args:
        model: The model; only its dynamics matter.
        points: Means of the beliefs.
        spread: Their standard deviation.
        normal: Standard normal draws, for Gaussian states; for others, as many are drawn.
        key: Key of these draws.

    Example:
        >>> model = Model(Linear([[0.5]], noise=0.1), Poisson([[1.0]]))
        >>> draws, key = jnp.array([[-1.0], [1.0]]), jax.random.key(0)
        >>> measured = measure(model, jnp.zeros((1, 1)), 2.0, draws, key)
        >>> [round(float(x[0]), 3) for x in measured[:2]], float(measured.formula[0])
        ([1.1, 0.1], 1.0)
    """
    family, none = model.family, jnp.zeros(0)

    def mean_of(z: Vector) -> Vector:
        return family.mean(model.transition(z, none))

    def var_of(z: Vector) -> Vector:
        return family.var(model.transition(z, none))

    def one(point: Vector, key: Key) -> PredictedVariances:
        cov: Matrix = spread**2 * jnp.eye(len(point))
        belief = family.from_moments(point, cov)
        gaussian = not isinstance(model.dynamics, GammaDynamics)
        zs = point + spread * normal if gaussian else family.sample(belief, key, len(normal))
        images = jax.vmap(mean_of)(zs)
        true = jnp.mean(jax.vmap(var_of)(zs), axis=0) + jnp.var(images, axis=0)
        rules = (EVKF(correct=False), EVKF(correct=True), EVKF(rule="moment_matching"))
        plain, corrected, matching = (rule.predict(model, State(belief)).belief for rule in rules)
        jacobian = jax.jacfwd(mean_of)(family.mean(belief))
        shift = (family.mean(plain) - jnp.mean(images, axis=0)) / jnp.sqrt(true)
        formula = jnp.sum((jacobian @ family.cov(belief)) * jacobian)
        return PredictedVariances(
            jnp.sum(true),
            jnp.sum(family.var(plain)),
            jnp.sum(family.var(corrected)),
            jnp.sum(family.var(matching)),
            formula,
            jnp.mean(shift),
        )

    return jax.lax.map(lambda pair: one(*pair), (points, jax.random.split(key, len(points))))


def problem(
    system: str, nonlinearity: float, noise: float, trial: int
) -> tuple[Model, Float[Array, "K L"]]:
    """Return a model, and states that it visits.

    Example:
        >>> model, points = problem("vdp", 1.5, 0.1, 0)
        >>> points.shape
        (40, 2)
    """
    moves = dynamics(system, nonlinearity, noise, trial)
    prior = gamma.prior() if system == "gamma" else None
    model = Model(moves, Poisson(np.ones((1, moves.dim))), prior)
    states, _ = simulate(model, jax.random.key(trial), SETTLE + POINTS * EVERY)
    return model, states[SETTLE::EVERY]


def run(spec: Spec) -> Result:
    """Compute a task: measure what is lost at every noise and width of belief."""
    system, nonlinearity = SYSTEMS[spec["system"]], spec["nonlinearity"]
    rows, series = [], []
    for seed in spec["seeds"]:
        keys = jax.random.split(jax.random.key(seed))
        for noise in system.noises:
            model, points = problem(spec["system"], nonlinearity, noise, seed)
            normal = jax.random.normal(keys[0], (spec["samples"], points.shape[1]))
            for spread in spec["spreads"]:
                measured = jax.device_get(measure(model, points, spread, normal, keys[1]))
                named = {"system": spec["system"], "method": "evkf", "nonlinearity": nonlinearity}
                named |= {"noise": noise, "spread": spread, "trial": seed}
                rows.append(named | judge(measured))
                if seed == 0:
                    shown = {"lost": measured.lost, "formula": measured.formula}
                    shown = {name: np.round(x, 6).tolist() for name, x in shown.items()}
                    series.append(named | shown)
    return {"rows": rows, "series": series}


def judge(measured: PredictedVariances) -> dict[str, float]:
    """Compare the variance that is lost with the formula: sums over points, and where it is off.

    Example:
        >>> same, none = np.array([3.0, 2.0]), np.zeros(2)
        >>> row = judge(PredictedVariances(same, same - 1, same, same, np.array([1.0, 1.2]), none))
        >>> round(row["ratio"], 2), row["too_high"], row["too_low"]
        (1.1, 0.5, 0.0)
    """
    lost = measured.lost
    each = measured.formula / lost
    return {
        "true": float(measured.true.mean()),
        "lost": float(lost.mean()),
        "share": float(lost.sum() / measured.true.sum()),
        "formula": float(measured.formula.mean()),
        "ratio": float(measured.formula.sum() / lost.sum()),
        "ratio_low": float(np.quantile(each, 0.1)),
        "ratio_high": float(np.quantile(each, 0.9)),
        "too_high": float(np.mean(measured.formula > (1 + OFF) * lost)),
        "too_low": float(np.mean(measured.formula < (1 - OFF) * lost)),
        "corrected": float(measured.corrected.sum() / measured.true.sum()),
        "matching": float(measured.matching.sum() / measured.true.sum()),
        "shift": float(measured.shift.mean()),
    }
