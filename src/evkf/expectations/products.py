"""Expected log-likelihoods for beliefs that are products of univariate families."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.expectations.readout import observe
from evkf.likelihoods.base import safe
from evkf.types import Key, Mask, Nat, Observation, Scalar, Vector

MAX_SUM = 10
"""Largest number of Bernoulli latents for which all states of z are summed over."""


def product_ell(
    family: fam.Family,
    likelihood: lik.Likelihood,
    y: Observation,
    mask: Mask,
    key: Key,
    num_samples: int,
    prior: Nat,
) -> Callable[[Nat], Scalar]:
    r"""Return the expected log-likelihood, as a differentiable function of natural parameters.

    The function returns $-\infty$ where the expectation does not exist (a Gamma belief for which
    the expected Poisson rate is infinite, say).

    Args:
        family: The family of the belief, a product of univariate families.
        likelihood: The observation model.
        y: Observation, (channels,).
        mask: True where observed, (channels,).
        key: JAX random key, used if the expectation is sampled.
        num_samples: Number of samples, used if the expectation is sampled.
        prior: Natural parameters of the prediction; their variance determines the number of nodes
            where quadrature is used.
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
    """Return True if the expectation is an exact sum over all values of z.

    This is so for `BernoulliFamily` of at most `MAX_SUM` latents.
    """
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
    r"""Return natural parameters from which an update can start, at a finite bound.

    This is the prediction, unless latents are Gamma and counts are Poisson with an exponential
    link. The expected Poisson rate is then finite only if the rate $\beta_l$ of every Gamma latent
    l exceeds the readout weights $C_{nl}$ of all observed channels n. The optimum may satisfy this
    though the prediction does not. Therefore a $\beta_l$ smaller than 1.5 times the largest weight
    is raised to that value, and the mean of the latent is kept.

    Args:
        family: The family of the belief.
        likelihood: The observation model.
        prior: Natural parameters of the prediction.
        mask: True where observed, (channels,).
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
