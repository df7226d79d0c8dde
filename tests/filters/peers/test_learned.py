"""What all filters that learn inside their step must do."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evkf import likelihoods as lik
from evkf.dynamics import NaturalDynamics, Network, ResidualMLP
from evkf.errors import InputError
from evkf.families import ContinuousBernoulliFamily, DiagonalGaussianFamily
from evkf.filters import VJF, DirectVJF, OnlineVariationalSmoother, StreamingVMC, scan_filter
from evkf.filters.peers.learned import MIN_STD, floor_noise
from evkf.filters.peers.vjf import VJFState
from evkf.model import Model, simulate
from evkf.types import Status
from tests.quick import quick_compilation  # noqa: F401

KEY = jax.random.key(0)
C = np.array([[1.0, 0.5], [-0.3, 0.8], [0.2, 0.2]])
MODEL = Model(
    ResidualMLP(2, 0.1, KEY, hidden=3), lik.Gaussian(C, noise=0.5), family=DiagonalGaussianFamily(2)
)
SEEN, Y = jnp.ones(3, bool), jnp.array([0.3, -0.2, 0.1])
SMALL = {
    VJF: {"hidden": 3, "warm_up": 0},
    DirectVJF: {"iterations": 3, "num_samples": 2},
    StreamingVMC: {"num_particles": 10, "iterations": 2, "num_ancestors": 4, "hidden": 3},
    OnlineVariationalSmoother: {"iterations": 3, "num_samples": 2, "hidden": 3, "num_support": 6},
}


class Begun(NamedTuple):
    """A filter one bin into a recording, its step compiled."""

    step: object
    state: object
    frozen: object
    """The step of the same filter that does not learn."""


@pytest.fixture(scope="module", params=SMALL, ids=lambda kind: kind.__name__)
def begun(request):
    filter = request.param(**SMALL[request.param])
    step = jax.jit(filter.step)
    state, info = step(MODEL, filter.init(MODEL), Y, SEEN, KEY)
    assert info.status == Status.OK
    frozen = request.param(**SMALL[request.param], learn=False)
    return Begun(step, state, jax.jit(frozen.step))


def box(state):
    return np.stack([state.model.dynamics.low, state.model.dynamics.high])


def test_only_what_was_observed_counts_as_visited(begun):
    """Not the wide beliefs of gaps, nor what a failed update fell back to."""
    step, state, _ = begun
    assert np.all(np.isfinite(box(state)))
    for y, mask in ((Y, ~SEEN), (jnp.full(3, 1e200), SEEN)):
        after = state
        for t in range(3):
            after, _ = step(MODEL, after, y, mask, jax.random.fold_in(KEY, t))
        np.testing.assert_array_equal(box(after), box(state))


def test_noise_that_is_learned_stays_above_the_floor(begun):
    step, state, _ = begun
    low = jnp.full(2, -20.0)
    state = eqx.tree_at(lambda s: s.model.dynamics.noise.log_std, state, low)
    state, info = step(MODEL, state, jnp.zeros(3), SEEN, KEY)
    assert info.status == Status.OK
    assert np.all(state.model.dynamics.noise.log_std >= np.log(MIN_STD))


def test_noise_that_is_not_learned_may_be_less():
    quiet = eqx.tree_at(lambda m: m.dynamics.noise.log_std, MODEL, jnp.full(2, -20.0))
    assert np.all(floor_noise(quiet, ("dynamics",)).dynamics.noise.log_std == -20)
    assert np.all(floor_noise(quiet, ("noise",)).dynamics.noise.log_std == np.log(MIN_STD))


def test_what_was_learned_can_be_frozen(begun):
    """The state of a filter that learns is that of one that does not, and back."""
    step, state, frozen = begun
    after, info = frozen(state.model, state, Y, SEEN, KEY)
    assert info.status == Status.OK
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    jax.tree.map(np.testing.assert_array_equal, after.model, state.model)
    again, info = step(MODEL, after, Y, SEEN, KEY)
    assert info.status == Status.OK
    bent, before = (x.model.dynamics.network.weights[0] for x in (again, state))
    assert np.any(bent != before)


def test_a_masked_channel_is_one_that_says_nothing(begun):
    """What the state does not move tells of its noise alone."""
    _, state, frozen = begun
    some = jnp.array([True, False, True])
    got, info = frozen(MODEL, state, Y.at[1].set(jnp.nan), some, KEY)
    blind = eqx.tree_at(lambda m: m.likelihood.C, MODEL, MODEL.likelihood.C.at[1].set(0))
    # The network of VJF reads what the model expects there, the others zero.
    gap, _ = frozen(MODEL, state, Y, ~SEEN, KEY)
    expected = MODEL.likelihood.mean(MODEL.family.mean(gap.belief))[1]
    value = expected if isinstance(state, VJFState) else 0.0
    want, whole = frozen(blind, state, Y.at[1].set(value), SEEN, KEY)
    np.testing.assert_allclose(got.belief, want.belief, rtol=1e-7)
    alone = blind.likelihood.log_prob(jnp.zeros(2), jnp.zeros(3).at[1].set(value), ~some)
    np.testing.assert_allclose(info.elbo, whole.elbo - alone, rtol=1e-7)


LEARNERS = {
    "vjf": (VJF(warm_up=200), 10),
    "direct": (DirectVJF(0.1, 40, optimiser=optax.adam(1e-2)), 6),
    "svmc": (StreamingVMC(200, 3, 16, 8, model_rate=3e-3, decay=300), 5),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_saturating_dynamics_are_learned(name):
    """States that turn in the unit square: late bins are more probable than to a beginner."""
    filter, num = LEARNERS[name]
    family = ContinuousBernoulliFamily(2)
    turn = 60 * np.array([[np.cos(0.9), -np.sin(0.9)], [np.sin(0.9), np.cos(0.9)]])
    flow = Network([2, 2], KEY)
    flow = eqx.tree_at(
        lambda n: (n.weights[0], n.biases[0]), flow, (jnp.asarray(2 * turn), -turn.sum(axis=1))
    )
    readout = np.random.default_rng(0).normal(size=(20, 2))
    true = Model(NaturalDynamics(family, flow), lik.Gaussian(readout, noise=0.3))
    _, ys = simulate(true, KEY, 100 * num)
    start = Model(NaturalDynamics(family, Network([2, 32, 2], KEY)), true.likelihood)
    fresh = state = filter.init(start)
    for part in np.split(ys, num):
        state, trace = scan_filter(filter, start, part, state=state, key=KEY)
        assert not np.any(trace.info.status)
    _, anew = scan_filter(filter, start, part, state=fresh, key=KEY)
    assert np.mean(trace.info.elbo) > np.mean(anew.info.elbo) + 0.3


@pytest.mark.parametrize("kind", SMALL)
def test_parts_without_numbers_are_refused(kind):
    model = Model(MODEL.dynamics, lik.Poisson(C), family=DiagonalGaussianFamily(2))
    with pytest.raises(InputError, match=r"without numbers in \('observation',\)"):
        kind(parts=("observation",)).init(model)
    kind(parts=("observation",), learn=False).init(model)


@pytest.mark.parametrize("kind", SMALL)
def test_counts_are_whole_numbers(kind):
    for name in SMALL[kind]:
        with pytest.raises(InputError, match=f"{name} = 2.5"):
            kind(**{name: 2.5})
