"""Variational joint filtering: an amortised filter that learns its model as it goes."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from evkf.dynamics import ResidualRBF
from evkf.filters.base import Filter, Info, read_step
from evkf.filters.peers.gain import check_moments
from evkf.filters.peers.learned import (
    bounded,
    check_learned,
    check_parts,
    learned,
    visit,
)
from evkf.filters.peers.least_squares import Pairs, absorb, fit
from evkf.filters.peers.single_step import (
    averaged,
    check_model,
    from_free,
    settle,
    to_free,
)
from evkf.model import Model
from evkf.numerics.checks import check_positive_whole, check_whole
from evkf.numerics.linalg import all_finite, tree_where
from evkf.types import Belief, Count, Input, Key, Mask, Observation, Scalar, Vector


def _falling(count: ArrayLike) -> Array:
    return 1e-3 / jnp.sqrt(1 + jnp.asarray(count) / 1000)


GIVEN = 10
"""How many bins the noise of the model given counts as, where no warm-up replaces it."""

DEFAULT_OPTIMISER = optax.chain(optax.clip_by_global_norm(100.0), optax.sgd(_falling))


class Recognition(eqx.Module):
    """One layer of tanh units from $[y_t, q_{t-1}]$ to the free numbers of $q_t$.

    The head of the mean has no bias, so that it is on both sides of the origin from the start.
    """

    weight: Float[Array, "H I"]
    bias: Float[Array, " H"]
    heads: Float[Array, "R L H"]
    head_bias: Float[Array, "S L"]

    def __init__(self, num_inputs: int, hidden: int, like: Float[Array, "R L"], key: Key):
        rows, dim = like.shape
        dtype = like.dtype

        def uniform(key: Key, *shape: int, fan_in: int) -> Array:
            limit = fan_in**-0.5
            return jax.random.uniform(key, shape, dtype, -limit, limit)

        keys = jax.random.split(key, 3)
        self.weight = uniform(keys[0], hidden, num_inputs, fan_in=num_inputs)
        self.bias = uniform(keys[1], hidden, fan_in=num_inputs)
        self.heads = uniform(keys[2], rows, dim, hidden, fan_in=hidden)
        self.head_bias = jnp.zeros((rows - 1, dim), dtype)

    def __call__(self, y: Observation, before: Float[Array, "R L"]) -> Float[Array, "R L"]:
        units = jnp.tanh(self.weight @ jnp.concatenate([y, before.ravel()]) + self.bias)
        free = self.heads @ units
        return free.at[1:].add(self.head_bias)


class VJFState(NamedTuple):
    """The belief, and what was learned with it."""

    belief: Belief
    model: Model
    recognition: Recognition
    optimiser: PyTree
    weight_cov: Float[Array, "D D"]
    """Covariance of the weights of radial basis functions; empty where there are none."""
    pairs: Pairs
    """States of the warm-up; empty where there are none to place."""
    count: Count
    """Transitions learned from: bins, but for the first of a trial."""
    begun: Scalar
    """0 until a bin of the trial was learned from, so that the last belief is the prior; then 1."""


class VJF(Filter):
    """Variational joint filtering (Zhao & Park 2020), as in its published package.

    A recognition network reads $q_t$ off the observation and $q_{t-1}$. In every bin one gradient
    step on the single-step bound, with one sample each of $z_{t-1}$ and $z_t$, moves the network
    and the model; the weights of `ResidualRBF` dynamics are learned by recursive least squares
    instead, and their noise is a running mean of the squared residual, which after 500 bins begins
    to forget. Beliefs are diagonal Gaussian, as is the process noise, or continuous Bernoulli;
    dynamics of the latter are `NaturalDynamics`.

    The first bins, 1000 unless told otherwise, are a warm-up without the dynamics in the bound.
    After them the centres of `ResidualRBF` dynamics are placed over the range that was visited, and
    their weights fitted to all of it; the first bin of a trial, which has none before it, is left
    out.

    Where the paper is silent, the network, its head without bias and the warm-up follow the
    published code. Where that is known to do worse, they do not: least squares take the means of
    the beliefs, as samples would count the variance of both beliefs as noise of the dynamics; and
    instead of clamping the log rate of Poisson models at 10, which leaves no slope to come back
    by, the gradient is clipped. Channels missing from an observation are filled in with what the
    model expects of them.

    Args:
        hidden: Units of the recognition network.
        warm_up: Bins without dynamics, not counting the first of a trial; with 0 the noise given
            counts as much as 10 bins.
        optimiser: Any optax optimiser, which sees the learned numbers as one vector; when left out
            plain gradient descent, as published, with a slowly falling rate of 0.001 and clipped
            gradients.
        learn: Whether network and model are learned, from the model given on; if not, the model is
            used as it is, with the network of the state.
        parts: What of the model is learned: "dynamics", "noise", "readout", "observation". The
            network always is.
        seed: Of the network's first weights and of the placing of centres.

    Example:
        >>> import jax
        >>> from evkf.dynamics import ResidualRBF, VanDerPol
        >>> from evkf.families import DiagonalGaussianFamily
        >>> from evkf.filters import scan_filter
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import Model, simulate
        >>> likelihood = Poisson([[1.0, 0.0], [0.0, 1.0]])
        >>> _, ys = simulate(Model(VanDerPol(), likelihood), jax.random.key(0), 50)
        >>> walk = ResidualRBF(2, noise=0.1, key=jax.random.key(1))
        >>> start = Model(walk, likelihood, family=DiagonalGaussianFamily(2))
        >>> state, trace = scan_filter(VJF(warm_up=30), start, ys, key=jax.random.key(2))
        >>> int(state.count), state.model.dynamics.weight.shape
        (49, (100, 2))
    """

    hidden: int = eqx.field(static=True)
    warm_up: int = eqx.field(static=True)
    optimiser: optax.GradientTransformation = eqx.field(static=True)
    learn: bool = eqx.field(static=True)
    parts: tuple[str, ...] = eqx.field(static=True)
    seed: int = eqx.field(static=True)

    def __init__(
        self,
        hidden: int = 20,
        warm_up: int = 1000,
        optimiser: optax.GradientTransformation = DEFAULT_OPTIMISER,
        learn: bool = True,
        parts: tuple[str, ...] = ("dynamics", "noise"),
        seed: int = 0,
    ):
        check_positive_whole(hidden=hidden)
        check_whole(warm_up, 0, "warm_up")
        self.hidden, self.warm_up, self.optimiser = hidden, warm_up, optimiser
        self.learn, self.parts, self.seed = learn, check_parts(parts), seed

    def init(self, model: Model) -> VJFState:
        family, dynamics = model.family, model.dynamics
        check_model(model, "VJF")
        check_moments(model, "VJF", cov=False)
        if self.learn:
            check_learned(model, self.parts)
        before = to_free(family, model.prior)
        dtype = before.dtype
        num = rows = 0
        if self._recursive(model):
            assert isinstance(dynamics, ResidualRBF)
            num, rows = len(dynamics.weight), self.warm_up
        size = model.likelihood.num_channels + before.size
        recognition = Recognition(size, self.hidden, before, jax.random.key(self.seed))
        shapes = ((rows, family.dim), (rows, family.dim), (rows, dynamics.num_inputs))
        return VJFState(
            belief=model.prior,
            model=model,
            recognition=recognition,
            optimiser=self.optimiser.init(ravel_pytree((recognition, self._split(model)[0]))[0]),
            weight_cov=jnp.eye(num, dtype=dtype),
            pairs=Pairs(*(jnp.zeros(shape, dtype) for shape in shapes)),
            count=jnp.asarray(0, jnp.int32),
            begun=jnp.zeros((), dtype),
        )

    def restart(self, model: Model, state: VJFState) -> VJFState:
        return state._replace(belief=model.prior, begun=jnp.zeros_like(state.begun))

    def step(
        self,
        model: Model,
        state: VJFState,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
        u: Input | None = None,
    ) -> tuple[VJFState, Info]:
        """Recognise, then learn."""
        y, mask, key, u = read_step(model, y, mask, key, u)
        model = state.model if self.learn else model
        family = model.family
        predict_key, past_key, own_key = jax.random.split(key, 3)
        prediction = averaged(model, state.belief, u, predict_key)
        filled = jnp.where(mask, y, model.likelihood.mean(family.mean(prediction.belief)))
        before, past = to_free(family, state.belief), family.sample(state.belief, past_key, 1)[0]
        chosen, held = self._split(model)
        flat, unravel = ravel_pytree((state.recognition, chosen))

        def loss(flat: Array) -> tuple[Scalar, tuple[Any, ...]]:
            recognition, chosen = unravel(flat)
            moved = eqx.combine(chosen, held)
            belief = from_free(family, recognition(filled, before))
            z = family.sample(belief, own_key, 1)[0]
            misfit = -moved.likelihood.log_prob(z, y, mask)
            divergence = family.kl(belief, moved.transition(past, u))
            warm = state.count < self.warm_up
            rest = jnp.where(warm, -family.entropy(belief), divergence)
            return misfit + rest, (belief, -misfit - divergence)

        slope, (belief, bound) = jax.grad(loss, has_aux=True)(flat)
        sound = all_finite(belief, bound) & family.valid(belief)
        belief, info = settle(prediction, belief, bound, sound, mask, int(self.learn))
        if not self.learn:
            return state._replace(belief=belief, model=model), info
        change, optimiser = self.optimiser.update(slope, state.optimiser, flat)
        recognition, chosen = unravel(flat + jnp.asarray(change))
        going_on = state.begun > 0
        new = state._replace(
            model=bounded(eqx.combine(chosen, held), self._by_gradient(model)),
            recognition=recognition,
            optimiser=optimiser,
            count=state.count + going_on,
            begun=jnp.ones_like(state.begun),
        )
        if self._recursive(model):
            pair = family.mean(state.belief), family.mean(belief)
            new = tree_where(going_on, self._regress(new, *pair, u), new)
        use = sound & all_finite(slope, new.weight_cov) & jnp.any(mask)
        state = tree_where(use, new, state)._replace(belief=belief)
        usual = jnp.any(mask) & (info.status == 0)
        return state._replace(model=visit(state.model, belief, usual)), info

    def _recursive(self, model: Model) -> bool:
        """Whether the dynamics are learned by least squares."""
        return isinstance(model.dynamics, ResidualRBF) and "dynamics" in self.parts

    def _by_gradient(self, model: Model) -> tuple[str, ...]:
        """The parts that gradients move."""
        rest = ("dynamics", "noise") if self._recursive(model) else ()
        return tuple(part for part in self.parts if part not in rest)

    def _split(self, model: Model) -> tuple[Model, Model]:
        """What gradients move of the model, and the rest."""
        return eqx.partition(model, learned(model, self._by_gradient(model)))

    def _regress(self, state: VJFState, before: Vector, after: Vector, u: Input) -> VJFState:
        """Learn from a pair of states: in the warm-up keep it, at its end fit to all of them."""
        dynamics, cov = state.model.dynamics, state.weight_cov
        assert isinstance(dynamics, ResidualRBF)
        pairs = state.pairs

        def go_on() -> tuple[ResidualRBF, Array]:
            weight = state.count if self.warm_up else state.count + GIVEN
            return absorb(dynamics, cov, before, after, u, weight)

        if self.warm_up:
            pairs = pairs.put(state.count - 1, before, after, u)
            key = jax.random.fold_in(jax.random.key(self.seed), 1)
            stages = [lambda: (dynamics, cov), lambda: fit(dynamics, pairs, key), go_on]
            new, cov = lax.switch(1 + jnp.sign(state.count - self.warm_up), stages)
        else:
            new, cov = go_on()
        if "noise" not in self.parts:
            new = eqx.tree_at(lambda d: d.noise, new, dynamics.noise)
        model = eqx.tree_at(lambda m: m.dynamics, state.model, new)
        return state._replace(model=model, weight_cov=cov, pairs=pairs)
