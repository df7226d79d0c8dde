r"""Expectations over linear readouts $a = Cz + b$, and the observations that a model predicts.

Through a linear readout every channel sees a one-dimensional Gaussian $N(a, v)$, however many
latents there are. `observe` prepares $E_{N(a, v)}[\log p(y_n | a)]$ of every channel with its
derivatives in $a$; `project` takes moments of latents to readouts, and these derivatives back. The
updates of all families, the learning windows and forecasts use both.
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
"""Most latent dimensions for which products of readout weights are formed."""


def has_independent_channels(likelihood: lik.Likelihood) -> bool:
    """True if the channels are independent given a linear readout."""
    gaussian = isinstance(likelihood, lik.Gaussian) and likelihood.independent
    return gaussian or isinstance(likelihood, lik.ReadoutLikelihood)


def choose_level(likelihood: lik.ReadoutLikelihood, v: Channels) -> Int[Array, ""]:
    """Index of the quadrature rule in `LEVELS` that serves the widest channel."""
    ratio = jnp.max(jnp.sqrt(v) / likelihood.each_scale())
    return jnp.sum(ratio > jnp.asarray(REACH, v.dtype)).astype(jnp.int32)


def expect_channels(
    likelihood: lik.Likelihood,
    a: Channels,
    v: Channels,
    y: Channels,
    level: Int[Array, ""] | int,
) -> Site:
    """Expectations over $N(a, v)$: in closed form, else by Gauss–Hermite rules.

    Args:
        likelihood: One with independent channels.
        a: Means of the readouts.
        v: Their variances.
        y: Observations.
        level: Index of the rule in `LEVELS`.
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
        # Stein's form of the curvature is the exact derivative of the rule itself, so that the
        # fixed point is the maximum of the computed bound; it cancels for narrow beliefs, where
        # both agree.
        stein = (weights * nodes) @ first / jnp.where(narrow, 1, std)
        return Site(weights @ value, weights @ first, jnp.where(narrow, weights @ second, stein))

    return lax.switch(level, [lambda num=num: with_nodes(num) for num in LEVELS])


class ObservedChannels(NamedTuple):
    """The observation of one bin, prepared by `observe` for expectations over its readouts."""

    joint: lik.Joint
    y: Channels
    mask: Mask
    constant: Channels
    """Terms of the log density without the readout."""
    level: Int[Array, ""] | int
    """Index of the quadrature rule in `LEVELS`."""

    def expect(self, a: Channels, v: Channels) -> Site:
        r"""$E_{N(a, v)}[\log p(y_n | a)]$ with its derivatives in $a$; zero where masked."""
        return self._masked(self._sites(a, v))

    def start(self, a: Channels, v: Channels) -> tuple[Site, Bool[Array, " N"]]:
        """The first site of an update (`ReadoutLikelihood.each_start`); True where it is exact."""
        exact = self._sites(a, v)
        first = [
            part.each_start(site, *terms) if isinstance(part, lik.ReadoutLikelihood) else site
            for site, (part, *terms) in zip(exact, self._pieces(a, v), strict=True)
        ]
        begun, true = self._masked(first), self._masked(exact)
        return begun, (begun.slope == true.slope) & (begun.curvature == true.curvature)

    def _pieces(self, a: Channels, v: Channels) -> list[tuple[Any, ...]]:
        """Every part of the likelihood with its channels of a, v and y."""
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
    """Prepare the expectations of one bin.

    Args:
        likelihood: One with independent channels, or a `Joint` of such.
        y: Observation.
        mask: True where observed.
        v: Predicted variances of the readouts, zero where masked, by which the level of quadrature
            is chosen; the lowest level when left out.
        base: False leaves out the terms of y alone, which learning does not need.
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
    """Weights of Gaussian latents in readouts; made by `project`."""

    loads: Float[Array, "L N"]
    """Channels come last: small products are faster so."""
    products: Float[Array, "D N"] | None
    r"""$l_i l_j$ up to `PACK` latents: fewer kernels and flops; only for $i \ge j$ if packed."""
    packed: bool

    def var(self, cov: Matrix, root: Matrix | None = None) -> Channels:
        """Variances of the readouts, from the covariance of the latents, or a root of it."""
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
        """The Hessian in the latents, from the curvatures in the readouts."""
        if self.products is None:
            whole = (self.loads * curvature) @ self.loads.T
            return pack(whole) if self.packed else whole
        hessian = self.products @ curvature
        return hessian if self.packed else hessian.reshape(2 * (len(self.loads),))


def project(loads: Float[Array, "L N"], packed: bool = True) -> Projection:
    """Prepare the projection of latents to readouts with these weights, and back.

    Args:
        loads: Weights of the latents.
        packed: True to represent Hessians by their lower triangles (see
            `evkf.numerics.linalg.pack`), with fewer flops; False for matrices, which are cheaper
            to differentiate.
    """
    if len(loads) > PACK:
        return Projection(loads, None, packed)
    if not packed:
        whole = loads[:, None] * loads
        return Projection(loads, whole.reshape(-1, loads.shape[1]), packed)
    rows, columns = np.tril_indices(len(loads))
    return Projection(loads, loads[rows] * loads[columns], packed)


def expected_observation(model: Model, belief: Belief) -> Channels:
    """$E_q[E[y|z]]$ of every channel.

    In closed form for means that are linear or exponential in the readout; for any other readout
    of a Gaussian belief by Gauss–Hermite, and else by the nodes of the family, which are exact only
    for the first moments of z.

    Example:
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(Linear([[0.5]], noise=0.1), Poisson([[2.0]]))
        >>> round(float(expected_observation(model, model.prior)[0]), 4)
        7.3891
    """
    return _expected(model.family, model.likelihood, belief)


def observation_variance(model: Model, belief: Belief) -> Channels:
    r"""$\operatorname{Var} y = E_q[\operatorname{Var}(y|z)] + \operatorname{Var}_q E[y|z]$.

    For a `ReadoutLikelihood` under Gaussian beliefs, of every channel: in closed form for means
    that are exponential in the readout, else by Gauss–Hermite.

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
    """True if expected observations are exponential in the readout."""
    return isinstance(likelihood, lik.NegativeBinomial) or (
        isinstance(likelihood, lik.Poisson) and likelihood.link == "exp"
    )


def _readout_moments(
    family: fam.Family, likelihood: lik.ReadoutLikelihood, belief: Belief
) -> tuple[Channels, Channels]:
    """Mean and variance of every readout."""
    C, a = likelihood.C, likelihood.readout(family.mean(belief))
    if isinstance(family, fam.LowRankGaussianFamily):
        return a, readout_var(C, belief.diagonal, C @ belief.factor)
    # Not below zero, where rounding of an ill-conditioned covariance can take it.
    return a, jnp.maximum(jnp.sum((C @ family.cov(belief)) * C, axis=-1), 0)


def _quadrature(
    likelihood: lik.ReadoutLikelihood,
    function: Callable[[Channels], Channels],
    a: Channels,
    v: Channels,
) -> Channels:
    """Expectation over $N(a, v)$ of a function of the readouts, by Gauss–Hermite rules."""

    def with_nodes(num: int) -> Channels:
        nodes, weights = (jnp.asarray(array, a.dtype) for array in gauss_hermite(num))
        return weights @ jax.vmap(function)(a + jnp.sqrt(v) * nodes[:, None])

    level = choose_level(likelihood, v)
    return lax.switch(level, [partial(with_nodes, num) for num in LEVELS])
