"""Base classes of observation models; derive a new model from them.

Most models of neural data see the latent state through a linear readout: channel n depends on z
only through $a_n = C_n z + b_n$. Then every expectation under a Gaussian belief is one-dimensional,
and a new model is one function, `each_kernel`.
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
"""A covariance of channels: their variances where they are independent, else a matrix."""


class Site(NamedTuple):
    r"""$E[\ell]$, $E[\ell']$ and $E[\ell'']$ of every channel; $\ell(a)$ is its `each_kernel`.

    By the identities of Bonnet and Price these are also the value and the derivatives of the
    expected log-likelihood: $\partial_a = E[\ell']$ and $\partial_v = \tfrac12 E[\ell'']$.
    """

    value: Channels
    slope: Channels
    curvature: Channels


class Likelihood(eqx.Module):
    r"""An observation model $p_\psi(y|z)$."""

    num_channels: eqx.AbstractVar[int]
    log_concave: eqx.AbstractVar[bool]
    r"""True if $\log p(y|z)$ is concave in z for every y."""

    @abstractmethod
    def log_prob(self, z: Vector, y: Observation, mask: Mask) -> Scalar:
        """Log density of the observed channels."""

    @abstractmethod
    def mean(self, z: Vector) -> Channels:
        """Expected observation of every channel at z."""

    def cov(self, z: Vector) -> ChannelCov:
        """Covariance of the observation at z; only filters of the Kalman type need it."""
        del z
        raise InputError(
            f"{type(self).__name__} has no variance of the observations",
            type(self).__name__,
            "give it a method cov(z), or use VariationalKalmanFilter or ParticleFilter",
        )

    @abstractmethod
    def sample(self, z: Vector, key: Key) -> Channels:
        """Draw one observation at z."""

    @abstractmethod
    def check(self, ys: np.ndarray, mask: np.ndarray, where: str) -> None:
        """Raise `InputError` if observed entries of `ys` (bins x channels) are impossible."""


class ReadoutLikelihood(Likelihood):
    """A model of independent channels behind a linear readout $a = Cz + b$."""

    C: eqx.AbstractVar[Float[Array, "N L"]]
    b: eqx.AbstractVar[Channels]

    @abstractmethod
    def each_kernel(self, a: Float[Array, "... N"], y: Channels) -> Float[Array, "... N"]:
        """Log density of every channel given its readout a, without the terms below."""

    def each_constant(self, y: Channels) -> Channels:
        """Terms of the log density without a; an update computes them once."""
        return jnp.zeros_like(y)

    def each_base(self, y: Channels) -> Channels:
        """Terms of y alone, without a and without parameters; learning leaves them out."""
        return jnp.zeros_like(y)

    def each_rest(self, y: Channels) -> Channels:
        """Sum of all terms without a."""
        return self.each_constant(y) + self.each_base(y)

    @abstractmethod
    def each_mean(self, a: Channels) -> Channels:
        """Expected observation of every channel given its readout a."""

    def each_var(self, a: Channels) -> Channels:
        """Variance of every channel given its readout a; filters of the Kalman type need it."""
        del a
        raise InputError(
            f"{type(self).__name__} has no variance of the observations",
            type(self).__name__,
            "give it a method each_var(a), or use VariationalKalmanFilter or ParticleFilter",
        )

    @abstractmethod
    def each_sample(self, a: Channels, key: Key) -> Channels:
        """Draw every channel given its readout a."""

    def each_scale(self) -> Channels:
        """Length scale of `each_kernel` in a, by which the number of quadrature nodes is chosen."""
        return jnp.ones_like(self.b)

    def each_site(self, a: Channels, v: Channels, y: Channels) -> Site | None:
        """Closed form of the three expectations over $N(a, v)$; None if there is none."""
        return None

    def each_start(self, site: Site, a: Channels, v: Channels, y: Channels) -> Site:
        """First site of an update, made at the prediction.

        A model whose Newton step from there can overshoot by far returns a smaller one.
        """
        return site

    def each_log_prob(self, a: Float[Array, "... N"], y: Channels) -> Float[Array, "... N"]:
        """Log density of every channel given its readout a."""
        return self.each_kernel(a, y) + self.each_rest(y)

    @property
    def num_channels(self) -> int:
        return self.C.shape[0]

    def readout(self, z: Vector) -> Channels:
        """$a = Cz + b$."""
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
    """Convert observations to floats, and masked ones, which may be NaN, to one."""
    return jnp.where(mask, y, 1).astype(like.dtype)


def read_readout(C: ArrayLike, b: ArrayLike | None) -> tuple[Float[Array, "N L"], Channels]:
    """Check and convert a readout matrix and its offset.

    Args:
        C: (channels, latents).
        b: (channels,); zero when None.

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
    """Raise `InputError` for the first bad entry, with its index and value."""
    if np.any(bad):
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InputError(f"{what} {ys[first]}", f"{where}{list(first)}", remedy)


def check_counts(ys: np.ndarray, mask: np.ndarray, where: str) -> None:
    """Refuse counts that are not whole numbers, zero or more.

    Args:
        ys: Observations, (bins, channels).
        mask: True where observed; other entries are not checked.
        where: Name of the observations in an error.

    Example:
        >>> check_counts(np.array([[2.0, 0.5]]), np.array([[True, False]]), "ys")
    """
    refuse(mask & (ys < 0), ys, where, "negative count", "pass spike counts, or mask the entry")
    refuse(mask & (ys != np.floor(ys)), ys, where, "fractional count", "pass whole spike counts")
