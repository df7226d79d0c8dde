"""Base classes of observation models; derive a new model from them.

In most models of neural data, the observation y depends on the latent state z through a linear
readout: channel n depends on z only through the number $a_n = C_n z + b_n$. Then every expectation
under a Gaussian belief is an integral over one number. Derive such a model from `ReadoutLikelihood`
and define `each_kernel`, `each_mean`, `each_sample` and `check`.
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.numerics.checks import real_numbers
from evkf.types import Key, Mask, Observation, Scalar, Vector

Channels = Float[Array, " N"]
ChannelCov = Float[Array, " N"] | Float[Array, "N N"]
"""Covariance of the observation: one variance per channel, or a matrix if channels correlate."""


class Site(NamedTuple):
    r"""Expected log density of each channel, and its expected first and second derivative.

    The log density of a channel is $\ell(a)$, the channel's `each_kernel` at readout $a$. The
    expectations $E[\ell]$, $E[\ell']$ and $E[\ell'']$ are under a normal distribution of $a$. They
    give the derivatives of $E[\ell]$ by the mean of that distribution, $E[\ell']$, and by its
    variance, $\tfrac12 E[\ell'']$ (identities of Bonnet and Price).

    Attributes:
        value: $E[\ell]$.
        slope: $E[\ell']$.
        curvature: $E[\ell'']$.
    """

    value: Channels
    slope: Channels
    curvature: Channels


class Likelihood(eqx.Module):
    r"""An observation model $p_\psi(y|z)$ of observation y given latent state z."""

    num_channels: eqx.AbstractVar[int]
    log_concave: eqx.AbstractVar[bool]
    r"""True if the log density $\log p(y|z)$ is a concave function of z for every y."""

    @abstractmethod
    def log_prob(self, z: Vector, y: Observation, mask: Mask) -> Scalar:
        """Return the log density of the channels whose mask is True."""

    @abstractmethod
    def mean(self, z: Vector) -> Channels:
        """Return the expected observation of each channel at latent state z."""

    def cov(self, z: Vector) -> ChannelCov:
        """Return the covariance of the observation at latent state z.

        Only filters of the Kalman type need this function. Raise InputError unless a class
        overrides it.
        """
        del z
        raise InputError(
            f"{type(self).__name__} has no variance of the observations",
            type(self).__name__,
            "give it a method cov(z), or use VariationalKalmanFilter or ParticleFilter",
        )

    @abstractmethod
    def sample(self, z: Vector, key: Key) -> Channels:
        """Draw one observation at latent state z, and return one value per channel."""

    @abstractmethod
    def check(self, ys: np.ndarray, mask: np.ndarray, where: str) -> None:
        """Raise `InputError` if an observed value is impossible under the model.

        Args:
            ys: Observations, (bins, channels).
            mask: True where observed, (bins, channels). Other entries are not checked.
            where: Name of the observations in the error.
        """


class ReadoutLikelihood(Likelihood):
    """An observation model of independent channels that depend on the readout $a = Cz + b$.

    The log density of a channel is the sum of `each_kernel`, `each_constant` and `each_base`.
    """

    C: eqx.AbstractVar[Float[Array, "N L"]]
    b: eqx.AbstractVar[Channels]

    @abstractmethod
    def each_kernel(self, a: Float[Array, "... N"], y: Channels) -> Float[Array, "... N"]:
        """Return the terms of the log density of each channel that depend on the readout a."""

    def each_constant(self, y: Channels) -> Channels:
        """Return the terms of the log density that depend on parameters, but not on the readout a.

        An update of the filter computes these terms only once. Zero by default.
        """
        return jnp.zeros_like(y)

    def each_base(self, y: Channels) -> Channels:
        """Return the terms of the log density that depend on y alone; zero by default.

        Learning leaves these terms out, because no learned number changes them.
        """
        return jnp.zeros_like(y)

    def each_rest(self, y: Channels) -> Channels:
        """Return the sum of all terms that do not depend on the readout a."""
        return self.each_constant(y) + self.each_base(y)

    @abstractmethod
    def each_mean(self, a: Channels) -> Channels:
        """Return the expected observation of each channel given its readout a."""

    def each_var(self, a: Channels) -> Channels:
        """Return the variance of the observation of each channel given its readout a.

        Only filters of the Kalman type need this function. Raise InputError unless a class
        overrides it.
        """
        del a
        raise InputError(
            f"{type(self).__name__} has no variance of the observations",
            type(self).__name__,
            "give it a method each_var(a), or use VariationalKalmanFilter or ParticleFilter",
        )

    @abstractmethod
    def each_sample(self, a: Channels, key: Key) -> Channels:
        """Draw one observation of each channel given its readout a, and return the values."""

    def each_scale(self) -> Channels:
        """Return, for each channel, the change of the readout a over which `each_kernel` bends.

        The filter chooses the number of quadrature nodes by this length scale. One by default.
        """
        return jnp.ones_like(self.b)

    def each_site(self, a: Channels, v: Channels, y: Channels) -> Site | None:
        """Return the `Site` of each channel in closed form, or None (the default) without one.

        The readout of a channel has mean a and variance v. If the result is None, the filter uses
        quadrature.
        """
        return None

    def each_start(self, site: Site, a: Channels, v: Channels, y: Channels) -> Site:
        """Return the `Site` from which an update begins; by default `site`, that of the prediction.

        A model overrides this function if the first Newton step from the prediction can go much too
        far. It then returns a site that gives a smaller step.
        """
        return site

    def each_log_prob(self, a: Float[Array, "... N"], y: Channels) -> Float[Array, "... N"]:
        """Return the log density of each channel given its readout a, all terms included."""
        return self.each_kernel(a, y) + self.each_rest(y)

    @property
    def num_channels(self) -> int:
        return self.C.shape[0]

    def readout(self, z: Vector) -> Channels:
        """Return the readout $a = Cz + b$ of each channel."""
        return self.C @ z + self.b

    def log_prob(self, z: Vector, y: Observation, mask: Mask) -> Scalar:
        terms = self.each_log_prob(self.readout(z), safe(y, mask, self.b))
        return jnp.sum(jnp.where(mask, terms, 0))

    def mean(self, z: Vector) -> Channels:
        return self.each_mean(self.readout(z))

    def cov(self, z: Vector) -> Channels:
        return self.each_var(self.readout(z))

    def sample(self, z: Vector, key: Key) -> Channels:
        return self.each_sample(self.readout(z), key)


def safe(y: Observation, mask: Mask, like: Channels) -> Channels:
    """Return observations as floats, where masked entries (which may be NaN) are replaced by 1."""
    return jnp.where(mask, y, 1).astype(like.dtype)


def read_readout(C: ArrayLike, b: ArrayLike | None) -> tuple[Float[Array, "N L"], Channels]:
    """Check a readout and return C and b as JAX arrays; raise InputError if they do not fit.

    Args:
        C: Readout weights, (channels, latents).
        b: Readout offsets, (channels,); zero if None.

    Example:
        >>> read_readout([[1.0, 0.0]], None)[1]
        Array([0.], dtype=float32)
    """
    matrix = real_numbers(C, "C")
    if matrix.ndim != 2:
        raise InputError(
            f"readout C of shape {matrix.shape}", "C", "pass a (channels, latents) matrix"
        )
    offset = np.zeros(matrix.shape[0]) if b is None else real_numbers(b, "b")
    if offset.shape != (matrix.shape[0],):
        raise InputError(
            f"offset b of shape {offset.shape} for {matrix.shape[0]} channels",
            "b",
            f"pass a vector of length {matrix.shape[0]}; C is (channels, latents)",
        )
    for name, array in (("C", matrix), ("b", offset)):
        if not np.all(np.isfinite(array)):
            raise InputError(f"readout {name} is not finite", name, "pass finite numbers")
    dtype = jnp.result_type(float)
    return jnp.asarray(matrix, dtype), jnp.asarray(offset, dtype)


def refuse(
    bad: Bool[np.ndarray, "T N"], ys: np.ndarray, where: str, what: str, remedy: str
) -> None:
    """Raise `InputError` if any entry is bad; the error names the first one.

    Args:
        bad: True where an entry of `ys` is bad.
        ys: Observations, (bins, channels).
        where: Name of the observations in the error.
        what: The problem; the error adds the value of the entry.
        remedy: An action that solves the problem.
    """
    if np.any(bad):
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InputError(f"{what} {ys[first]}", f"{where}{list(first)}", remedy)


def check_counts(ys: np.ndarray, mask: np.ndarray, where: str) -> None:
    """Raise InputError if an observed count is negative or not a whole number.

    Args:
        ys: Observations, (bins, channels).
        mask: True where observed, (bins, channels). Other entries are not checked.
        where: Name of the observations in the error.

    Example:
        >>> check_counts(np.array([[2.0, 0.5]]), np.array([[True, False]]), "ys")
    """
    refuse(mask & (ys < 0), ys, where, "negative count", "pass spike counts, or mask the entry")
    refuse(mask & (ys != np.floor(ys)), ys, where, "fractional count", "pass whole spike counts")
