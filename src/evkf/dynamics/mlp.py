"""Learned dynamics, a small neural network."""

import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from evkf.dynamics.base import GaussianDynamics
from evkf.errors import InputError
from evkf.numerics.checks import check_whole
from evkf.numerics.covariance import Covariance, as_covariance
from evkf.types import Input, Key, Vector

STEEPNESS, EXTENT = 1.0, 2.0
"""Initial norm of the weights of each unit of the first layer; distance from the origin within
which these units bend."""

REACH, MARGIN = 4.0, 0.1
"""Number of standard deviations around an estimate that count as visited; margin added to each side
of the box of visited states, as a fraction of the visited range."""


class Network(eqx.Module):
    """A multilayer perceptron with SiLU units and a linear output.

    Args:
        sizes: Number of units of each layer: input, hidden layers, output.
        key: JAX random key for the initial weights.
        output_scale: Factor that multiplies the initial weights and biases of the output.

    Example:
        >>> import jax
        >>> Network([2, 32, 1], jax.random.key(0))(jax.numpy.ones(2)).shape
        (1,)
    """

    weights: tuple[Float[Array, "out in"], ...]
    biases: tuple[Float[Array, " out"], ...]

    def __init__(self, sizes: Sequence[int], key: Key, output_scale: float = 1.0):
        keys = jax.random.split(key, 2 * (len(sizes) - 1))
        weights, biases = [], []
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            scale = output_scale if layer == len(sizes) - 2 else 1.0
            limit = math.sqrt(1 / max(fan_in, 1))
            shape = (fan_out, fan_in)
            weight = jax.random.uniform(keys[2 * layer], shape, minval=-limit, maxval=limit)
            bias = jax.random.uniform(keys[2 * layer + 1], (fan_out,), minval=-limit, maxval=limit)
            weights.append(scale * weight)
            biases.append(scale * bias)
        self.weights, self.biases = tuple(weights), tuple(biases)

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jax.nn.silu(weight @ x + bias)
        return self.weights[-1] @ x + self.biases[-1]


class ResidualMLP(GaussianDynamics):
    r"""Random walk plus a network, $z_t \sim N(z_{t-1} + \text{MLP}([z_{t-1}, u_t]), Q)$.

    Learning starts near a random walk, because the initial output of the network is near zero. The
    units of the first layer bend at different places, within a distance of 2 from the origin.

    A network is wrong far from the states that it learned from, and then a forecast may diverge. So
    a learner records the box of visited states by `visited`. A state outside that box (plus a
    margin of a tenth of its size on each side) is replaced by the nearest point of the box,
    margin included, before the next state is computed.

    Args:
        dim: Number of latent dimensions.
        noise: Q: one variance, one variance for each latent, or a full covariance matrix.
        key: JAX random key for the initial weights.
        hidden: Number of units of the hidden layer, or a list of numbers, one for each layer.
        num_inputs: Length of u.
        output_scale: Factor that multiplies the initial weights and biases of the output.

    Example:
        >>> import jax
        >>> dynamics = ResidualMLP(2, noise=0.01, key=jax.random.key(0))
        >>> dynamics.mean(jax.numpy.zeros(2), jax.numpy.zeros(0)).shape
        (2,)
    """

    network: Network
    noise: Covariance
    low: Vector
    high: Vector
    num_inputs: int = eqx.field(static=True)
    any_coordinates: ClassVar[bool] = True

    def __init__(
        self,
        dim: int,
        noise: "ArrayLike | Covariance",
        key: Key,
        hidden: int | Sequence[int] = 32,
        num_inputs: int = 0,
        output_scale: float = 1e-3,
    ):
        check_whole(dim, 1, "dim")
        check_whole(num_inputs, 0, "num_inputs")
        widths = np.atleast_1d(hidden).tolist()
        if not widths:
            raise InputError("no hidden layers", "hidden", "pass the width of one or more")
        for width in widths:
            check_whole(width, 1, "hidden")
        network = Network([dim + num_inputs, *widths, dim], key, output_scale)
        # Spread the places where units of the first layer bend over states near the origin.
        direction_key, offset_key = jax.random.split(key)
        weight = jax.random.normal(direction_key, network.weights[0].shape)
        weight = STEEPNESS * weight / jnp.linalg.norm(weight, axis=1, keepdims=True)
        limit = STEEPNESS * EXTENT
        bias = jax.random.uniform(offset_key, network.biases[0].shape, minval=-limit, maxval=limit)
        first = (weight, bias)
        self.network = eqx.tree_at(lambda n: (n.weights[0], n.biases[0]), network, first)
        self.noise = as_covariance(noise, dim, "noise")
        nowhere = jnp.full(dim, jnp.inf, self.noise.var().dtype)
        self.low, self.high = nowhere, -nowhere
        self.num_inputs = num_inputs

    def mean(self, z: Vector, u: Input) -> Vector:
        z = self._nearest(z)
        return z + self.network(jnp.concatenate([z, u]))

    def covers(self, z: Vector) -> Bool[Array, ""]:
        return jnp.all(self._nearest(z) == z)

    def _nearest(self, z: Vector) -> Vector:
        """Return the point of the box of visited states, plus a margin, that is nearest to z.

        The margin on each side is `MARGIN` times the size of the box. While no state was visited,
        the box is empty, and z is returned unchanged.
        """
        # `low` of an empty box is plus infinity, `high` is minus infinity.
        margin = MARGIN * (self.high - self.low)
        inside = jnp.clip(z, self.low - margin, self.high + margin)
        return jnp.where(self.low <= self.high, inside, z)

    def visited(self, mean: Vector, std: Vector) -> Self:
        low, high = mean - REACH * std, mean + REACH * std
        box = (jnp.minimum(self.low, low), jnp.maximum(self.high, high))
        return eqx.tree_at(lambda d: (d.low, d.high), self, box)
