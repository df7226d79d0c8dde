"""The ensemble Kalman filter."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from evkf.errors import InputError
from evkf.families import DiagonalGaussianFamily, GaussianFamily
from evkf.filters.base import Info, PredictUpdate, read_bin, read_input, read_key
from evkf.filters.peers.cloud import Points, begin, draw_first, move, summarise
from evkf.filters.peers.gain import accept, check_moments, condition, whiten
from evkf.model import Model
from evkf.numerics.checks import check_whole
from evkf.types import Belief, Input, Key, Mask, Observation, Scalar


class EnsembleState(NamedTuple):
    """The filter state of `EnsembleKalman`.

    Attributes:
        belief: The belief that has the mean and covariance of the members.
        members: The members, a sample of latent states, (members, latents).
        begun: 0 before the first step, which draws the members from the prior; then 1.
    """

    belief: Belief
    members: Points
    begun: Scalar


class EnsemblePrediction(NamedTuple):
    """The prediction: the belief, the members, and the bits of `Status` set in the prediction."""

    belief: Belief
    members: Points
    status: Int[Array, ""]


class EnsembleKalman(PredictUpdate):
    """The ensemble Kalman filter, in the stochastic form.

    A sample of latent states (the members) represents the belief. The prediction draws the next
    latent state of every member from the dynamics. The update shifts every member by the Kalman
    gain, which is estimated from all members, times the residual of a perturbed observation; the
    perturbation is drawn separately for each member. The observation noise is taken as Gaussian;
    its covariance is `likelihood.cov`, averaged over the members. `Info.elbo` is the log density
    of the observation under this Gaussian approximation. Every step needs a random key.

    Args:
        num_members: Number of members.

    Example:
        >>> import jax
        >>> from evkf import Model, dynamics, likelihoods, scan_filter, simulate
        >>> model = Model(dynamics.Linear([[0.9]], 0.1), likelihoods.Gaussian([[1.0]], noise=0.5))
        >>> _, ys = simulate(model, jax.random.key(0), 20)
        >>> state, trace = scan_filter(EnsembleKalman(100), model, ys, key=jax.random.key(1))
        >>> trace.belief.mean.shape, state.members.shape
        ((20, 1), (100, 1))
    """

    num_members: int = eqx.field(default=1000, static=True)

    def __check_init__(self):
        check_whole(self.num_members, 2, "num_members")

    def init(self, model: Model) -> EnsembleState:
        if not isinstance(model.family, GaussianFamily | DiagonalGaussianFamily):
            raise InputError(
                f"EnsembleKalman for {type(model.family).__name__} states",
                "model.family",
                "use Gaussian or DiagonalGaussianFamily states, or ParticleFilter",
            )
        check_moments(model, "EnsembleKalman")
        members = begin(model, self.num_members)
        return EnsembleState(model.prior, members, jnp.zeros((), members.dtype))

    def predict(
        self, model: Model, state: EnsembleState, key: Key | None = None, u: Input | None = None
    ) -> EnsemblePrediction:
        """Draw the next latent state of every member, and return the prediction."""
        start_key, move_key = jax.random.split(read_key(key, "the members are drawn"))
        members = draw_first(model, state.members, state.begun, start_key)
        members, status = move(model, members, read_input(model, u), move_key)
        return EnsemblePrediction(summarise(model.family, members), members, status)

    def update(
        self,
        model: Model,
        prediction: EnsemblePrediction,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
    ) -> tuple[EnsembleState, Info]:
        """Shift every member towards a perturbed observation; return filter state and info."""
        key = read_key(key, "the observations are perturbed")
        y, mask = read_bin(model, y, mask)
        members, likelihood = prediction.members, model.likelihood
        images = jax.vmap(likelihood.mean)(members)
        noise = jnp.mean(jax.vmap(likelihood.cov)(members), axis=0)
        expected = jnp.mean(images, axis=0)
        moved = _deviations(images, expected)
        columns = jnp.concatenate([moved, (y - expected)[:, None]], axis=1)
        white, normaliser = whiten(noise, mask, columns.astype(images.dtype))
        seen, centre = white[:, :-1], white[:, -1]
        draws = jnp.where(mask[:, None], jax.random.normal(key, seen.shape, seen.dtype), 0)
        spread = _deviations(members, jnp.mean(members, axis=0))
        result = condition(spread, seen, centre)
        own = centre[:, None] - math.sqrt(len(members) - 1) * seen + draws
        new = members + (result.gain @ own).T
        evidence = result.fit + normaliser
        keep, info = accept(jnp.all(jnp.isfinite(new)), evidence, mask, prediction.status)
        members = jnp.where(keep, new, members)
        begun = jnp.ones((), members.dtype)
        return EnsembleState(summarise(model.family, members), members, begun), info


def _deviations(rows: Float[Array, "M K"], mean: Float[Array, " K"]) -> Float[Array, "K M"]:
    r"""Return a matrix X such that $XX^\top$ is the sample covariance of the rows."""
    return (rows - mean).T / math.sqrt(len(rows) - 1)
