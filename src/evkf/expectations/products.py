"""The expected log-likelihood under products of univariate families, Gaussian or not."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.expectations.readout import observe
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
        family: The family of the belief, a product of univariate ones.
        likelihood: The observation model.
        y: Observation.
        mask: True where observed.
        key: Randomness, if the expectation is sampled.
        num_samples: Number of samples, if so.
        prior: Natural parameters of the prediction, by which the level of quadrature is chosen.
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
    if isinstance(likelihood, lik.Poisson) and likelihood.link == "exp" and family.has_log_mgf:
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
    """True if all states of the family can be summed over."""
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
    squares = jnp.where(mask[:, None], likelihood.C**2, 0)
    observed = observe(likelihood, y, mask, squares @ family.var(prior))

    def ell(nat: Nat) -> Scalar:
        a, v = likelihood.readout(family.mean(nat)), squares @ family.var(nat)
        return jnp.sum(observed.expect(a, v).value)

    return ell


def _product_poisson(
    family: fam.Family, likelihood: lik.Poisson, y: Observation, mask: Mask
) -> Callable[[Nat], Scalar]:
    counts = safe(y, mask, likelihood.b)
    log_bin = jnp.log(likelihood.bin_width)
    loads = jnp.where(mask[:, None], likelihood.C, 0)
    constant = likelihood.each_rest(counts)

    def ell(nat: Nat) -> Scalar:
        log_rate = likelihood.b + log_bin + jnp.sum(family.log_mgf(nat, loads), axis=-1)
        linear = counts * (likelihood.readout(family.mean(nat)) + log_bin) + constant
        return jnp.sum(jnp.where(mask, linear - jnp.exp(log_rate), 0))

    return ell


def feasible_start(family: fam.Family, likelihood: lik.Likelihood, prior: Nat, mask: Mask) -> Nat:
    r"""Return the start of an update: the prediction, unless its expected rate is infinite.

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
    product = isinstance(family, fam.ProductFamily)
    parts, nats = (family.parts, prior) if product else ((family,), (prior,))
    columns = family.split(steepest) if product else [steepest]
    started = []
    for part, nat, most in zip(parts, nats, columns, strict=True):
        if type(part) is fam.GammaFamily:
            mean, rate = -(nat[:, 0] + 1) / nat[:, 1], jnp.maximum(-nat[:, 1], 1.5 * most)
            nat = jnp.stack([mean * rate - 1, -rate], axis=-1)
        started.append(nat)
    return tuple(started) if product else started[0]
