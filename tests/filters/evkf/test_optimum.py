"""The update lands on the optimum of its bound, in few evaluations.

Against a multi-start BFGS on the same bound (same quadrature), in unconstrained coordinates of the
belief; those of product families in `test_optimum_products`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.optimize import minimize

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.expectations.readout import choose_level, expect_channels
from evkf.likelihoods.base import safe
from tests.filters.cases import STARTS, L, readout_cases, solve
from tests.quick import quick_compilation  # noqa: F401


def quadrature_level(case):
    """The level the update uses for a case."""
    C = jnp.where(case.mask[:, None], case.likelihood.C, 0)
    return choose_level(case.likelihood, jnp.einsum("nl,lk,nk->n", C, case.prior.cov, C))


def gaussian_bound(case, level):
    """ELL - KL of a Gaussian belief, written down apart from the code under test."""
    likelihood, prior = case.likelihood, case.prior
    C = jnp.where(case.mask[:, None], likelihood.C, 0)
    y = safe(case.y, case.mask, likelihood.b)

    def bound(mean, cov):
        a, v = likelihood.readout(mean), jnp.einsum("nl,lk,nk->n", C, cov, C)
        value = expect_channels(likelihood, a, v, y, level).value + likelihood.each_rest(y)
        inverse = jnp.linalg.inv(prior.cov)
        d = mean - prior.mean
        log_dets = jnp.linalg.slogdet(prior.cov)[1] - jnp.linalg.slogdet(cov)[1]
        kl = 0.5 * (jnp.trace(inverse @ cov) + d @ inverse @ d - L + log_dets)
        return jnp.sum(jnp.where(case.mask, value, 0)) - kl

    return bound


def gaussian_brute_force(cases, beliefs):
    """Our bound and the best one found, case by case: side by side, every level of quadrature would
    be computed for each of them.
    """
    levels = jax.vmap(quadrature_level)(cases)
    keys = jax.random.split(jax.random.key(1), len(cases.y))
    run = jax.jit(lambda *batch: jax.lax.map(lambda each: climb(*each), batch))
    return run(cases, beliefs, levels, keys)


def climb(case, belief, level, key):
    bound = gaussian_bound(case, level)
    base = jnp.linalg.cholesky(belief.cov)

    def unpack(x):
        lower = jnp.zeros((L, L)).at[jnp.tril_indices(L, -1)].set(x[L : L + L * (L - 1) // 2])
        root = base @ (lower + jnp.diag(jnp.exp(x[-L:])))
        return belief.mean + base @ x[:L], root @ root.T

    # Traced once, though the search names it in many places.
    objective = jax.jit(lambda x: -bound(*unpack(x)))

    def run(x0):
        result = minimize(objective, x0, method="BFGS", options={"maxiter": 60})
        return jnp.where(jnp.isfinite(result.fun), -result.fun, -jnp.inf)

    size = L + L * (L + 1) // 2
    starts = jax.random.normal(key, (STARTS, size)) * jnp.array([0.0, 0.5, 1.5])[:, None]
    return bound(belief.mean, belief.cov), jnp.max(jax.vmap(run)(starts))


def gaussian_residual(cases, beliefs):
    """Relative residual of lambda - lambda_bar - grad_mu ELL in the coordinates of z."""

    def one(case, belief):
        C = jnp.where(case.mask[:, None], case.likelihood.C, 0)
        y = safe(case.y, case.mask, case.likelihood.b)
        a = case.likelihood.readout(belief.mean)
        v = jnp.einsum("nl,lk,nk->n", C, belief.cov, C)
        terms = expect_channels(case.likelihood, a, v, y, quadrature_level(case))
        slope = jnp.where(case.mask, terms.slope, 0)
        curv = C.T @ (jnp.where(case.mask, terms.curvature, 0)[:, None] * C)
        family = fam.GaussianFamily(L)
        nat, prior = family.nat(belief), family.nat(case.prior)
        step = fam.GaussianNat(C.T @ slope - curv @ belief.mean, 0.5 * curv)
        gap = jax.tree.map(lambda x, p, s: x - p - s, nat, prior, step)
        return jnp.linalg.norm(ravel_pytree(gap)[0]) / jnp.linalg.norm(ravel_pytree(nat)[0])

    return jax.jit(jax.vmap(one))(cases, beliefs)


READOUT = {
    "poisson": (lambda C, b: lik.Poisson(C, b, bin_width=0.5), "counts", 4),
    "poisson_softplus": (lambda C, b: lik.Poisson(C, b, link="softplus"), "counts", 4),
    "bernoulli": (lambda C, b: lik.Bernoulli(C, b), "binary", 4),
    "negative_binomial": (lambda C, b: lik.NegativeBinomial(C, b, 2.0), "counts", 4),
    "student_t": (lambda C, b: lik.StudentT(C, b, df=2.0, scale=0.3), "real", 8),
}


@pytest.mark.parametrize("name", READOUT)
def test_gaussian_update_is_optimal(name):
    make, kind, most = READOUT[name]
    cases = readout_cases(make, kind, seed=list(READOUT).index(name))
    state, info = solve(fam.GaussianFamily(L), cases)
    ours, best = gaussian_brute_force(cases, state.belief)
    assert not np.any(info.status)
    assert np.mean(np.asarray(ours >= best - 1e-6)) >= 0.95
    np.testing.assert_allclose(info.elbo, ours, atol=1e-6, rtol=1e-9)
    assert np.max(gaussian_residual(cases, state.belief)) <= 1e-5
    assert np.median(info.evaluations) <= most
