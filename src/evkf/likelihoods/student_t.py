"""The Student-t likelihood, for continuous signals that have outliers."""

from functools import cache
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from evkf.likelihoods.base import Channels, ReadoutLikelihood, read_readout
from evkf.numerics.checks import read_positive
from evkf.types import Key, Scalar


class StudentT(ReadoutLikelihood):
    r"""Signals with Student-t noise, $y_n = C_n z + b_n + s_n \epsilon$.

    The noise $\epsilon$ has the Student-t distribution of `df` degrees of freedom.

    Args:
        C: Readout weights, (channels, latents).
        b: Readout offsets, (channels,); zero when left out.
        df: Degrees of freedom, above 0; the variance is infinite if `df` is 2 or less.
        scale: Scale of the noise in a bin of width 1, a positive number or one for each channel.
        bin_width: $\Delta$; the scale $s$ is `scale` divided by $\sqrt\Delta$, because a value is
            an average over the bin.

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
        """Return the centre of the distribution; this is the mean if `df` is above 1."""
        return a

    def each_var(self, a: Channels) -> Channels:
        r"""Return the variance $s^2\nu/(\nu - 2)$, where $\nu$ is `df`.

        If `df` is 2 or less, the true variance is infinite. Then return the variance of the normal
        distribution that has the same central interval of 90 %.
        """
        heavy = self.df <= 2
        finite = self.df / jnp.where(heavy, 1, self.df - 2)
        inverse, ratio = (jnp.asarray(x, a.dtype) for x in _heavy_tails())
        stated = jnp.exp(2 * jnp.interp(1 / self.df, inverse, ratio))
        return jnp.where(heavy, stated, finite) * self.each_scale() ** 2 + jnp.zeros_like(a)

    def each_sample(self, a: Channels, key: Key) -> Channels:
        return a + self.each_scale() * jax.random.t(key, self.df, a.shape, a.dtype)

    def check(self, ys: np.ndarray, mask: np.ndarray, where: str) -> None:
        """Do nothing: every finite number is possible."""


@cache
def _heavy_tails() -> tuple[np.ndarray, np.ndarray]:
    """Return a grid of 1 / df, and the log ratio of the 95 % quantiles of Student-t and normal.

    The grid covers df from 0.1 to 2.
    """
    inverse = np.geomspace(0.5, 10, 64)
    return inverse, np.log(stdtrit(1 / inverse, 0.95) / ndtri(0.95))
