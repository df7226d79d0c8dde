"""Measure the variance that an uncorrected prediction loses, and a formula that restores it.

The uncorrected prediction averages natural parameters, and is too narrow. Section 3.6 corrects it
by the formula M P M^T, where M is the Jacobian of the dynamics at the mean of the belief, and P is
the covariance of the belief.

Here beliefs of known width are placed at latent states z that each system visits. The variance of
their true push-forward (the exact prediction) is E[V(z)] + Var f(z), where f(z) is the mean and
V(z) the variance of the transition; both terms are estimated from many samples. The lost variance
is this variance minus the variance of the uncorrected prediction. The nonlinearity is varied by the
damping of the Van der Pol system and by the gain of the network. The linear system and the Gamma
system have no such setting.
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
"""Standard deviations of the beliefs."""
NOISES = (0.05, 0.1)
"""Standard deviations of the dynamics' noise, for systems with Gaussian states. The paper uses
0.1."""
POINTS, EVERY, SETTLE = 40, 10, 100
"""Number of beliefs, number of bins between them along a simulated trajectory, and number of bins
before the first."""
SAMPLES, TRIALS = 20_000, 5
QUICK_SPREADS, QUICK_SAMPLES, QUICK_TRIALS = (0.1, 0.4), 4_000, 1
OFF = 0.1
"""The formula counts as too high or too low if its relative error is larger than this."""


def slow_turn(noise: float) -> Linear:
    """Return linear dynamics that turn states by 0.2 rad per bin, and shrink them by 2 %.

    Args:
        noise: Variance of the noise.

    Example:
        >>> np.asarray(slow_turn(0.04).weight, float).round(3).tolist()
        [[0.96, -0.195], [0.195, 0.96]]
    """
    cos, sin = np.cos(0.2), np.sin(0.2)
    return Linear(0.98 * np.array([[cos, -sin], [sin, cos]]), noise=noise)


def dynamics(system: str, nonlinearity: float, noise: float, trial: int) -> Dynamics:
    """Return the dynamics of a system.

    - "linear": a slow turn.
    - "vdp": the Van der Pol oscillator, in bins of 5 ms as in the paper. The nonlinearity is its
      damping; at 5, trajectories diverge.
    - "network": z' = g W tanh(z) with 8 latents. The nonlinearity is the gain g. One bin is a long
      step, so that the map is far from linear.
    - "gamma": the dynamics of the Gamma experiment, with b0 = 1 / noise^2.

    Args:
        system: Name of the system.
        nonlinearity: Damping or gain. Other systems ignore it.
        noise: Standard deviation of the noise.
        trial: Number of the trial, which selects the network's weights.
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
    """A system, the name of its nonlinearity, and the values at which it is measured.

    Attributes:
        label: Name of the system in tables and figures.
        knob: Name of the nonlinearity, empty if it cannot be varied.
        nonlinearities: Values of the nonlinearity.
        noises: Standard deviations of the noise.
    """

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
"""Choices of the option --methods. Here they are the systems, because there is only one method,
eVKF."""


def tasks(methods: tuple[str, ...], trials: int, quick: bool) -> list[Spec]:
    """Return the specifications of all tasks of the variance experiment.

    There is one task for each system and nonlinearity. A task runs all trials.

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
    """Total variances (traces) of the predictions from each belief, and the error of the mean."""

    true: Scalar
    """Variance of the true push-forward (the exact prediction), from samples."""
    uncorrected: Scalar
    corrected: Scalar
    matching: Scalar
    formula: Scalar
    """Value of the formula, tr(M P M^T)."""
    shift: Scalar
    """Mean of the uncorrected prediction minus the true mean, divided by the true standard
    deviation, averaged over latents."""

    @property
    def lost(self) -> Scalar:
        """Lost variance: true variance minus the variance of the uncorrected prediction."""
        return self.true - self.uncorrected


@jax.jit
def measure(
    model: Model, points: Float[Array, "K L"], spread: Scalar, normal: Float[Array, "S L"], key: Key
) -> PredictedVariances:
    """Predict the next latent state from beliefs of one width, and return the variances.

    The predictions are the exact one (by samples) and those of the rules: without correction, with
    correction, and moment matching.

    Args:
        model: The model. Only its dynamics are used.
        points: Means of the beliefs.
        spread: Standard deviation of the beliefs.
        normal: Standard normal samples, used if states are Gaussian. Gamma states use as many new
            samples.
        key: JAX random key for the samples of Gamma states.

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
    """Return a model, and latent states that its dynamics visit.

    Args:
        system: Name of the system.
        nonlinearity: Damping or gain of the system.
        noise: Standard deviation of the noise.
        trial: Number of the trial.

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
    """Run a task of the variance experiment, and return its rows and series.

    For one system and nonlinearity, the lost variance and the formula are measured at every noise
    and every width of belief. There is one row of numbers for each trial, noise and width (see
    `judge`), and a series of arrays to plot for each noise and width of trial 0.
    """
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
    """Compare the lost variance with the formula M P M^T, and return numbers over all points.

    Among them: "share" is the lost variance divided by the true variance, and "ratio" the formula
    divided by the lost variance (both from sums over points). "too_high" and "too_low" are the
    shares of points at which the formula is off by more than 10 %. "corrected" and "matching" are
    the variances of these predictions divided by the true variance.

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
