"""Clouds of points that stand for a belief: drawn, moved by the dynamics, chosen, summarised."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from evkf.dynamics import GaussianDynamics
from evkf.families import Family, GaussianFamily, LowRankGaussianFamily
from evkf.filters.peers.gain import largest
from evkf.model import Model
from evkf.numerics.covariance import Covariance, DiagonalCovariance
from evkf.numerics.linalg import factorisable
from evkf.types import Belief, Input, Key, Scalar, Status, Vector

Points = Float[Array, "M L"]
Weights = Float[Array, " M"]


def nowhere(model: Model, num: int) -> Points:
    """What stands for a cloud before its first step, which has the key to draw it."""
    mean = model.family.mean(model.prior)
    return jnp.broadcast_to(mean, (num, len(mean)))


def drawn(model: Model, points: Points, begun: Scalar, key: Key) -> Points:
    """The cloud; drawn from the prior in the first step."""
    return lax.cond(
        begun > 0, lambda: points, lambda: model.family.sample(model.prior, key, len(points))
    )


def move(model: Model, points: Points, u: Input, key: Key) -> tuple[Points, Int[Array, ""]]:
    """Draw the next state of every point, and the bits of `Status` that this has set.

    A point whose next state is not a number stays where it is.
    """
    dynamics, limit = model.dynamics, largest(points.dtype)
    if isinstance(dynamics, GaussianDynamics):
        means = jax.vmap(dynamics.mean, (0, None))(points, u)
        new = means + noise_draws(dynamics.noise, key, points)
    else:

        def one(z: Array, key: Key) -> Array:
            return dynamics.family.sample(dynamics.transition(z, u), key, 1)[0]

        new = jax.vmap(one)(points, jax.random.split(key, len(points)))
    lost = jnp.any(jnp.isnan(new), axis=1)
    new = jnp.where(lost[:, None], points, new)
    status = jnp.where(jnp.any(jnp.abs(new) > limit), int(Status.CAPPED), 0)
    status = status + jnp.where(jnp.any(lost), int(Status.FELL_BACK), 0)
    return jnp.clip(new, -limit, limit), status


def noise_draws(noise: Covariance, key: Key, like: Points) -> Points:
    """Independent draws of Gaussian noise, one a row."""
    normal = jax.random.normal(key, like.shape, like.dtype)
    if isinstance(noise, DiagonalCovariance):
        return normal * jnp.sqrt(noise.var())
    return normal @ noise.root().T


def summary(
    family: Family, points: Points, weights: Weights, floor: Vector | float = 0.0
) -> Belief:
    """The belief with the mean and covariance of a weighted cloud.

    A cloud that has collapsed has no covariance: its variances are kept above rounding, relative to
    the spread of all points and to the mean, and `floor` is added to them.
    """
    info = jnp.finfo(points.dtype)
    mean = weights @ points
    deviations = points - mean
    spread = jnp.mean(deviations**2, axis=0)
    least = float(info.eps) * spread + (float(info.eps) * mean) ** 2 + float(info.tiny) + floor
    if isinstance(family, GaussianFamily | LowRankGaussianFamily):
        cov = (deviations * weights[:, None]).T @ deviations
        return family.from_moments(mean, factorisable(cov + jnp.diag(least)))
    return family.from_moments(mean, jnp.diag(weights @ deviations**2 + least))


def systematic(weights: Weights, key: Key, num: int | None = None) -> Int[Array, " N"]:
    """Systematic resampling: N ancestors, each point about N times its weight, by one draw; as many
    as there are points when left out.
    """
    num = len(weights) if num is None else num
    ends = jnp.cumsum(weights)
    below_one = 1 - float(jnp.finfo(weights.dtype).epsneg)
    grid = (jnp.arange(num) + jax.random.uniform(key, (), weights.dtype)) / num
    return jnp.searchsorted(ends / ends[-1], jnp.minimum(grid, below_one), side="right")
