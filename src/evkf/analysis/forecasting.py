"""Forecasts of states and observations in the next bins, and scores of forecasts."""

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
    """Predicted beliefs about the next H bins, the nearest first.

    Attributes:
        belief: Predicted beliefs in the model's family, with a leading axis of length H.
        mean: Their means.
        cov: Their covariances.
        rate: Expected observation of every channel; for counts, the expected count of a bin, not of
            a second.
        status: Bits of `evkf.Status` of every prediction.
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
    """Predict states and observations 1 to `horizon` bins ahead, bin after bin.

    Moments are matched in every bin, whatever the rule of the filter, because far ahead the belief
    is too wide for a tangent at its mean. In compiled code only the shape of the inputs is checked.

    Args:
        filter: Any filter. A `VariationalKalmanFilter` is used with its settings except the rule;
            for other filters, one with default settings is used.
        model: The model.
        belief: The filtering belief of the last bin.
        horizon: Number of bins to predict.
        us: Inputs of these bins, (horizon, inputs).

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
    """Draw futures from the model: states and observations 1 to `horizon` bins ahead.

    Unlike `forecast` this keeps the shape of the distribution and the dependence between bins.

    Args:
        model: The model.
        belief: The filtering belief of the last bin, from which first states are drawn.
        horizon: Number of bins to predict.
        key: Randomness.
        num_samples: Number of futures.
        us: Inputs of these bins, (horizon, inputs), the same in all futures.

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
    r"""Estimate $\log p(y) = \log E_q[p(y|z)]$, the score of a forecast in nats.

    The likelihood is averaged over samples of z, in antithetic pairs where the family is Gaussian.
    The logarithm is too low by half the relative variance of that mean: many samples are needed
    where observations are much more precise than the belief.

    Args:
        model: The model.
        belief: One-step prediction of the bin.
        y: Observation.
        mask: True where observed; all when None.
        key: Randomness.
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
