"""Continuous signals with outliers."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from evkf.checks import read_positive
from evkf.likelihoods.base import Channels, ReadoutLikelihood, read_readout
from evkf.types import Key, Scalar


class StudentT(ReadoutLikelihood):
    """$y_n = C_n z + b_n + s_n \\epsilon$ with $\\epsilon$ Student-t of `df` degrees of freedom.

    Args:
        C: Readout, (channels, latents).
        b: Offset, (channels,).
        df: Degrees of freedom; the variance is infinite at 2 and below.
        scale: $s$, a number or one per channel, for a bin of width 1.
        bin_width: Averaging over a bin of width $\\Delta$ divides the scale by $\\sqrt\\Delta$.

    Example:
        >>> import jax.numpy as jnp
        >>> StudentT([[1.0]], df=2.0, scale=0.1).mean(jnp.ones(1))
        Array([1.], dtype=float32)
    """

    C: Float[Array, "N L"]
    b: Channels
    df: Scalar
    log_scale: Channels
    bin_width: Scalar
    log_concave: ClassVar[bool] = False

    def __init__(
        self,
        C: ArrayLike,
        b: ArrayLike | None = None,
        df: float = 4.0,
        scale: ArrayLike = 1.0,
        bin_width: float = 1.0,
    ):
        self.C, self.b = read_readout(C, b)
        self.df = read_positive(df, (), "df")
        self.log_scale = jnp.log(read_positive(scale, self.b.shape, "scale"))
        self.bin_width = read_positive(bin_width, (), "bin_width")

    def each_scale(self) -> Channels:
        return jnp.exp(self.log_scale) / jnp.sqrt(self.bin_width)

    def each_kernel(self, a: Float[Array, "... N"], y: Channels) -> Float[Array, "... N"]:
        scale = self.each_scale()
        square = ((y - a) / scale) ** 2 / self.df
        return -0.5 * (self.df + 1) * jnp.log1p(square)

    def each_constant(self, y: Channels) -> Channels:
        half = 0.5 * (self.df + 1)
        normaliser = gammaln(half) - gammaln(0.5 * self.df) - 0.5 * jnp.log(self.df * jnp.pi)
        return normaliser - jnp.log(self.each_scale()) * jnp.ones_like(y)

    def each_mean(self, a: Channels) -> Channels:
        """The centre, which is the mean where one exists (`df` above 1)."""
        return a

    def each_var(self, a: Channels) -> Channels:
        """$s^2\\nu/(\\nu - 2)$; where there is no variance (`df` of 2 and below) the inverse of the
        Fisher information about the centre, $s^2(\\nu + 3)/(\\nu + 1)$, stands for it.
        """
        heavy = self.df <= 2
        excess = jnp.where(heavy, 1, self.df - 2)
        factor = jnp.where(heavy, (self.df + 3) / (self.df + 1), self.df / excess)
        return factor * self.each_scale() ** 2 + jnp.zeros_like(a)

    def each_sample(self, a: Channels, key: Key) -> Channels:
        return a + self.each_scale() * jax.random.t(key, self.df, a.shape, a.dtype)

    def check(self, ys: np.ndarray, mask: np.ndarray, where: str) -> None:
        """Any finite number can be observed."""
