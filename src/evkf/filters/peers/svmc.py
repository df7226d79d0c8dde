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
    """The filter state of `StreamingVMC`: the particles, and what was learned.

    Attributes:
        belief: The belief of the model's family that has the mean and covariance of the particles.
        particles: The particles, (particles, latents).
        log_weights: Logarithms of the weights of the particles, not normalised.
        model: The model learned so far.
        proposal: The network of the proposal.
        optimiser: Internal states of two optimisers, of the proposal and of the model.
        begun: 0 before the first step of a trial, which draws the particles from the prior; then 1.
    """

    belief: Belief
    particles: Points
    log_weights: Weights
    model: Model
    proposal: ShallowNetwork
    optimiser: tuple[PyTree, PyTree]
    begun: Scalar


class StreamingVMC(LearningFilter):
    r"""SVMC: a particle filter that learns proposal and model by ascending the estimated evidence.

    Every bin begins with `iterations` gradient steps. For each of these steps, `num_ancestors`
    particles are drawn according to the weights and moved by the proposal; one Adam step then
    raises the logarithm of the mean weight. Finally all particles are moved and weighted.

    The proposal is a diagonal Gaussian. From $[z_{t-1}, y_t, u_t]$ a network computes how far the
    mean is shifted from the mean of the dynamics (in standard deviations of the process noise), and
    the logarithm of the ratio of the standard deviation to that of the process noise. All outputs
    are zero at first, so that SVMC starts as a bootstrap particle filter. The hidden units are
    tanh, which limits the effect of an outlying observation. For continuous Bernoulli beliefs the
    network shifts the natural parameters of the transition instead.

    `info.elbo` is the logarithm of the mean weight, an estimate of $\log p(y_t | y_{<t})$.

    Args:
        num_particles: Number of particles.
        iterations: Number of gradient steps in each bin.
        num_ancestors: Number of particles drawn for each gradient step.
        hidden: Number of hidden units in the network of the proposal.
        rate: Learning rate of the proposal.
        model_rate: First learning rate of the model. It falls as a cosine to a tenth, then stays
            constant.
        decay: Number of bins until the learning rate of the model is a tenth of the first.
        learn: True to learn the model. If False, the given model is used. The proposal is learned
            in both cases.
        parts: Parts of the model to learn: "dynamics", "noise", "readout", "observation".
        seed: Random seed of the first weights of the network.

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
        """Return the filter state before the first bin of another trial.

        The next step draws the particles from the prior. Proposal, model and optimisers are kept.
        """
        return state._replace(
            belief=model.prior,
            particles=begin(model, self.num_particles),
            log_weights=jnp.zeros_like(state.log_weights),
            begun=jnp.zeros_like(state.begun),
        )

    def _filter_bin(
        self, model: Model, state: SVMCState, data: BinData, key: Key
    ) -> tuple[SVMCState, Info]:
        """Filter one bin: learn, then move and weight the particles.

        Return the next filter state and the diagnostics. Where nothing was observed, or the result
        is not finite, the particles are moved by the dynamics instead, and have equal weights.
        """
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
            """Return the particles moved by the dynamics, and bits of `Status`."""
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
        """Return the optimisers of the proposal and of the model."""
        falling = optax.cosine_decay_schedule(
            self.model_rate, self.decay * self.iterations, LAST_RATE
        )
        return optax.adam(self.rate), optax.adam(falling)

    def _adapt(self, state: SVMCState, data: BinData, key: Key) -> SVMCState:
        """Return the filter state after `iterations` gradient steps of the proposal.

        If `learn` is True, the model takes the same number of gradient steps.
        """
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
    """Draw `num` particles with probabilities proportional to the weights, and return them."""
    return state.particles[resample(jax.nn.softmax(state.log_weights), key, num)]


def _belief(model: Model, cloud: Points, log_weights: Weights) -> Belief:
    """Return the belief that has the mean and covariance of weighted particles."""
    dynamics = model.dynamics
    floor = FLOOR * dynamics.noise.var() if isinstance(dynamics, GaussianDynamics) else 0.0
    return summarise(model.family, cloud, jax.nn.softmax(log_weights), floor)


def _propose(
    model: Model, proposal: ShallowNetwork, ancestors: Points, data: BinData, key: Key
) -> tuple[Points, Weights]:
    r"""Draw new particles from the proposal; return the particles and their log weights.

    The weight is $p(y_t|z_t) p(z_t|z_{t-1}) / r(z_t)$; a log weight of NaN becomes $-\infty$.

    Args:
        model: The state-space model.
        proposal: The network of the proposal r.
        ancestors: The particles $z_{t-1}$ to move, (particles, latents).
        data: Observation, mask and input of the bin.
        key: JAX random key.
    """
    y, mask, u = data
    out = proposal.apply(ancestors, jnp.tanh, jnp.concatenate([y, u]))
    cloud, log_ratio = _draw(model, out, ancestors, u, key)
    log_likelihood = jax.vmap(model.likelihood.log_prob, (0, None, None))(cloud, y, mask)
    log_w = log_likelihood + log_ratio
    return cloud, jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)


def _draw(
    model: Model, out: Array, ancestors: Points, u: Input, key: Key
) -> tuple[Points, Weights]:
    r"""Draw new particles, given the output of the network of the proposal.

    Return the particles and, for each, the log ratio $\log [p(z_t|z_{t-1}) / r(z_t)]$.

    Args:
        model: The state-space model.
        out: Output of the network, one row for each particle.
        ancestors: The particles $z_{t-1}$ to move.
        u: Input of this bin, (inputs,).
        key: JAX random key.
    """
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
