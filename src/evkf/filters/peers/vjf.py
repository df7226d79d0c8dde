"""Variational joint filtering (VJF): a network computes the belief; the model is learned online.

The weights of `ResidualRBF` dynamics (radial basis functions) are learned by Bayesian linear
regression: at the end of the warm-up (the first bins) from all pairs of consecutive states, then
from one pair at a time. The prior of the weights of every latent is $N(0, I)$. The posterior of the
weights of latent l is $N(W_l, P)$, with one covariance P for all latents, as published. For P, the
noise variance of every latent is replaced by the mean of the noise variances over latents; this is
Bayes' rule if the noise variances are equal.
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
"""Smallest noise variance of the dynamics, and the number of bins over which the running mean of
squared residuals averages: after this number, older bins are forgotten gradually.
"""

PRIOR_COUNT = 10
"""Without a warm-up, the noise variance of the given model counts as much as this many bins."""


DEFAULT_OPTIMISER = optax.chain(
    optax.clip_by_global_norm(100.0),
    optax.sgd(lambda count: 1e-3 / jnp.sqrt(1 + jnp.asarray(count) / 1000)),
)


class Recognition(eqx.Module):
    """The recognition network: one layer of tanh units that computes the belief $q_t$.

    Inputs are the observation $y_t$ and the unconstrained parameters of $q_{t-1}$ (see
    `single_step.to_free`); outputs are those of $q_t$. The output of the mean has no bias, so that
    means of either sign occur from the start.
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
    """Pairs of latent states in consecutive bins, one row for each pair, stored in the warm-up.

    Attributes:
        before: Mean of the belief in the first bin of the pair.
        after: Mean of the belief in the second bin.
        us: Input of the second bin.
    """

    before: Float[Array, "T L"]
    after: Float[Array, "T L"]
    us: Float[Array, "T U"]

    def put(self, index: Count, before: Vector, after: Vector, u: Input) -> Self:
        """Return the pairs after writing one pair into row `index`.

        The number of rows is fixed: if `index` is beyond the last row, nothing is written.
        """
        rows = zip(self, (before, after, u), strict=True)
        return type(self)(*(old.at[index].set(row, mode="drop") for old, row in rows))


class VJFState(NamedTuple):
    """The filter state of `VJF`: the belief, and what was learned.

    Attributes:
        belief: The belief $q_t$.
        model: The model learned so far.
        recognition: The recognition network.
        optimiser: Internal state of the optimiser, which moves network and model.
        weight_cov: Posterior covariance P of the weights of radial basis functions; empty if the
            filter learns none.
        pairs: Pairs of states from the warm-up; empty without a warm-up or if the filter learns no
            radial basis functions.
        count: Number of transitions learned from: bins, without the first bin of each trial.
        begun: 0 until the filter has learned from a bin of this trial; then 1.
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
    """Variational joint filtering (Zhao & Park 2020), after the published code.

    A recognition network computes the belief $q_t$ from the observation and $q_{t-1}$. In every bin
    one gradient step on the single-step bound $M_t$ changes the network and the model; the bound is
    estimated from one sample of $z_{t-1}$ and one of $z_t$. The weights of `ResidualRBF` dynamics
    (radial basis functions) are learned by recursive least squares instead. The process noise is
    then a running mean of squared residuals, which forgets old bins gradually after 500 bins.
    Beliefs are diagonal Gaussian, for dynamics with diagonal Gaussian noise, or continuous
    Bernoulli, for `NaturalDynamics`.

    The first bins, 1000 by default, are a warm-up, in which the bound leaves out the dynamics. At
    the end of the warm-up, the centres of `ResidualRBF` dynamics are placed over the range of the
    latent states so far, and their weights are fitted to all transitions so far.

    The paper does not specify the network, its mean output without bias, and the warm-up; they
    follow the published code. Two details differ, because the filter then does better. Least
    squares use the means of the beliefs, not samples: samples would add the variance of both
    beliefs to the process noise. And the gradient is clipped, whereas the published code limits
    the log rate of Poisson models to 10, above which the gradient is zero. Masked channels are
    replaced by the observation that the model expects.

    Args:
        hidden: Number of units of the recognition network.
        warm_up: Number of transitions in the warm-up (bins, without the first bin of each trial).
            If 0, the noise variance of the given model counts as much as 10 bins.
        optimiser: Any optax optimiser; it takes the learned numbers of network and model as one
            vector. The default is gradient descent, as published, at a rate that falls slowly from
            0.001, after clipping the gradient.
        learn: True to learn network and model, starting from the given model. If False, the given
            model is used, and the network does not change.
        parts: Parts of the model to learn: "dynamics", "noise", "readout", "observation".
        seed: Random seed of the first weights of the network and of the centres.

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
        """Filter one bin; return the next filter state and the diagnostics.

        The recognition network computes the belief. If `learn` is True, one gradient step then
        changes network and model; otherwise neither changes.
        """
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
        """Return True if the dynamics are learned by recursive least squares."""
        return isinstance(model.dynamics, ResidualRBF) and "dynamics" in self.parts

    def _gradient_parts(self, model: Model) -> tuple[str, ...]:
        """Return the names of the model parts that gradient steps change."""
        rest = ("dynamics", "noise") if self._recursive(model) else ()
        return tuple(part for part in self.parts if part not in rest)

    def _split(self, model: Model) -> tuple[Model, Model]:
        """Return the model as two: the numbers that gradient steps change, and all others."""
        return eqx.partition(model, mark_learned(model, self._gradient_parts(model)))

    def _regress(self, state: VJFState, before: Vector, after: Vector, u: Input) -> VJFState:
        """Learn the dynamics from a pair of consecutive states; return the next filter state.

        In the warm-up the pair is stored; at the end of the warm-up the dynamics are fitted to all
        stored pairs; later they are updated by one step of recursive least squares.
        """
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
    """Fit radial basis functions to pairs of states; return the dynamics, and P.

    The centres of the functions are placed over the range of the states. The weights are the
    posterior mean of Bayesian linear regression, where the noise variance is that of a random walk
    (the mean squared difference of the pair). P is the posterior covariance of the weights. The
    process noise is the mean squared residual.

    Args:
        dynamics: The dynamics before the fit.
        pairs: The pairs of states; every row is used.
        key: JAX random key, for placing the centres.
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
    """Take one step of recursive least squares; return the dynamics, and P after the step.

    The process noise is a running mean of squared residuals.

    Args:
        dynamics: Dynamics that have the weights and noise learned so far.
        cov: Posterior covariance P of the weights before the step.
        before: Latent state in a bin.
        after: Latent state in the next bin.
        u: Input of the next bin, (inputs,).
        count: Number of pairs in the running mean, including this pair; at most 500 are counted.
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
