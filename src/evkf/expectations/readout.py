r"""Expectations over linear readouts $Cz + b$, and the observations that a model predicts.

If z is Gaussian, the readout $(Cz + b)_n$ of channel n is a one-dimensional Gaussian $N(a, v)$ of
mean a and variance v, however many latents there are. `observe` prepares the expectation
$E_{x \sim N(a, v)}[\log p(y_n | x)]$ of every channel, and the derivatives in a. `project`
converts the covariance of z to the variances v, and curvatures in the readouts to a Hessian in z.
The updates of all Gaussian families, the learner and the forecasts use these functions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.errors import InputError
from evkf.families.low_rank import readout_var
from evkf.likelihoods.base import Channels, Site, safe
from evkf.model import Model
from evkf.numerics.linalg import pack
from evkf.numerics.quadrature import LEVELS, REACH, gauss_hermite
from evkf.types import Belief, Mask, Matrix, Observation

GAUSSIANS = (fam.GaussianFamily, fam.LowRankGaussianFamily, fam.DiagonalGaussianFamily)
PACK = 16
"""Largest number of latents for which `project` computes all products of two readout weights."""


def has_independent_channels(likelihood: lik.Likelihood) -> bool:
    """Return True if every channel depends on one linear readout, independently of the others."""
    gaussian = isinstance(likelihood, lik.Gaussian) and likelihood.independent
    return gaussian or isinstance(likelihood, lik.ReadoutLikelihood)


def choose_level(likelihood: lik.ReadoutLikelihood, v: Channels) -> Int[Array, ""]:
    """Return the index in `LEVELS` of a quadrature rule that is accurate for every channel.

    The larger the variances v of the readouts, the more nodes the rule has. The channel whose
    standard deviation is largest relative to the scale of the likelihood determines the index.
    """
    ratio = jnp.max(jnp.sqrt(v) / likelihood.each_scale())
    return jnp.sum(ratio > jnp.asarray(REACH, v.dtype)).astype(jnp.int32)


def expect_channels(
    likelihood: lik.Likelihood,
    a: Channels,
    v: Channels,
    y: Channels,
    level: Int[Array, ""] | int,
) -> Site:
    """Return the expected log-likelihood of every channel, with slope and curvature in a.

    The expectation over $N(a, v)$ is in closed form if the likelihood has one; otherwise by a
    Gauss–Hermite rule, and terms that do not depend on the readout are left out.

    Args:
        likelihood: A likelihood whose channels are independent given a linear readout.
        a: Means of the readouts, (channels,).
        v: Variances of the readouts, (channels,).
        y: Observations, (channels,).
        level: Index in `LEVELS` of the Gauss–Hermite rule.
    """
    if isinstance(likelihood, lik.Gaussian):
        precision = likelihood.bin_width / likelihood.noise.var()
        off = y - a
        value = 0.5 * (jnp.log(precision / (2 * jnp.pi)) - precision * (off**2 + v))
        return Site(value, precision * off, -precision)
    assert isinstance(likelihood, lik.ReadoutLikelihood)
    closed = likelihood.each_site(a, v, y)
    if closed is not None:
        return closed

    # A masked channel has v = 0, where the square root has no derivative.
    std = jnp.where(v > 0, jnp.sqrt(jnp.where(v > 0, v, 1)), 0)
    narrow = std < 0.1 * likelihood.each_scale()

    def with_nodes(num: int) -> Site:
        nodes, weights = (jnp.asarray(array, a.dtype) for array in gauss_hermite(num))
        points = a + std * nodes[:, None]

        def slope(x: Array) -> tuple[Array, Array]:
            return jax.jvp(lambda x: likelihood.each_kernel(x, y), (x,), (jnp.ones_like(x),))

        (value, first), (_, second) = jax.jvp(slope, (points,), (jnp.ones_like(points),))
        # Stein's form of the curvature is the exact derivative of the sum over nodes, so that the
        # fixed point of an update is the maximum of the computed bound. For narrow beliefs Stein's
        # form loses digits by cancellation; the average of second derivatives is used there, and
        # agrees.
        stein = (weights * nodes) @ first / jnp.where(narrow, 1, std)
        return Site(weights @ value, weights @ first, jnp.where(narrow, weights @ second, stein))

    return lax.switch(level, [lambda num=num: with_nodes(num) for num in LEVELS])


class ObservedChannels(NamedTuple):
    """The observation of one bin, from which expected log-likelihoods are computed.

    Made by `observe`. The expectations are over the readouts $N(a, v)$ of the channels.
    """

    joint: lik.Joint
    """The likelihood, as a `Joint` (of a single part, if need be)."""
    y: Channels
    """Observation; a harmless value where masked."""
    mask: Mask
    """True where observed."""
    constant: Channels
    """Terms of the log density that do not depend on the readout, one for each channel."""
    level: Int[Array, ""] | int
    """Index in `LEVELS` of the quadrature rule."""

    def expect(self, a: Channels, v: Channels) -> Site:
        r"""Return the expected log-likelihood of every channel, with slope and curvature in a.

        All three are zero where masked.

        Args:
            a: Means of the readouts.
            v: Variances of the readouts.
        """
        return self._masked(self._sites(a, v))

    def start(self, a: Channels, v: Channels) -> tuple[Site, Bool[Array, " N"]]:
        """Return value, slope and curvature for the first step of an update.

        They differ from those of `expect` where the first step would go too far (see
        `ReadoutLikelihood.each_start`). Also return, for each channel, True where slope and
        curvature are those of `expect`.

        Args:
            a: Means of the readouts.
            v: Variances of the readouts.
        """
        exact = self._sites(a, v)
        first = [
            part.each_start(site, *terms) if isinstance(part, lik.ReadoutLikelihood) else site
            for site, (part, *terms) in zip(exact, self._pieces(a, v), strict=True)
        ]
        begun, true = self._masked(first), self._masked(exact)
        return begun, (begun.slope == true.slope) & (begun.curvature == true.curvature)

    def _pieces(self, a: Channels, v: Channels) -> list[tuple[Any, ...]]:
        """Return, for each part of the likelihood: the part, and a, v, y of the part's channels."""
        return list(zip(self.joint.parts, *map(self.joint.split, (a, v, self.y)), strict=True))

    def _sites(self, a: Channels, v: Channels) -> list[Site]:
        return [expect_channels(p, *terms, level=self.level) for p, *terms in self._pieces(a, v)]

    def _masked(self, sites: list[Site]) -> Site:
        site = Site(*(jnp.concatenate(terms) for terms in zip(*sites, strict=True)))
        site = site._replace(value=site.value + self.constant)
        return Site(*(jnp.where(self.mask, term, 0) for term in site))


def observe(
    likelihood: lik.Likelihood,
    y: Observation,
    mask: Mask,
    v: Channels | None = None,
    base: bool = True,
) -> ObservedChannels:
    """Prepare the expected log-likelihoods of one bin, and return them as `ObservedChannels`.

    Args:
        likelihood: A likelihood whose channels are independent given a linear readout, or a
            `Joint` of such likelihoods.
        y: Observation, (channels,).
        mask: True where observed, (channels,).
        v: Predicted variances of the readouts, (channels,), zero where masked. They determine the
            number of quadrature nodes; the smallest number when left out.
        base: False to leave out terms that depend on y only, which learning does not need. True by
            default.
    """
    joint = likelihood if isinstance(likelihood, lik.Joint) else lik.Joint([likelihood])
    y = safe(y, mask, joint.parts[0].b)  # pyright: ignore[reportAttributeAccessIssue]
    constants, levels = [], []
    variances = [None] * len(joint.parts) if v is None else joint.split(v)
    for part, own, var in zip(joint.parts, joint.split(y), variances, strict=True):
        if isinstance(part, lik.ReadoutLikelihood):
            constants.append(part.each_rest(own) if base else part.each_constant(own))
            if var is not None:
                levels.append(choose_level(part, var))
        else:
            constants.append(jnp.zeros_like(own))
    level = jnp.max(jnp.stack(levels)) if levels else 0
    return ObservedChannels(joint, y, mask, jnp.concatenate(constants), level)


class Projection(NamedTuple):
    """The linear map from latents to readouts, prepared by `project`."""

    loads: Float[Array, "L N"]
    """Weight of every latent in every readout. The last axis is channels, which makes small matrix
    products faster.
    """
    products: Float[Array, "D N"] | None
    r"""Products $l_i l_j$ of the weights of latents i and j, for every channel; only $i \ge j$ if
    packed. None for more than `PACK` latents.
    """
    packed: bool
    """True if Hessians are represented by their lower triangles."""

    def var(self, cov: Matrix, root: Matrix | None = None) -> Channels:
        r"""Return the variances of the readouts, (channels,).

        Args:
            cov: Covariance of the latents.
            root: A matrix R such that $RR^\top$ is the covariance, used for more than `PACK`
                latents; there the result cannot become negative by rounding.
        """
        if self.products is None:
            if root is not None:
                return jnp.sum((root.T @ self.loads) ** 2, axis=0)
            return jnp.sum((cov @ self.loads) * self.loads, axis=0)
        if not self.packed:
            return cov.reshape(-1) @ self.products
        rows, columns = np.tril_indices(len(self.loads))
        twice = jnp.asarray(2 - (rows == columns), self.loads.dtype)
        return jnp.maximum((twice * pack(cov)) @ self.products, 0)

    def hessian(self, curvature: Channels) -> Float[Array, " D"] | Matrix:
        """Return the Hessian in the latents, from the curvatures in the readouts, (channels,).

        If packed, the Hessian is returned as its lower triangle, else as a matrix.
        """
        if self.products is None:
            whole = (self.loads * curvature) @ self.loads.T
            return pack(whole) if self.packed else whole
        hessian = self.products @ curvature
        return hessian if self.packed else hessian.reshape(2 * (len(self.loads),))


def project(loads: Float[Array, "L N"], packed: bool = True) -> Projection:
    """Prepare the linear map from latents to readouts, and return it as a `Projection`.

    Args:
        loads: Weight of every latent in every readout, (latents, channels).
        packed: True (default) to represent Hessians by their lower triangles (see
            `evkf.numerics.linalg.pack`), which takes fewer operations; False for full matrices,
            which are faster to differentiate.
    """
    if len(loads) > PACK:
        return Projection(loads, None, packed)
    if not packed:
        whole = loads[:, None] * loads
        return Projection(loads, whole.reshape(-1, loads.shape[1]), packed)
    rows, columns = np.tril_indices(len(loads))
    return Projection(loads, loads[rows] * loads[columns], packed)


def expected_observation(model: Model, belief: Belief) -> Channels:
    """Return the expected observation $E_q[E[y|z]]$ under a belief q, (channels,).

    The expectation is in closed form if the mean of y is linear or exponential in the readout.
    Otherwise, under Gaussian beliefs and linear readouts, it is computed by Gauss–Hermite
    quadrature. In all other cases it is a weighted sum over a few points (the nodes of the
    family), which is exact only for the first moments of z.

    Example:
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(Linear([[0.5]], noise=0.1), Poisson([[2.0]]))
        >>> round(float(expected_observation(model, model.prior)[0]), 4)
        7.3891
    """
    return _expected(model.family, model.likelihood, belief)


def observation_variance(model: Model, belief: Belief) -> Channels:
    r"""Return the predictive variance of every channel, (channels,).

    It is $\operatorname{Var} y = E_q[\operatorname{Var}(y|z)] + \operatorname{Var}_q E[y|z]$ under
    a belief q. The variance is in closed form if the mean of y is exponential in the readout, else
    by Gauss–Hermite quadrature. Raise InputError unless the likelihood is a `ReadoutLikelihood`
    and the belief is Gaussian.

    Example:
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(Linear([[0.5]], noise=0.1), Poisson([[1.0]]))  # prior N(0, 1)
        >>> round(float(observation_variance(model, model.prior)[0]), 3)  # e^½ + e (e - 1)
        6.319
    """
    family, likelihood = model.family, model.likelihood
    if not (isinstance(likelihood, lik.ReadoutLikelihood) and isinstance(family, GAUSSIANS)):
        what = f"{type(likelihood).__name__} observations of a {type(family).__name__} state"
        remedy = "use a likelihood with a linear readout, such as Poisson, and Gaussian states"
        raise InputError(what, "model", remedy)
    a, v = _readout_moments(family, likelihood, belief)
    mean, most = _expected(family, likelihood, belief), jnp.finfo(a.dtype).max
    if not _has_exponential_mean(likelihood):

        def second_moment(x: Channels) -> Channels:
            return likelihood.each_var(x) + likelihood.each_mean(x) ** 2

        return jnp.clip(_quadrature(likelihood, second_moment, a, v) - mean**2, 0, most)
    v = jnp.minimum(v, 80)  # beyond it single precision has no exponential
    spread = jnp.expm1(v)
    if isinstance(likelihood, lik.NegativeBinomial):
        spread = spread + jnp.exp(v - likelihood.log_dispersion)
    return jnp.minimum(mean + mean**2 * spread, most)


def _expected(family: fam.Family, likelihood: lik.Likelihood, belief: Belief) -> Channels:
    if isinstance(likelihood, lik.Joint):
        parts = [_expected(family, part, belief) for part in likelihood.parts]
        return jnp.concatenate(parts)
    if isinstance(likelihood, lik.Gaussian | lik.StudentT):
        return likelihood.mean(family.mean(belief))
    if isinstance(likelihood, lik.ReadoutLikelihood):
        exponential = _has_exponential_mean(likelihood)
        if exponential and family.has_log_mgf:
            log_gain = jnp.sum(family.log_mgf(belief, likelihood.C), axis=-1)
            return likelihood.each_mean(likelihood.b + log_gain)
        if isinstance(family, GAUSSIANS):
            a, v = _readout_moments(family, likelihood, belief)
            if exponential:
                return likelihood.each_mean(a + 0.5 * v)
            return _quadrature(likelihood, likelihood.each_mean, a, v)
    points, weights = family.nodes(belief)
    return weights @ jax.vmap(likelihood.mean)(points)


def _has_exponential_mean(likelihood: lik.ReadoutLikelihood) -> bool:
    """Return True if the mean of y given the readout is exponential in the readout."""
    return isinstance(likelihood, lik.NegativeBinomial) or (
        isinstance(likelihood, lik.Poisson) and likelihood.link == "exp"
    )


def _readout_moments(
    family: fam.Family, likelihood: lik.ReadoutLikelihood, belief: Belief
) -> tuple[Channels, Channels]:
    """Return the means and the variances of the readouts, each (channels,)."""
    C, a = likelihood.C, likelihood.readout(family.mean(belief))
    if isinstance(family, fam.LowRankGaussianFamily):
        return a, readout_var(C, belief.diagonal, C @ belief.factor)
    # Rounding of an ill-conditioned covariance can make a variance negative: floor at zero.
    return a, jnp.maximum(jnp.sum((C @ family.cov(belief)) * C, axis=-1), 0)


def _quadrature(
    likelihood: lik.ReadoutLikelihood,
    function: Callable[[Channels], Channels],
    a: Channels,
    v: Channels,
) -> Channels:
    """Return the expectation over $N(a, v)$ of a function of the readouts, by Gauss–Hermite."""

    def with_nodes(num: int) -> Channels:
        nodes, weights = (jnp.asarray(array, a.dtype) for array in gauss_hermite(num))
        return weights @ jax.vmap(function)(a + jnp.sqrt(v) * nodes[:, None])

    level = choose_level(likelihood, v)
    return lax.switch(level, [partial(with_nodes, num) for num in LEVELS])
