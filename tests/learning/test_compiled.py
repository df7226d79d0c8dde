"""The learner compiled for streams is the learner."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf.analysis.forecasting import forecast
from evkf.errors import InputError
from evkf.filters.compiled import LARGE, packing
from evkf.learning import Learner, Monitor, MonitoredState, scan_monitored
from evkf.learning.compiled import CompiledLearner
from tests.learning.cases import MODELS, T, recording
from tests.quick import fusing, quick_compilation  # noqa: F401

LEARNER = Learner(ring=512, num_windows=2, window=3)
"""The ring has arrays that travel alone."""
BINS = recording("linear")


@pytest.fixture(autouse=True, scope="module")
def fused(quick_compilation):  # noqa: F811
    """The scan and the compiled functions must be equal bit for bit."""
    with fusing():
        yield


def close(one, two):
    def check(a, b):
        np.testing.assert_array_equal(a, b)

    jax.tree.map(check, one, two)


@pytest.fixture(scope="module")
def live():
    with fusing():
        return CompiledLearner(LEARNER, MODELS["linear"]())


def test_equals_the_scan(live):
    start = LEARNER.init(MODELS["linear"]())
    sizes = [leaf.size for leaf in jax.tree.leaves(start)]
    assert max(sizes) >= LARGE
    close(live.state, start)
    with fusing():
        wanted, trace = LEARNER.scan(start, *BINS)
    earlier = live.state
    for t, bins in enumerate(zip(*BINS, strict=True)):
        said = live.observe(*(np.asarray(array) for array in bins))
        learned = live.learn()
        result = live.read(said)
        close(
            (result.belief, result.info, learned),
            jax.tree.map(lambda leaf, t=t: leaf[t], tuple(trace)),
        )
    close(live.state, wanted)
    assert int(live.state.steps) == T - LEARNER.window + 1
    # States that were handed out are copies.
    close(earlier, start)


def test_steps_that_are_not_due_are_not_called(monkeypatch):
    learner = Learner(ring=64, num_windows=2, window=3, every=4)
    start = learner.init(MODELS["linear"]())
    wanted, trace = learner.scan(start, *BINS)
    live, calls = CompiledLearner(learner, start), []
    learn = live._learn
    monkeypatch.setattr(live, "_learn", lambda *packed: calls.append(0) or learn(*packed))
    for t, bins in enumerate(zip(*BINS, strict=True)):
        live.observe(*(np.asarray(array) for array in bins))
        np.testing.assert_array_equal(live.learn().loss, trace.learned.loss[t])
    close(live.state, wanted)
    assert len(calls) == T // 4
    live.state = start
    live.observe(*(np.asarray(array[0]) for array in BINS))
    live.learn()
    assert len(calls) == T // 4


def test_what_is_left_out_is_filled_in(live):
    """All channels observed, the trial goes on, and a bin may pass without learning."""
    before = live.state
    live.observe([1, 0, 0.5, -0.5], u=[0.3])
    after = live.state
    slot = int(before.ring.count)
    kept = jax.tree.map(lambda leaf: leaf[slot], after.ring.bins)
    np.testing.assert_array_equal(kept.y, [1, 0, 0.5, -0.5])
    np.testing.assert_array_equal(kept.u, [0.3])
    assert np.all(kept.mask)
    assert bool(kept.fresh) == (slot == 0)
    np.testing.assert_array_equal(kept.belief.mean, after.filter.belief.mean)
    assert int(after.ring.count) == slot + 1
    assert int(after.steps) == int(before.steps)


def test_packing_there_and_back():
    tree = {
        "small": (jnp.arange(3.0), jnp.asarray(2.5)),
        "none": jnp.zeros((2, 0)),
        "flags": jnp.asarray([True, False]),
        "count": jnp.asarray(7, jnp.int32),
        "large": jnp.arange(LARGE + 1.0).reshape(1, -1),
    }
    pack, unpack = packing(tree)
    packed = pack(tree)
    assert [array.dtype.name for array in packed] == ["bool", "float64", "int32", "float64"]
    assert packed[1].shape == (4,)
    again = unpack(packed)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, again, tree)


def test_a_state_that_is_set_is_gone_on_from(live):
    before = live.state
    live.observe(*(np.asarray(array[0]) for array in BINS))
    live.learn()
    live.state = LEARNER.freeze(before, "dynamics")
    close(live.state, LEARNER.freeze(before, "dynamics"))
    live.learn()
    weights = [state.model.dynamics.weight for state in (live.state, before)]
    np.testing.assert_array_equal(*weights)
    with pytest.raises(InputError, match="another structure"):
        live.state = Learner(ring=64).init(MODELS["linear"]())


def test_watched_equals_the_scan():
    model, monitor = MODELS["linear"](), Monitor()
    start = MonitoredState(LEARNER.init(model), monitor.init(model))
    with fusing():
        live = CompiledLearner(LEARNER, model, monitor=monitor)
        wanted, (_, _, told) = scan_monitored(LEARNER, monitor, start, *BINS)
    for t, bins in enumerate(zip(*BINS, strict=True)):
        said = live.observe(*(np.asarray(array) for array in bins))
        live.learn()
        close(live.read(said).evidence, jax.tree.map(lambda leaf, t=t: leaf[t], told))
    close(live.state, wanted)
    nowcast = live.nowcast(u=[0.3])
    belief = wanted.learner.filter.belief
    close(nowcast[:2], (belief.mean, belief.cov))
    now = wanted.learner.model
    ahead = forecast(LEARNER.filter, now, belief, 1, us=[[0.3]])
    np.testing.assert_allclose(nowcast.rate, ahead.rate[0], rtol=1e-12)
