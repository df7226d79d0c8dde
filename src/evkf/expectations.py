"""How $E_q[\\log p(y|z)]$ and its derivatives are computed, for every family and likelihood.

| family | likelihood | way |
|---|---|---|
| Gaussian, diagonal Gaussian | Gaussian, Poisson with exponential link | closed form |
| Gaussian, diagonal Gaussian | any other linear readout | quadrature, one dimension a channel |
| any product | Gaussian | closed form, from mean and variance |
| Gamma, both Bernoullis, their products | Poisson with exponential link | closed form, from $A$ |
| Bernoulli up to 10 dimensions | any other | exact sum over its states |
| any other pair | | sampling, the same samples throughout an update |

`way(family, likelihood)` answers with the word of the last column. Sums of likelihoods (`Joint`)
take each part its own way.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.likelihoods.base import Channels, Site, safe
from evkf.numerics import cholesky, inverse_lower, pack
from evkf.quadrature import LEVELS, REACH, gauss_hermite
from evkf.types import Key, Mask, Matrix, Nat, Observation, Scalar, Vector

MAX_SUM = 10
"""Most Bernoulli dimensions whose states are summed over."""


PACK = 16
"""Most latent dimensions for which products of readout weights are formed once per update."""


class Ell(NamedTuple):
    """Expected log-likelihood with its gradient and expected Hessian in whitened coordinates."""

    value: Scalar
    grad: Vector
    curv: Float[Array, " D"]
    """The lower triangle of the Hessian (see `evkf.numerics.pack`)."""


Evaluate = Callable[[Vector, Matrix], Ell]
Start = Callable[[Vector, Matrix], tuple[Ell, Bool[Array, ""]]]


class Whitened(NamedTuple):
    """The expected log-likelihood as a function of u with $z = \\bar m + \\bar S u$.

    Both functions take the mean of u and a root of its covariance. `start` is `evaluate` for the
    first site of an update (see `ReadoutLikelihood.each_start`).
    """

    start: Start
    evaluate: Evaluate


def way(family: fam.Family, likelihood: lik.Likelihood) -> str:
    """Name how the expectation is computed: closed form, quadrature, exact sum or sampling.

    Example:
        >>> way(fam.Gaussian(2), lik.StudentT([[1.0, 0.0]]))
        'quadrature'
    """
    if isinstance(likelihood, lik.Joint):
        return ", ".join(dict.fromkeys(way(family, part) for part in likelihood.parts))
    if isinstance(likelihood, lik.Gaussian):
        return "closed form"
    if isinstance(likelihood, lik.ReadoutLikelihood) and isinstance(
        family, fam.Gaussian | fam.DiagonalGaussian
    ):
        one = jnp.ones_like(likelihood.b)
        return "quadrature" if likelihood.each_site(one, one, one) is None else "closed form"
    if isinstance(likelihood, lik.Poisson) and likelihood.link == "exp" and _can_tilt(family):
        return "closed form"
    if isinstance(family, fam.Bernoulli) and family.dim <= MAX_SUM:
        return "exact sum"
    return "sampling"


def is_conjugate(likelihood: lik.Likelihood) -> bool:
    """Whether a Gaussian belief stays Gaussian under this likelihood."""
    if isinstance(likelihood, lik.Joint):
        return all(is_conjugate(part) for part in likelihood.parts)
    return isinstance(likelihood, lik.Gaussian)


# ---------------------------------------------------------------- full Gaussian, whitened by q-bar


def whitened(
    likelihood: lik.Likelihood,
    mean: Vector,
    root: Matrix,
    y: Observation,
    mask: Mask,
    key: Key,
    num_samples: int,
) -> Whitened:
    """Prepare one update of a Gaussian belief: everything that does not change between iterations.

    Args:
        likelihood: The observation model.
        mean: Predicted mean $\\bar m$.
        root: Root $\\bar S$ of the predicted covariance.
        y: Observation.
        mask: Which channels were observed.
        key: Randomness for the sampled way; the same samples serve the whole update.
        num_samples: How many, in antithetic pairs.
    """
    if isinstance(likelihood, lik.Joint):
        keys = jax.random.split(key, len(likelihood.parts))
        pieces = zip(
            likelihood.parts, likelihood.split(y), likelihood.split(mask), keys, strict=True
        )
        parts = [whitened(p, mean, root, ys, m, k, num_samples) for p, ys, m, k in pieces]
        return Whitened(_total_start([p.start for p in parts]), _total([p.evaluate for p in parts]))
    if isinstance(likelihood, lik.ReadoutLikelihood):
        return _readout(likelihood, mean, root, y, mask)
    if isinstance(likelihood, lik.Gaussian):
        evaluate = _conjugate(likelihood, mean, root, y, mask)
    else:
        evaluate = _sampled(likelihood, mean, root, y, mask, key, num_samples)
    return Whitened(lambda u, spread: (evaluate(u, spread), jnp.asarray(True)), evaluate)


def _total_start(parts: list[Start]) -> Start:
    def start(u: Vector, spread: Matrix) -> tuple[Ell, Bool[Array, ""]]:
        found, exact = zip(*[part(u, spread) for part in parts], strict=True)
        return jax.tree.map(lambda *terms: sum(terms), *found), jnp.all(jnp.stack(exact))

    return start


def _total(parts: list[Evaluate]) -> Evaluate:
    def evaluate(u: Vector, spread: Matrix) -> Ell:
        return jax.tree.map(lambda *terms: sum(terms), *[part(u, spread) for part in parts])

    return evaluate


def _conjugate(
    likelihood: lik.Gaussian, mean: Vector, root: Matrix, y: Observation, mask: Mask
) -> Evaluate:
    residual = safe(y, mask, likelihood.b) - likelihood.mean(mean)
    white, loads, constant = likelihood.whiten(residual, likelihood.C @ root, mask)
    curv = pack(-loads.T @ loads)

    def evaluate(u: Vector, spread: Matrix) -> Ell:
        rest = white - loads @ u
        value = constant - 0.5 * (rest @ rest + jnp.sum((loads @ spread) ** 2))
        return Ell(value, loads.T @ rest, curv)

    return evaluate


def _readout(
    likelihood: lik.ReadoutLikelihood, mean: Vector, root: Matrix, y: Observation, mask: Mask
) -> Whitened:
    observed = safe(y, mask, likelihood.b)
    centre = likelihood.readout(mean)
    loads = jnp.where(mask[:, None], likelihood.C @ root, 0)
    dim = len(mean)
    project, gather = _packed(loads) if dim <= PACK else _unpacked(loads)
    level = choose_level(likelihood, jnp.sum(loads**2, axis=-1))

    def site_at(u: Vector, spread: Matrix) -> tuple[Site, Channels, Channels]:
        shift, v = project(u, spread)
        a = centre + shift
        return site(likelihood, a, v, observed, level), a, v

    constant = jnp.sum(jnp.where(mask, likelihood.each_constant(observed), 0))

    def collect(terms: Site) -> Ell:
        value, grad, curv = gather(Site(*(jnp.where(mask, term, 0) for term in terms)))
        return Ell(value + constant, grad, curv)

    def start(u: Vector, spread: Matrix) -> tuple[Ell, Bool[Array, ""]]:
        terms, a, v = site_at(u, spread)
        first = likelihood.each_start(terms, a, v, observed)
        same = (first.slope == terms.slope) & (first.curvature == terms.curvature)
        return collect(first), jnp.all(same | ~mask)

    def evaluate(u: Vector, spread: Matrix) -> Ell:
        return collect(site_at(u, spread)[0])

    return Whitened(start, evaluate)


def _unpacked(loads: Float[Array, "N L"]) -> tuple[Callable, Callable]:
    """From moments of u to means and variances of the readouts, and from sites back to sums over
    them.
    """

    def project(u: Vector, spread: Matrix) -> tuple[Channels, Channels]:
        return loads @ u, jnp.sum((loads @ spread) ** 2, axis=-1)

    def gather(terms: Site) -> Ell:
        curv = (loads * terms.curvature[:, None]).T @ loads
        return Ell(jnp.sum(terms.value), terms.slope @ loads, pack(curv))

    return project, gather


def _packed(loads: Float[Array, "N L"]) -> tuple[Callable, Callable]:
    """The same by two products with one matrix of $1$, $l_i$ and $l_i l_j$: fewer kernels and
    flops.
    """
    size, dim = loads.shape
    squares = pack(loads[:, :, None] * loads[:, None, :])
    features = jnp.concatenate([jnp.ones((size, 1), loads.dtype), loads, squares], axis=1)
    twice = jnp.asarray(2 - np.eye(dim)[np.tril_indices(dim)], loads.dtype)

    def project(u: Vector, spread: Matrix) -> tuple[Channels, Channels]:
        quadratic = twice * pack(spread @ spread.T)
        first = jnp.concatenate([jnp.zeros(1, u.dtype), u, jnp.zeros_like(quadratic)])
        second = jnp.concatenate([jnp.zeros(1 + dim, u.dtype), quadratic])
        both = features @ jnp.stack([first, second], axis=1)
        return both[:, 0], jnp.maximum(both[:, 1], 0)

    def gather(terms: Site) -> Ell:
        sums = features.T @ jnp.stack(terms, axis=1)
        return Ell(sums[0, 0], sums[1 : 1 + dim, 1], sums[1 + dim :, 2])

    return project, gather


def _sampled(
    likelihood: lik.Likelihood,
    mean: Vector,
    root: Matrix,
    y: Observation,
    mask: Mask,
    key: Key,
    num_samples: int,
) -> Evaluate:
    half = jax.random.normal(key, (num_samples // 2, mean.shape[0]), mean.dtype)
    noise = jnp.concatenate([half, -half])

    def average(u: Vector, cov: Matrix) -> Scalar:
        spread = inverse_lower(cholesky(jnp.linalg.inv(cov))).T
        points = mean + (u + noise @ spread.T) @ root.T
        return jnp.mean(jax.vmap(likelihood.log_prob, (0, None, None))(points, y, mask))

    def evaluate(u: Vector, spread: Matrix) -> Ell:
        # The derivatives of the sampled average itself, so that its maximum is the fixed point.
        value, (grad, slope) = jax.value_and_grad(average, (0, 1))(u, spread @ spread.T)
        return Ell(value, grad, pack(slope + slope.T))

    return evaluate


# ------------------------------------------------------------------------- one-dimensional sites


def choose_level(likelihood: lik.ReadoutLikelihood, v: Channels) -> Int[Array, ""]:
    """Which of the quadrature `LEVELS` serves the widest channel."""
    ratio = jnp.max(jnp.sqrt(v) / likelihood.each_scale())
    return jnp.sum(ratio > jnp.asarray(REACH, v.dtype)).astype(jnp.int32)


def site(
    likelihood: lik.ReadoutLikelihood, a: Channels, v: Channels, y: Channels, level: Int[Array, ""]
) -> Site:
    """Expectations over $N(a, v)$ in closed form, else by Gauss–Hermite of the given level."""
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
        # fixed
        # point is the maximum of the computed bound; it cancels for narrow beliefs, where both
        # agree.
        stein = (weights * nodes) @ first / jnp.where(narrow, 1, std)
        return Site(weights @ value, weights @ first, jnp.where(narrow, weights @ second, stein))

    return lax.switch(level, [lambda num=num: with_nodes(num) for num in LEVELS])


# ---------------------------------------------------------------------- products of univariates


def product_ell(
    family: fam.Family,
    likelihood: lik.Likelihood,
    y: Observation,
    mask: Mask,
    key: Key,
    num_samples: int,
    prior: Nat,
) -> Callable[[Nat], Scalar]:
    """The expected log-likelihood as a differentiable function of the natural parameters.

    It is $-\\infty$ where the expectation does not exist. The prior decides the quadrature level.
    """
    if isinstance(likelihood, lik.Joint):
        keys = jax.random.split(key, len(likelihood.parts))
        pieces = zip(
            likelihood.parts, likelihood.split(y), likelihood.split(mask), keys, strict=True
        )
        parts = [product_ell(family, p, ys, m, k, num_samples, prior) for p, ys, m, k in pieces]
        return lambda nat: jnp.sum(jnp.stack([part(nat) for part in parts]))
    if isinstance(likelihood, lik.Gaussian):
        return _product_gaussian(family, likelihood, y, mask)
    if isinstance(likelihood, lik.ReadoutLikelihood) and isinstance(family, fam.DiagonalGaussian):
        return _product_readout(family, likelihood, y, mask, prior)
    if isinstance(likelihood, lik.Poisson) and likelihood.link == "exp" and _can_tilt(family):
        return _product_poisson(family, likelihood, y, mask)

    def log_prob(z: Vector) -> Scalar:
        return likelihood.log_prob(z, y, mask)

    def exact(nat: Nat) -> Scalar:
        points, weights = family.nodes(nat)
        return weights @ jax.vmap(log_prob)(points)

    def sampled(nat: Nat) -> Scalar:
        return jnp.mean(jax.vmap(log_prob)(family.sample(nat, key, num_samples)))

    return exact if way(family, likelihood) == "exact sum" else sampled


def _product_gaussian(
    family: fam.Family, likelihood: lik.Gaussian, y: Observation, mask: Mask
) -> Callable[[Nat], Scalar]:
    observed = safe(y, mask, likelihood.b) - likelihood.b
    white, loads, constant = likelihood.whiten(observed, likelihood.C, mask)
    power = jnp.sum(loads**2, axis=0)

    def ell(nat: Nat) -> Scalar:
        rest = white - loads @ family.mean(nat)
        return constant - 0.5 * (rest @ rest + power @ family.var(nat))

    return ell


def _product_readout(
    family: fam.Family, likelihood: lik.ReadoutLikelihood, y: Observation, mask: Mask, prior: Nat
) -> Callable[[Nat], Scalar]:
    observed = safe(y, mask, likelihood.b)
    squares = jnp.where(mask[:, None], likelihood.C**2, 0)
    level = choose_level(likelihood, squares @ family.var(prior))
    constant = likelihood.each_constant(observed)

    def ell(nat: Nat) -> Scalar:
        a, v = likelihood.readout(family.mean(nat)), squares @ family.var(nat)
        value = site(likelihood, a, v, observed, level).value + constant
        return jnp.sum(jnp.where(mask, value, 0))

    return ell


def _product_poisson(
    family: fam.Family, likelihood: lik.Poisson, y: Observation, mask: Mask
) -> Callable[[Nat], Scalar]:
    counts = safe(y, mask, likelihood.b)
    log_bin = jnp.log(likelihood.bin_width)
    loads = jnp.where(mask[:, None], likelihood.C, 0)
    constant = likelihood.each_constant(counts)

    def ell(nat: Nat) -> Scalar:
        log_rate = likelihood.b + log_bin + jnp.sum(_tilt(family, nat, loads), axis=-1)
        linear = counts * (likelihood.readout(family.mean(nat)) + log_bin) + constant
        return jnp.sum(jnp.where(mask, linear - jnp.exp(log_rate), 0))

    return ell


def _tilt_gamma(nat: Float[Array, "L 2"], C: Float[Array, "N L"]) -> Float[Array, "N L"]:
    """$\\log E[e^{cz}] = -\\alpha \\log(1 - c/\\beta)$, infinite unless $c < \\beta$."""
    shape, rate = nat[:, 0] + 1, -nat[:, 1]
    ratio = C / rate
    feasible = ratio < 1
    return jnp.where(feasible, -shape * jnp.log1p(-jnp.where(feasible, ratio, 0)), jnp.inf)


def _tilt_continuous_bernoulli(nat: Float[Array, "L 1"], C: Float[Array, "N L"]) -> Array:
    """$\\log E[e^{cz}] = A(\\lambda + c) - A(\\lambda)$, since z is its own sufficient
    statistic.
    """
    family = fam.ContinuousBernoulli(nat.shape[0])
    shifted = jax.vmap(lambda row: family.each_log_partition(nat + row[:, None]))(C)
    return shifted - family.each_log_partition(nat)


def _tilt_bernoulli(nat: Float[Array, "L 1"], C: Float[Array, "N L"]) -> Array:
    return jax.nn.softplus(nat[:, 0] + C) - jax.nn.softplus(nat[:, 0])


_TILT = {
    fam.Gamma: _tilt_gamma,
    fam.ContinuousBernoulli: _tilt_continuous_bernoulli,
    fam.Bernoulli: _tilt_bernoulli,
}


def _can_tilt(family: fam.Family) -> bool:
    parts = family.parts if isinstance(family, fam.Product) else (family,)
    return all(type(part) in _TILT for part in parts)


def _tilt(family: fam.Family, nat: Nat, C: Float[Array, "N L"]) -> Float[Array, "N L"]:
    """$\\log E[e^{cz}]$ of every dimension, part by part."""
    if not isinstance(family, fam.Product):
        return _TILT[type(family)](nat, C)
    ends = np.cumsum([part.dim for part in family.parts])[:-1]
    pieces = zip(family.parts, nat, jnp.split(C, ends, axis=1), strict=True)
    return jnp.concatenate([_TILT[type(part)](n, c) for part, n, c in pieces], axis=1)


def feasible_start(family: fam.Family, likelihood: lik.Likelihood, prior: Nat, mask: Mask) -> Nat:
    """Where an update can begin: the prediction, unless its expected rate is infinite.

    A Gamma belief has a finite expected Poisson rate only while $C_{nl} < \\beta_l$. The optimum
    may exist though the prediction is infeasible: begin from the same mean with a rate that is.
    """
    if isinstance(likelihood, lik.Joint):
        for part, seen in zip(likelihood.parts, likelihood.split(mask), strict=True):
            prior = feasible_start(family, part, prior, seen)
        return prior
    if not (isinstance(likelihood, lik.Poisson) and likelihood.link == "exp"):
        return prior
    steepest = jnp.max(jnp.where(mask[:, None], likelihood.C, 0), axis=0)
    if isinstance(family, fam.Product):
        ends = np.cumsum([part.dim for part in family.parts])[:-1]
        pieces = zip(family.parts, prior, jnp.split(steepest, ends), strict=True)
        return tuple(_raise_rate(n, s) if type(p) is fam.Gamma else n for p, n, s in pieces)
    return _raise_rate(prior, steepest) if type(family) is fam.Gamma else prior


def _raise_rate(nat: Float[Array, "L 2"], steepest: Vector) -> Float[Array, "L 2"]:
    shape, rate = nat[:, 0] + 1, -nat[:, 1]
    feasible = jnp.maximum(rate, 1.5 * steepest)
    return jnp.stack([shape / rate * feasible - 1, -feasible], axis=-1)
