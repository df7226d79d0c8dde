r"""Conditioning on an observation that is linear in the state, used by the Kalman-type filters.

State and observation deviate from their means together, $z = m + Xe$ and $y = \hat y + Ye + r$
with $e \sim N(0, I)$ and $r \sim N(0, R)$. The columns of X and Y are a root of the covariance
and its image, sigma points, or the members of an ensemble. The matrix that is factorised is $I$
plus a Gram matrix, in the space of the columns or of the channels, whichever is smaller.
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
    """The belief before the observation, and the bits of `Status` set while predicting."""

    belief: GaussianBelief
    status: Int[Array, ""]


class LinearObservation(NamedTuple):
    """An observation that deviates from its mean together with the state.

    Attributes:
        spread: X, columns whose squares sum up to the covariance of the state: its Cholesky
            factor, say.
        moved: Y, the deviation of the observation with each column.
        expected: Mean of the observation.
        cov: Covariance of its noise, or the variances if channels are independent.
    """

    spread: Float[Array, "L S"]
    moved: Float[Array, "N S"]
    expected: Channels
    cov: ChannelCov


class GaussianFilter(PredictUpdate):
    """A filter of mean and covariance, made from its images of state and observation."""

    @abstractmethod
    def _predict_moments(
        self, model: Model, belief: GaussianBelief, u: Input
    ) -> tuple[Vector, Matrix]:
        """Return the predicted mean and covariance."""

    @abstractmethod
    def _linearise(self, model: Model, belief: GaussianBelief) -> LinearObservation:
        """Return the observation as a linear function of a state with this belief."""

    def predict(
        self, model: Model, state: State, key: Key | None = None, u: Input | None = None
    ) -> GaussianPrediction:
        """Return the belief about the next bin."""
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
        """Condition the prediction on an observation."""
        del key
        linear = self._linearise(model, prediction.belief)
        return linear_update(prediction, *linear, *read_bin(model, y, mask))


class Conditioned(NamedTuple):
    """Effect of an observation on the state.

    Attributes:
        gain: Shift of the mean for each whitened residual.
        cov: Covariance of the state.
        fit: Log density of the residual, without the normaliser of the noise.
    """

    gain: Float[Array, "L N"]
    cov: Matrix
    fit: Scalar


def check_gaussian(model: Model, name: str) -> None:
    """Refuse a model without Gaussian beliefs, Gaussian noise or moments of the observation.

    Args:
        model: The model.
        name: Name of the filter, for the error.
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
    """Refuse a likelihood without the mean of y given z, or, if needed, without its covariance."""
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
    """Bound on means and standard deviations: the fourth power is still finite."""
    return float(jnp.finfo(dtype).max) ** 0.25


def whiten(
    cov: ChannelCov, mask: Mask, columns: Float[Array, "N K"]
) -> tuple[Float[Array, "N K"], Scalar]:
    """Return columns in units of the noise, and the log normaliser of the noise.

    Channels that are not observed are zero in the columns and not in the normaliser.
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
    r"""Condition on an observation.

    Args:
        spread: X.
        seen: Y, whitened by the noise.
        residual: $y - \hat y$, whitened by the noise.
    """
    channels, columns = seen.shape
    if columns <= channels:
        root = cholesky(jnp.eye(columns, dtype=seen.dtype) + seen.T @ seen)
        white, rest = solve_lower(root, seen.T), solve_lower(root, spread.T)
        gain, remaining = rest.T @ white, rest.T
        explained = solve_lower(root, white @ residual, transposed=True)
        # Sums of squares again, as the difference of the two would cancel.
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
    """Return a prediction that is finite and has a Cholesky factor.

    Args:
        belief: The last belief, which is kept where the new one is not a number.
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
    """Condition a prediction on an observation that is linear in the state.

    Where the result is not finite and positive definite, the prediction is kept and the status
    has `FELL_BACK`.

    Args:
        prediction: Result of `settle_prediction`.
        spread: Columns by which the state deviates from its mean, whose squares sum up to its
            covariance: its Cholesky factor, say.
        moved: Deviation of the observation with each column.
        expected: Mean of the observation.
        cov: Covariance of its noise, or the variances if channels are independent.
        y: The observation.
        mask: True where observed.
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
    r"""Decide if an update is kept, and return its info.

    Args:
        sound: True if the new belief is finite.
        evidence: Estimate of $\log p(y_t | y_{<t})$.
        mask: True where observed.
        status: Bits of the prediction.
    """
    seen, sound = jnp.any(mask), sound & jnp.isfinite(evidence)
    status = status | jnp.where(sound | ~seen, 0, int(Status.FELL_BACK))
    evidence = jnp.where(seen, jnp.where(sound, evidence, jnp.nan), 0)
    return sound & seen, evidence_info(evidence, status)
