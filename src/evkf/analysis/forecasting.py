"""Forecast latent states and observations in the next bins, and score forecasts.

`forecast` predicts moments, `sample_forecast` draws random futures, and `predictive_log_prob` gives
the log-probability of an observation under a prediction.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from evkf import families as fam
from evkf.errors import InputError
from evkf.expectations.readout import GAUSSIANS, expected_observation
from evkf.families.base import MAX_TENSOR_DIM
from evkf.filters import Filter, State, VariationalKalmanFilter
from evkf.filters.base import read_bin
from evkf.model import Model, draw_path, read_inputs
from evkf.numerics.checks import check_even, check_whole
from evkf.types import Belief, Input, Key, Mask, Observation, Scalar, Status, Vector


class Forecast(NamedTuple):
    """Predictions of the next H bins; the first row is the next bin.

    Attributes:
        belief: Predicted beliefs about the latent state, of the model's family; every array has a
            leading axis of length H.
        mean: Means of the predicted beliefs, (H, latents).
        cov: Covariances of the predicted beliefs, (H, latents, latents).
        rate: Expected observation of each channel, (H, channels). For counts this is the expected
            count per bin, not per second.
        status: Bits of `evkf.Status` for each prediction, (H,).
    """

    belief: Belief
    mean: Float[Array, "H L"]
    cov: Float[Array, "H L L"]
    rate: Float[Array, "H N"]
    status: Int[Array, " H"]


def forecast(
    filter: Filter,
    model: Model,
    belief: Belief,
    horizon: int,
    us: ArrayLike | None = None,
) -> Forecast:
    """Return predictions of latent states and observations 1 to `horizon` bins ahead.

    Every prediction uses moment matching (`rule="moment_matching"`), whatever the rule of the
    filter: far ahead the belief is too wide for a linearisation of the dynamics at the mean. Inside
    compiled code only the shape of the inputs is checked. Raise InputError if the family of the
    model would need too many quadrature nodes; use `sample_forecast` then.

    Args:
        filter: Any filter. If this is a `VariationalKalmanFilter`, all settings of the filter
            except `rule` and `correct` are used; otherwise default settings are used.
        model: The model, which gives dynamics and likelihood.
        belief: Filtering belief of the last observed bin.
        horizon: Number of bins to predict, 1 or more.
        us: Inputs of the predicted bins, (horizon, inputs); leave out if the model has no inputs.

    Example:
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(Linear([[0.5]], noise=0.1), Poisson([[1.0]], bin_width=0.01))
        >>> ahead = forecast(VariationalKalmanFilter(), model, model.prior, 3)
        >>> ahead.cov[:, 0, 0].round(4)
        Array([0.35  , 0.1875, 0.1469], dtype=float32)
        >>> ahead.rate.shape
        (3, 1)
    """
    _check_belief(model, belief)
    if (
        isinstance(model.family, fam.Univariate | fam.ProductFamily)
        and model.family.dim > MAX_TENSOR_DIM
    ):
        what = f"a forecast of {model.family.dim} latents, by 2^{model.family.dim} nodes"
        raise InputError(what, "model", "draw futures with sample_forecast instead")
    own = filter if isinstance(filter, VariationalKalmanFilter) else VariationalKalmanFilter()
    own = replace(own, rule="moment_matching", correct=None)
    return _forecast(own, model, belief, _future_inputs(model, us, horizon))


@jax.jit
def _forecast(
    filter: VariationalKalmanFilter,
    model: Model,
    belief: Belief,
    us: Float[Array, "H U"],
) -> Forecast:
    def body(belief: Belief, u: Input) -> tuple[Belief, tuple[Any, ...]]:
        new, _, capped, failed = filter.predict(model, State(belief), u=u)
        status = jnp.where(capped, int(Status.CAPPED), 0)
        status = status + jnp.where(failed, int(Status.FELL_BACK), 0)
        return new, (new, status)

    _, (beliefs, status) = lax.scan(body, belief, us)
    return Forecast(
        beliefs,
        jax.vmap(model.family.mean)(beliefs),
        jax.vmap(model.family.cov)(beliefs),
        jax.vmap(partial(expected_observation, model))(beliefs),
        status,
    )


def sample_forecast(
    model: Model,
    belief: Belief,
    horizon: int,
    key: Key,
    num_samples: int,
    us: ArrayLike | None = None,
) -> tuple[Float[Array, "S H L"], Float[Array, "S H N"]]:
    """Return random samples of latent states and observations 1 to `horizon` bins ahead.

    Each sample is one simulated future. Unlike the moments of `forecast`, samples keep the shape of
    the distribution and the dependence between bins.

    Args:
        model: The model to sample from.
        belief: Filtering belief of the last observed bin; each future starts from a latent state
            sampled from this belief.
        horizon: Number of bins to predict, 1 or more.
        key: JAX random key.
        num_samples: Number of futures, 1 or more.
        us: Inputs of the predicted bins, (horizon, inputs), the same in all futures; leave out if
            the model has no inputs.

    Returns:
        Latent states, (samples, horizon, latents), and observations,
        (samples, horizon, channels).

    Example:
        >>> import jax
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0]]))
        >>> zs, ys = sample_forecast(model, model.prior, 5, jax.random.key(0), 100)
        >>> zs.shape, ys.shape
        ((100, 5, 2), (100, 5, 1))
    """
    _check_belief(model, belief)
    check_whole(num_samples, 1, "num_samples")
    return _sample(model, belief, _future_inputs(model, us, horizon), key, num_samples)


@partial(jax.jit, static_argnames="num")
def _sample(
    model: Model, belief: Belief, us: Float[Array, "H U"], key: Key, num: int
) -> tuple[Array, Array]:
    def future(z: Vector, key: Key) -> tuple[Array, Array]:
        return draw_path(model, jax.random.split(key, len(us)), us, z)

    start_key, run_key = jax.random.split(key)
    starts = model.family.sample(belief, start_key, num)
    return jax.vmap(future)(starts, jax.random.split(run_key, num))


def predictive_log_prob(
    model: Model,
    belief: Belief,
    y: Observation,
    mask: Mask | None,
    key: Key,
    num_samples: int,
) -> Scalar:
    r"""Return an estimate of the log-probability of an observation under a prediction, in nats.

    The log-probability is $\log p(y) = \log E_q[p(y|z)]$, where y is the observation, z the latent
    state and q the predicted belief about z. The expectation is a mean over samples of z; for
    Gaussian families samples come in pairs mirrored at the mean. The estimate is too low on average
    by half the relative variance of the mean over samples. Use many samples if observations are
    much more precise than the prediction.

    Args:
        model: The model, which gives the likelihood.
        belief: One-step prediction of the bin.
        y: Observation, (channels,).
        mask: True for each channel that was observed, (channels,); None if all were observed.
        key: JAX random key.
        num_samples: Number of samples, an even number.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(Linear([[0.5]], noise=0.1), Poisson([[0.1]]))
        >>> y, key = jnp.ones(1), jax.random.key(0)
        >>> round(float(predictive_log_prob(model, model.prior, y, None, key, 1000)), 2)
        -1.0
    """
    _check_belief(model, belief)
    y, mask = read_bin(model, y, mask)
    check_even(num_samples, "num_samples")
    return _log_prob(model, belief, y, mask, key, num_samples)


@partial(jax.jit, static_argnames="num")
def _log_prob(
    model: Model, belief: Belief, y: Observation, mask: Mask, key: Key, num: int
) -> Scalar:
    family = model.family
    if isinstance(family, GAUSSIANS):
        half = family.sample(belief, key, num // 2)
        samples = jnp.concatenate([half, 2 * family.mean(belief) - half])
    else:
        samples = family.sample(belief, key, num)
    terms = jax.vmap(lambda z: model.likelihood.log_prob(z, y, mask))(samples)
    return jax.nn.logsumexp(terms) - math.log(num)


def _check_belief(model: Model, belief: Belief) -> None:
    def shapes(tree: Belief) -> tuple[Any, ...]:
        return jax.tree.structure(tree), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]

    if shapes(belief) != shapes(model.prior):
        raise InputError(
            f"no {type(model.family).__name__} belief over {model.family.dim} dimensions",
            "belief",
            "pass the belief of a filter's state, or model.prior",
        )


def _future_inputs(model: Model, us: ArrayLike | None, horizon: int) -> Float[Array, "H U"]:
    check_whole(horizon, 1, "horizon")
    if not isinstance(us, Tracer):
        return read_inputs(model, us, horizon)
    size = model.dynamics.num_inputs
    if us.shape != (horizon, size):
        raise InputError(f"inputs of shape {us.shape}", "us", f"pass shape ({horizon}, {size})")
    return us
