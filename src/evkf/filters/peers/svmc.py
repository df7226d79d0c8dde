"""Streaming variational Monte Carlo: particles, their proposal and the model learned together.

Zhao, Nassar, Jordan, Bugallo & Park 2022.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp
from jaxtyping import Array, PyTree

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.families import ContinuousBernoulliFamily
from evkf.filters.base import Info, evidence_info
from evkf.filters.peers.cloud import Points, Weights, begin, draw_first, move, resample, summarise
from evkf.filters.peers.learned import BinData, LearningFilter, ShallowNetwork, flatten, floor_noise
from evkf.model import Model
from evkf.numerics.checks import check_positive, check_positive_whole
from evkf.numerics.linalg import all_finite, tree_where
from evkf.types import Belief, Input, Key, Scalar, Status

FLOOR = 1e-6
"""Share of the process noise added to the covariance of a cloud, which may be a single point."""

LAST_RATE = 0.1
"""Last learning rate of the model, as a share of the first."""


class SVMCState(NamedTuple):
    """The particles, and what was learned.

    Attributes:
        belief: Mean and covariance of the particles, in the family of the model.
        particles: The cloud.
        log_weights: Logarithms of their weights, not normalised.
        model: The model in use.
        proposal: The network of the proposal.
        optimiser: States of the optimisers of proposal and model.
        begun: 0 before the first step, which draws the particles from the prior; then 1.
    """

    belief: Belief
    particles: Points
    log_weights: Weights
    model: Model
    proposal: ShallowNetwork
    optimiser: tuple[PyTree, PyTree]
    begun: Scalar


class StreamingVMC(LearningFilter):
    r"""SVMC: a particle filter that learns proposal and model by the gradient of its evidence.

    In every bin, `iterations` times: draw `num_ancestors` particles by their weights, move each by
    the proposal, and take an Adam step on the logarithm of the mean weight. Then move and weight
    all particles. The proposal is Gaussian with diagonal variance: a network of
    $[z_{t-1}, y_t, u_t]$ gives a shift from what the dynamics predict, in units of the process
    noise, and the logarithm of a factor on its standard deviation. It starts at zero, that is, as a
    bootstrap filter; its units are tanh, which bound the effect of an outlying observation. For
    continuous Bernoulli states the network shifts the natural parameters instead. `info.elbo` is
    the logarithm of the mean weight, an estimate of $\log p(y_t | y_{<t})$.

    Args:
        num_particles: Number of particles.
        iterations: Gradient steps a bin.
        num_ancestors: Particles drawn for a gradient step.
        hidden: Units of the proposal's network.
        rate: Learning rate of the proposal.
        model_rate: First learning rate of the model; it falls as a cosine to a tenth, then stays.
        decay: Bins until the rate is a tenth.
        learn: True to learn the model; otherwise the given one is used. The proposal is learned in
            both cases.
        parts: Parts of the model to learn: "dynamics", "noise", "readout", "observation".
        seed: Seed of the network.

    Example:
        >>> import jax
        >>> from evkf.dynamics import ResidualMLP, VanDerPol
        >>> from evkf.filters import scan_filter
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import Model, simulate
        >>> likelihood = Poisson([[1.0, 0.0], [0.0, 1.0]])
        >>> _, ys = simulate(Model(VanDerPol(), likelihood), jax.random.key(0), 20)
        >>> start = Model(ResidualMLP(2, 0.04, jax.random.key(1)), likelihood)
        >>> filter = StreamingVMC(num_particles=100)
        >>> state, trace = scan_filter(filter, start, ys, key=jax.random.key(2))
        >>> trace.belief.mean.shape, state.particles.shape
        ((20, 2), (100, 2))
    """

    num_particles: int = eqx.field(default=5000, static=True)
    iterations: int = eqx.field(default=5, static=True)
    num_ancestors: int = eqx.field(default=64, static=True)
    hidden: int = eqx.field(default=64, static=True)
    rate: float = eqx.field(default=1e-3, static=True)
    model_rate: float = eqx.field(default=5e-4, static=True)
    decay: int = eqx.field(default=3500, static=True)
    learn: bool = eqx.field(default=True, static=True)
    parts: tuple[str, ...] = eqx.field(default=("dynamics", "noise"), static=True, converter=tuple)
    seed: int = eqx.field(default=0, static=True)

    def __check_init__(self):
        counts = ("num_particles", "iterations", "num_ancestors", "hidden", "decay")
        check_positive_whole(**{name: getattr(self, name) for name in counts})
        check_positive(rate=self.rate, model_rate=self.model_rate)

    def init(self, model: Model) -> SVMCState:
        gaussian = isinstance(model.dynamics, GaussianDynamics)
        if not gaussian and not isinstance(model.family, ContinuousBernoulliFamily):
            raise InputError(
                f"{type(model.dynamics).__name__} over {type(model.family).__name__} states",
                "StreamingVMC",
                "use additive Gaussian noise (GaussianDynamics) or ContinuousBernoulli states",
            )
        dim, dtype = model.family.dim, jax.tree.leaves(model.prior)[0].dtype
        self._check_parts(model)
        inputs = dim + model.likelihood.num_channels + model.dynamics.num_inputs
        net_key, _ = jax.random.split(jax.random.key(self.seed))
        outputs = 2 * dim if gaussian else dim
        proposal = ShallowNetwork.begin(net_key, inputs, self.hidden, outputs, dtype)
        vectors = ravel_pytree(proposal)[0], flatten(model, self.parts)[0]
        optimisers = self._optimisers()
        return SVMCState(
            belief=model.prior,
            particles=begin(model, self.num_particles),
            log_weights=jnp.zeros(self.num_particles, dtype),
            model=model,
            proposal=proposal,
            optimiser=(optimisers[0].init(vectors[0]), optimisers[1].init(vectors[1])),
            begun=jnp.zeros((), dtype),
        )

    def restart(self, model: Model, state: SVMCState) -> SVMCState:
        """Return to the prior, from which the next step draws particles; what was learned stays."""
        return state._replace(
            belief=model.prior,
            particles=begin(model, self.num_particles),
            log_weights=jnp.zeros_like(state.log_weights),
            begun=jnp.zeros_like(state.begun),
        )

    def _filter_bin(
        self, model: Model, state: SVMCState, data: BinData, key: Key
    ) -> tuple[SVMCState, Info]:
        """Learn, then move and weight the particles."""
        learn_key, pick_key, move_key, spare_key, start_key = jax.random.split(key, 5)
        seen = jnp.any(data.mask)
        cloud = draw_first(model, state.particles, state.begun, start_key)
        before = state._replace(model=model, particles=cloud)
        new = tree_where(seen, self._adapt(before, data, learn_key), before)
        model = new.model

        ancestors = _draw_ancestors(before, pick_key, self.num_particles)
        cloud, log_w = _propose(model, new.proposal, ancestors, data, move_key)
        belief = _belief(model, cloud, log_w)
        elbo = logsumexp(log_w) - math.log(self.num_particles)
        sound = all_finite(elbo, cloud, *jax.tree.leaves(belief))
        keep = sound & seen

        def predicted(_: None) -> tuple[Any, ...]:
            """Move the cloud by the dynamics."""
            cloud, status = move(model, ancestors, data.u, spare_key)
            flat = jnp.zeros_like(log_w)
            return (cloud, flat, _belief(model, cloud, flat)), status

        own = (cloud, log_w, belief), jnp.zeros((), int)
        (cloud, log_w, belief), status = lax.cond(keep, lambda _: own, predicted, None)
        finite = all_finite(cloud, *jax.tree.leaves(belief))
        old = (before.particles, state.log_weights, state.belief)
        cloud, log_w, belief = tree_where(finite, (cloud, log_w, belief), old)
        status = status | jnp.where((keep | ~seen) & finite, 0, int(Status.FELL_BACK))
        elbo = jnp.where(keep, elbo, jnp.where(seen, jnp.nan, 0))
        begun = jnp.ones_like(state.begun)
        state = SVMCState(belief, cloud, log_w, model, new.proposal, new.optimiser, begun)
        return state, evidence_info(elbo, status, self.iterations)

    def _optimisers(self) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
        """Optimisers of the proposal and of the model."""
        falling = optax.cosine_decay_schedule(
            self.model_rate, self.decay * self.iterations, LAST_RATE
        )
        return optax.adam(self.rate), optax.adam(falling)

    def _adapt(self, state: SVMCState, data: BinData, key: Key) -> SVMCState:
        """Take gradient steps with the proposal, and with the model if it is learned."""
        weights, unravel = ravel_pytree(state.proposal)
        vector, build = flatten(state.model, self.parts)
        # The second of each pair is the model's.
        used = slice(2 if self.learn else 1)
        optimisers = self._optimisers()[used]

        def read(vectors: tuple[Any, ...]) -> tuple[ShallowNetwork, Model]:
            return unravel(vectors[0]), build(vectors[1]) if self.learn else state.model

        def loss(vectors: tuple[Any, ...], key: Key) -> Scalar:
            pick_key, move_key = jax.random.split(key)
            ancestors = _draw_ancestors(state, pick_key, self.num_ancestors)
            proposal, model = read(vectors)
            _, log_w = _propose(model, proposal, ancestors, data, move_key)
            return math.log(self.num_ancestors) - logsumexp(log_w)

        def body(carry: tuple[Any, ...], key: Key) -> tuple[Any, ...]:
            vectors, moments = carry
            slopes = jax.grad(loss)(vectors, key)
            each = zip(optimisers, slopes, moments, vectors, strict=True)
            updates = [own.update(slope, moment, x) for own, slope, moment, x in each]
            moved = tuple(x + step for x, (step, _) in zip(vectors, updates, strict=True))
            new = moved, tuple(moments for _, moments in updates)
            return tree_where(all_finite(*slopes), new, carry), None

        keys = jax.random.split(key, self.iterations)
        start = (weights, vector)[used], state.optimiser[used]
        (vectors, moments), _ = lax.scan(body, start, keys)
        proposal, model = read(vectors)
        if self.learn:
            model = floor_noise(model, self.parts)
        moments = (*moments, *state.optimiser[len(moments) :])
        return state._replace(model=model, proposal=proposal, optimiser=moments)


def _draw_ancestors(state: SVMCState, key: Key, num: int) -> Points:
    """Draw particles by their weights."""
    return state.particles[resample(jax.nn.softmax(state.log_weights), key, num)]


def _belief(model: Model, cloud: Points, log_weights: Weights) -> Belief:
    """Return the belief with the moments of a cloud."""
    dynamics = model.dynamics
    floor = FLOOR * dynamics.noise.var() if isinstance(dynamics, GaussianDynamics) else 0.0
    return summarise(model.family, cloud, jax.nn.softmax(log_weights), floor)


def _propose(
    model: Model, proposal: ShallowNetwork, ancestors: Points, data: BinData, key: Key
) -> tuple[Points, Weights]:
    r"""Draw from the proposal, with log weights $\log p(y|z_t) p(z_t|z_{t-1}) / r(z_t)$."""
    y, mask, u = data
    out = proposal.apply(ancestors, jnp.tanh, jnp.concatenate([y, u]))
    cloud, log_ratio = _draw(model, out, ancestors, u, key)
    log_likelihood = jax.vmap(model.likelihood.log_prob, (0, None, None))(cloud, y, mask)
    log_w = log_likelihood + log_ratio
    return cloud, jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)


def _draw(
    model: Model, out: Array, ancestors: Points, u: Input, key: Key
) -> tuple[Points, Weights]:
    r"""Draw from the proposal with this output of its network, with log ratios $\log p / r$."""
    dynamics, family = model.dynamics, model.family
    if isinstance(dynamics, GaussianDynamics):
        # The gradient does not pass from proposal to dynamics.
        shift, log_scale = jnp.split(out, 2, axis=1)
        centre = jax.vmap(dynamics.mean, (0, None))(ancestors, u)
        noise = jax.random.normal(key, ancestors.shape, ancestors.dtype)
        log_std = lax.stop_gradient(0.5 * jnp.log(dynamics.noise.var())) + log_scale
        unit = lax.stop_gradient(jnp.sqrt(dynamics.noise.var()))
        cloud = lax.stop_gradient(centre) + unit * shift + jnp.exp(log_std) * noise
        white = dynamics.noise.whiten((cloud - centre).T).T
        log_p = -0.5 * jnp.sum(white**2, axis=1) - dynamics.noise.log_det_root()
        log_ratio = log_p + 0.5 * jnp.sum(noise**2, axis=1) + jnp.sum(log_std, axis=1)
    else:
        # Any other family has unconstrained natural parameters here.
        there = jax.vmap(model.transition, (0, None))(ancestors, u)
        nats = lax.stop_gradient(there) + out[:, :, None]
        keys = jax.random.split(key, len(ancestors))
        cloud = jax.vmap(lambda nat, key: family.sample(nat, key, 1)[0])(nats, keys)
        log_prob = jax.vmap(family.log_prob)
        log_ratio = log_prob(there, cloud) - log_prob(nats, cloud)
    return cloud, log_ratio
