"""Recordings of many trials filtered, or learned from, side by side.

Used by the experiments; all arrays that come out have a first axis of trials.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from evkf.filters import Filter
from evkf.filters import VariationalKalmanFilter as EVKF
from evkf.learning import Learner, LearnerState
from evkf.likelihoods import Likelihood
from evkf.model import Model
from evkf.types import Belief, Key


class Streamed(NamedTuple):
    """Trials after filtering."""

    state: Any
    """After the last bin."""
    belief: Belief
    smoothed: Belief | None
    """Belief about the bin before, for methods that look back one bin."""
    status: Int[Array, "S T"]


class LearnedTrials(NamedTuple):
    """Trials after learning, and after filtering with what was learned."""

    belief: Belief
    """About all bins."""
    models: Model
    """Learned models, one for every trial."""
    ahead: Float[Array, "S T K L"] | None = None
    """Means of the next bins, forecast in every learned bin by the dynamics of that moment."""


class LearningMethod(NamedTuple):
    """A method that learns while it filters."""

    label: str
    start: Callable[[Likelihood, int], Model]
    """Makes the model of a trial to start from, from its likelihood and seed."""
    make: Learner | Callable[[bool], Filter]
    """A learner, or a function that makes a filter which learns (True) or does not (False)."""

    @property
    def learning(self) -> Learner | Filter:
        """The learner, or the filter that learns."""
        return self.make if isinstance(self.make, Learner) else self.make(True)


def stack(trees: Sequence[Any]) -> Any:
    """Join trees of one structure into one, along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def pick(tree: Any, *index: int | slice) -> Any:
    """Return the entries of an index in every leaf."""
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
        states: States to go on from; the filter's start when left out.
    """

    def one(model: Model, ys: Array, key: Key, state: Any) -> Streamed:
        def body(carry: tuple, y: Array) -> tuple:
            state, t = carry
            state, info = filter.step(model, state, y, None, jax.random.fold_in(key, t))
            return (state, t + 1), (state.belief, getattr(state, "smoothed", None), info.status)

        start = filter.init(model) if state is None else state
        (state, _), results = jax.lax.scan(body, (start, 0), ys)
        return Streamed(state, *results)

    return jax.vmap(one, in_axes=(0, 0, 0, None if states is None else 0))(models, ys, keys, states)


@partial(jax.jit, static_argnames="num_ahead")
def learn(
    learner: Learner, models: Model, ys: Float[Array, "S T N"], num_ahead: int
) -> tuple[LearnedTrials, Any]:
    """Learn from trials side by side, each from a model of its own.

    Returns:
        The trials, and the states of their filters after the last bin.
    """

    def one(model: Model, ys: Array) -> tuple[LearnedTrials, Any]:
        def body(state: LearnerState, y: Array) -> tuple:
            state, _ = learner.step(state, y)
            dynamics = state.model.dynamics

            def move(z: Array, _: None) -> tuple:
                z = dynamics.family.mean(dynamics.transition(z, jnp.zeros(0)))
                return z, z

            now = state.model.family.mean(state.filter.belief)
            return state, (state.filter.belief, jax.lax.scan(move, now, length=num_ahead)[1])

        state, (belief, ahead) = jax.lax.scan(body, learner.init(model), ys)
        return LearnedTrials(belief, state.model, ahead), state.filter

    return jax.vmap(one)(models, ys)


def learn_and_freeze(
    method: LearningMethod | None,
    problems: Sequence[tuple[Model, np.ndarray, np.ndarray]],
    seeds: Sequence[int],
    learned: int,
    num_ahead: int = 1,
) -> LearnedTrials:
    """Learn from the first bins of trials, then freeze the dynamics and filter the others.

    Args:
        method: The method; None is the oracle, eVKF's filter given the true models.
        problems: The true model of every trial, its states and observations.
        seeds: One for every trial.
        learned: Bins that are learned from.
        num_ahead: Bins that a learner forecasts in every learned bin.
    """
    ys = jnp.stack([jnp.asarray(ys, float) for _, _, ys in problems])
    keys = stack([jax.random.key(seed) for seed in seeds])
    if method is None:
        models = stack([true for true, _, _ in problems])
        return LearnedTrials(stream(EVKF(), models, ys, keys).belief, models)
    pairs = zip(seeds, problems, strict=True)
    models = stack([method.start(true.likelihood, seed) for seed, (true, _, _) in pairs])
    if isinstance(method.make, Learner):
        first, states = learn(method.make, models, ys[:, :learned], num_ahead)
        frozen = EVKF()
    else:
        ran = stream(method.make(True), models, ys[:, :learned], keys)
        states, first = ran.state, LearnedTrials(ran.belief, ran.state.model)
        frozen = method.make(False)
    later = jax.vmap(jax.random.fold_in, (0, None))(keys, learned)
    rest = stream(frozen, first.models, ys[:, learned:], later, states)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), first.belief, rest.belief)
    return first._replace(belief=both)
