"""Recordings of many trials filtered or learned from side by side, and the time of a step."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from evkf.filters import CompiledStep, Filter
from evkf.learning import CompiledLearner, Learner, LearnerState
from evkf.model import Model
from evkf.types import Belief, Key


class Streamed(NamedTuple):
    """What came of trials, each the first axis of every array."""

    state: Any
    """After the last bin."""
    belief: Belief
    smoothed: Belief | None
    """Of the bin before, for methods that look back one bin."""
    status: Int[Array, "S T"]


def stack(trees: Sequence[Any]) -> Any:
    """Trees of one structure as one with a first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def pick(tree: Any, *index: int | slice) -> Any:
    """The entries of an index in every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


@jax.jit
def stream(
    filter: Filter,
    models: Model,
    ys: Float[Array, "S T N"],
    keys: Key,
    states: Any = None,
) -> Streamed:
    """Filter trials side by side, each with its own model and key.

    Args:
        filter: Any filter, also one whose state holds the model that it learns.
        models: One for every trial, stacked.
        ys: Observations.
        keys: One for every trial.
        states: Where trials go on from; the filter's start without.
    """

    def one(model: Model, ys: Array, key: Key, state: Any) -> Streamed:
        def body(carry: tuple, y: Array) -> tuple:
            state, t = carry
            state, info = filter.step(model, state, y, None, jax.random.fold_in(key, t))
            said = state.belief, getattr(state, "smoothed", None), info.status
            return (state, t + 1), said

        start = filter.init(model) if state is None else state
        (state, _), said = jax.lax.scan(body, (start, 0), ys)
        return Streamed(state, *said)

    return jax.vmap(one, in_axes=(0, 0, 0, None if states is None else 0))(models, ys, keys, states)


class Learned(NamedTuple):
    """What eVKF made of trials, each the first axis of every array."""

    belief: Belief
    models: Model
    """After the last bin."""
    filters: Any
    """The filter's states, to go on from."""
    ahead: Float[Array, "S T K L"]
    """Means of the next bins, forecast in every bin by the dynamics of that moment."""


@partial(jax.jit, static_argnames="num_ahead")
def learn(learner: Learner, models: Model, ys: Float[Array, "S T N"], num_ahead: int) -> Learned:
    """Learn from trials side by side, each from a model of its own."""

    def one(model: Model, ys: Array) -> Learned:
        def body(state: LearnerState, y: Array) -> tuple:
            state, _ = learner.step(state, y)
            return state, (state.filter.belief, forecast(state))

        def forecast(state: LearnerState) -> Array:
            dynamics, family = state.model.dynamics, state.model.family

            def move(z: Array, _: None) -> tuple:
                z = dynamics.family.mean(dynamics.transition(z, jnp.zeros(0)))
                return z, z

            return jax.lax.scan(move, family.mean(state.filter.belief), length=num_ahead)[1]

        state, (belief, ahead) = jax.lax.scan(body, learner.init(model), ys)
        return Learned(belief, state.model, state.filter, ahead)

    return jax.vmap(one)(models, ys)


Call = Callable[[int], Any]
"""Takes in a bin, as a rig would: compiled, and ready for the next."""

TOGETHER, TURN = 16, 160
"""Steps of a method whose mean is taken before the median, for not every one of them learns; and
those it takes before it is another method's turn, enough to find its memory warm again."""


class StepTime(NamedTuple):
    """Medians of compiled steps, and of an empty compiled call between them."""

    step_ms: float
    empty_us: float


def time_steps(calls: Sequence[Call], bins: range) -> list[StepTime]:
    """Time steps of several methods in turn, so that what slows the machine slows them all.

    Args:
        calls: Of every method.
        bins: Those that are timed; the ones before are taken in first.
    """
    empty, one = jax.jit(lambda x: x + 1), np.ones(())
    jax.block_until_ready(empty(one))
    for call in calls:
        for bin in range(bins.start):
            jax.block_until_ready(call(bin))
    means: list[list[float]] = [[] for _ in calls]
    empties: list[list[float]] = [[] for _ in calls]
    for turn in range(bins.start, bins.stop, TURN):
        for call, own, beside in zip(calls, means, empties, strict=True):
            for first in range(turn, min(turn + TURN, bins.stop), TOGETHER):
                some = range(first, min(first + TOGETHER, bins.stop))
                begin = time.perf_counter_ns()
                for bin in some:
                    jax.block_until_ready(call(bin))
                middle = time.perf_counter_ns()
                for _ in some:
                    jax.block_until_ready(empty(one))
                own.append((middle - begin) / len(some))
                beside.append((time.perf_counter_ns() - middle) / len(some))
    return [
        StepTime(float(np.median(own)) / 1e6, float(np.median(beside)) / 1e3)
        for own, beside in zip(means, empties, strict=True)
    ]


def ready_filter(filter: Filter, model: Model, ys: np.ndarray) -> Call:
    """A filter at work on a recording."""
    step = CompiledStep(filter, model, keyed=True)
    carry = step.init()
    rows = list(np.asarray(ys).astype(carry.dtype))
    keys, seen = list(jax.random.split(jax.random.key(0), len(ys))), np.ones(ys.shape[1], bool)

    def call(bin: int) -> Array:
        nonlocal carry
        carry = step(carry, rows[bin], seen, None, keys[bin])
        return carry

    return call


def ready_learner(learner: Learner, model: Model, ys: np.ndarray) -> Call:
    """A learner at work on a recording: every bin is observed and learned from."""
    live = CompiledLearner(learner, model)
    rows = list(np.asarray(ys).astype(model.family.mean(model.prior).dtype))

    def call(bin: int) -> tuple:
        return live.observe(rows[bin]), live.learn()

    return call
