"""What Kalman-type filters share: conditioning on an observation that is linear in the state.

State and observation deviate from their means together, $z = m + Xe$ and $y = \\hat y + Ye + r$
with $e \\sim N(0, I)$ and $r \\sim N(0, R)$. The columns of X and Y are a root of the covariance
and its image, sigma points, or the members of an ensemble. What is factorised is $I$ plus a Gram
matrix, in the space of the columns or of the channels, whichever is smaller.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.families import GaussianBelief, GaussianFamily
from evkf.filters.base import Info, State, evidence_info
from evkf.filters.evkf.predict import cap
from evkf.likelihoods.base import ChannelCov, Channels
from evkf.model import Model
from evkf.numerics.linalg import (
    all_finite,
    cholesky,
    factorisable,
    inverse_lower,
    solve_lower,
    tree_where,
)
from evkf.types import Mask, Matrix, Observation, Scalar, Status, Vector


class GaussianPrediction(NamedTuple):
    """The belief before the observation, and the bits of `Status` that making it has set."""

    belief: GaussianBelief
    status: Int[Array, ""]


class Conditioned(NamedTuple):
    """What an observation does to the state."""

    gain: Float[Array, "L N"]
    """What whitened residuals shift the mean by."""
    cov: Matrix
    fit: Scalar
    """Log density of the residual, but for the constant of the noise."""


def check_gaussian(model: Model, name: str) -> None:
    """Refuse what a filter of means and covariances cannot hold, or cannot linearise.

    Args:
        model: The model.
        name: Of the filter, for the error.
    """
    if not isinstance(model.dynamics, GaussianDynamics):
        raise InputError(
            f"{name} for {type(model.dynamics).__name__}",
            "model.dynamics",
            "use dynamics with additive Gaussian noise, VariationalKalmanFilter or ParticleFilter",
        )
    if not isinstance(model.family, GaussianFamily):
        raise InputError(
            f"{name} for {type(model.family).__name__} beliefs",
            "model.family",
            "leave family out of the model: the filter carries a full covariance",
        )
    check_moments(model, name)


def check_moments(model: Model, name: str, cov: bool = True) -> None:
    """Refuse a likelihood that does not state the mean of y given z, and its covariance if that is
    needed; all that is missing is said at once.
    """
    z = jax.ShapeDtypeStruct((model.family.dim,), jax.tree.leaves(model.prior)[0].dtype)
    missing = []
    for function in (model.likelihood.mean, model.likelihood.cov)[: 1 + cov]:
        try:
            jax.eval_shape(function, z)
        except InputError as error:
            missing.append(error)
    if missing:
        needs = "mean and covariance" if cov else "the mean"
        raise InputError(
            f"{name} needs {needs} of y given z: {', '.join(e.what for e in missing)}",
            missing[0].where,
            " and ".join(e.remedy for e in missing),
        )


def largest(dtype: jnp.dtype) -> float:
    """Bound on means and standard deviations: the fourth power is still finite."""
    return float(jnp.finfo(dtype).max) ** 0.25


def whiten(cov: ChannelCov, mask: Mask, columns: Float[Array, "N K"]) -> Float[Array, "N K"]:
    """Columns in units of the noise; zero in channels that are not observed."""
    columns = jnp.where(mask[:, None], columns, 0)
    if cov.ndim == 1:
        return columns / jnp.sqrt(jnp.where(mask, cov, 1))[:, None]
    return solve_lower(cholesky(_observed(cov, mask)), columns)


def log_scale(cov: ChannelCov, mask: Mask) -> Scalar:
    """Log normaliser of the noise in the observed channels."""
    count = jnp.sum(mask)
    if cov.ndim == 1:
        log_det = 0.5 * jnp.sum(jnp.log(jnp.where(mask, cov, 1)))
    else:
        log_det = jnp.sum(jnp.log(jnp.diagonal(cholesky(_observed(cov, mask)))))
    return -0.5 * count * math.log(2 * math.pi) - log_det


def _observed(cov: Float[Array, "N N"], mask: Mask) -> Float[Array, "N N"]:
    """A masked channel becomes an independent one of unit variance that is not read."""
    both = mask[:, None] & mask[None, :]
    return jnp.where(both, cov, jnp.eye(len(mask), dtype=cov.dtype))


def condition(
    spread: Float[Array, "L S"], seen: Float[Array, "N S"], residual: Channels
) -> Conditioned:
    """Condition on an observation.

    Args:
        spread: X.
        seen: Y, whitened by the noise.
        residual: $y - \\hat y$, whitened by the noise.
    """
    channels, columns = seen.shape
    if columns <= channels:
        root = cholesky(jnp.eye(columns, dtype=seen.dtype) + seen.T @ seen)
        white, rest = solve_lower(root, seen.T), solve_lower(root, spread.T)
        gain, remaining = rest.T @ white, rest.T
        explained = solve_lower(root, white @ residual, transposed=True)
        # What is left and what it took: squares again, as their difference would cancel.
        left = residual - seen @ explained
        square = left @ left + explained @ explained
    else:
        root = cholesky(jnp.eye(channels, dtype=seen.dtype) + seen @ seen.T)
        inverse = inverse_lower(root)
        gain = (spread @ seen.T) @ inverse.T @ inverse
        # Joseph's form: a sum of squares, where the difference of covariances would cancel.
        remaining = jnp.concatenate([spread - gain @ seen, gain], axis=1)
        white = inverse @ residual
        square = white @ white
    fit = -0.5 * square - jnp.sum(jnp.log(jnp.diagonal(root)))
    return Conditioned(gain, remaining @ remaining.T, fit)


def settle_prediction(belief: GaussianBelief, mean: Vector, cov: Matrix) -> GaussianPrediction:
    """A prediction that is finite and has a Cholesky factor.

    Args:
        belief: The last one, which is kept where the new one is not a number.
        mean: Predicted.
        cov: Likewise.
    """
    mean, cov, capped = cap(mean, cov, largest(mean.dtype))
    new = GaussianBelief(mean, factorisable(cov))
    sound = all_finite(new)
    status = jnp.where(sound, jnp.where(capped, int(Status.CAPPED), 0), int(Status.FELL_BACK))
    return GaussianPrediction(tree_where(sound, new, belief), status)


def linear_update(
    prediction: GaussianPrediction,
    spread: Float[Array, "L S"],
    moved: Float[Array, "N S"],
    expected: Channels,
    cov: ChannelCov,
    y: Observation,
    mask: Mask,
) -> tuple[State, Info]:
    """Take in an observation that moves with the state.

    Where the result is not finite and positive definite, the prediction is kept and the status says
    so.

    Args:
        prediction: What `settle_prediction` gave.
        spread: Columns by which the state deviates from its mean, whose squares sum up to its
            covariance: its Cholesky factor, say.
        moved: How far the observation deviates with each.
        expected: Mean of the observation.
        cov: Covariance of its noise, or the variances if channels are independent.
        y: The observation.
        mask: True where observed.
    """
    columns = jnp.concatenate([moved, (y - expected)[:, None]], axis=1)
    white = whiten(cov, mask, columns.astype(expected.dtype))
    found = condition(spread, white[:, :-1], white[:, -1])
    mean = prediction.belief.mean + found.gain @ white[:, -1]
    new = GaussianBelief(mean, factorisable(found.cov))
    evidence = found.fit + log_scale(cov, mask)
    keep, info = judge(all_finite(new), evidence, mask, prediction.status)
    return State(tree_where(keep, new, prediction.belief)), info


def judge(
    sound: Bool[Array, ""], evidence: Scalar, mask: Mask, status: Int[Array, ""]
) -> tuple[Bool[Array, ""], Info]:
    """Whether to keep an update, and what to say of it."""
    seen, sound = jnp.any(mask), sound & jnp.isfinite(evidence)
    status = status | jnp.where(sound | ~seen, 0, int(Status.FELL_BACK))
    evidence = jnp.where(seen, jnp.where(sound, evidence, jnp.nan), 0)
    return sound & seen, evidence_info(evidence, status)
