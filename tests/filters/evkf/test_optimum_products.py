"""The update of product families lands on the optimum of its bound, as in `test_optimum`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.optimize import minimize

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.expectations.products import product_ell
from tests.filters.cases import STARTS, L, N, product_cases, solve
from tests.quick import quick_compilation  # noqa: F401


def gamma_prior(rng):
    mean, var = rng.uniform(0.3, 2, L), rng.choice([0.02, 0.1, 0.5])
    return np.stack([mean**2 / var - 1, -mean / var], -1)


def beta_prior(rng):
    mean, total = rng.uniform(0.1, 0.9, L), rng.choice([3.0, 10.0, 50.0])
    return np.stack([total * mean - 1, total * (1 - mean) - 1], -1)


def noisy_readout(rng):
    return lik.Gaussian(rng.normal(size=(N, L)), noise=rng.choice([0.05, 0.3, 2.0]))


def poisson_readout(rng):
    return lik.Poisson(0.5 * rng.normal(size=(N, L)), rng.normal(size=N), bin_width=0.5)


PRODUCT = {
    "gamma_poisson": (
        fam.GammaFamily,
        gamma_prior,
        poisson_readout,
        lambda rng: rng.gamma(4, 0.25, L),
        200.0,
        10,
    ),
    "beta_gaussian": (fam.BetaFamily, beta_prior, noisy_readout, lambda rng: rng.random(L), 3.0, 8),
    "cb_gaussian": (
        fam.ContinuousBernoulliFamily,
        lambda rng: rng.normal(size=(L, 1)) * rng.choice([0.5, 5.0, 20.0]),
        noisy_readout,
        lambda rng: rng.random(L),
        3.0,
        8,
    ),
    "diagonal_gaussian_poisson": (
        fam.DiagonalGaussianFamily,
        lambda rng: np.stack(
            [rng.normal(size=L), -0.5 * rng.choice([1.0, 10, 100]) * np.ones(L)], -1
        ),
        poisson_readout,
        lambda rng: rng.normal(size=L),
        200.0,
        8,
    ),
}


def product_bounds(family, case):
    key = jax.random.key(0)
    ell = product_ell(family, case.likelihood, case.y, case.mask, key, 64, case.prior)
    return ell, lambda nat: ell(nat) - family.kl(nat, case.prior)


def product_brute_force(family, cases, nats):
    """BFGS in coordinates that cannot leave the family, from starts around ours and the
    prediction.
    """
    signs = {fam.GammaFamily: (1, -1), fam.BetaFamily: (1, 1), fam.DiagonalGaussianFamily: (0, -1)}
    sign = jnp.array(signs.get(type(family), (0,)))
    shift = jnp.array(
        {fam.GammaFamily: (1.0, 0.0), fam.BetaFamily: (1.0, 1.0)}.get(type(family), 0.0)
    )

    def pack(nat):
        return jnp.where(sign == 0, nat, jnp.log(jnp.maximum(sign * (nat + shift), 1e-30)))

    def unpack(x):
        return jnp.where(sign == 0, x, sign * jnp.exp(jnp.where(sign == 0, 0, x)) - shift)

    def one(case, nat, key):
        _, bound = product_bounds(family, case)

        @jax.jit  # traced once, though the search names it in many places
        def objective(x):
            value = bound(unpack(x.reshape(nat.shape)))
            return jnp.where(jnp.isfinite(value), -value, 1e12)

        def run(x0):
            return -minimize(objective, x0, method="BFGS", options={"maxiter": 60}).fun

        scales = jnp.array([0.0, 0.3, 1.0])[:, None]
        starts = pack(nat).ravel() + scales * jax.random.normal(key, (STARTS, nat.size))
        starts = jnp.concatenate([starts, pack(case.prior).ravel()[None]])
        return bound(nat), jnp.max(jax.vmap(run)(starts))

    keys = jax.random.split(jax.random.key(1), len(cases.y))
    return jax.jit(lambda *batch: jax.lax.map(lambda each: one(*each), batch))(cases, nats, keys)


def product_residual(family, cases, nats):
    """The same residual, with grad_mu ELL from the Hessian of A rather than the family's own
    Fisher.
    """

    def one(case, nat):
        ell, _ = product_bounds(family, case)
        flat, unravel = ravel_pytree(nat)
        fisher = jax.hessian(lambda x: family.log_partition(unravel(x)))(flat)
        natural = jnp.linalg.solve(fisher, ravel_pytree(jax.grad(ell)(nat))[0])
        gap = flat - ravel_pytree(case.prior)[0] - natural
        return jnp.linalg.norm(gap) / jnp.linalg.norm(flat)

    return jax.jit(jax.vmap(one))(cases, nats)


@pytest.mark.parametrize("name", PRODUCT)
def test_product_update_is_optimal(name):
    make, prior, likelihood, draw, burst, most = PRODUCT[name]
    family = make(L)
    cases = product_cases(prior, likelihood, draw, seed=list(PRODUCT).index(name), burst=burst)
    state, info = solve(family, cases)
    ours, best = product_brute_force(family, cases, state.belief)
    assert not np.any(info.status)
    assert np.mean(np.asarray(ours >= best - 1e-6)) >= 0.95
    np.testing.assert_allclose(info.elbo, ours, atol=1e-6, rtol=1e-9)
    assert np.max(product_residual(family, cases, state.belief)) <= 1e-5
    assert np.median(info.evaluations) <= most
