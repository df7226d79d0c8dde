"""The interface of all filters (`Filter.step`), and `scan_filter`, which filters a sequence.

`step(model, state, y, mask, key, u) -> (state, info)` filters one bin. The filter state holds only
what the next step needs; the info holds only diagnostics. To filter several sequences in parallel,
apply `jax.vmap` to `step`, as `scan_sessions` does. The functions `read_observations`, `read_bin`,
... check arguments for all filters and learners.
"""

from abc import abstractmethod
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.model import Model, read_inputs
from evkf.numerics.checks import real_numbers
from evkf.numerics.linalg import shapes, tree_where
from evkf.types import Belief, Input, Key, Mask, Observation, Scalar


class State(NamedTuple):
    """The filter state of filters that need nothing but the belief $q(z_t)$ for the next step."""

    belief: Belief


class Info(NamedTuple):
    r"""Diagnostics of one step. A number that a filter does not compute is NaN.

    Attributes:
        elbo: Lower bound or estimate of $\log p(y_t | y_{<t})$, in nats. From
            `VariationalKalmanFilter`: the bound $L_t$, which is the expected log-likelihood minus
            the Kullback-Leibler divergence of the belief from the prediction. The last step of the
            update is not evaluated; its gain is added to second order. (For `LowRankBelief` only
            the gain of the mean is added: $L_t$ is then somewhat too low, and not comparable with
            $L_t$ of full covariances.) From `VJF` and `DirectVJF`: a sampled value of the
            single-step bound $M_t$. From other filters: an estimate of the log evidence. 0 where
            nothing was observed, NaN where the update failed and the prediction was kept.
        gap: $L_t - M_t$, in nats: by how much $L_t$ exceeds the bound of methods without a
            prediction step. The gap is not negative when the variance correction is off.
        evaluations: Number of evaluations of the gradient (and of the curvature, where used) in
            this step; 0 for filters without gradients.
        residual: Relative residual of the fixed-point equation at which an update of
            `VariationalKalmanFilter` stopped. For `LowRankBelief`: the nats left to gain.
        status: Bits of `evkf.Status`.
    """

    elbo: Scalar
    gap: Scalar
    evaluations: Int[Array, ""]
    residual: Scalar
    status: Int[Array, ""]


class Trace(NamedTuple):
    """Beliefs and diagnostics of a sequence; the first axis of every array is time, in bins."""

    belief: Belief
    info: Info
    prediction: Belief | None = None
    """One-step predictions: the belief about each bin before that bin was observed. None unless
    `predictions=True` was passed.
    """


class Filter(eqx.Module):
    """An online filter: call `init` once, then `step` for every bin.

    A filter object holds settings only. The filter state is a named tuple that has a field
    `belief`; a step returns the next filter state and an `Info`. `scan_filter` and `CompiledStep`
    work with any filter. docs/filters.md shows how to write a new filter.
    """

    @abstractmethod
    def init(self, model: Model) -> State:
        """Return the filter state before the first bin; the belief is the prior of the model."""

    def restart(self, model: Model, state: State) -> State:
        """Return the filter state before the first bin of another trial.

        The belief is the prior again. Filters that learn keep the learned parameters.
        """
        del state
        return self.init(model)

    @abstractmethod
    def step(
        self,
        model: Model,
        state: State,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
        u: Input | None = None,
    ) -> tuple[State, Info]:
        """Filter one bin; return the next filter state and the diagnostics of this bin.

        Args:
            model: The state-space model.
            state: The filter state after the previous bin.
            y: Observation of this bin, (channels,).
            mask: True where observed, (channels,); all True when left out.
            key: JAX random key, for filters and expectations that sample.
            u: Input of this bin, (inputs,), for dynamics that take inputs.
        """


class PredictUpdate(Filter):
    """A filter whose step consists of two public methods, `predict` and then `update`.

    `predict` returns a named tuple that has a field `belief`; `update` takes this tuple.
    """

    @abstractmethod
    def predict(
        self, model: Model, state: State, key: Key | None = None, u: Input | None = None
    ) -> NamedTuple:
        """Return the prediction for the next bin; the filter state is not changed."""

    @abstractmethod
    def update(
        self,
        model: Model,
        prediction: NamedTuple,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
    ) -> tuple[State, Info]:
        """Update a prediction by an observation; return the next filter state and an `Info`."""

    def step(
        self,
        model: Model,
        state: State,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
        u: Input | None = None,
    ) -> tuple[State, Info]:
        """Predict, then update; return the next filter state and the diagnostics of this bin."""
        state, info, _ = self.predict_update(model, state, y, mask, key, u)
        return state, info

    def predict_update(
        self,
        model: Model,
        state: State,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
        u: Input | None = None,
    ) -> tuple[State, Info, Belief]:
        """Predict, then update; return the next filter state, the info and the predicted belief."""
        keys = (None, None) if key is None else jax.random.split(read_key(key, ""))
        predict_key, update_key = keys
        prediction = self.predict(model, state, predict_key, u)
        state, info = self.update(model, prediction, y, mask, update_key)
        return state, info, prediction.belief  # pyright: ignore[reportAttributeAccessIssue]


def scan_filter(  # noqa: PLR0913 - the arguments of a sequence, used by name
    filter: Filter,
    model: Model,
    ys: ArrayLike,
    masks: ArrayLike | None = None,
    us: ArrayLike | None = None,
    state: State | None = None,
    key: Key | None = None,
    first: int = 0,
    fresh: ArrayLike | None = None,
    predictions: bool = False,
) -> tuple[State, Trace]:
    """Filter a sequence; return the last filter state, from which to continue, and the trace.

    Args:
        filter: Any filter.
        model: The state-space model.
        ys: Observations, (bins, channels). NaN is an error unless the entry is masked.
        masks: True where observed, (bins, channels), or (bins,) for whole bins; all True when left
            out.
        us: Inputs, (bins, inputs), for dynamics that take inputs.
        state: The filter state to continue from; `filter.init(model)` when left out.
        key: JAX random key, for filters and expectations that sample.
        first: Index of the first bin, 0 by default. Bin t uses `jax.random.fold_in(key, t)`. When
            continuing from a filter state, pass the number of bins filtered before.
        fresh: True at the first bin of every trial, (bins,): there the filter restarts from the
            prior. No bin is marked when left out.
        predictions: True to return the one-step predictions too; the filter must then be a
            `PredictUpdate`.

    Returns:
        The filter state after the last bin, and the beliefs and diagnostics of the given bins.

    Example:
        >>> import jax
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.filters import VariationalKalmanFilter
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import Model, simulate
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0], [0.0, 1.0]]))
        >>> zs, ys = simulate(model, jax.random.key(0), 50)
        >>> state, trace = scan_filter(VariationalKalmanFilter(), model, ys)
        >>> trace.belief.mean.shape, trace.belief.cov.shape
        ((50, 2), (50, 2, 2))
    """
    check_filter(filter)
    if predictions and not isinstance(filter, PredictUpdate):
        what = f"predictions of {type(filter).__name__}"
        raise InputError(what, "predictions", "pass a filter that predicts before it updates")
    if key is not None:
        key = read_key(key, "")
    observed, seen = read_observations(model, ys, masks)
    inputs = read_inputs(model, us, observed.shape[0])
    state = filter.init(model) if state is None else check_state(state, filter.init(model))
    marks = None if fresh is None else read_fresh(fresh, observed.shape[0])
    bins = (observed, seen, inputs, marks)
    return _scan(filter, model, bins, state, key, jnp.asarray(first), predictions)


def check_filter(filter: Filter) -> None:
    """Raise InputError if the object is not a filter (a class instead of an instance, say)."""
    if not isinstance(filter, Filter):
        raise InputError(
            f"a filter of type {type(filter).__name__}",
            "filter",
            "pass one made from a class of evkf.filters, or subclass evkf.filters.Filter",
        )


def check_state(state: State, like: State, where: str = "state") -> State:
    """Check that a filter state has the structure of another, and return the checked state.

    Raise InputError, which names the argument `where`, if the array shapes or types in `state`
    differ from those in `like`: the state then comes from another filter or another model.
    """
    if shapes(state) != shapes(like):
        raise InputError(
            f"state of {shapes(state)[1]} for {shapes(like)[1]}",
            where,
            "pass what filter.init or scan_filter returned for this model",
        )
    return state


def filter_bin(
    filter: Filter,
    model: Model,
    state: State,
    y: Observation,
    mask: Mask,
    u: Input,
    key: Key | None,
    predictions: bool,
) -> tuple[State, Trace]:
    """Filter one bin; return the next filter state and a `Trace` of this bin only.

    The `Trace` holds the one-step prediction if `predictions` is True.
    """
    if not predictions:
        state, info = filter.step(model, state, y, mask, key, u)
        return state, Trace(state.belief, info)
    assert isinstance(filter, PredictUpdate)
    state, info, prediction = filter.predict_update(model, state, y, mask, key, u)
    return state, Trace(state.belief, info, prediction)


@partial(jax.jit, static_argnames="predictions")
def _scan(
    filter: Filter,
    model: Model,
    bins: tuple[Array, Array, Array, Array | None],
    state: State,
    key: Key | None,
    first: Int[Array, ""],
    predictions: bool,
) -> tuple[State, Trace]:
    def body(carry: tuple[State, Int[Array, ""]], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        state, t = carry
        y, mask, u, begins = inputs
        if begins is not None:
            state = tree_where(begins, filter.restart(model, state), state)
        own = None if key is None else jax.random.fold_in(key, t)
        state, row = filter_bin(filter, model, state, y, mask, u, own, predictions)
        return (state, t + 1), row

    (state, _), trace = jax.lax.scan(body, (state, first), bins)
    return state, trace


def read_observations(
    model: Model, ys: ArrayLike, masks: ArrayLike | None
) -> tuple[Float[Array, "T N"], Bool[Array, "T N"]]:
    """Check the observations of a sequence; return observations and mask as JAX arrays.

    See `check_observations`.
    """
    observed, seen = check_observations(model, ys, masks)
    return jnp.asarray(observed), jnp.asarray(seen)


def check_observations(
    model: Model, ys: ArrayLike, masks: ArrayLike | None
) -> tuple[Float[np.ndarray, "T N"], Bool[np.ndarray, "T N"]]:
    """Check the observations of a sequence; return observations and mask as NumPy arrays.

    Raise InputError if shapes do not fit the model, or an entry that is not masked is not finite
    or not possible under the likelihood (a negative count, say). Both returned arrays have shape
    (bins, channels); masked observations are zero.
    """
    channels = model.likelihood.num_channels
    trials = f"pass (bins, {channels}): concatenate trials and mark the starts with fresh="
    try:
        array = np.asarray(ys)
    except ValueError as error:
        raise InputError("observations of unequal lengths", "ys", trials) from error
    array = real_numbers(array, "ys")
    if array.ndim == 3:
        raise InputError(f"observations of shape {array.shape}", "ys", trials)
    if array.ndim != 2 or array.shape[1] != channels:
        raise InputError(
            f"observations of shape {array.shape} for {channels} channels",
            "ys",
            f"pass (bins, {channels}); transpose or select channels first",
        )
    mask = np.ones(array.shape, bool) if masks is None else np.asarray(masks)
    if mask.dtype != bool:
        raise InputError(f"mask of type {mask.dtype}", "masks", "pass booleans, True = observed")
    if mask.shape == array.shape[:1]:
        mask = np.broadcast_to(mask[:, None], array.shape)
    if mask.shape != array.shape:
        raise InputError(
            f"mask of shape {mask.shape} for observations of shape {array.shape}",
            "masks",
            f"pass shape {array.shape}, or ({array.shape[0]},) for whole bins",
        )
    bad = mask & ~np.isfinite(array)
    if bad.any():
        t, n = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"observation {array[t, n]} that is not masked",
            f"ys[{t}, {n}]",
            "mark missing entries with False in masks",
        )
    model.likelihood.check(array, mask, "ys")
    return np.where(mask, array, 0).astype(jnp.result_type(float)), mask


def read_fresh(fresh: ArrayLike | None, num_bins: int) -> Bool[Array, " T"]:
    """Check the marks of trial starts, and return them as a JAX array, (bins,).

    All marks are False when `fresh` is None.
    """
    marks = np.zeros(num_bins, bool) if fresh is None else np.asarray(fresh)
    if marks.dtype != bool or marks.shape != (num_bins,):
        raise InputError(
            f"trial starts of type {marks.dtype} and shape {marks.shape}",
            "fresh",
            f"pass {num_bins} booleans, True at the first bin of a trial",
        )
    return jnp.asarray(marks)


def read_bin(model: Model, y: Observation, mask: Mask | None) -> tuple[Observation, Mask]:
    """Check shapes and types of one bin; return observation and mask as JAX arrays.

    Args:
        model: The model, which gives the number of channels.
        y: Observation, (channels,).
        mask: True where observed, (channels,); all True when left out.
    """
    y, channels = jnp.asarray(y), model.likelihood.num_channels
    if y.shape != (channels,):
        raise InputError(f"observation of shape {y.shape}", "y", f"pass shape ({channels},)")
    if jnp.issubdtype(y.dtype, jnp.complexfloating):
        raise InputError(f"observation of type {y.dtype}", "y", "pass real numbers")
    mask = jnp.ones(channels, bool) if mask is None else jnp.asarray(mask)
    if mask.shape != (channels,):
        raise InputError(f"mask of shape {mask.shape}", "mask", f"pass shape ({channels},)")
    if mask.dtype != bool:
        raise InputError(f"mask of type {mask.dtype}", "mask", "pass booleans, True = observed")
    return y, mask


def read_input(model: Model, u: Input | None) -> Input:
    """Check the input of one bin, and return it in the precision of the model.

    When left out, the input is an array of length 0; InputError if the dynamics take inputs.
    """
    size = model.dynamics.num_inputs
    dtype = jax.tree.leaves(model.prior)[0].dtype
    if u is None and size == 0:
        return jnp.zeros(0, dtype)
    if u is None or jnp.shape(u) != (size,):
        got = "no input" if u is None else f"input of shape {jnp.shape(u)}"
        raise InputError(got, "u", f"pass shape ({size},): the dynamics take {size} inputs")
    return jnp.asarray(u, dtype)


def read_key(key: Key | None, why: str) -> Key:
    """Check a JAX random key, and return it; keys of the old style (uint32) are accepted.

    Args:
        key: JAX random key; None raises InputError.
        why: Why a key is needed, for the error message.
    """
    if key is None:
        raise InputError("no key", "key", f"pass key=jax.random.key(0), say: {why}")
    dtype = getattr(key, "dtype", np.dtype(object))
    if not jnp.issubdtype(dtype, jax.dtypes.prng_key) and dtype != jnp.uint32:
        raise InputError(f"a key of type {type(key).__name__}", "key", "pass key=jax.random.key(0)")
    return key


def evidence_info(evidence: Scalar, status: Int[Array, ""], evaluations: int = 0) -> Info:
    r"""Return the `Info` of a filter that has no bound; gap and residual are NaN.

    Args:
        evidence: Estimate of the log evidence $\log p(y_t | y_{<t})$, in nats; it becomes `elbo`.
        status: Bits of `evkf.Status`.
        evaluations: Number of gradient evaluations in this step.
    """
    nan = jnp.full_like(evidence, jnp.nan)
    return Info(evidence, nan, jnp.asarray(evaluations), nan, status)


def read_step(
    model: Model, y: Observation, mask: Mask | None, key: Key | None, u: Input | None
) -> tuple[Observation, Mask, Key, Input]:
    """Check the arguments of a step that samples, and return (y, mask, key, u) as JAX arrays.

    Masked entries of the observation are zero. Raise InputError if the key is left out.
    """
    y, mask = read_bin(model, y, mask)
    u = read_input(model, u)
    return jnp.where(mask, y, 0).astype(u.dtype), mask, read_key(key, "this filter samples"), u
