"""Linear dynamics with additive Gaussian noise."""

from typing import ClassVar

from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from evkf.dynamics.base import GaussianDynamics, read_input_weight, read_square
from evkf.numerics.checks import read_array
from evkf.numerics.covariance import Covariance, as_covariance
from evkf.types import Input, Matrix, Vector


class Linear(GaussianDynamics):
    r"""Linear dynamics, $z_t \sim N(A z_{t-1} + B u_t + c, Q)$.

    Args:
        weight: A, (latents, latents).
        noise: Q: one variance, one variance for each latent, or a full covariance matrix.
        bias: c, (latents,); zero when left out.
        input_weight: B, (latents, inputs); no inputs when left out.

    Example:
        >>> import jax.numpy as jnp
        >>> Linear([[0.9]], noise=0.1).mean(jnp.ones(1), jnp.zeros(0))
        Array([0.9], dtype=float32)
    """

    weight: Matrix
    noise: Covariance
    bias: Vector
    input_weight: Float[Array, "L U"]
    any_coordinates: ClassVar[bool] = True

    def __init__(
        self,
        weight: ArrayLike,
        noise: "ArrayLike | Covariance",
        bias: ArrayLike | None = None,
        input_weight: ArrayLike | None = None,
    ):
        self.weight = read_square(weight, "weight")
        dim = len(self.weight)
        self.noise = as_covariance(noise, dim, "noise")
        self.bias = read_array([0.0] * dim if bias is None else bias, (dim,), "bias")
        self.input_weight = read_input_weight(input_weight, dim)

    @property
    def num_inputs(self) -> int:
        return self.input_weight.shape[1]

    def mean(self, z: Vector, u: Input) -> Vector:
        return self.weight @ z + self.input_weight @ u + self.bias
