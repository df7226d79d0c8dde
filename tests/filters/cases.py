"""Random updates: a prediction, a likelihood and an observation, bursts and silence among them."""

import os
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.filters import State, VariationalKalmanFilter
from evkf.filters.evkf.results import NaturalCross, Prediction

NUM, L, N = int(os.environ.get("EVKF_CASES", "50")), 2, 10
"""Cases, of which `make long` has 200; latents and channels of each."""
STARTS = 3
"""Where a search for a better optimum sets out from."""


class Case(NamedTuple):
    likelihood: lik.Likelihood
    prior: object
    y: jax.Array
    mask: jax.Array


def stack(cases):
    """Batch of cases: arrays stacked, structure shared."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *cases)


def gaussian_priors(rng, count):
    """Predictions from sharp to wide."""
    beliefs = []
    for _ in range(count):
        root = rng.normal(size=(L, L))
        cov = (root @ root.T / L + 0.1 * np.eye(L)) * rng.choice([0.01, 0.1, 1.0])
        beliefs.append(fam.GaussianBelief(jnp.asarray(rng.normal(size=L)), jnp.asarray(cov)))
    return beliefs


def readout_cases(make, kind, seed):
    """Cases for a likelihood with a readout under Gaussian predictions."""
    rng = np.random.default_rng(seed)
    cases = []
    for i, prior in enumerate(gaussian_priors(rng, NUM)):
        C = rng.normal(size=(N, L)) * rng.choice([0.2, 0.6])
        likelihood = make(C, rng.normal(size=N))
        z = prior.mean + np.linalg.cholesky(prior.cov) @ rng.normal(size=L)
        y = np.asarray(likelihood.sample(z, jax.random.key(i)))
        if i % 5 == 0:
            y = np.zeros(N)
        if i % 5 == 1 and kind == "counts":
            y = y + (rng.random(N) < 0.3) * rng.integers(10, 10_000)
        if i % 5 == 1 and kind == "real":
            y = y + (rng.random(N) < 0.3) * 30.0
        mask = np.arange(N) < rng.integers(1, N + 1)
        cases.append(Case(likelihood, prior, jnp.asarray(y), jnp.asarray(mask)))
    return stack(cases)


def product_cases(make_prior, make_likelihood, draw, seed, burst=0.0):
    """Cases for a product family."""
    rng = np.random.default_rng(seed)
    cases = []
    for i in range(NUM):
        prior = jnp.asarray(make_prior(rng))
        likelihood = make_likelihood(rng)
        y = np.asarray(likelihood.sample(jnp.asarray(draw(rng)), jax.random.key(i)))
        if i % 5 == 0:
            y = np.zeros(N)
        if i % 5 == 1:
            y = y + (rng.random(N) < 0.3) * burst
        mask = np.arange(N) < rng.integers(1, N + 1)
        cases.append(Case(likelihood, prior, jnp.asarray(y), jnp.asarray(mask)))
    return stack(cases)


class Bare(eqx.Module):
    """As much of a model as `update` reads."""

    family: fam.Family
    likelihood: lik.Likelihood


def solve(family, cases, **options):
    """Update every case; returns beliefs and infos."""
    filter = VariationalKalmanFilter(**options)

    @jax.jit
    @jax.vmap
    def run(case: Case) -> tuple[State, object]:
        nat = family.nat(case.prior)
        cross = NaturalCross(nat, family.log_partition(nat))
        prediction = Prediction(case.prior, cross, jnp.asarray(False), jnp.asarray(False))
        model = Bare(family, case.likelihood)
        return filter.update(model, prediction, case.y, case.mask, jax.random.key(0))

    return run(cases)
