r"""Expectations of one channel: $E_{N(a, v)}[\log p(y|x)]$ with its derivatives in a.

With a linear readout every channel sees a one-dimensional Gaussian, however many latents there are.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from evkf import likelihoods as lik
from evkf.likelihoods.base import Channels, Site
from evkf.numerics.quadrature import LEVELS, REACH, gauss_hermite


def choose_level(likelihood: lik.ReadoutLikelihood, v: Channels) -> Int[Array, ""]:
    """Which of the quadrature `LEVELS` serves the widest channel."""
    ratio = jnp.max(jnp.sqrt(v) / likelihood.each_scale())
    return jnp.sum(ratio > jnp.asarray(REACH, v.dtype)).astype(jnp.int32)


def site(
    likelihood: lik.ReadoutLikelihood,
    a: Channels,
    v: Channels,
    y: Channels,
    level: Int[Array, ""] | int,
) -> Site:
    """Expectations over $N(a, v)$ in closed form, else by Gauss–Hermite of the given level."""
    closed = likelihood.each_site(a, v, y)
    if closed is not None:
        return closed

    # A masked channel has v = 0, where the square root has no derivative.
    std = jnp.where(v > 0, jnp.sqrt(jnp.where(v > 0, v, 1)), 0)
    narrow = std < 0.1 * likelihood.each_scale()

    def with_nodes(num: int) -> Site:
        nodes, weights = (jnp.asarray(array, a.dtype) for array in gauss_hermite(num))
        points = a + std * nodes[:, None]

        def slope(x: Array) -> tuple[Array, Array]:
            return jax.jvp(lambda x: likelihood.each_kernel(x, y), (x,), (jnp.ones_like(x),))

        (value, first), (_, second) = jax.jvp(slope, (points,), (jnp.ones_like(points),))
        # Stein's form of the curvature is the exact derivative of the rule itself, so that the
        # fixed point is the maximum of the computed bound; it cancels for narrow beliefs, where
        # both agree.
        stein = (weights * nodes) @ first / jnp.where(narrow, 1, std)
        return Site(weights @ value, weights @ first, jnp.where(narrow, weights @ second, stein))

    return lax.switch(level, [lambda num=num: with_nodes(num) for num in LEVELS])
