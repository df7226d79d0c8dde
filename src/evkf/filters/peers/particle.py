"""The bootstrap particle filter."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from evkf.filters.base import Info, PredictUpdate, read_bin, read_input, read_key
from evkf.filters.peers.cloud import Points, Weights, begin, draw_first, move, resample, summarise
from evkf.filters.peers.gain import accept
from evkf.model import Model
from evkf.numerics.checks import check_whole
from evkf.types import Belief, Input, Key, Mask, Observation, Scalar


class ParticleState(NamedTuple):
    """The filter state of `ParticleFilter`.

    Attributes:
        belief: The belief that has the mean and covariance of the weighted particles.
        particles: The particles, (particles, latents).
        log_weights: Logarithms of the weights; the weights sum to one.
        ess: The effective sample size; the next step resamples if it is low. 0 before the first
            step, which draws the particles from the prior.
    """

    belief: Belief
    particles: Points
    log_weights: Weights
    ess: Scalar


class ParticlePrediction(NamedTuple):
    """The prediction: belief, particles, log weights, and the bits of `Status` set so far."""

    belief: Belief
    particles: Points
    log_weights: Weights
    status: Int[Array, ""]


class ParticleFilter(PredictUpdate):
    r"""The bootstrap particle filter: samples from the dynamics, weighted by the likelihood.

    The filter works for any family that can be sampled and any likelihood that has a log density.
    A step begins with systematic resampling if the effective sample size $1 / \sum_i w_i^2$
    (weights $w_i$) is at most half the number of particles. `Info.elbo` is the estimate of the log
    evidence $\log p(y_t | y_{<t})$; the product over bins of the estimated evidence is unbiased.
    Every step needs a random key.

    Args:
        num_particles: Number of particles.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf import Model, dynamics, likelihoods
        >>> model = Model(dynamics.VanDerPol(), likelihoods.Poisson([[1.0, 0.0], [0.0, 1.0]]))
        >>> filter, y = ParticleFilter(), jnp.array([3.0, 0.0])
        >>> state, info = filter.step(model, filter.init(model), y, key=jax.random.key(0))
        >>> state.particles.shape, bool(state.ess < 10_000)
        ((10000, 2), True)
    """

    num_particles: int = eqx.field(default=10_000, static=True)

    def __check_init__(self):
        check_whole(self.num_particles, 2, "num_particles")

    def init(self, model: Model) -> ParticleState:
        particles = begin(model, self.num_particles)
        even = jnp.full(len(particles), -math.log(len(particles)), particles.dtype)
        return ParticleState(model.prior, particles, even, jnp.zeros((), particles.dtype))

    def predict(
        self, model: Model, state: ParticleState, key: Key | None = None, u: Input | None = None
    ) -> ParticlePrediction:
        """Resample if the effective sample size is low, move the particles, return a prediction."""
        key = read_key(key, "the particles are drawn")
        start_key, pick_key, move_key = jax.random.split(key, 3)
        particles, log_weights = state.particles, state.log_weights
        particles = draw_first(model, particles, state.ess, start_key)
        num = len(particles)

        def pick() -> tuple[Array, Array]:
            chosen = resample(jnp.exp(log_weights), pick_key)
            return particles[chosen], jnp.full_like(log_weights, -math.log(num))

        few = (state.ess <= num / 2) & (state.ess > 0)
        particles, log_weights = lax.cond(few, pick, lambda: (particles, log_weights))
        particles, status = move(model, particles, read_input(model, u), move_key)
        belief = summarise(model.family, particles, jnp.exp(log_weights))
        return ParticlePrediction(belief, particles, log_weights, status)

    def update(
        self,
        model: Model,
        prediction: ParticlePrediction,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
    ) -> tuple[ParticleState, Info]:
        """Weight the particles by the likelihood; return the next filter state and an `Info`."""
        del key
        y, mask = read_bin(model, y, mask)
        _, particles, before, status = prediction
        log_prob = jax.vmap(model.likelihood.log_prob, (0, None, None))(particles, y, mask)
        joint = before + jnp.where(jnp.isnan(log_prob), -jnp.inf, log_prob)
        evidence = jax.nn.logsumexp(joint)
        keep, info = accept(jnp.asarray(True), evidence, mask, status)
        log_weights = jnp.where(keep, joint - evidence, before)
        weights = jnp.exp(log_weights)
        belief = summarise(model.family, particles, weights)
        return ParticleState(belief, particles, log_weights, 1 / jnp.sum(weights**2)), info
