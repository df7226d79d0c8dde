"""The evidence monitor: what dynamics are worth, and that a change is flagged, once."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf.dynamics import Driven, GammaDynamics, Linear, Network, ResidualMLP
from evkf.errors import InputError
from evkf.filters import VariationalKalmanFilter
from evkf.learning import Learner, Monitor, MonitoredState, ObservedBin, scan_monitored
from evkf.learning.monitor import PERIOD, SETTLED, same_box
from evkf.likelihoods import Gaussian, Poisson
from evkf.model import Model, simulate
from evkf.numerics.linalg import tree_where
from tests.quick import plain_compilation  # noqa: F401

READOUT = Gaussian(np.random.default_rng(0).normal(size=(6, 2)), noise=0.1)
FILTER, MONITOR = VariationalKalmanFilter(), Monitor()
LONG = SETTLED * PERIOD + 300


def turning(angle: float) -> Model:
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return Model(Linear(0.98 * turn, 0.01), READOUT)


SLOW, FAST = turning(0.1), turning(0.3)


@jax.jit
def watched(first: Model, second: Model, ys: jax.Array, switch: jax.Array):
    """Filter with one model, from some bin on with another, and watch."""

    def body(carry, inputs):
        state, known = carry
        t, y = inputs
        model = tree_where(t < switch, first, second)
        state, info = FILTER.step(model, state, y)
        known, told = MONITOR.step(known, model, state.belief, info, ObservedBin(y))
        return (state, known), told

    start = (FILTER.init(first), MONITOR.init(first))
    return jax.lax.scan(body, start, (jnp.arange(len(ys)), ys))[1]


@pytest.fixture(scope="module")
def stream() -> jax.Array:
    """Slow turning, then fast."""
    zs, before = simulate(SLOW, jax.random.key(0), LONG)
    _, after = simulate(FAST, jax.random.key(1), 300, z0=zs[-1])
    return jnp.concatenate([before, after])


def test_a_settled_model_is_worth_something_and_nothing_is_flagged(stream: jax.Array):
    told = watched(SLOW, SLOW, stream[:LONG], jnp.asarray(10**6))
    assert not np.any(told.changed)
    assert np.all(told.over_walk[200:] > 0.02)
    np.testing.assert_allclose(told.over_copy, 0, atol=1e-12)


def test_a_model_no_better_than_a_walk_says_so(stream: jax.Array):
    walk = Model(Linear(np.eye(2), 0.02), READOUT)
    told = watched(walk, walk, stream[:LONG], jnp.asarray(10**6))
    assert np.all(np.abs(told.over_walk[500:]) < 0.2)
    right = watched(SLOW, SLOW, stream[:LONG], jnp.asarray(10**6))
    assert float(told.over_walk[-1]) < float(right.over_walk[-1])


def test_a_change_that_is_learned_is_flagged_once_and_dated(stream: jax.Array):
    told = watched(SLOW, FAST, stream, jnp.asarray(LONG))
    flags = np.flatnonzero(told.changed)
    assert len(flags) == 1
    assert LONG < flags[0] < LONG + 200
    assert abs(int(told.since[flags[0]]) - (flags[0] - LONG)) < 30
    assert int(told.changes[-1]) == 1
    assert int(told.last_change[-1]) == flags[0] - int(told.since[flags[0]])
    assert int(told.last_change[flags[0] - 1]) == -1


def test_nothing_is_flagged_before_learning_has_settled(stream: jax.Array):
    early = stream[LONG - 100 : LONG + 200]
    assert not np.any(watched(SLOW, FAST, early, jnp.asarray(100)).changed)


@pytest.mark.parametrize("driven", [False, True])
def test_a_copy_knows_where_states_have_been(driven: bool):
    """Else it would lose wherever they go next, and that would pass for a change."""
    network = ResidualMLP(2, 0.01, jax.random.key(0), hidden=4)
    dynamics = Driven(network, np.ones((2, 1))) if driven else network
    model = Model(dynamics, READOUT)
    seen = eqx.tree_at(
        lambda m: m.dynamics, model, dynamics.visited(jnp.full(2, 3.0), jnp.full(2, 0.1))
    )
    boxed = same_box(model.dynamics, seen.dynamics)
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.all(a == b), boxed, seen.dynamics))


def test_masked_bins_say_nothing():
    learner = Learner(ring=32, window=4, num_windows=2)
    masks = np.ones(40, bool)
    masks[10:20] = False
    ys = np.where(masks[:, None], np.ones((40, 6)), np.nan)
    start = MonitoredState(learner.init(SLOW), MONITOR.init(SLOW))
    state, (_, _, told) = scan_monitored(learner, MONITOR, start, ys, masks)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(told))
    assert int(state.learner.ring.count) == 40


def test_only_gaussian_models_are_watched():
    dynamics = GammaDynamics(Network([1, 2, 1], jax.random.key(0)), 1, 1.0)
    with pytest.raises(InputError, match="random walk"):
        MONITOR.init(Model(dynamics, Poisson([[0.1]])))
