"""The paper's theorems, 1000 random cases per family.

Paper: lemma:variational_prediction, theorem:single_step_tightness.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.dynamics import Linear, NaturalDynamics, Network
from evkf.filters import State, VariationalKalmanFilter
from evkf.model import Model
from tests.quick import quick_compilation  # noqa: F401

NUM, L, N = 1000, 2, 4

FAMILIES = {
    "gaussian": fam.GaussianFamily(L),
    "diagonal_gaussian": fam.DiagonalGaussianFamily(L),
    "gamma": fam.GammaFamily(L),
    "beta": fam.BetaFamily(L),
    "continuous_bernoulli": fam.ContinuousBernoulliFamily(L),
    "bernoulli": fam.BernoulliFamily(L),
}
BARE = VariationalKalmanFilter(correct=False, max_std=1e9)


@pytest.fixture(scope="module", params=list(FAMILIES))
def cases(request):
    family = FAMILIES[request.param]
    keys = jax.random.split(jax.random.key(0), NUM)
    networks = jax.jit(jax.vmap(lambda k: Network([L, 8, family.num_raw], k, output_scale=3.0)))(
        keys
    )
    rng = np.random.default_rng(1)
    raws = jnp.asarray(1.5 * rng.normal(size=(NUM, family.num_raw)))
    beliefs = jax.jit(jax.vmap(lambda raw: family.from_nat(family.from_unconstrained(raw))))(raws)
    Cs, ys = jnp.asarray(rng.normal(size=(NUM, N, L))), jnp.asarray(rng.normal(size=(NUM, N)))
    first = jax.tree.map(lambda leaf: leaf[0], networks)
    model = Model(NaturalDynamics(family, first), lik.Gaussian(Cs[0], noise=0.5))
    return family, model, networks, Cs, beliefs, ys


def place(model, network, C):
    return eqx.tree_at(lambda m: (m.dynamics.network, m.likelihood.C), model, (network, C))


def average(family, model, belief):
    """E[lambda] and E[A] over the nodes, written down apart from the code under test."""
    points, weights = family.nodes(belief)
    nats = [family.nat(model.dynamics.transition(z, jnp.zeros(0))) for z in points]
    mean = sum(w * ravel_pytree(nat)[0] for w, nat in zip(weights, nats, strict=True))
    log_partition = sum(w * family.log_partition(nat) for w, nat in zip(weights, nats, strict=True))
    return mean, log_partition


def free_energy(family, unravel, target, log_partition, flat):
    """F(q) = -H(q) - E_q E[log p(z_t|z_{t-1})], up to nothing."""
    nat = unravel(flat)
    mean_params = ravel_pytree(family.to_mean(nat))[0]
    expected = target @ mean_params - log_partition + family.log_base
    return -family.entropy(family.from_nat(nat)) - expected


def test_prediction_minimises_the_bound(cases):
    family, model, networks, Cs, beliefs, _ = cases

    @jax.jit
    @jax.vmap
    def run(network, C, belief, key):
        placed = place(model, network, C)
        target, log_partition = average(family, placed, belief)
        nat = family.nat(BARE.predict(placed, State(belief)).belief)
        flat, unravel = ravel_pytree(nat)
        energy = lambda x: free_energy(family, unravel, target, log_partition, x)  # noqa: E731
        slope = jax.grad(energy)(flat)
        fisher = jax.jacfwd(lambda x: ravel_pytree(family.to_mean(unravel(x)))[0])(flat)
        size = jnp.linalg.norm(fisher) * (1 + jnp.linalg.norm(flat))
        moves = 0.05 * jax.random.normal(key, (8, flat.size)) * (1 + jnp.abs(flat))
        others = jax.vmap(lambda d: energy(flat + d))(moves)
        inside = jax.vmap(lambda d: family.valid(family.from_nat(unravel(flat + d))))(moves)
        lower = jnp.where(inside, energy(flat) - others, -jnp.inf)
        error = jnp.linalg.norm(flat - target) / (1 + jnp.linalg.norm(target))
        return error, jnp.linalg.norm(slope) / size, jnp.max(lower), jnp.sum(inside)

    keys = jax.random.split(jax.random.key(2), NUM)
    error, slope, lower, inside = run(networks, Cs, beliefs, keys)
    assert np.max(error) < 1e-10
    assert np.max(slope) < 1e-8
    assert np.max(lower) <= 1e-9
    assert np.mean(inside) > 2


def test_gap_is_the_closed_form_and_not_negative(cases):
    family, model, networks, Cs, beliefs, ys = cases

    @jax.jit
    @jax.vmap
    def run(network, C, belief, y):
        placed = place(model, network, C)
        target, log_partition = average(family, placed, belief)
        nat = family.nat(BARE.predict(placed, State(belief)).belief)
        _, unravel = ravel_pytree(nat)
        closed = log_partition - family.log_partition(unravel(target))
        state, info = BARE.step(placed, State(belief), y)
        # M_t by its definition: ELL + H(q) + E_q E[log p(z_t|z_{t-1})].
        q = family.nat(state.belief)
        mean_params = ravel_pytree(family.to_mean(q))[0]
        prior = family.from_nat(nat)
        ell = info.elbo + family.kl(state.belief, prior)
        cross = target @ mean_params - log_partition + family.log_base
        single_step = ell + family.entropy(state.belief) + cross
        return closed, info, single_step

    closed, info, single_step = run(networks, Cs, beliefs, ys)
    assert not np.any(info.status & 2)
    scale = 1 + np.abs(closed)
    assert np.max(np.abs(info.gap - closed) / scale) < 1e-8
    assert np.min(info.gap / scale) >= -1e-10
    tolerance = 1e-8 * (1 + np.abs(single_step))
    assert np.all(np.abs(info.elbo - info.gap - single_step) < tolerance)
    assert np.all(info.gap >= -tolerance)
    # The gap does not depend on what was observed: both bounds have the same maximiser.
    other = run(networks, Cs, beliefs, ys + 1)[1].gap
    assert np.max(np.abs(info.gap - other) / scale) < 1e-8


def test_additive_and_general_paths_agree():
    """The shortcut for additive Gaussian noise gives what the general map gives, gaps alike."""

    class Same(eqx.Module):
        weight: jax.Array
        raw: jax.Array

        def __call__(self, x):
            return jnp.concatenate([self.weight @ x, self.raw])

    rng = np.random.default_rng(0)
    family = fam.GaussianFamily(L)
    raw = jnp.asarray(rng.normal(size=family.num_raw - L))
    weight = jnp.asarray(rng.normal(size=(L, L)))
    noise = family.from_nat(family.from_unconstrained(jnp.concatenate([jnp.zeros(L), raw]))).cov
    likelihood = lik.Poisson(rng.normal(size=(N, L)))
    prior = family.from_moments(rng.normal(size=L), np.eye(L))
    short = Model(Linear(weight, noise), likelihood, prior)
    general = Model(NaturalDynamics(family, Same(weight, raw)), likelihood, prior)
    y = jnp.array([1.0, 0.0, 3.0, 2.0])
    for options in ({"correct": False}, {"correct": True}, {"rule": "moment_matching"}):
        filter = VariationalKalmanFilter(**options)
        one, two = (jax.jit(filter.step)(m, filter.init(m), y) for m in (short, general))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8), one, two)
