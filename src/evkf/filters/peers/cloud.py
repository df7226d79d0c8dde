"""Clouds of points that represent a belief, used by the filters that sample latent states.

A cloud is an array of latent states, (points, latents). The functions draw the points from the
prior, move them by the dynamics, resample them, and compute their mean and covariance.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from evkf.dynamics import GaussianDynamics
from evkf.families import Family, GaussianFamily, LowRankGaussianFamily
from evkf.filters.peers.gain import max_magnitude
from evkf.model import Model
from evkf.numerics.covariance import DiagonalCovariance
from evkf.numerics.linalg import factorisable
from evkf.types import Belief, Input, Key, Scalar, Status, Vector

Points = Float[Array, "M L"]
Weights = Float[Array, " M"]


def begin(model: Model, num: int) -> Points:
    """Return a cloud of `num` points, all at the prior mean.

    The first step of a filter replaces these points by samples of the prior (`draw_first`).
    """
    mean = model.family.mean(model.prior)
    return jnp.broadcast_to(mean, (num, len(mean)))


def draw_first(model: Model, points: Points, begun: Scalar, key: Key) -> Points:
    """Return samples of the prior in the first step of a trial; later, return the cloud unchanged.

    Args:
        model: The state-space model.
        points: The cloud.
        begun: 0 in the first step of a trial, above 0 later.
        key: JAX random key.
    """
    return lax.cond(
        begun > 0, lambda: points, lambda: model.family.sample(model.prior, key, len(points))
    )


def move(model: Model, points: Points, u: Input, key: Key) -> tuple[Points, Int[Array, ""]]:
    """Draw the next latent state of every point; return the new cloud and bits of `Status`.

    A point whose next latent state is NaN stays where it is (`FELL_BACK`); coordinates beyond
    `max_magnitude` are cut (`CAPPED`).

    Args:
        model: The state-space model.
        points: The cloud.
        u: Input of this bin, (inputs,).
        key: JAX random key.
    """
    dynamics, limit = model.dynamics, max_magnitude(points.dtype)
    if isinstance(dynamics, GaussianDynamics):
        means = jax.vmap(dynamics.mean, (0, None))(points, u)
        normal, noise = jax.random.normal(key, points.shape, points.dtype), dynamics.noise
        if isinstance(noise, DiagonalCovariance):
            new = means + normal * jnp.sqrt(noise.var())
        else:
            new = means + normal @ noise.root().T
    else:

        def draw(z: Array, key: Key) -> Array:
            return dynamics.family.sample(dynamics.transition(z, u), key, 1)[0]

        new = jax.vmap(draw)(points, jax.random.split(key, len(points)))
    lost = jnp.any(jnp.isnan(new), axis=1)
    new = jnp.where(lost[:, None], points, new)
    status = jnp.where(jnp.any(jnp.abs(new) > limit), int(Status.CAPPED), 0)
    status = status + jnp.where(jnp.any(lost), int(Status.FELL_BACK), 0)
    return jnp.clip(new, -limit, limit), status


def summarise(
    family: Family,
    points: Points,
    weights: Weights | None = None,
    floor: Vector | float = 0.0,
) -> Belief:
    """Return the belief that has the mean and covariance of a weighted cloud.

    A small variance is added, so that the covariance stays positive definite if all weight is on
    one point. It is of the order of rounding errors, compared with the spread of the points and
    with the mean.

    Args:
        family: Family of the belief.
        points: The cloud.
        weights: Weights that sum to one; equal weights when left out.
        floor: Further variance to add, one number or one for each latent; 0 by default.
    """
    if weights is None:
        weights = jnp.full(len(points), 1 / len(points), points.dtype)
    info = jnp.finfo(points.dtype)
    mean = weights @ points
    deviations = points - mean
    spread = jnp.mean(deviations**2, axis=0)
    least = float(info.eps) * spread + (float(info.eps) * mean) ** 2 + float(info.tiny) + floor
    if isinstance(family, GaussianFamily | LowRankGaussianFamily):
        cov = (deviations * weights[:, None]).T @ deviations
        return family.from_moments(mean, factorisable(cov + jnp.diag(least)))
    return family.from_moments(mean, jnp.diag(weights @ deviations**2 + least))


def resample(weights: Weights, key: Key, num: int | None = None) -> Int[Array, " N"]:
    """Resample a cloud, and return the indices of the chosen points.

    Systematic resampling: a point is chosen `num` times its normalised weight, rounded up or down.

    Args:
        weights: Weights of the points; they need not sum to one.
        key: JAX random key; one uniform number is drawn.
        num: Number of indices to return; the number of points when left out.
    """
    num = len(weights) if num is None else num
    ends = jnp.cumsum(weights)
    below_one = 1 - float(jnp.finfo(weights.dtype).epsneg)
    grid = (jnp.arange(num) + jax.random.uniform(key, (), weights.dtype)) / num
    return jnp.searchsorted(ends / ends[-1], jnp.minimum(grid, below_one), side="right")
