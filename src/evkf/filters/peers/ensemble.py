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
from evkf.filters.peers.cloud import Points, drawn, move, nowhere, summary
from evkf.filters.peers.gain import check_moments, condition, judge, log_scale, whiten
from evkf.model import Model
from evkf.numerics.checks import check_whole
from evkf.types import Belief, Input, Key, Mask, Observation, Scalar


class EnsembleState(NamedTuple):
    """The members, and the belief with their mean and covariance."""

    belief: Belief
    members: Points
    begun: Scalar
    """0 before the first step, which draws the members from the prior; then 1."""


class EnsemblePrediction(NamedTuple):
    """The members before the observation, and the bits of `Status` that moving them has set."""

    belief: Belief
    members: Points
    status: Int[Array, ""]


class EnsembleKalman(PredictUpdate):
    """Members drawn through the dynamics, each shifted by the gain of their joint covariance.

    The stochastic form: every member is shifted towards an observation perturbed by noise of its
    own. Observations count as Gaussian, with the covariance that the likelihood states
    (`likelihood.cov`), averaged over the members. `Info.elbo` is the log density of the observation
    under that Gaussian. Every step needs a key.

    Args:
        num_members: Members of the ensemble.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import Model
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0], [0.0, 1.0]]))
        >>> filter, key = EnsembleKalman(), jax.random.key(0)
        >>> state = filter.init(model)
        >>> state, info = jax.jit(filter.step)(model, state, jnp.array([3.0, 0.0]), key=key)
        >>> state.members.shape, bool(state.belief.mean[0] > state.belief.mean[1])
        ((1000, 2), True)
    """

    num_members: int = eqx.field(static=True)

    def __init__(self, num_members: int = 1000):
        check_whole(num_members, 2, "num_members")
        self.num_members = num_members

    def init(self, model: Model) -> EnsembleState:
        if not isinstance(model.family, GaussianFamily | DiagonalGaussianFamily):
            raise InputError(
                f"EnsembleKalman for {type(model.family).__name__} states",
                "model.family",
                "use Gaussian or DiagonalGaussianFamily states, or ParticleFilter",
            )
        check_moments(model, "EnsembleKalman")
        members = nowhere(model, self.num_members)
        return EnsembleState(model.prior, members, jnp.zeros((), members.dtype))

    def predict(
        self, model: Model, state: EnsembleState, key: Key | None = None, u: Input | None = None
    ) -> EnsemblePrediction:
        """Draw the next state of every member."""
        start_key, move_key = jax.random.split(read_key(key, "the members are drawn"))
        members = drawn(model, state.members, state.begun, start_key)
        members, status = move(model, members, read_input(model, u), move_key)
        return EnsemblePrediction(_belief(model, members), members, status)

    def update(
        self,
        model: Model,
        prediction: EnsemblePrediction,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
    ) -> tuple[EnsembleState, Info]:
        """Shift every member towards an observation perturbed by its own noise."""
        key = read_key(key, "the observations are perturbed")
        y, mask = read_bin(model, y, mask)
        members, likelihood = prediction.members, model.likelihood
        images = jax.vmap(likelihood.mean)(members)
        noise = jnp.mean(jax.vmap(likelihood.cov)(members), axis=0)
        expected = jnp.mean(images, axis=0)
        moved = _deviations(images, expected)
        columns = jnp.concatenate([moved, (y - expected)[:, None]], axis=1)
        white = whiten(noise, mask, columns.astype(images.dtype))
        seen, centre = white[:, :-1], white[:, -1]
        draws = jnp.where(mask[:, None], jax.random.normal(key, seen.shape, seen.dtype), 0)
        spread = _deviations(members, jnp.mean(members, axis=0))
        found = condition(spread, seen, centre)
        own = centre[:, None] - math.sqrt(len(members) - 1) * seen + draws
        new = members + (found.gain @ own).T
        evidence = found.fit + log_scale(noise, mask)
        keep, info = judge(jnp.all(jnp.isfinite(new)), evidence, mask, prediction.status)
        members = jnp.where(keep, new, members)
        begun = jnp.ones((), members.dtype)
        return EnsembleState(_belief(model, members), members, begun), info


def _deviations(rows: Float[Array, "M K"], mean: Float[Array, " K"]) -> Float[Array, "K M"]:
    """Columns whose product with themselves is the covariance of the rows."""
    return (rows - mean).T / math.sqrt(len(rows) - 1)


def _belief(model: Model, members: Points) -> Belief:
    return summary(model.family, members, jnp.full(len(members), 1 / len(members), members.dtype))
