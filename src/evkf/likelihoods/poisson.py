"""The Poisson likelihood of spike counts, with an exponential or a softplus link."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from evkf.likelihoods.base import (
    Channels,
    ReadoutLikelihood,
    Site,
    check_counts,
    read_readout,
)
from evkf.numerics.checks import check_choice, read_positive
from evkf.types import Key, Scalar

LINKS = ("exp", "softplus")


class Poisson(ReadoutLikelihood):
    r"""Poisson counts, $y_n \sim \text{Poisson}(\Delta\, g(C_n z + b_n))$.

    The link g maps the readout $C_n z + b_n$ to the rate of channel n.
    Paper: eq:vdp_generative_model (whose printed expected log-likelihood drops b; see the errata).

    Args:
        C: Readout weights, (channels, latents).
        b: Readout offsets, (channels,); zero when left out.
        bin_width: $\Delta$; in seconds, rates are in spikes per second.
        link: g, "exp" or "softplus".

    Example:
        >>> import jax.numpy as jnp
        >>> likelihood = Poisson([[1.0], [0.5]], bin_width=0.005)
        >>> likelihood.mean(jnp.zeros(1))
        Array([0.005, 0.005], dtype=float32)
    """

    C: Float[Array, "N L"]
    b: Channels
    bin_width: Scalar
    link: str = eqx.field(static=True)

    def __init__(
        self, C: ArrayLike, b: ArrayLike | None = None, bin_width: float = 1.0, link: str = "exp"
    ):
        check_choice(link, LINKS, "link")
        self.C, self.b = read_readout(C, b)
        self.bin_width = read_positive(bin_width, (), "bin_width")
        self.link = link

    @property
    def log_concave(self) -> bool:
        return True

    def each_kernel(self, a: Float[Array, "... N"], y: Channels) -> Float[Array, "... N"]:
        log_rate = jnp.log(self.bin_width) + (a if self.link == "exp" else log_softplus(a))
        return y * log_rate - jnp.exp(log_rate)

    def each_base(self, y: Channels) -> Channels:
        return -gammaln(y + 1)

    def each_mean(self, a: Channels) -> Channels:
        return self.bin_width * (jnp.exp(a) if self.link == "exp" else jax.nn.softplus(a))

    def each_var(self, a: Channels) -> Channels:
        return self.each_mean(a)

    def each_sample(self, a: Channels, key: Key) -> Channels:
        return jax.random.poisson(key, self.each_mean(a)).astype(a.dtype)

    def each_site(self, a: Channels, v: Channels, y: Channels) -> Site | None:
        if self.link != "exp":
            return None
        log_bin = jnp.log(self.bin_width)
        rate = jnp.exp(a + 0.5 * v + log_bin)
        return Site(y * (a + log_bin) - rate, y - rate, -rate)

    def each_start(self, site: Site, a: Channels, v: Channels, y: Channels) -> Site:
        """Return a first `Site` whose Newton step moves the log rate about to the count.

        With the exponential link two changes are made; with the softplus link `site` is returned.
        First, the variance v is cut to 0.3, because a wide prediction increases the expected rate
        by the factor $e^{v/2}$. Second, if the count is far from the rate, slope and curvature come
        from the chord of the exponential between the rate and the count. A Newton step would move
        the log rate by 10,000 if the rate is 1 and the count 10,000, and by only 1 if the rate is
        $e^{50}$ and the count 0.
        """
        if self.link != "exp":
            return site
        log_bin = jnp.log(self.bin_width)
        rate = jnp.exp(a + 0.5 * jnp.minimum(v, 0.3) + log_bin)
        count = jnp.maximum(y, 0.5)
        far = (y > 4 * (rate + 1)) | (rate > 20 * (y + 1))
        distance = jnp.log(count) - log_bin - a
        chord = (count - jnp.minimum(rate, 1e6 * count)) / jnp.where(far, distance, 1)
        slope = jnp.where(far, chord * distance, y - rate)
        return Site(site.value, slope, -jnp.where(far, chord, rate))

    def check(self, ys: np.ndarray, mask: np.ndarray, where: str) -> None:
        check_counts(ys, mask, where)


def log_softplus(a: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log(softplus(a)), accurate also at very negative a, where the result is about a."""
    low = a < -15
    tail = a - 0.5 * jnp.exp(jnp.minimum(a, 0))
    return jnp.where(low, tail, jnp.log(jax.nn.softplus(jnp.where(low, 0.0, a))))
