"""The backward kernel of online variational smoothing, and what a bin adds to its bound."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from evkf.dynamics import GaussianDynamics
from evkf.filters.peers.learned import Layers, through
from evkf.filters.peers.ridge import Ridge, values
from evkf.model import Model
from evkf.numerics.linalg import solve_lower
from evkf.types import Input, Mask, Observation, Scalar, Vector

Cloud = Float[Array, "S L"]


class Kernel(NamedTuple):
    """The backward kernel $k_t(z_{t-1} | z_t)$, in units of the beliefs it joins.

    The mean is $m_{t-1} + s_{t-1} \\circ \\text{net}((z_t - \\bar m_t) / \\bar s_t)$ with mean and
    standard deviation of $q_{t-1}$ and of the prediction, the standard deviation a multiple of
    $s_{t-1}$. So the weights of one bin serve the next.
    """

    net: Layers
    log_scale: Vector


class Bin(NamedTuple):
    """What the bound of one bin is made of."""

    model: Model
    y: Observation
    mask: Mask
    u: Input
    mean: Vector
    """Of the prediction, as `std`."""
    std: Vector
    last_mean: Vector
    """Of $q_{t-1}$, as `last_std` and the Cholesky factor `last_root`."""
    last_std: Vector
    last_root: Float[Array, "L L"]
    past: Ridge


def centres(now: Bin, kernel: Kernel, z: Cloud) -> Cloud:
    """Means of the backward kernel, in units of $q_{t-1}$."""
    return through(kernel.net, (z - now.mean) / now.std, jax.nn.relu)


def reward(
    now: Bin, kernel: Kernel, z: Cloud, noise: Cloud
) -> tuple[Float[Array, " S"], Cloud, Float[Array, " S"]]:
    """$\\log p(z_t|z_{t-1}) p(y_t|z_t) q_{t-1}(z_{t-1}) / k_t(z_{t-1}|z_t)$ with a term that has no
    value but the gradient of $V_{t-1}$; also the draws of $z_{t-1}$, and $V_{t-1}$ there.
    """
    white = centres(now, kernel, z)
    placed = white + jnp.exp(kernel.log_scale) * noise
    last = now.last_mean + now.last_std * placed
    log_k = log_normal(placed - lax.stop_gradient(white), lax.stop_gradient(kernel.log_scale))
    offset = solve_lower(now.last_root, (last - now.last_mean).T).T
    log_last = -0.5 * jnp.sum(offset**2, axis=1) - _log_det(now)
    held = lax.stop_gradient(placed)
    known = values(now.past, held, 1 + z.shape[1])
    tilt = jnp.sum(known[:, 1:] * (placed - held), axis=1)
    log_p = log_transition(now.model, z, last, now.u)
    log_y = jax.vmap(now.model.likelihood.log_prob, (0, None, None))(z, now.y, now.mask)
    return log_p + log_y - log_k + log_last + tilt, last, known[:, 0]


def _log_det(now: Bin) -> Scalar:
    """Log-determinant of the root of $q_{t-1}$, in its own units."""
    return jnp.sum(jnp.log(jnp.diagonal(now.last_root) / now.last_std))


def log_normal(shift: Cloud, log_std: Vector) -> Float[Array, " S"]:
    """Log density of a centred diagonal Gaussian but for the constant."""
    return -0.5 * jnp.sum((shift * jnp.exp(-log_std)) ** 2, axis=-1) - jnp.sum(log_std)


def log_transition(model: Model, z: Cloud, last: Cloud, u: Input) -> Float[Array, " S"]:
    """$\\log p(z_t | z_{t-1})$ but for the constant."""
    dynamics = model.dynamics
    assert isinstance(dynamics, GaussianDynamics)
    moved = jax.vmap(dynamics.mean, (0, None))(last, u)
    white = dynamics.noise.whiten((z - moved).T)
    return -0.5 * jnp.sum(white**2, axis=0) - dynamics.noise.log_det_root()
