"""The expected log-likelihood under products of univariate families, Gaussian or not."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.expectations.sites import choose_level, site
from evkf.likelihoods.base import safe
from evkf.types import Key, Mask, Nat, Observation, Scalar, Vector

MAX_SUM = 10
"""Most Bernoulli dimensions whose states are summed over."""


def product_ell(
    family: fam.Family,
    likelihood: lik.Likelihood,
    y: Observation,
    mask: Mask,
    key: Key,
    num_samples: int,
    prior: Nat,
) -> Callable[[Nat], Scalar]:
    r"""The expected log-likelihood as a differentiable function of the natural parameters.

    It is $-\infty$ where the expectation does not exist.

    Args:
        family: Of the belief, a product of univariate ones.
        likelihood: The likelihood.
        y: Observations of a bin.
        mask: True where observed.
        key: Randomness, where the expectation has to be sampled.
        num_samples: How many draws are averaged then.
        prior: Natural parameters of the prediction, which decide the level of quadrature.
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
    if isinstance(likelihood, lik.ReadoutLikelihood) and isinstance(
        family, fam.DiagonalGaussianFamily
    ):
        return _product_readout(family, likelihood, y, mask, prior)
    if isinstance(likelihood, lik.Poisson) and likelihood.link == "exp" and can_tilt(family):
        return _product_poisson(family, likelihood, y, mask)

    def log_prob(z: Vector) -> Scalar:
        return likelihood.log_prob(z, y, mask)

    def exact(nat: Nat) -> Scalar:
        points, weights = family.nodes(nat)
        return weights @ jax.vmap(log_prob)(points)

    def sampled(nat: Nat) -> Scalar:
        return jnp.mean(jax.vmap(log_prob)(family.sample(nat, key, num_samples)))

    return exact if sums_exactly(family) else sampled


def sums_exactly(family: fam.Family) -> bool:
    """Whether all states can be summed over."""
    return isinstance(family, fam.BernoulliFamily) and family.dim <= MAX_SUM


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
    constant = likelihood.each_rest(observed)

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
    constant = likelihood.each_rest(counts)

    def ell(nat: Nat) -> Scalar:
        log_rate = likelihood.b + log_bin + jnp.sum(tilt(family, nat, loads), axis=-1)
        linear = counts * (likelihood.readout(family.mean(nat)) + log_bin) + constant
        return jnp.sum(jnp.where(mask, linear - jnp.exp(log_rate), 0))

    return ell


def _tilt_gamma(nat: Float[Array, "L 2"], C: Float[Array, "N L"]) -> Float[Array, "N L"]:
    r"""$\log E[e^{cz}] = -\alpha \log(1 - c/\beta)$, infinite unless $c < \beta$."""
    shape, rate = nat[:, 0] + 1, -nat[:, 1]
    ratio = C / rate
    feasible = ratio < 1
    return jnp.where(feasible, -shape * jnp.log1p(-jnp.where(feasible, ratio, 0)), jnp.inf)


def _tilt_continuous_bernoulli(nat: Float[Array, "L 1"], C: Float[Array, "N L"]) -> Array:
    r"""$\log E[e^{cz}] = A(\lambda + c) - A(\lambda)$, since z is its own sufficient
    statistic.
    """
    family = fam.ContinuousBernoulliFamily(nat.shape[0])
    shifted = jax.vmap(lambda row: family.each_log_partition(nat + row[:, None]))(C)
    return shifted - family.each_log_partition(nat)


def _tilt_bernoulli(nat: Float[Array, "L 1"], C: Float[Array, "N L"]) -> Array:
    return jax.nn.softplus(nat[:, 0] + C) - jax.nn.softplus(nat[:, 0])


_TILT: dict[type[fam.Family], Callable[[Nat, Array], Array]] = {
    fam.GammaFamily: _tilt_gamma,
    fam.ContinuousBernoulliFamily: _tilt_continuous_bernoulli,
    fam.BernoulliFamily: _tilt_bernoulli,
}


def can_tilt(family: fam.Family) -> bool:
    r"""Whether $\log E[e^{cz}]$ has a closed form."""
    parts = family.parts if isinstance(family, fam.ProductFamily) else (family,)
    return all(type(part) in _TILT for part in parts)


def tilt(family: fam.Family, nat: Nat, C: Float[Array, "N L"]) -> Float[Array, "N L"]:
    r"""$\log E[e^{cz}]$ of every dimension, part by part."""
    if not isinstance(family, fam.ProductFamily):
        return _TILT[type(family)](nat, C)
    ends = np.cumsum([part.dim for part in family.parts])[:-1]
    pieces = zip(family.parts, nat, jnp.split(C, ends, axis=1), strict=True)
    return jnp.concatenate([_TILT[type(part)](n, c) for part, n, c in pieces], axis=1)


def feasible_start(family: fam.Family, likelihood: lik.Likelihood, prior: Nat, mask: Mask) -> Nat:
    r"""Where an update can begin: the prediction, unless its expected rate is infinite.

    A Gamma belief has a finite expected Poisson rate only while $C_{nl} < \beta_l$. The optimum
    may exist though the prediction is infeasible: begin from the same mean with a rate that is.
    """
    if isinstance(likelihood, lik.Joint):
        for part, seen in zip(likelihood.parts, likelihood.split(mask), strict=True):
            prior = feasible_start(family, part, prior, seen)
        return prior
    if not (isinstance(likelihood, lik.Poisson) and likelihood.link == "exp"):
        return prior
    steepest = jnp.max(jnp.where(mask[:, None], likelihood.C, 0), axis=0)
    if isinstance(family, fam.ProductFamily):
        ends = np.cumsum([part.dim for part in family.parts])[:-1]
        pieces = zip(family.parts, prior, jnp.split(steepest, ends), strict=True)
        return tuple(_raise_rate(n, s) if type(p) is fam.GammaFamily else n for p, n, s in pieces)
    return _raise_rate(prior, steepest) if type(family) is fam.GammaFamily else prior


def _raise_rate(nat: Float[Array, "L 2"], steepest: Vector) -> Float[Array, "L 2"]:
    shape, rate = nat[:, 0] + 1, -nat[:, 1]
    feasible = jnp.maximum(rate, 1.5 * steepest)
    return jnp.stack([shape / rate * feasible - 1, -feasible], axis=-1)
