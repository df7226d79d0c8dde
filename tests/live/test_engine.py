"""The engine: bit for bit the scan, given in which bins it learned."""

import jax
import numpy as np
import pytest

from evkf.dynamics import ResidualMLP, VanDerPol
from evkf.learning import Learner
from evkf.likelihoods import Poisson
from evkf.live.engine import Engine
from evkf.model import Model, simulate

BINS = 120
LEARNER = Learner(ring=64, window=5, num_windows=3, every=2)


@pytest.fixture(scope="module")
def start() -> Model:
    C = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    return Model(ResidualMLP(2, 0.04, jax.random.key(1)), Poisson(C, bin_width=0.05))


@pytest.fixture(scope="module")
def ys(start: Model) -> np.ndarray:
    true = Model(VanDerPol(), start.likelihood)
    return np.asarray(simulate(true, jax.random.key(2), BINS)[1], float)


@pytest.fixture(scope="module")
def engine(start: Model) -> Engine:
    return Engine(LEARNER, start, jax.random.key(3))


def test_is_the_scan_bit_for_bit(engine: Engine, start: Model, ys: np.ndarray):
    rng = np.random.default_rng(1)
    lost, marks, turns = rng.random(BINS) < 0.1, rng.random(BINS) < 0.05, rng.random(BINS) < 0.6
    fresh = marks & ~lost
    latents, learned = [], []
    for t in range(BINS):
        latents.append(engine.bridge() if lost[t] else engine.observe(ys[t], fresh=bool(fresh[t])))
        if turns[t] and engine.due:
            learned.append(engine.learn())
    masks = np.repeat(~lost[:, None], ys.shape[1], axis=1)
    begin = LEARNER.init(start, jax.random.key(3))
    state, trace = LEARNER.scan(begin, np.where(masks, ys, 0), masks, None, fresh, turns)
    np.testing.assert_array_equal([x.mean for x in latents], trace.belief.mean)
    np.testing.assert_array_equal([x.cov for x in latents], trace.belief.cov)
    np.testing.assert_array_equal([x.elbo for x in latents], trace.info.elbo)
    jax.tree.map(np.testing.assert_array_equal, engine.state, state)
    windows = np.asarray(trace.learned.windows)
    np.testing.assert_array_equal([x.windows for x in learned], windows[windows[:, 0] >= 0])
    assert [x.steps for x in learned] == list(range(1, int(state.steps) + 1))
    assert 20 < len(learned) < BINS / 2


def test_rehearsing_leaves_no_trace(engine: Engine):
    before = engine.state
    costs = engine.rehearse(20)
    jax.tree.map(np.testing.assert_array_equal, engine.state, before)
    assert engine.bins == int(before.ring.count)
    assert 0 < costs.observe <= costs.observe_p99 < 1
    assert 0 < costs.learn <= costs.learn_p99 < 1


def test_a_bridged_bin_is_the_prediction(start: Model, engine: Engine, ys: np.ndarray):
    before = engine.state
    latent = engine.bridge()
    wanted = LEARNER.filter.predict(before.model, before.filter).belief
    np.testing.assert_allclose(latent.mean, wanted.mean, rtol=1e-12)
    np.testing.assert_allclose(latent.cov, wanted.cov, rtol=1e-12)
    assert latent.elbo == 0
