r"""Conditioning on an observation that is linear in the latent state, for Kalman-type filters.

Latent state and observation are modelled as $z = m + Xe$ and $y = \hat y + Ye + r$, with
$e \sim N(0, I)$ and noise $r \sim N(0, R)$. Here m is the predicted mean and $\hat y$ the expected
observation. X is a Cholesky factor of the predicted covariance and Y the image of X, or the columns
of X and Y are deviations of sigma points or of the members of an ensemble. The matrix to factorise
is $I + Y^\top R^{-1} Y$ or a matrix of the size of R, whichever is smaller.
"""

import math
from abc import abstractmethod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.families import GaussianBelief, GaussianFamily
from evkf.filters.base import Info, PredictUpdate, State, evidence_info, read_bin, read_input
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
from evkf.types import Input, Key, Mask, Matrix, Observation, Scalar, Status, Vector


class GaussianPrediction(NamedTuple):
    """The belief before the observation, and the bits of `Status` set in the prediction."""

    belief: GaussianBelief
    status: Int[Array, ""]


class LinearObservation(NamedTuple):
    r"""An observation that is linear in the latent state (see the letters of this module).

    Attributes:
        spread: X, a matrix such that $XX^\top$ is the covariance of the latent state (a Cholesky
            factor, say).
        moved: Y, the deviation of the observation that belongs to each column of X.
        expected: Mean of the observation.
        cov: Covariance of the observation noise, or the variances if channels are independent.
    """

    spread: Float[Array, "L S"]
    moved: Float[Array, "N S"]
    expected: Channels
    cov: ChannelCov


class GaussianFilter(PredictUpdate):
    """A Kalman-type filter: a subclass gives predicted moments and a linearised observation."""

    @abstractmethod
    def _predict_moments(
        self, model: Model, belief: GaussianBelief, u: Input
    ) -> tuple[Vector, Matrix]:
        """Return the predicted mean and covariance."""

    @abstractmethod
    def _linearise(self, model: Model, belief: GaussianBelief) -> LinearObservation:
        """Return the observation as a linear function of the latent state, for a given belief."""

    def predict(
        self, model: Model, state: State, key: Key | None = None, u: Input | None = None
    ) -> GaussianPrediction:
        """Return the prediction for the next bin; the key is not used."""
        del key
        moments = self._predict_moments(model, state.belief, read_input(model, u))
        return settle_prediction(state.belief, *moments)

    def update(
        self,
        model: Model,
        prediction: GaussianPrediction,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
    ) -> tuple[State, Info]:
        """Update a prediction by an observation; return the next filter state and an `Info`."""
        del key
        linear = self._linearise(model, prediction.belief)
        return linear_update(prediction, *linear, *read_bin(model, y, mask))


class Conditioned(NamedTuple):
    """The latent state given an observation.

    Attributes:
        gain: Kalman gain: the mean shifts by the gain times the whitened residual.
        cov: Covariance of the latent state given the observation.
        fit: Log density of the residual, without the normalising constant of the noise.
    """

    gain: Float[Array, "L N"]
    cov: Matrix
    fit: Scalar


def check_gaussian(model: Model, name: str) -> None:
    """Raise InputError if a Kalman-type filter cannot be applied to the model.

    Needed are dynamics with additive Gaussian noise, full Gaussian beliefs, and a likelihood that
    gives mean and covariance of the observation.

    Args:
        model: The state-space model.
        name: Name of the filter, for the error message.
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
    """Raise InputError if the likelihood does not give mean and covariance of y given z.

    Args:
        model: The state-space model.
        name: Name of the filter, for the error message.
        cov: False if the filter needs the mean only. True by default.
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


def max_magnitude(dtype: jnp.dtype) -> float:
    """Return the largest mean and standard deviation of a prediction, in a floating-point type.

    The fourth power of this number is still finite.
    """
    return float(jnp.finfo(dtype).max) ** 0.25


def whiten(
    cov: ChannelCov, mask: Mask, columns: Float[Array, "N K"]
) -> tuple[Float[Array, "N K"], Scalar]:
    """Return columns in units of the noise, and the log normalising constant of the noise.

    Channels that are not observed are zero in the columns, and do not count in the constant.

    Args:
        cov: Covariance of the observation noise, or the variances if channels are independent.
        mask: True where observed, (channels,).
        columns: Vectors of observations to whiten, (channels, vectors).
    """
    columns = jnp.where(mask[:, None], columns, 0)
    if cov.ndim == 1:
        var = jnp.where(mask, cov, 1)
        white, log_det = columns / jnp.sqrt(var)[:, None], 0.5 * jnp.sum(jnp.log(var))
    else:
        # A masked channel becomes an independent one of unit variance, whose column is zero.
        both = mask[:, None] & mask[None, :]
        root = cholesky(jnp.where(both, cov, jnp.eye(len(mask), dtype=cov.dtype)))
        white, log_det = solve_lower(root, columns), jnp.sum(jnp.log(jnp.diagonal(root)))
    return white, -0.5 * jnp.sum(mask) * math.log(2 * math.pi) - log_det


def condition(
    spread: Float[Array, "L S"], seen: Float[Array, "N S"], residual: Channels
) -> Conditioned:
    r"""Return gain, covariance and log density of the latent state given an observation.

    Args:
        spread: The matrix X (see the letters of this module).
        seen: The matrix Y, whitened by the noise.
        residual: The residual $y - \hat y$, whitened by the noise.
    """
    channels, columns = seen.shape
    if columns <= channels:
        root = cholesky(jnp.eye(columns, dtype=seen.dtype) + seen.T @ seen)
        white, rest = solve_lower(root, seen.T), solve_lower(root, spread.T)
        gain, remaining = rest.T @ white, rest.T
        explained = solve_lower(root, white @ residual, transposed=True)
        # A sum of squares, as a difference would lose digits by cancellation.
        left = residual - seen @ explained
        square = left @ left + explained @ explained
    else:
        root = cholesky(jnp.eye(channels, dtype=seen.dtype) + seen @ seen.T)
        inverse = inverse_lower(root)
        gain = (spread @ seen.T) @ inverse.T @ inverse
        # Joseph's form: a sum of squares, as a difference of covariances would lose digits.
        remaining = jnp.concatenate([spread - gain @ seen, gain], axis=1)
        white = inverse @ residual
        square = white @ white
    fit = -0.5 * square - jnp.sum(jnp.log(jnp.diagonal(root)))
    return Conditioned(gain, remaining @ remaining.T, fit)


def settle_prediction(belief: GaussianBelief, mean: Vector, cov: Matrix) -> GaussianPrediction:
    """Return a prediction whose moments are finite and whose covariance is positive definite.

    Large means and standard deviations are cut to `max_magnitude` (`CAPPED`).

    Args:
        belief: The last belief, returned if the prediction is not finite (`FELL_BACK`).
        mean: Predicted mean.
        cov: Predicted covariance.
    """
    mean, cov, capped = cap(mean, cov, max_magnitude(mean.dtype))
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
    r"""Update a prediction by an observation that is linear in the latent state.

    Return the next filter state and an `Info`. If the result is not finite, the prediction is kept
    and the status has `FELL_BACK`.

    Args:
        prediction: Result of `settle_prediction`.
        spread: A matrix X such that $XX^\top$ is the covariance of the latent state.
        moved: Deviation of the observation that belongs to each column of X.
        expected: Mean of the observation.
        cov: Covariance of the observation noise, or the variances if channels are independent.
        y: Observation, (channels,).
        mask: True where observed, (channels,).
    """
    columns = jnp.concatenate([moved, (y - expected)[:, None]], axis=1)
    white, normaliser = whiten(cov, mask, columns.astype(expected.dtype))
    result = condition(spread, white[:, :-1], white[:, -1])
    mean = prediction.belief.mean + result.gain @ white[:, -1]
    new = GaussianBelief(mean, factorisable(result.cov))
    keep, info = accept(all_finite(new), result.fit + normaliser, mask, prediction.status)
    return State(tree_where(keep, new, prediction.belief)), info


def accept(
    sound: Bool[Array, ""], evidence: Scalar, mask: Mask, status: Int[Array, ""]
) -> tuple[Bool[Array, ""], Info]:
    r"""Return True if an update is to be kept (else keep the prediction), and the `Info`.

    An update is kept if it is finite and something was observed.

    Args:
        sound: True if the new belief is finite.
        evidence: Estimate of $\log p(y_t | y_{<t})$, in nats.
        mask: True where observed, (channels,).
        status: Bits of `Status` set in the prediction.
    """
    seen, sound = jnp.any(mask), sound & jnp.isfinite(evidence)
    status = status | jnp.where(sound | ~seen, 0, int(Status.FELL_BACK))
    evidence = jnp.where(seen, jnp.where(sound, evidence, jnp.nan), 0)
    return sound & seen, evidence_info(evidence, status)
