"""Variational joint filtering without a recognition network: every bin is optimised by itself."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from evkf.filters.base import Filter, Info, read_step
from evkf.filters.peers.learned import (
    bounded,
    check_learned,
    check_parts,
    learned,
    visit,
)
from evkf.filters.peers.single_step import (
    averaged,
    check_model,
    conditional,
    from_free,
    log_conditional,
    settle,
    to_free,
)
from evkf.model import Model
from evkf.numerics.checks import check_positive, check_positive_whole
from evkf.numerics.linalg import all_finite, tree_where
from evkf.types import Belief, Input, Key, Mask, Observation, Scalar

DEFAULT_OPTIMISER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))


class DirectVJFState(NamedTuple):
    """The belief, and what was learned with it."""

    belief: Belief
    model: Model
    optimiser: PyTree


class DirectVJF(Filter):
    """Variational joint filtering (Zhao & Park 2020) with $q_t$ optimised directly in every bin.

    Adam climbs the single-step bound $M_t$ from the prediction, with a few fresh samples of
    $z_{t-1} \\sim q_{t-1}$ and $z_t \\sim q_t$ an iteration, as in the comparison of Campbell et
    al. 2021. The optimum is that of eVKF without variance correction, for diagonal beliefs and up
    to Monte-Carlo error. Then one step on $M_t$ moves the model.

    Beliefs are in mean and log standard deviation, so that `rate` is in units of the state: a mean
    can move by `rate * iterations` in a bin. (Published settings; continuous Bernoulli states use
    $\\text{arsinh}\\lambda$, on which the publications are silent.)

    Args:
        rate: Adam's rate for the belief.
        iterations: Adam's steps in a bin.
        num_samples: Samples an iteration.
        learn: Whether the model is learned, from the one given on; if not it is used as it is.
        parts: What is learned: "dynamics", "noise", "readout", "observation".
        optimiser: Any optax optimiser for the model, which sees the learned numbers as one vector;
            Adam with clipped gradients when left out.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf.dynamics import Linear
        >>> from evkf.families import DiagonalGaussianFamily
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import Model
        >>> likelihood = Poisson([[1.0], [-1.0]])
        >>> model = Model(Linear([[0.9]], noise=0.1), likelihood, family=DiagonalGaussianFamily(1))
        >>> filter = DirectVJF(iterations=50, learn=False)
        >>> y, key = jnp.array([3.0, 0.0]), jax.random.key(0)
        >>> state, info = jax.jit(filter.step)(model, filter.init(model), y, None, key)
        >>> bool(model.family.mean(state.belief)[0] > 0), int(info.status)
        (True, 0)
    """

    rate: float = eqx.field(static=True)
    iterations: int = eqx.field(static=True)
    num_samples: int = eqx.field(static=True)
    learn: bool = eqx.field(static=True)
    parts: tuple[str, ...] = eqx.field(static=True)
    optimiser: optax.GradientTransformation = eqx.field(static=True)

    def __init__(
        self,
        rate: float = 1e-2,
        iterations: int = 500,
        num_samples: int = 10,
        learn: bool = True,
        parts: tuple[str, ...] = ("dynamics", "noise"),
        optimiser: optax.GradientTransformation = DEFAULT_OPTIMISER,
    ):
        check_positive(rate=rate)
        check_positive_whole(iterations=iterations, num_samples=num_samples)
        self.rate, self.iterations, self.num_samples = rate, iterations, num_samples
        self.learn, self.parts, self.optimiser = learn, check_parts(parts), optimiser

    def init(self, model: Model) -> DirectVJFState:
        check_model(model, "DirectVJF")
        if self.learn:
            check_learned(model, self.parts)
        flat, _ = ravel_pytree(eqx.filter(model, learned(model, self.parts)))
        return DirectVJFState(model.prior, model, self.optimiser.init(flat))

    def restart(self, model: Model, state: DirectVJFState) -> DirectVJFState:
        return state._replace(belief=model.prior)

    def step(
        self,
        model: Model,
        state: DirectVJFState,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
        u: Input | None = None,
    ) -> tuple[DirectVJFState, Info]:
        """Optimise $q_t$, then take a step with the model."""
        y, mask, key, u = read_step(model, y, mask, key, u)
        model = state.model if self.learn else model
        predict_key, fit_key, learn_key = jax.random.split(key, 3)
        prediction = averaged(model, state.belief, u, predict_key)
        free = self._fit(model, state.belief, prediction.belief, y, mask, fit_key, u)
        belief = from_free(model.family, free)
        chosen, held = eqx.partition(model, learned(model, self.parts))

        flat, unravel = ravel_pytree(chosen)

        def bound(flat: Array) -> Scalar:
            moved = eqx.combine(unravel(flat), held)
            past_key, own_key = jax.random.split(learn_key)
            past = model.family.sample(state.belief, past_key, self.num_samples)
            given = jax.vmap(conditional, (None, 0, None))(moved, past, u)
            return _bound(moved, free, given, y, mask, own_key, self.num_samples)

        value, slope = jax.value_and_grad(bound)(flat)
        sound = all_finite(free, value) & model.family.valid(belief)
        belief, info = settle(prediction, belief, value, sound, mask, self.iterations)
        if not self.learn:
            return DirectVJFState(belief, model, state.optimiser), info
        change, optimiser = self.optimiser.update(-slope, state.optimiser, flat)
        moved = bounded(eqx.combine(unravel(flat + jnp.asarray(change)), held), self.parts)
        use, known = sound & all_finite(slope) & jnp.any(mask), (model, state.optimiser)
        model, optimiser = tree_where(use, (moved, optimiser), known)
        model = visit(model, belief, jnp.any(mask) & (info.status == 0))
        return DirectVJFState(belief, model, optimiser), info

    def _fit(
        self,
        model: Model,
        before: Belief,
        start: Belief,
        y: Observation,
        mask: Mask,
        key: Key,
        u: Input,
    ) -> Float[Array, "R L"]:
        past_key, own_key = jax.random.split(key)
        shape = (self.iterations, self.num_samples)
        # The model does not change while the belief is fitted: all conditionals at once.
        past = model.family.sample(before, past_key, self.iterations * self.num_samples)
        given = jax.vmap(conditional, (None, 0, None))(model, past, u)
        given = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), given)
        adam = optax.adam(self.rate)

        def loss(free: Array, given: PyTree, key: Key) -> Scalar:
            return -_bound(model, free, given, y, mask, key, self.num_samples)

        def body(carry: tuple[Array, PyTree], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            free, optimiser = carry
            change, optimiser = adam.update(jax.grad(loss)(free, *inputs), optimiser)
            return (free + jnp.asarray(change), optimiser), None

        free = to_free(model.family, start)
        keys = jax.random.split(own_key, self.iterations)
        return lax.scan(body, (free, adam.init(free)), (given, keys))[0][0]


def _bound(
    model: Model,
    free: Float[Array, "R L"],
    given: PyTree,
    y: Observation,
    mask: Mask,
    key: Key,
    num_samples: int,
) -> Scalar:
    """A sampled $M_t$; the entropy in closed form."""
    belief = from_free(model.family, free)
    zs = model.family.sample(belief, key, num_samples)
    fit = jax.vmap(model.likelihood.log_prob, (0, None, None))(zs, y, mask)
    prior = jax.vmap(log_conditional, (None, 0, 0))(model, given, zs)
    return jnp.mean(fit + prior) + model.family.entropy(belief)
