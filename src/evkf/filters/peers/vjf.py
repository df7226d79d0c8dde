"""Variational joint filtering: an amortised filter that learns its model online.

The weights of `ResidualRBF` dynamics are learned by Bayesian linear regression, in one go and then
one pair of states at a time. The weights of every latent are a priori $N(0, I)$, and given the
pairs $N(W_l, P)$ with one P, as published: pairs count by one variance for all latents, the mean of
theirs, which is Bayes' rule where these are equal.
"""

from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from evkf.dynamics import ResidualRBF
from evkf.filters.base import Info
from evkf.filters.peers import single_step
from evkf.filters.peers.gain import check_moments
from evkf.filters.peers.learned import MIN_STD, BinData, LearningFilter, floor_noise, mark_learned
from evkf.model import Model
from evkf.numerics.checks import check_positive_whole, check_whole
from evkf.numerics.covariance import DiagonalCovariance
from evkf.numerics.linalg import all_finite, inverse_positive, tree_where
from evkf.types import Belief, Count, Input, Key, Observation, Scalar, Vector

MIN_VAR, HORIZON = MIN_STD**2, 500
"""Floor of the noise, and the bins after which its running mean begins to forget."""

PRIOR_COUNT = 10
"""Bins that the noise of the given model counts as, where no warm-up replaces it."""


DEFAULT_OPTIMISER = optax.chain(
    optax.clip_by_global_norm(100.0),
    optax.sgd(lambda count: 1e-3 / jnp.sqrt(1 + jnp.asarray(count) / 1000)),
)


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


class StatePairs(NamedTuple):
    """States of consecutive bins, and the inputs of the second."""

    before: Float[Array, "T L"]
    after: Float[Array, "T L"]
    us: Float[Array, "T U"]

    def put(self, index: Count, before: Vector, after: Vector, u: Input) -> Self:
        """Return the pairs with one more in a row; a pair beyond the last row is dropped."""
        rows = zip(self, (before, after, u), strict=True)
        return type(self)(*(old.at[index].set(row, mode="drop") for old, row in rows))


class VJFState(NamedTuple):
    """The belief, and what was learned with it.

    Attributes:
        belief: The belief.
        model: The model in use.
        recognition: The recognition network.
        optimiser: State of the optimiser of network and model.
        weight_cov: Covariance of the weights of radial basis functions; empty where there are none.
        pairs: States of the warm-up; empty without a warm-up or radial basis functions.
        count: Transitions learned from: bins, without the first of a trial.
        begun: 0 until a bin of the trial was learned from, while the last belief is the prior; then
            1.
    """

    belief: Belief
    model: Model
    recognition: Recognition
    optimiser: PyTree
    weight_cov: Float[Array, "D D"]
    pairs: StatePairs
    count: Count
    begun: Scalar


class VJF(LearningFilter):
    """Variational joint filtering (Zhao & Park 2020), as in its published package.

    A recognition network maps the observation and $q_{t-1}$ to $q_t$. In every bin one gradient
    step on the single-step bound, with one sample each of $z_{t-1}$ and $z_t$, moves the network
    and the model; the weights of `ResidualRBF` dynamics are learned by recursive least squares
    instead, and their noise is a running mean of the squared residual, which begins to forget after
    500 bins. Beliefs are diagonal Gaussian, as is the process noise, or continuous Bernoulli;
    dynamics of the latter are `NaturalDynamics`.

    The first bins, 1000 by default, are a warm-up without the dynamics in the bound.
    After them the centres of `ResidualRBF` dynamics are placed over the range that was visited, and
    their weights fitted to all of it, without the first bin of a trial, which has no bin before it.

    Where the paper is silent, the network, its head without bias and the warm-up follow the
    published code, with two exceptions known to do better. Least squares take the means of the
    beliefs, as samples would count the variance of both beliefs as noise of the dynamics. The
    gradient is clipped, as clamping the log rate of Poisson models at 10 leaves no gradient beyond
    it. Masked channels are replaced by their expected observation.

    Args:
        hidden: Units of the recognition network.
        warm_up: Bins without dynamics, not counting the first of a trial; with 0 the given noise
            counts as much as 10 bins.
        optimiser: Any optax optimiser, which sees the learned numbers as one vector; when left out
            plain gradient descent, as published, with a slowly falling rate of 0.001 and clipped
            gradients.
        learn: True to learn network and model, starting from the given model; otherwise that model
            is used, with the network of the state.
        parts: Parts of the model to learn: "dynamics", "noise", "readout", "observation".
        seed: Seed of the network's first weights and of the placing of centres.

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

    hidden: int = eqx.field(default=20, static=True)
    warm_up: int = eqx.field(default=1000, static=True)
    optimiser: optax.GradientTransformation = eqx.field(default=DEFAULT_OPTIMISER, static=True)
    learn: bool = eqx.field(default=True, static=True)
    parts: tuple[str, ...] = eqx.field(default=("dynamics", "noise"), static=True, converter=tuple)
    seed: int = eqx.field(default=0, static=True)

    def __check_init__(self):
        check_positive_whole(hidden=self.hidden)
        check_whole(self.warm_up, 0, "warm_up")

    def init(self, model: Model) -> VJFState:
        family, dynamics = model.family, model.dynamics
        single_step.check_model(model, "VJF")
        check_moments(model, "VJF", cov=False)
        self._check_parts(model)
        before = single_step.to_free(family, model.prior)
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
            pairs=StatePairs(*(jnp.zeros(shape, dtype) for shape in shapes)),
            count=jnp.asarray(0, jnp.int32),
            begun=jnp.zeros((), dtype),
        )

    def restart(self, model: Model, state: VJFState) -> VJFState:
        return state._replace(belief=model.prior, begun=jnp.zeros_like(state.begun))

    def _filter_bin(
        self, model: Model, state: VJFState, data: BinData, key: Key
    ) -> tuple[VJFState, Info]:
        """Apply the recognition network, then take a gradient step with network and model."""
        y, mask, u = data
        family = model.family
        predict_key, past_key, own_key = jax.random.split(key, 3)
        prediction = single_step.predict_mean_nat(model, state.belief, u, predict_key)
        filled = jnp.where(mask, y, model.likelihood.mean(family.mean(prediction.belief)))
        before = single_step.to_free(family, state.belief)
        past = family.sample(state.belief, past_key, 1)[0]
        chosen, held = self._split(model)
        flat, unravel = ravel_pytree((state.recognition, chosen))

        def loss(flat: Array) -> tuple[Scalar, tuple[Any, ...]]:
            recognition, chosen = unravel(flat)
            moved = eqx.combine(chosen, held)
            belief = single_step.from_free(family, recognition(filled, before))
            z = family.sample(belief, own_key, 1)[0]
            misfit = -moved.likelihood.log_prob(z, y, mask)
            divergence = family.kl(belief, moved.transition(past, u))
            warm = state.count < self.warm_up
            rest = jnp.where(warm, -family.entropy(belief), divergence)
            return misfit + rest, (belief, -misfit - divergence)

        slope, (belief, bound) = jax.grad(loss, has_aux=True)(flat)
        sound = all_finite(belief, bound) & family.valid(belief)
        steps = int(self.learn)
        belief, info = single_step.settle_update(prediction, belief, bound, sound, mask, steps)
        if not self.learn:
            return state._replace(belief=belief, model=model), info
        change, optimiser = self.optimiser.update(slope, state.optimiser, flat)
        recognition, chosen = unravel(flat + jnp.asarray(change))
        going_on = state.begun > 0
        new = state._replace(
            model=floor_noise(eqx.combine(chosen, held), self._gradient_parts(model)),
            recognition=recognition,
            optimiser=optimiser,
            count=state.count + going_on,
            begun=jnp.ones_like(state.begun),
        )
        if self._recursive(model):
            pair = family.mean(state.belief), family.mean(belief)
            new = tree_where(going_on, self._regress(new, *pair, u), new)
        use = sound & all_finite(slope, new.weight_cov) & jnp.any(mask)
        return tree_where(use, new, state)._replace(belief=belief), info

    def _recursive(self, model: Model) -> bool:
        """True if the dynamics are learned by least squares."""
        return isinstance(model.dynamics, ResidualRBF) and "dynamics" in self.parts

    def _gradient_parts(self, model: Model) -> tuple[str, ...]:
        """Return the parts that gradients move."""
        rest = ("dynamics", "noise") if self._recursive(model) else ()
        return tuple(part for part in self.parts if part not in rest)

    def _split(self, model: Model) -> tuple[Model, Model]:
        """Split the model into the numbers that gradients move and the rest."""
        return eqx.partition(model, mark_learned(model, self._gradient_parts(model)))

    def _regress(self, state: VJFState, before: Vector, after: Vector, u: Input) -> VJFState:
        """Learn from a pair of states: store it in the warm-up, fit to all pairs at its end."""
        dynamics, cov = state.model.dynamics, state.weight_cov
        assert isinstance(dynamics, ResidualRBF)
        pairs = state.pairs

        def advance() -> tuple[ResidualRBF, Array]:
            weight = state.count if self.warm_up else state.count + PRIOR_COUNT
            return update_dynamics(dynamics, cov, before, after, u, weight)

        if self.warm_up:
            pairs = pairs.put(state.count - 1, before, after, u)
            key = jax.random.fold_in(jax.random.key(self.seed), 1)
            stages = [lambda: (dynamics, cov), lambda: fit_dynamics(dynamics, pairs, key), advance]
            new, cov = lax.switch(1 + jnp.sign(state.count - self.warm_up), stages)
        else:
            new, cov = advance()
        if "noise" not in self.parts:
            new = eqx.tree_at(lambda d: d.noise, new, dynamics.noise)
        model = eqx.tree_at(lambda m: m.dynamics, state.model, new)
        return state._replace(model=model, weight_cov=cov, pairs=pairs)


def fit_dynamics(
    dynamics: ResidualRBF, pairs: StatePairs, key: Key
) -> tuple[ResidualRBF, Float[Array, "D D"]]:
    """Place the functions over the range of the pairs and fit weights and noise to them.

    The weights are regularised by the noise of a random walk. Also return P.
    """
    low, high = jnp.min(pairs.after, axis=0), jnp.max(pairs.after, axis=0)
    placed = dynamics.placed(key, low, high)
    moves = pairs.after - pairs.before
    features = jax.vmap(placed.features)(pairs.before, pairs.us)
    var = jnp.mean(moves**2) + MIN_VAR
    precision = features.T @ features / var + jnp.eye(features.shape[1], dtype=var.dtype)
    cov, _ = inverse_positive(precision)
    weight = cov @ (features.T @ moves) / var
    square = jnp.mean((moves - features @ weight) ** 2, axis=0)
    return _replace_weights(placed, weight, square), cov


def update_dynamics(
    dynamics: ResidualRBF,
    cov: Float[Array, "D D"],
    before: Vector,
    after: Vector,
    u: Input,
    count: Count,
) -> tuple[ResidualRBF, Float[Array, "D D"]]:
    """Take a step of recursive least squares; the noise is the mean of squared residuals.

    Args:
        dynamics: Dynamics with the weights and noise learned so far.
        cov: P.
        before: The state.
        after: The state a bin later.
        u: The input of that bin.
        count: Number of pairs that the noise is the mean of, with this one.
    """
    features = dynamics.features(before, u)
    residual = after - dynamics.mean(before, u)
    var = dynamics.noise.var()
    spread = cov @ features
    # Rounding may turn a variance that is nearly zero negative.
    total = jnp.mean(var) + jnp.maximum(features @ spread, 0)
    weight = dynamics.weight + jnp.outer(spread / total, residual)
    square = var + (residual**2 - var) / jnp.minimum(count, HORIZON)
    return _replace_weights(dynamics, weight, square), cov - jnp.outer(spread, spread) / total


def _replace_weights(
    dynamics: ResidualRBF, weight: Float[Array, "D L"], var: Vector
) -> ResidualRBF:
    noise = DiagonalCovariance(0.5 * jnp.log(jnp.maximum(var, MIN_VAR)))
    return eqx.tree_at(lambda d: (d.weight, d.noise), dynamics, (weight, noise))
