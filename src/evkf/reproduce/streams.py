"""Filter, or learn from, the recordings of many trials in parallel (vmap).

The experiments use these functions. The first axis of all returned arrays is that of trials. In
shapes, S is the number of trials, T of bins, N of channels, L of latents, K of forecast bins.
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
    """Result of filtering several trials."""

    state: Any
    """The filter's internal state after the last bin."""
    belief: Belief
    smoothed: Belief | None
    """Belief about the previous bin, given the observation of the current bin. None if the filter
    does not compute it."""
    status: Int[Array, "S T"]


class LearnedTrials(NamedTuple):
    """Result of learning from several trials, and of filtering them."""

    belief: Belief
    """Belief about the latent state in every bin: bins of learning, then bins of filtering with the
    frozen model."""
    models: Model
    """Learned models, one for each trial, stacked."""
    ahead: Float[Array, "S T K L"] | None = None
    """Forecast means of the next K bins from every bin of learning, under the dynamics learned so
    far. None for methods that do not forecast."""


class LearningMethod(NamedTuple):
    """A method that learns the model while it filters."""

    label: str
    start: Callable[[Likelihood, int], Model]
    """Function that returns the initial model of a trial, given its likelihood and seed."""
    make: Learner | Callable[[bool], Filter]
    """A learner, or a function of one boolean that returns a filter. The filter learns if the
    boolean is True."""

    @property
    def learning(self) -> Learner | Filter:
        """The learner, or the filter that learns."""
        return self.make if isinstance(self.make, Learner) else self.make(True)


def stack(trees: Sequence[Any]) -> Any:
    """Stack the arrays of JAX trees along a new first axis, and return one tree."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def pick(tree: Any, *index: int | slice) -> Any:
    """Index every array of a JAX tree by `index`, and return the tree of results."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


@jax.jit
def stream(
    filter: Filter,
    models: Model,
    ys: Float[Array, "S T N"],
    keys: Key,
    states: Any = None,
) -> Streamed:
    """Filter several trials in parallel (vmap), each with its own model and random key.

    Args:
        filter: Any filter, including filters that learn the model and keep it in their internal
            state.
        models: One model for each trial, stacked.
        ys: Observations.
        keys: One JAX random key for each trial.
        states: Internal states of the filter to continue from, one for each trial. By default, the
            filter starts anew.
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
    """Learn from several trials in parallel (vmap), and return what was learned.

    Args:
        learner: The learner.
        models: Initial models, one for each trial, stacked.
        ys: Observations.
        num_ahead: Number of bins to forecast from every bin.

    Returns:
        The learned trials, and the internal states of their filters after the last bin.
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
    """Learn from the first bins of trials, then freeze the model and filter the remaining bins.

    Args:
        method: The method. None means the oracle: the eVKF filter with the true models.
        problems: True model, latent states and observations of each trial.
        seeds: One seed for each trial.
        learned: Number of bins to learn from.
        num_ahead: Number of bins that a learner forecasts from every bin of learning.

    Returns:
        Beliefs about all bins, and the learned models.
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
