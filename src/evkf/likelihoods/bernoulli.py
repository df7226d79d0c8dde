"""The Bernoulli likelihood: spike or no spike in a bin."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from evkf.likelihoods.base import Channels, ReadoutLikelihood, read_readout, refuse
from evkf.numerics.checks import read_positive
from evkf.types import Key, Scalar


class Bernoulli(ReadoutLikelihood):
    r"""Binary observations $y_n$, 1 for a spike, with odds $\Delta \exp(C_n z + b_n)$.

    If bins are short, the probability of a spike is about $\Delta$ times the rate
    $\exp(C_n z + b_n)$. If $\Delta$ is 1 (the default), the model is logistic regression.

    Args:
        C: Readout weights, (channels, latents).
        b: Offset of the log odds, (channels,); zero when left out.
        bin_width: $\Delta$; in seconds, rates are in spikes per second.

    Example:
        >>> import jax.numpy as jnp
        >>> Bernoulli([[2.0]]).mean(jnp.zeros(1))
        Array([0.5], dtype=float32)
    """

    C: Float[Array, "N L"]
    b: Channels
    bin_width: Scalar
    log_concave: ClassVar[bool] = True

    def __init__(self, C: ArrayLike, b: ArrayLike | None = None, bin_width: float = 1.0):
        self.C, self.b = read_readout(C, b)
        self.bin_width = read_positive(bin_width, (), "bin_width")

    def each_kernel(self, a: Float[Array, "... N"], y: Channels) -> Float[Array, "... N"]:
        logit = a + jnp.log(self.bin_width)
        return y * logit - jax.nn.softplus(logit)

    def each_mean(self, a: Channels) -> Channels:
        return jax.nn.sigmoid(a + jnp.log(self.bin_width))

    def each_var(self, a: Channels) -> Channels:
        logit = a + jnp.log(self.bin_width)
        return jax.nn.sigmoid(logit) * jax.nn.sigmoid(-logit)

    def each_sample(self, a: Channels, key: Key) -> Channels:
        return jax.random.bernoulli(key, self.each_mean(a)).astype(a.dtype)

    def each_scale(self) -> Channels:
        return jnp.full_like(self.b, 2.0)

    def check(self, ys: np.ndarray, mask: np.ndarray, where: str) -> None:
        remedy = "pass 0 and 1, or use Poisson for counts"
        refuse(mask & (ys != 0) & (ys != 1), ys, where, "not a Bernoulli outcome:", remedy)
