"""Every likelihood beside the same distribution in SciPy."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from evkf import likelihoods as lik

N, L = 4, 2
WIDTH = 0.5
DISPERSION = np.array([0.7, 2.0, 5.0, 40.0])
SCALE = np.array([0.1, 0.5, 1.0, 3.0])
NOISE = np.array([0.2, 0.5, 1.0, 2.0])


class Case(NamedTuple):
    make: Callable
    """Readout C, offset b and the channels to keep -> likelihood."""
    oracle: Callable
    """Readout a, and the channels kept -> frozen SciPy distribution."""
    discrete: bool


def softplus(a):
    return np.logaddexp(0, a)


def nbinom(a, keep):
    r = DISPERSION[keep]
    return stats.nbinom(r, r / (r + WIDTH * np.exp(a)))


CASES = {
    "poisson": Case(
        lambda C, b, keep: lik.Poisson(C, b, WIDTH),
        lambda a, keep: stats.poisson(WIDTH * np.exp(a)),
        True,
    ),
    "poisson_softplus": Case(
        lambda C, b, keep: lik.Poisson(C, b, WIDTH, link="softplus"),
        lambda a, keep: stats.poisson(WIDTH * softplus(a)),
        True,
    ),
    "bernoulli": Case(
        lambda C, b, keep: lik.Bernoulli(C, b, WIDTH),
        lambda a, keep: stats.bernoulli(WIDTH * np.exp(a) / (1 + WIDTH * np.exp(a))),
        True,
    ),
    "negative_binomial": Case(
        lambda C, b, keep: lik.NegativeBinomial(C, b, DISPERSION[keep], WIDTH), nbinom, True
    ),
    "student_t": Case(
        lambda C, b, keep: lik.StudentT(C, b, 9.0, SCALE[keep], WIDTH),
        lambda a, keep: stats.t(9.0, a, SCALE[keep] / np.sqrt(WIDTH)),
        False,
    ),
    "gaussian": Case(
        lambda C, b, keep: lik.Gaussian(C, b, NOISE[keep], WIDTH),
        lambda a, keep: stats.norm(a, np.sqrt(NOISE[keep] / WIDTH)),
        False,
    ),
}

EVERY = np.arange(N)


def readout(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, L)), rng.normal(size=N)


def full_noise():
    """A covariance with correlations as large as 0.8."""
    root = np.random.default_rng(7).normal(size=(N, N))
    return root @ root.T / N + 0.2 * np.eye(N)


def as_float32(tree):
    """The same module with float32 arrays."""

    def cast(x):
        return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, tree)
