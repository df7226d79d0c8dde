"""The negative binomial likelihood, for spike counts that vary more than Poisson counts."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from evkf.likelihoods.base import (
    Channels,
    ReadoutLikelihood,
    check_counts,
    read_readout,
)
from evkf.numerics.checks import read_positive
from evkf.types import Key, Scalar


class NegativeBinomial(ReadoutLikelihood):
    r"""Negative binomial counts of mean $\mu$ and variance $\mu + \mu^2 / r_n$.

    The mean of channel n is $\mu = \Delta\exp(C_n z + b_n)$.

    Args:
        C: Readout weights, (channels, latents).
        b: Offset of the log rate, (channels,); zero when left out.
        dispersion: $r$, a positive number, or one for each channel; for large r the counts are
            nearly Poisson.
        bin_width: $\Delta$; in seconds, the rate $\exp(C_n z + b_n)$ is in spikes per second.

    Example:
        >>> import jax.numpy as jnp
        >>> NegativeBinomial([[1.0]], dispersion=3.0).mean(jnp.zeros(1))
        Array([1.], dtype=float32)
    """

    C: Float[Array, "N L"]
    b: Channels
    log_dispersion: Channels
    bin_width: Scalar
    log_concave: ClassVar[bool] = True

    def __init__(
        self,
        C: ArrayLike,
        b: ArrayLike | None = None,
        dispersion: ArrayLike = 1.0,
        bin_width: float = 1.0,
    ):
        self.C, self.b = read_readout(C, b)
        self.log_dispersion = jnp.log(read_positive(dispersion, self.b.shape, "dispersion"))
        self.bin_width = read_positive(bin_width, (), "bin_width")

    def each_kernel(self, a: Float[Array, "... N"], y: Channels) -> Float[Array, "... N"]:
        r = jnp.exp(self.log_dispersion)
        log_rate = a + jnp.log(self.bin_width)
        return y * log_rate - (y + r) * jax.nn.softplus(log_rate - self.log_dispersion)

    def each_constant(self, y: Channels) -> Channels:
        r"""Return $\log\Gamma(y+r) - \log\Gamma(r) - y\log r$; by Stirling's series if r > 30."""
        r = jnp.exp(self.log_dispersion) * jnp.ones_like(y)
        large = r > 30
        direct_r, series_r = jnp.where(large, 1, r), jnp.where(large, r, 30)
        direct = gammaln(y + direct_r) - gammaln(direct_r) - y * jnp.log(direct_r)
        series = (series_r + y - 0.5) * jnp.log1p(y / series_r) - y
        series = series + (1 / (series_r + y) - 1 / series_r) / 12
        series = series - (1 / (series_r + y) ** 3 - 1 / series_r**3) / 360
        return jnp.where(large, series, direct)

    def each_base(self, y: Channels) -> Channels:
        return -gammaln(y + 1)

    def each_mean(self, a: Channels) -> Channels:
        return self.bin_width * jnp.exp(a)

    def each_var(self, a: Channels) -> Channels:
        mean = self.each_mean(a)
        return mean + mean**2 / jnp.exp(self.log_dispersion)

    def each_sample(self, a: Channels, key: Key) -> Channels:
        gain_key, count_key = jax.random.split(key)
        r = jnp.exp(self.log_dispersion)
        gain = jax.random.gamma(gain_key, r, dtype=a.dtype) / r
        return jax.random.poisson(count_key, gain * self.each_mean(a)).astype(a.dtype)

    def each_scale(self) -> Channels:
        return jnp.full_like(self.b, 2.0)

    def check(self, ys: np.ndarray, mask: np.ndarray, where: str) -> None:
        check_counts(ys, mask, where)
