"""Add inputs to dynamics that have no inputs."""

from typing import Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from evkf.dynamics.base import GaussianDynamics, read_input_weight
from evkf.errors import InputError
from evkf.numerics.covariance import Covariance
from evkf.types import Input, Vector


class Driven(GaussianDynamics):
    r"""Dynamics with linear inputs, $z_t \sim N(f_\theta(z_{t-1}) + B u_t, Q)$.

    Use this class for stimulation of known effect B, while f and Q are learned. If the part
    "dynamics" is learned, learning changes B too.

    Args:
        undriven: Dynamics without inputs, which give f and Q.
        input_weight: B, (latents, inputs).

    Example:
        >>> import jax
        >>> from evkf.dynamics import Linear
        >>> driven = Driven(Linear([[0.5]], noise=0.1), [[2.0]])
        >>> driven.mean(jnp.ones(1), jnp.ones(1))
        Array([2.5], dtype=float32)
    """

    undriven: GaussianDynamics
    input_weight: Float[Array, "L U"]

    def __init__(self, undriven: GaussianDynamics, input_weight: ArrayLike):
        if undriven.num_inputs:
            remedy = "pass dynamics without inputs: Driven adds them by input_weight"
            raise InputError(f"dynamics with {undriven.num_inputs} inputs", "undriven", remedy)
        self.undriven = undriven
        self.input_weight = read_input_weight(input_weight, undriven.dim)

    @property
    def noise(self) -> Covariance:
        return self.undriven.noise

    @property
    def num_inputs(self) -> int:
        return self.input_weight.shape[1]

    def mean(self, z: Vector, u: Input) -> Vector:
        return self.undriven.mean(z, jnp.zeros(0, z.dtype)) + self.input_weight @ u

    def visited(self, mean: Vector, std: Vector) -> Self:
        return eqx.tree_at(lambda d: d.undriven, self, self.undriven.visited(mean, std))

    def covers(self, z: Vector) -> Bool[Array, ""]:
        return self.undriven.covers(z)
