"""The Gaussian likelihood, for continuous signals with independent or correlated noise."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from evkf.likelihoods.base import ChannelCov, Channels, Likelihood, read_readout, safe
from evkf.numerics.checks import read_positive
from evkf.numerics.covariance import Covariance, DiagonalCovariance, as_covariance
from evkf.numerics.linalg import cholesky, solve_lower
from evkf.types import Key, Mask, Observation, Scalar, Vector


class Gaussian(Likelihood):
    r"""Signals with Gaussian noise, $y \sim N(Cz + b, R / \Delta)$.

    The update of a Gaussian belief is exact: one step of the Kalman filter.

    Args:
        C: Readout weights, (channels, latents).
        b: Readout offsets, (channels,); zero when left out.
        noise: R, the noise in a bin of width 1: one variance, one variance for each channel, or a
            full covariance matrix.
        bin_width: $\Delta$; the variance is divided by $\Delta$, because a value is an average
            over the bin.

    Example:
        >>> import jax.numpy as jnp
        >>> likelihood = Gaussian([[1.0], [1.0]], noise=0.25)
        >>> seen = jnp.array([True, True])
        >>> round(float(likelihood.log_prob(jnp.zeros(1), jnp.zeros(2), seen)), 4)
        -0.4516
    """

    C: Float[Array, "N L"]
    b: Channels
    noise: Covariance
    bin_width: Scalar
    log_concave: ClassVar[bool] = True

    def __init__(
        self,
        C: ArrayLike,
        b: ArrayLike | None = None,
        noise: "ArrayLike | Covariance" = 1.0,
        bin_width: float = 1.0,
    ):
        self.C, self.b = read_readout(C, b)
        self.noise = as_covariance(noise, self.b.shape[0], "noise")
        self.bin_width = read_positive(bin_width, (), "bin_width")

    @property
    def num_channels(self) -> int:
        return self.C.shape[0]

    @property
    def independent(self) -> bool:
        """True if the noise of different channels is independent."""
        return isinstance(self.noise, DiagonalCovariance)

    def whiten(
        self, residual: Float[Array, "N"], readout: Float[Array, "N L"], mask: Mask
    ) -> tuple[Float[Array, "N"], Float[Array, "N L"], Scalar]:
        """Return residual and readout divided by the noise, and the log normaliser of the noise.

        "Divided" means multiplied by the inverse Cholesky factor of the noise covariance. Masked
        channels give zeros and do not change the log normaliser.

        Args:
            residual: Observation minus expected observation, (channels,).
            readout: Readout weights, (channels, latents).
            mask: True where observed, (channels,).
        """
        count = jnp.sum(mask)
        if self.independent:
            std = jnp.sqrt(self.noise.var() / self.bin_width)
            weight = jnp.where(mask, 1 / std, 0)
            log_det = jnp.sum(jnp.where(mask, jnp.log(std), 0))
            white, loads = residual * weight, readout * weight[:, None]
        else:
            # A masked channel is replaced by an independent channel of variance 1 and readout 0.
            both = mask[:, None] & mask[None, :]
            cov = jnp.where(both, self.noise.matrix() / self.bin_width, jnp.eye(mask.shape[0]))
            root = cholesky(cov.astype(residual.dtype))
            log_det = jnp.sum(jnp.log(jnp.diagonal(root)))
            white = solve_lower(root, jnp.where(mask, residual, 0))
            loads = solve_lower(root, jnp.where(mask[:, None], readout, 0))
        return white, loads, -0.5 * count * math.log(2 * math.pi) - log_det

    def log_prob(self, z: Vector, y: Observation, mask: Mask) -> Scalar:
        residual = safe(y, mask, self.b) - self.mean(z)
        white, _, constant = self.whiten(residual, self.C, mask)
        return constant - 0.5 * white @ white

    def mean(self, z: Vector) -> Channels:
        return self.C @ z + self.b

    def cov(self, z: Vector) -> ChannelCov:
        del z
        noise = self.noise.var() if self.independent else self.noise.matrix()
        return noise / self.bin_width

    def sample(self, z: Vector, key: Key) -> Channels:
        noise = jax.random.normal(key, self.b.shape, self.b.dtype)
        return self.mean(z) + self.noise.root() @ noise / jnp.sqrt(self.bin_width)

    def check(self, ys: np.ndarray, mask: np.ndarray, where: str) -> None:
        """Do nothing: every finite number is possible."""
