"""A readout turns, but its columns do not mix."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from evkf import likelihoods as lik
from evkf.dynamics import Linear, VanDerPol
from evkf.learning import Learner, adam
from evkf.learning.gauge import gauge, hold_gauge
from evkf.model import Model
from evkf.parameters import free, split
from tests.learning.cases import readout
from tests.quick import quick_compilation  # noqa: F401

PARTS = ("dynamics", "noise", "readout")
RNG = np.random.default_rng(0)
C, B = readout()
LIKELIHOODS = {
    "one": lik.Poisson(C, B),
    "joint": lik.Joint([lik.Poisson(C[:1], B[:1]), lik.Gaussian(C[1:], B[1:])]),
}


def learned(likelihood):
    return split(free(Model(Linear(np.eye(2), 0.1), likelihood), PARTS), PARTS)[0]


def random_step(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)), tree)


def stacked(tree):
    """C and b side by side, parts on top of one another."""
    likelihood = tree.model.likelihood
    parts = likelihood.parts if isinstance(likelihood, lik.Joint) else (likelihood,)
    return np.concatenate([np.column_stack([part.C, part.b]) for part in parts])


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_steps_leave_the_column_space(name):
    tree = learned(LIKELIHOODS[name])
    step = random_step(tree)
    kept = hold_gauge(gauge(tree), step)
    project = C @ np.linalg.pinv(C)
    wanted = stacked(step) - project @ stacked(step)
    np.testing.assert_allclose(stacked(kept), wanted, atol=1e-10)
    assert np.linalg.norm(wanted) > 1
    # Nothing else is touched.
    same = eqx.tree_at(lambda t: t.model.likelihood, kept, step.model.likelihood)
    jax.tree.map(np.testing.assert_array_equal, same, step)


@pytest.mark.parametrize("matrix", [C[:1], np.outer(C[:, 0], [1.0, 2.0]), np.zeros((4, 2))])
def test_columns_that_depend_on_one_another(matrix):
    tree = learned(lik.Poisson(matrix))
    step = random_step(tree)
    project = matrix @ np.linalg.pinv(matrix)
    wanted = stacked(step) - project @ stacked(step)
    np.testing.assert_allclose(stacked(hold_gauge(gauge(tree), step)), wanted, atol=1e-9)


class Weights(eqx.Module):
    C: jax.Array


def test_a_readout_without_offset_is_the_users_own():
    own = lik.Custom(lambda p, z, y: -((y - p.C @ z) ** 2), 4, Weights(jnp.asarray(C)))
    assert not gauge(learned(own)).size
    tree = learned(lik.Joint([own, lik.Poisson(C, B)]))
    step = random_step(tree)
    kept = hold_gauge(gauge(tree), step)
    mine, given = (each.model.likelihood.parts[0].params.C for each in (kept, step))
    np.testing.assert_array_equal(mine, given)


def test_many_steps_do_not_add_up():
    """Orthogonal to the first C, not to the present one, whose norm would only ever grow."""
    tree = learned(LIKELIHOODS["one"])
    basis, start = gauge(tree), stacked(tree)
    move = jax.jit(lambda tree, step: eqx.apply_updates(tree, hold_gauge(basis, step)))
    for _ in range(100):
        tree = move(tree, random_step(tree))
    moved = stacked(tree)
    assert np.linalg.norm(moved - start) > 10
    np.testing.assert_allclose(C.T @ moved, C.T @ start, atol=1e-9)


def test_known_coordinates_are_not_held():
    model = Model(VanDerPol(), lik.Gaussian(C, B))
    assert not Learner(parts=PARTS).init(model).gauge.size
    free_walk = Model(Linear(np.eye(2), 0.1), lik.Gaussian(C, B))
    assert not Learner(parts=("readout",)).init(free_walk).gauge.size
    assert Learner(parts=PARTS).init(free_walk).gauge.size


def test_frozen_dynamics_hold_the_coordinates_themselves():
    learner = Learner(parts=PARTS, ring=16, num_windows=2, window=3)
    state = learner.init(Model(Linear(0.9 * np.eye(2), 0.1), lik.Gaussian(C, B)))
    step = jax.jit(learner.step)
    for frozen in (False, True):
        state = learner.freeze(state, "dynamics") if frozen else state
        for y in RNG.normal(size=(8, 4)):
            before, (state, _) = state, step(state, jnp.asarray(y))
        moved = stacked(state.free)[:, :2] - stacked(before.free)[:, :2]
        assert (np.linalg.norm(C.T @ moved) > 1e-6) == frozen


def test_learning_turns_the_subspace_and_keeps_its_axes():
    likelihood = lik.Joint([lik.Gaussian(C[:1], B[:1]), lik.Gaussian(C[1:], B[1:])])
    learner = Learner(parts=PARTS, optimiser=adam(), ring=16, num_windows=2, window=3)
    state = learner.init(Model(Linear(0.9 * np.eye(2), 0.1), likelihood))
    unravel = ravel_pytree(split(state.free, PARTS)[0])[1]
    step = jax.jit(learner.step)
    for y in RNG.normal(size=(8, 4)):
        before, (state, _) = state, step(state, jnp.asarray(y))
        old, new = (stacked(unravel(each.raw)) for each in (before, state))
        assert np.linalg.norm(C.T @ (new - old)) < 1e-12
        assert (np.linalg.norm(new - old) > 1e-3) == (int(state.steps) > 0)
