"""Observation models from functions of the user, and models of observations in several parts."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float

from evkf.errors import InputError
from evkf.likelihoods.base import ChannelCov, Channels, Likelihood
from evkf.numerics.checks import check_whole, read_array
from evkf.types import Key, Mask, Observation, PyTree, Scalar, Vector


class Custom(Likelihood):
    """An observation model from functions of the latent state z.

    The filter computes expectations from samples, so `log_prob_fn` can be any function that JAX can
    differentiate.

    Args:
        log_prob_fn: `log_prob(z, y)` returns one log density for each channel, (channels,); then
            single channels can be masked. It may also return one number for all channels; then a
            bin with any masked channel counts as not observed.
        num_channels: Length of y.
        params: Learned parameters, a JAX tree of arrays. If given, `params` is the first argument
            of every function.
        mean_fn: `mean(z)` returns the expected observation, (channels,). Needed to predict
            observations, and by filters of the Kalman type.
        sample_fn: `sample(z, key)` returns a random observation, (channels,). Needed to simulate.
        fill: Value that replaces y in masked channels; any value of finite log density.
        cov_fn: `cov(z)` returns the covariance of the observation: one variance for each channel,
            or a matrix. Needed by filters of the Kalman type.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax.scipy.stats import norm
        >>> def log_prob(params, z, y):
        ...     return norm.logpdf(y, params * z[0])
        >>> likelihood = Custom(log_prob, 1, params=jnp.array(2.0))
        >>> likelihood.log_prob(jnp.ones(1), jnp.array([2.5]), jnp.array([True]))
        Array(-1.0439385, dtype=float32)
    """

    params: PyTree
    log_prob_fn: Callable[..., Any] = eqx.field(static=True)
    num_channels: int = eqx.field(static=True)
    mean_fn: Callable[..., Any] | None = eqx.field(static=True, default=None)
    cov_fn: Callable[..., Any] | None = eqx.field(static=True, default=None)
    sample_fn: Callable[..., Any] | None = eqx.field(static=True, default=None)
    fill: float = eqx.field(static=True, default=1.0)
    log_concave: ClassVar[bool] = False

    def __init__(
        self,
        log_prob_fn: Callable[..., Any],
        num_channels: int,
        params: PyTree = None,
        mean_fn: Callable[..., Any] | None = None,
        sample_fn: Callable[..., Any] | None = None,
        fill: float = 1.0,
        cov_fn: Callable[..., Any] | None = None,
    ):
        check_whole(num_channels, 1, "num_channels")
        given = {"mean_fn": mean_fn, "cov_fn": cov_fn, "sample_fn": sample_fn}
        named = {"log_prob_fn": log_prob_fn} | {k: v for k, v in given.items() if v is not None}
        for name, function in named.items():
            if not callable(function):
                raise InputError(f"a {type(function).__name__}", name, "pass a function")
        self.log_prob_fn, self.num_channels, self.params = log_prob_fn, num_channels, params
        self.mean_fn, self.cov_fn = mean_fn, cov_fn
        read_array(fill, (), "fill")
        self.sample_fn, self.fill = sample_fn, float(fill)

    def _with_params(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.params is None else partial(function, self.params)

    def log_prob(self, z: Vector, y: Observation, mask: Mask) -> Scalar:
        filled = jnp.where(mask, y, self.fill).astype(z.dtype)
        terms = jnp.asarray(self._with_params(self.log_prob_fn)(z, filled))
        if terms.shape not in ((), (self.num_channels,)):
            # JAX would repeat this log density for every channel, and count it many times.
            raise InputError(
                f"log densities of shape {terms.shape}",
                "Custom.log_prob_fn",
                f"return shape ({self.num_channels},), one per channel, or a scalar",
            )
        if terms.ndim == 0:
            return jnp.where(jnp.all(mask), terms, 0)
        return jnp.sum(jnp.where(mask, terms, 0))

    def mean(self, z: Vector) -> Channels:
        if self.mean_fn is None:
            raise InputError("no mean_fn was given", "Custom", "pass mean_fn=... to predict y")
        return self._with_params(self.mean_fn)(z)

    def cov(self, z: Vector) -> ChannelCov:
        if self.cov_fn is None:
            remedy = "pass cov_fn=..., or use VariationalKalmanFilter or ParticleFilter"
            raise InputError("no cov_fn was given", "Custom", remedy)
        return self._with_params(self.cov_fn)(z)

    def sample(self, z: Vector, key: Key) -> Channels:
        if self.sample_fn is None:
            raise InputError("no sample_fn was given", "Custom", "pass sample_fn=... to simulate")
        return self._with_params(self.sample_fn)(z, key)

    def check(self, ys: np.ndarray, mask: np.ndarray, where: str) -> None:
        """Do nothing, because `log_prob_fn` does not tell which observations are possible."""


class Joint(Likelihood):
    """An observation model of several parts of y, such as spikes, LFP and behaviour.

    Each part is a block of consecutive channels that has its own observation model. Given the
    latent state, the parts are independent.

    Args:
        parts: One observation model for each part, in the order of the channels in y.

    Example:
        >>> import jax.numpy as jnp
        >>> from evkf.likelihoods import Gaussian, Poisson
        >>> both = Joint([Poisson([[1.0], [0.5]]), Gaussian([[1.0]])])
        >>> both.num_channels
        3
    """

    parts: tuple[Likelihood, ...]

    def __init__(self, parts: Sequence[Likelihood]):
        if not parts:
            raise InputError("no parts", "Joint", "pass at least one likelihood")
        self.parts = tuple(parts)

    @property
    def num_channels(self) -> int:
        return sum(part.num_channels for part in self.parts)

    @property
    def log_concave(self) -> bool:
        return all(part.log_concave for part in self.parts)

    def split(self, array: Float[Array, "... N"]) -> list[Float[Array, "... P"]]:
        """Cut the last axis (channels) into the parts, and return one array for each part."""
        ends = np.cumsum([part.num_channels for part in self.parts])[:-1]
        return jnp.split(array, ends, axis=-1)

    def log_prob(self, z: Vector, y: Observation, mask: Mask) -> Scalar:
        pairs = zip(self.parts, self.split(y), self.split(mask), strict=True)
        return sum((part.log_prob(z, ys, m) for part, ys, m in pairs), start=jnp.zeros((), z.dtype))

    def mean(self, z: Vector) -> Channels:
        return jnp.concatenate([part.mean(z) for part in self.parts])

    def cov(self, z: Vector) -> ChannelCov:
        covs = [part.cov(z) for part in self.parts]
        if all(cov.ndim == 1 for cov in covs):
            return jnp.concatenate(covs)
        return block_diag(*[jnp.diag(cov) if cov.ndim == 1 else cov for cov in covs])

    def sample(self, z: Vector, key: Key) -> Channels:
        keys = jax.random.split(key, len(self.parts))
        draws = [part.sample(z, k) for part, k in zip(self.parts, keys, strict=True)]
        return jnp.concatenate(draws)

    def check(self, ys: np.ndarray, mask: np.ndarray, where: str) -> None:
        start = 0
        for part in self.parts:
            stop = start + part.num_channels
            part.check(ys[:, start:stop], mask[:, start:stop], f"{where}[:, {start}:{stop}]")
            start = stop
