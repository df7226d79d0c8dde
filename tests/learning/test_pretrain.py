"""Training on a recording beforehand, by the learner's loss or on given states."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evkf.dynamics import GammaDynamics, Linear, Network, ResidualMLP, VanDerPol
from evkf.errors import InputError
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.learning import Learner
from evkf.learning.pretrain import Pretraining, StateFitting, fit_states, pretrain
from evkf.likelihoods import Gaussian, Poisson
from evkf.model import Model, simulate
from tests.quick import quick_compilation  # noqa: F401

FILTER = VariationalKalmanFilter()


def test_learns_an_oscillator_better_than_one_pass_of_a_stream():
    C = np.random.default_rng(0).normal(size=(6, 2))
    likelihood = Gaussian(C, noise=0.5)
    true = Model(VanDerPol(noise=0.01), likelihood)
    _, ys = simulate(true, jax.random.key(0), 900, z0=jnp.array([1.5, 0.0]))
    start = Model(ResidualMLP(2, 0.04, jax.random.key(1), hidden=16), likelihood)
    learner = Learner(ring=512, num_windows=4)
    streamed, _ = learner.scan(learner.init(start), ys[:600])
    trained = pretrain(learner, start, ys[:600], settings=Pretraining(60, batch=4, window=20))

    def bound(model):
        return float(np.mean(scan_filter(FILTER, model, ys[600:])[1].info.elbo[20:]))

    best = bound(true)
    gaps = [best - bound(model) for model in (start, streamed.model, trained.model)]
    assert gaps[0] > 0.3
    assert gaps[2] < 0.4 * gaps[0]
    assert gaps[2] < 0.6 * gaps[1]


def scalar(weight=0.5):
    return Model(Linear([[weight]], 0.5), Gaussian([[1.0], [0.5]], noise=0.1))


@pytest.fixture(scope="module")
def trials():
    """Four trials of ten bins."""
    ys = np.random.default_rng(3).normal(size=(40, 2))
    masks = np.random.default_rng(4).random((40, 2)) < 0.8
    return ys, masks, np.arange(40) % 10 == 0


STRAIGHT = optax.GradientTransformation(
    lambda params: (), lambda grads, state, params=None: (jnp.full_like(grads, 0.01), state)
)
"""Always the same step, so that steps can be counted."""

SETTINGS = Pretraining(passes=2, batch=2, window=6, optimiser=STRAIGHT)


@pytest.mark.parametrize("size", [16, 64, 0])
def test_state_is_ready_for_the_stream(trials, size):
    ys, masks, fresh = trials
    learner = Learner(ring=size)
    start = learner.freeze(learner.init(scalar(), jax.random.key(7)), "noise")
    # The first bin is a trial's, whether it is said or not.
    marks = fresh & (np.arange(40) > 0)
    state = pretrain(learner, start, ys, masks, fresh=marks, settings=SETTINGS)
    model, old = state.model, start.model
    # Two passes of ceil(40 / (2 * 6)) steps.
    np.testing.assert_allclose(model.dynamics.weight, old.dynamics.weight + 8 * 0.01)
    np.testing.assert_array_equal(model.dynamics.noise.log_std, old.dynamics.noise.log_std)
    held = min(size or 2, 40)
    bins = jax.tree.map(lambda leaf: leaf[:held], state.ring.bins)
    np.testing.assert_array_equal(bins.y, np.where(masks, ys, 0)[-held:])
    np.testing.assert_array_equal(bins.mask, masks[-held:])
    np.testing.assert_array_equal(bins.fresh, fresh[-held:])
    beliefs = [scan_filter(FILTER, model, *each)[1].belief.mean for each in _split(ys, masks)]
    np.testing.assert_allclose(bins.belief.mean, np.concatenate(beliefs)[-held:], atol=1e-10)
    np.testing.assert_array_equal(state.filter.belief.mean, model.prior.mean)
    assert (int(state.ring.count), int(state.ring.oldest), int(state.steps)) == (held, 0, 8)
    assert bool(state.fresh)
    same = ("optimiser", "gradient", "thawed", "key")
    for name in same:
        jax.tree.map(np.testing.assert_array_equal, getattr(state, name), getattr(start, name))
    assert jax.tree.structure(state) == jax.tree.structure(start)
    sizes = [[leaf.aval for leaf in jax.tree.leaves(tree)] for tree in (state, start)]
    assert sizes[0] == sizes[1]


def _split(ys, masks):
    return zip(np.split(ys, 4), np.split(masks, 4), strict=True)


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("passes", {"settings": Pretraining(passes=0)}),
        ("passes", {"settings": Pretraining(passes=1.5)}),
        ("batch", {"settings": Pretraining(batch=0)}),
        ("window", {"settings": Pretraining(window=0)}),
        ("window", {"settings": Pretraining(window=40)}),
        ("fresh", {"fresh": np.zeros(3, bool)}),
        ("masks", {"masks": np.ones((40, 2))}),
        ("us", {"us": np.ones((40, 1))}),
    ],
)
def test_bad_arguments(trials, where, options):
    with pytest.raises(InputError) as caught:
        pretrain(Learner(), scalar(), trials[0], **options)
    assert caught.value.where == where


A = np.array([[0.95, 0.2], [-0.2, 0.9]])
Q = np.array([[0.05, 0.02], [0.02, 0.04]])
C = np.random.default_rng(0).normal(size=(3, 2))
R = np.array([0.1, 0.2, 0.3])


@pytest.fixture(scope="module")
def states():
    """Twenty trials that start far from where they end, with inputs."""
    rng = np.random.default_rng(1)
    us = rng.normal(size=(50, 20, 1))
    z = np.array([3.0, -3.0]) + 0.5 * rng.normal(size=(20, 2))
    zs = []
    for u in us:
        zs.append(z)
        z = z @ A.T + u * [0.5, 0.0] + rng.normal(size=(20, 2)) @ np.linalg.cholesky(Q).T
    # States before their inputs: the input of a bin moves the state into it.
    zs, us = np.stack(zs, axis=1).reshape(-1, 2), np.roll(us, 1, axis=0)
    us = us.swapaxes(0, 1).reshape(-1, 1)
    ys = zs @ C.T + 1 + rng.normal(size=(1000, 3)) * np.sqrt(R)
    return zs, ys, us, np.arange(1000) % 50 == 0


def blank():
    dynamics = Linear(0.5 * np.eye(2), np.eye(2), input_weight=np.zeros((2, 1)))
    return Model(dynamics, Gaussian(np.zeros((3, 2)), noise=1.0))


def test_fits_given_states(states):
    zs, ys, us, fresh = states
    masks = np.arange(3000).reshape(1000, 3) % 7 > 0
    fitted = fit_states(blank(), zs, np.where(masks, ys, np.nan), masks, us, fresh)
    dynamics, likelihood = fitted.dynamics, fitted.likelihood
    np.testing.assert_allclose(dynamics.weight, A, atol=0.02)
    np.testing.assert_allclose(dynamics.noise.matrix(), Q, atol=0.006)
    np.testing.assert_allclose(dynamics.input_weight, [[0.5], [0.0]], atol=0.02)
    np.testing.assert_allclose(likelihood.C, C, atol=0.06)
    np.testing.assert_allclose(likelihood.b, 1, atol=0.06)
    np.testing.assert_allclose(likelihood.noise.var(), R, rtol=0.2)
    starts = zs[fresh]
    np.testing.assert_allclose(fitted.prior.mean, starts.mean(0), atol=1e-12)
    wanted = (20 * np.cov(starts.T, bias=True) + np.cov(zs.T, bias=True)) / 20
    np.testing.assert_allclose(fitted.prior.cov, wanted, atol=1e-5)
    # Least squares on the transitions within trials.
    inside = np.flatnonzero(~fresh)
    design = np.column_stack([zs[inside - 1], us[inside], np.ones(len(inside))])
    weights = np.linalg.lstsq(design, zs[inside], rcond=None)[0].T
    np.testing.assert_allclose(dynamics.weight, weights[:, :2], atol=0.01)


def test_given_states_are_where_a_network_has_been(states):
    zs, ys, _, _ = states
    model = Model(ResidualMLP(2, 0.1, jax.random.key(0), hidden=4), Gaussian(C))
    fitted = fit_states(model, zs, ys, settings=StateFitting(steps=2))
    np.testing.assert_array_equal(fitted.dynamics.low, zs.min(0))
    np.testing.assert_array_equal(fitted.dynamics.high, zs.max(0))
    # A single trial: its prior is as wide as all states.
    np.testing.assert_allclose(fitted.prior.cov, np.cov(zs.T, bias=True), atol=1e-5)


def test_bad_states(states):
    zs, ys, us, fresh = states
    for where, options in {
        "states": {"states": zs[:, :1]},
        "fresh": {"fresh": np.ones(1000, bool)},
        "steps": {"settings": StateFitting(steps=1.5)},
        "batch": {"settings": StateFitting(batch=0)},
        "rate": {"settings": StateFitting(rate=0.0)},
    }.items():
        with pytest.raises(InputError) as caught:
            fit_states(blank(), **{"states": zs, "ys": ys, "us": us, "fresh": fresh, **options})
        assert caught.value.where == where
    positive = GammaDynamics(Network([2, 3, 2], jax.random.key(0)), 2, 25.0)
    with pytest.raises(InputError, match="support of Gamma"):
        fit_states(
            Model(positive, Poisson(C)), zs, np.ones((1000, 3)), settings=StateFitting(steps=1)
        )
