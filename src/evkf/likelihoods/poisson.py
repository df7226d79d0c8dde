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
    r"""$y_n \sim \text{Poisson}(\Delta\, g(C_n z + b_n))$, g exponential or softplus.

    Paper: eq:vdp_generative_model (whose printed expected log-likelihood drops b; see the errata).

    Args:
        C: Readout, (channels, latents).
        b: Offset in the link's argument, (channels,).
        bin_width: $\Delta$, so that rates are per unit of time.
        link: "exp" or "softplus".

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
        """Expand about a narrower belief; if the count is far, use the chord to the count.

        The posterior is narrower than a wide prediction, which inflates the expected rate by
        $e^{v/2}$. A Newton step from a rate of 1 towards 10,000 counts would move the log rate by
        10,000, and one from a rate of $e^{50}$ towards no counts by only 1; the chord of the
        exponential moves it to the count.
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
    """log(softplus(a)), which tends to a for very negative a."""
    low = a < -15
    tail = a - 0.5 * jnp.exp(jnp.minimum(a, 0))
    return jnp.where(low, tail, jnp.log(jax.nn.softplus(jnp.where(low, 0.0, a))))
