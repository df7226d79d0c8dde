"""The learner: one bin after another, whatever is learned of a model."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from evkf.dynamics import Linear, ResidualMLP
from evkf.errors import InputError
from evkf.families import GaussianFamily
from evkf.learning import Learner, adam
from evkf.likelihoods import Gaussian
from evkf.model import Model
from evkf.parameters import PARTS, Thawed, split, thawed_vector
from tests.learning.cases import MODELS, pair, recording
from tests.quick import fusing, quick_compilation  # noqa: F401

SMALL = {"ring": 16, "num_windows": 2, "window": 3}
ALL = Learner(parts=PARTS, **SMALL)
BINS = recording("pair")


@pytest.fixture(scope="module")
def start():
    return ALL.init(pair())


@pytest.fixture(scope="module")
def after(start):
    """The state after a recording, and what was said."""
    with fusing():
        return ALL.scan(start, *BINS)


def equal(one, two):
    jax.tree.map(np.testing.assert_array_equal, one, two)


def by_part(learner, state):
    """The learned numbers in use, part by part."""
    learned = split(state.free, learner.parts)[0]
    flat = np.asarray(ravel_pytree(learned)[0])
    chosen = {
        part: thawed_vector(learned, Thawed(*(jnp.asarray(p == part) for p in PARTS))) > 0
        for part in learner.parts
    }
    return {part: (flat[mask], np.asarray(state.raw)[mask]) for part, mask in chosen.items()}


def test_scan_equals_stepping_bit_for_bit(start, after):
    state, trace = after
    step, found = jax.jit(ALL.step), start
    for t, bins in enumerate(zip(*BINS, strict=True)):
        with fusing():
            found, (info, learned) = step(found, *bins)
        said = (found.filter.belief, info, learned)
        equal(said, jax.tree.map(lambda leaf, t=t: leaf[t], tuple(trace)))
    equal(found, state)
    assert int(state.steps) == len(BINS[0]) - SMALL["window"] + 1
    assert not np.any(trace.learned.skipped)
    waiting = np.arange(len(BINS[0])) < SMALL["window"] - 1
    np.testing.assert_array_equal(np.isnan(trace.learned.loss), waiting)


def test_state_is_a_tree_of_arrays_to_go_on_from(start, after):
    state, _ = after
    leaves, structure = jax.tree.flatten(state)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    # Going on compiles nothing anew.
    assert [leaf.aval for leaf in leaves] == [leaf.aval for leaf in jax.tree.leaves(start)]
    stored = [np.asarray(leaf).copy() for leaf in leaves]
    again = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in stored])
    equal(ALL.scan(again, *BINS), ALL.scan(state, *BINS))


@pytest.mark.parametrize("part", PARTS)
def test_frozen_parts_keep_their_values(after, part):
    state, _ = after
    frozen, _ = ALL.scan(ALL.freeze(state, part), *BINS)
    old, new = by_part(ALL, state), by_part(ALL, frozen)
    for name in PARTS:
        assert np.array_equal(old[name][0], new[name][0]) == (name == part)
    # What is frozen has one value, in use and in learning.
    np.testing.assert_array_equal(*new[part])
    thawed, _ = ALL.scan(ALL.thaw(frozen, part), *BINS)
    assert not np.array_equal(by_part(ALL, thawed)[part][0], new[part][0])


def test_freezing_what_is_not_learned(start):
    dynamics = Learner()
    for change, part in ((ALL.freeze, "weights"), (dynamics.thaw, "readout")):
        with pytest.raises(InputError, match=f"'{part}' is not learned"):
            change(start, part)


def test_freezing_everything(start):
    assert not any(ALL.freeze(start).thawed)
    assert all(ALL.thaw(ALL.freeze(start)).thawed)


# A scalar stream, which compiles quickly.


def scalar(weight=0.8, variance=0.1, noise=0.2, **options):
    return Model(Linear([[weight]], variance), Gaussian([[1.0], [0.5]], noise=noise), **options)


SCALAR = np.random.default_rng(0).normal(size=(12, 2))


def test_learns_when_due():
    learner = Learner(every=3, steps=2, **SMALL)
    step, state = jax.jit(learner.step), learner.init(scalar())
    for t, y in enumerate(SCALAR, start=1):
        before, (state, (_, learned)) = state, step(state, jnp.asarray(y))
        due = t % 3 == 0
        assert int(state.steps - before.steps) == 2 * due
        assert np.isfinite(learned.loss) == due
        assert np.array_equal(state.raw, before.raw) != due
    # Nothing finite in the ring: two steps are tried, nothing moves.
    lost = state._replace(ring=state.ring._replace(count=jnp.asarray(14, jnp.int32)))
    bins = lost.ring.bins._replace(y=jnp.full_like(lost.ring.bins.y, jnp.nan))
    lost = lost._replace(ring=lost.ring._replace(bins=bins))
    found, (_, learned) = step(lost, jnp.zeros(2))
    assert bool(learned.skipped)
    assert int(found.steps) == int(lost.steps) + 2
    for name in ("free", "raw", "optimiser", "gradient"):
        equal(getattr(found, name), getattr(lost, name))
    held = jnp.arange(16) != 14
    old, new = (state.ring.bins.belief.mean[held] for state in (lost, found))
    np.testing.assert_array_equal(old, new)


def test_noise_allows_for_what_cannot_be_known():
    """As in a regression on n bins: residuals lose p/n of their variance, predictions gain it."""
    learner = Learner(**SMALL)
    state, _ = learner.scan(learner.init(scalar()), np.tile(SCALAR, (2, 1)))
    learned, used = (m.dynamics.noise.var()[0] for m in (state.free.build(), state.model))
    # A weight and a bias, and a ring of 16 bins; but no more than a tenth.
    share = min(2 / 16, 0.1)
    np.testing.assert_allclose(used / learned, (1 + share) / (1 - share), rtol=1e-6)
    frozen, _ = learner.scan(learner.freeze(state, "dynamics"), SCALAR)
    np.testing.assert_array_equal(frozen.doubt, state.doubt)
    forgetful, _ = learner.scan(learner.relearn(state, 0), SCALAR[:1])
    np.testing.assert_array_equal(forgetful.doubt, state.doubt)
    known = Learner(parts=("dynamics",), **SMALL)
    state, _ = known.scan(known.init(scalar()), SCALAR)
    np.testing.assert_allclose(state.model.dynamics.noise.var(), [0.1])


def test_steps_to_nowhere_are_not_taken():
    learner = Learner(optimiser=optax.sgd(float("inf")), **SMALL)
    start = learner.init(scalar())
    state, trace = learner.scan(start, SCALAR)
    equal((state.free, state.raw), (start.free, start.raw))
    np.testing.assert_array_equal(trace.learned.skipped, np.arange(1, 13) >= SMALL["window"])


def evidence(params, belief, y):
    """Of one bin by the textbook, the belief before it given."""
    weight, bias, log_std = params
    mean = weight * belief[0] + bias
    var = weight**2 * belief[1] + np.exp(2 * log_std)
    C, R = np.array([1.0, 0.5]), 0.2 * np.eye(2)
    S = var * np.outer(C, C) + R
    rest, gain = y - C * mean, var * np.linalg.solve(S, C)
    value = -0.5 * (rest @ np.linalg.solve(S, rest) + np.linalg.slogdet(2 * np.pi * S)[1])
    return value, (mean + gain @ rest, var - gain @ C * var)


def test_algorithm_one_equals_a_loop_by_hand():
    """Every bin once, beliefs held, a step with the mean gradient every fourth bin."""
    rate, every = 0.05, 4
    settings = {"ring": 0, "every": every, "average": 1.0, "optimiser": optax.sgd(rate)}
    learner = Learner(**settings)
    step, state = jax.jit(learner.step), learner.init(scalar())
    params, belief, gathered = np.array([0.8, 0.0, 0.5 * np.log(0.1)]), (0.0, 1.0), np.zeros(3)
    for t, y in enumerate(SCALAR, start=1):
        state, (info, learned) = step(state, jnp.asarray(y))
        moves = 1e-5 * np.eye(3)
        ends = [[evidence(params + s * move, belief, y)[0] for s in (1, -1)] for move in moves]
        gathered -= np.diff(ends)[:, 0] / -2e-5
        value, belief = evidence(params, belief, y)
        np.testing.assert_allclose([info.elbo, -learned.loss], value, rtol=1e-8)
        if t % every == 0:
            params, gathered = params - rate * gathered / every, np.zeros(3)
        dynamics = state.model.dynamics
        found = [dynamics.weight[0, 0], dynamics.bias[0], dynamics.noise.log_std[0]]
        np.testing.assert_allclose(found, params, atol=1e-8)
    assert int(state.steps) == 3
    # A bin that could not be used adds nothing.
    state, _ = step(state, jnp.asarray(SCALAR[0]))
    lost, _ = step(state, jnp.asarray([np.nan, 1.0]))
    np.testing.assert_array_equal(lost.gradient, state.gradient)


FLOOR = 0.05


@pytest.fixture(scope="module")
def trials():
    """Trials of a system that is driven, starts around 2 and has next to no noise."""
    rng = np.random.default_rng(1)
    starts = 2 + 0.5 * rng.normal(size=60)
    us, zs = rng.normal(size=(60, 8)), []
    z = starts
    for u in us.T:
        z = 0.9 * z + 0.7 * u + 1e-3 * rng.normal(size=60)
        zs.append(z)
    zs = np.stack(zs, axis=1).reshape(-1, 1)
    ys = zs * [1.0, 0.5] + 0.1 * rng.normal(size=(len(zs), 2))
    fresh = np.arange(len(zs)) % 8 == 0
    model = Model(
        Linear([[0.5]], 0.04, input_weight=[[0.0]]),
        Gaussian([[1.0], [0.5]], noise=0.01),
        GaussianFamily(1).from_moments(jnp.zeros(1), jnp.eye(1)),
    )
    learner = Learner(
        parts=("dynamics", "noise", "prior"),
        optimiser=adam(2e-2, decay=400),
        ring=512,
        min_std=FLOOR,
    )
    state, _ = learner.scan(learner.init(model), ys, us=us.reshape(-1, 1), fresh=fresh)
    return state, starts


def test_initial_state_is_learned_across_trials(trials):
    state, starts = trials
    mean, cov = state.model.prior
    assert abs(float(mean[0]) - starts.mean()) < 0.1
    assert 0.5 < float(cov[0, 0]) / starts.var() < 2


def test_weights_of_inputs_are_learned(trials):
    dynamics = trials[0].model.dynamics
    np.testing.assert_allclose(dynamics.input_weight, 0.7, rtol=0.03)
    np.testing.assert_allclose(dynamics.weight, 0.9, rtol=0.03)


def test_noise_has_a_floor(trials):
    state, _ = trials
    noise = split(state.free, ("noise",))[0].model.dynamics.noise
    assert np.log(FLOOR) <= float(noise.log_std[0]) < np.log(1.2 * FLOOR)
    learned = split(state.free, ("dynamics", "noise", "prior"))[0]
    raw = ravel_pytree(learned)[1](state.raw)
    assert float(raw.model.dynamics.noise.log_std[0]) == np.log(FLOOR)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "likelihood"},
        {"ring": 10},
        {"ring": -1},
        {"window": 0},
        {"num_windows": 0},
        {"every": 0},
        {"steps": 0},
        {"steps": 2, "ring": 0},
        {"average": 0.0},
        {"average": 1.5},
        {"min_std": 0.0},
        {"min_std": -1.0},
        {"parts": ()},
        {"parts": ("weights",)},
    ],
    ids=str,
)
def test_bad_arguments(options):
    with pytest.raises(InputError) as caught:
        Learner(**options).init(scalar())
    assert caught.value.where in options


def test_parts_must_have_something_to_learn():
    with pytest.raises(InputError, match="without numbers"):
        Learner(parts=("observation",)).init(MODELS["poisson"]())


def test_bad_recordings():
    learner = Learner(**SMALL)
    state = learner.init(scalar())
    for where, arguments in {
        "ys": {"ys": SCALAR[:, :1]},
        "ys[3, 1]": {"ys": np.where(np.arange(24).reshape(12, 2) == 7, np.nan, SCALAR)},
        "masks": {"ys": SCALAR, "masks": np.ones((12, 2))},
        "us": {"ys": SCALAR, "us": np.ones((12, 1))},
        "fresh": {"ys": SCALAR, "fresh": np.zeros(12)},
    }.items():
        with pytest.raises(InputError) as caught:
            learner.scan(state, **arguments)
        assert caught.value.where == where


def test_a_bin_that_could_not_be_used_is_not_learned_from():
    """NaN from a live source: the filter falls back, and replay does not see it."""
    learner = Learner(ring=16, num_windows=2, window=3)
    model = Model(Linear(0.9 * np.eye(1), 0.1), Gaussian([[1.0], [0.5]]))
    state, step = learner.init(model), jax.jit(learner.step)
    for t in range(12):
        y = jnp.full(2, jnp.nan if t == 6 else 1.0)
        state, (info, learned) = step(state, y)
        assert np.isnan(info.elbo) == (t == 6)
        assert not learned.skipped
    assert int(state.steps) > 5
    assert not np.any(state.ring.bins.mask[6])


def test_only_what_was_observed_counts_as_visited():
    learner = Learner(ring=16, num_windows=2, window=3)
    model = Model(ResidualMLP(1, 0.5, jax.random.key(0)), Gaussian([[1.0]]))
    state, observe = learner.init(model), jax.jit(learner.observe)
    state, _ = observe(state, jnp.zeros(1))
    box = state.model.dynamics.high - state.model.dynamics.low
    for _ in range(20):
        state, _ = observe(state, jnp.zeros(1), jnp.zeros(1, bool))
    np.testing.assert_array_equal(state.model.dynamics.high - state.model.dynamics.low, box)
