"""Variational joint filtering without a recognition network: each belief is optimised directly."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from evkf.dynamics import GaussianDynamics
from evkf.filters.base import Info
from evkf.filters.peers import single_step
from evkf.filters.peers.learned import BinData, LearningFilter, floor_noise, mark_learned
from evkf.model import Model
from evkf.numerics.checks import check_positive, check_positive_whole
from evkf.numerics.linalg import all_finite, tree_where
from evkf.types import Belief, Input, Key, Scalar, Vector

DEFAULT_OPTIMISER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))


class DirectVJFState(NamedTuple):
    """The filter state: belief, model learned so far, and internal state of its optimiser."""

    belief: Belief
    model: Model
    optimiser: PyTree


class DirectVJF(LearningFilter):
    r"""Variational joint filtering (Zhao & Park 2020) with $q_t$ optimised directly in every bin.

    In every bin Adam maximises the single-step bound $M_t$, starting from the prediction. Every
    iteration draws a few new samples of $z_{t-1} \sim q_{t-1}$ and $z_t \sim q_t$, as in the
    comparison of Campbell et al. 2021. Up to Monte-Carlo error, the optimum is that of eVKF without
    variance correction, for diagonal beliefs. If `learn` is True, one gradient step on $M_t$ then
    changes the model.

    A Gaussian belief is represented by mean and log standard deviation, as published. `rate` is
    therefore in units of the latent state: in one bin a mean can move by about `rate * iterations`.
    Continuous Bernoulli beliefs, which were not published, are represented by
    $\text{arsinh}\lambda$ with $\lambda$ the natural parameters.

    Args:
        rate: Learning rate of Adam for the belief.
        iterations: Number of Adam steps in each bin.
        num_samples: Number of samples in each Adam step.
        learn: True to learn the model, starting from the given model. If False, the given model is
            used.
        parts: Parts of the model to learn: "dynamics", "noise", "readout", "observation".
        optimiser: Any optax optimiser for the model; it takes the learned numbers as one vector.
            The default is Adam after clipping the gradient.

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

    rate: float = eqx.field(default=1e-2, static=True)
    iterations: int = eqx.field(default=500, static=True)
    num_samples: int = eqx.field(default=10, static=True)
    learn: bool = eqx.field(default=True, static=True)
    parts: tuple[str, ...] = eqx.field(default=("dynamics", "noise"), static=True, converter=tuple)
    optimiser: optax.GradientTransformation = eqx.field(default=DEFAULT_OPTIMISER, static=True)

    def __check_init__(self):
        check_positive(rate=self.rate)
        check_positive_whole(iterations=self.iterations, num_samples=self.num_samples)

    def init(self, model: Model) -> DirectVJFState:
        single_step.check_model(model, "DirectVJF")
        self._check_parts(model)
        flat, _ = ravel_pytree(eqx.filter(model, mark_learned(model, self.parts)))
        return DirectVJFState(model.prior, model, self.optimiser.init(flat))

    def restart(self, model: Model, state: DirectVJFState) -> DirectVJFState:
        return state._replace(belief=model.prior)

    def _filter_bin(
        self, model: Model, state: DirectVJFState, data: BinData, key: Key
    ) -> tuple[DirectVJFState, Info]:
        """Filter one bin: optimise $q_t$; take a gradient step of the model if `learn`.

        Return the next filter state and the diagnostics.
        """
        predict_key, fit_key, learn_key = jax.random.split(key, 3)
        prediction = single_step.predict_mean_nat(model, state.belief, data.u, predict_key)
        free = self._fit(model, state.belief, prediction.belief, data, fit_key)
        belief = single_step.from_free(model.family, free)
        chosen, held = eqx.partition(model, mark_learned(model, self.parts))

        flat, unravel = ravel_pytree(chosen)

        def bound(flat: Array) -> Scalar:
            moved = eqx.combine(unravel(flat), held)
            past_key, own_key = jax.random.split(learn_key)
            past = model.family.sample(state.belief, past_key, self.num_samples)
            given = jax.vmap(_conditional, (None, 0, None))(moved, past, data.u)
            return _bound(moved, free, given, data, own_key, self.num_samples)

        value, slope = jax.value_and_grad(bound)(flat)
        sound = all_finite(free, value) & model.family.valid(belief)
        belief, info = single_step.settle_update(
            prediction, belief, value, sound, data.mask, self.iterations
        )
        if not self.learn:
            return DirectVJFState(belief, model, state.optimiser), info
        change, optimiser = self.optimiser.update(-slope, state.optimiser, flat)
        moved = floor_noise(eqx.combine(unravel(flat + jnp.asarray(change)), held), self.parts)
        use, old = sound & all_finite(slope) & jnp.any(data.mask), (model, state.optimiser)
        model, optimiser = tree_where(use, (moved, optimiser), old)
        return DirectVJFState(belief, model, optimiser), info

    def _fit(
        self, model: Model, before: Belief, start: Belief, data: BinData, key: Key
    ) -> Float[Array, "R L"]:
        """Maximise $M_t$ with Adam, and return the unconstrained numbers of $q_t$ (`to_free`)."""
        past_key, own_key = jax.random.split(key)
        shape = (self.iterations, self.num_samples)
        # The model does not change while the belief is fitted: all conditionals at once.
        past = model.family.sample(before, past_key, self.iterations * self.num_samples)
        given = jax.vmap(_conditional, (None, 0, None))(model, past, data.u)
        given = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), given)
        adam = optax.adam(self.rate)

        def loss(free: Array, given: PyTree, key: Key) -> Scalar:
            return -_bound(model, free, given, data, key, self.num_samples)

        def body(carry: tuple[Array, PyTree], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            free, optimiser = carry
            change, optimiser = adam.update(jax.grad(loss)(free, *inputs), optimiser)
            return (free + jnp.asarray(change), optimiser), None

        free = single_step.to_free(model.family, start)
        keys = jax.random.split(own_key, self.iterations)
        return lax.scan(body, (free, adam.init(free)), (given, keys))[0][0]


def _bound(
    model: Model,
    free: Float[Array, "R L"],
    given: PyTree,
    data: BinData,
    key: Key,
    num_samples: int,
) -> Scalar:
    """Return the bound $M_t$, estimated from samples of $z_t$; the entropy is in closed form."""
    belief = single_step.from_free(model.family, free)
    zs = model.family.sample(belief, key, num_samples)
    fit = jax.vmap(model.likelihood.log_prob, (0, None, None))(zs, data.y, data.mask)

    def log_transition(conditional: PyTree, z: Vector) -> Scalar:
        if not isinstance(model.dynamics, GaussianDynamics):
            return model.family.log_prob(conditional, z)
        noise = model.dynamics.noise
        white = noise.whiten(z - conditional)
        return -0.5 * (white @ white + len(z) * math.log(2 * math.pi)) - noise.log_det_root()

    prior = jax.vmap(log_transition)(given, zs)
    return jnp.mean(fit + prior) + model.family.entropy(belief)


def _conditional(model: Model, z: Vector, u: Input) -> PyTree:
    """Return the mean of $p(z_t|z_{t-1} = z)$ or, if not Gaussian, the natural parameters."""
    dynamics = model.dynamics
    return dynamics.mean(z, u) if isinstance(dynamics, GaussianDynamics) else model.transition(z, u)
