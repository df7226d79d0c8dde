"""What every filter must do, whatever it infers and however.

A new filter, family or likelihood is added to `PAIRS`; all tests below then run on it. Compiling
takes seconds, so what is compiled for a pair is shared between tests, with full effort only for
what must be equal bit for bit. The pairs marked slow run in `test_conformance_slow`, those marked
long, which add little, there too, but only with `make long`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf import dynamics as dyn
from evkf import families as fam
from evkf import likelihoods as lik
from evkf.filters import (
    VJF,
    CompiledStep,
    DirectVJF,
    EnsembleKalman,
    ExtendedKalman,
    Filter,
    Kalman,
    OnlineVariationalSmoother,
    ParticleFilter,
    StreamingVMC,
    UnscentedKalman,
    VariationalKalmanFilter,
    scan_filter,
    scan_sessions,
)
from evkf.model import Model, simulate
from evkf.types import Status
from tests.likelihoods.cases import as_float32
from tests.quick import in_full, quick_compilation  # noqa: F401

T, N, U = 6, 4, 1
SLOW = False
"""Which pairs this module runs: the slow ones have a module, and so a worker, of their own."""
KEY = jax.random.key(3)
EVERY = np.arange(N)


class Pair(NamedTuple):
    """A filter and a model to run it on."""

    filter: Filter
    make: Callable
    """Rows of the readout to keep -> model."""
    random: bool = False
    """Whether the result depends on the key."""
    us: np.ndarray | None = None
    rounding: float = 0.0
    """By how much a scan may differ from stepping: by nothing, where XLA fuses both alike."""
    slow: bool = False
    long: bool = False


def readout(dim, keep):
    rng = np.random.default_rng(dim)
    return 0.5 * rng.normal(size=(N, dim))[keep], rng.normal(size=N)[keep]


def network(inputs, outputs):
    return dyn.Network([inputs, 6, outputs], jax.random.key(1))


def poisson(keep, **options):
    return Model(dyn.VanDerPol(), lik.Poisson(*readout(2, keep)), **options)


def linear(keep):
    noise = np.array([[0.3, 0.1], [0.1, 0.2]])
    dynamics = dyn.Linear([[0.9, 0.2], [-0.1, 0.8]], noise, input_weight=np.ones((2, U)))
    cov = 0.3 * np.eye(N) + 0.1
    return Model(dynamics, lik.Gaussian(*readout(2, keep), noise=cov[np.ix_(keep, keep)]))


def student_t(keep):
    """Five latents: beyond the size up to which factorisations are written out."""
    weight = np.random.default_rng(2).normal(size=(5, 5)) / np.sqrt(5)
    return Model(dyn.ChaoticRNN(weight), lik.StudentT(*readout(5, keep), df=3.0, scale=0.3))


def joint(keep):
    """Part of a joint model is removed with its channels."""
    C, b = readout(2, EVERY)
    first, second = keep[keep < 2], keep[keep >= 2]
    parts = [lik.Poisson(C[first], b[first]), lik.Gaussian(C[second], b[second], 0.3)]
    return Model(dyn.ResidualMLP(2, 0.1, jax.random.key(0), hidden=6), lik.Joint(parts))


def rates(params, z, y):
    C, b = params
    return y * (C @ z + b) - jnp.exp(C @ z + b)


def counts(params, z, key):
    C, b = params
    return jax.random.poisson(key, jnp.exp(C @ z + b)).astype(z.dtype)


def custom(keep):
    params = jax.tree.map(jnp.asarray, readout(2, keep))
    likelihood = lik.Custom(rates, len(keep), params, sample_fn=counts)
    return Model(dyn.VanDerPol(), likelihood)


def gamma(keep):
    dynamics = dyn.GammaDynamics(network(2, 2), 2, 25.0)
    return Model(dynamics, lik.Poisson(*readout(2, keep)))


def beta(keep):
    dynamics = dyn.BetaDynamics(network(2, 2), 2, 20.0)
    return Model(dynamics, lik.Gaussian(*readout(2, keep), noise=0.3))


def continuous_bernoulli(keep):
    dynamics = dyn.NaturalDynamics(fam.ContinuousBernoulliFamily(2), network(2, 2))
    return Model(dynamics, lik.Gaussian(*readout(2, keep), noise=0.3))


def bernoulli(keep):
    dynamics = dyn.NaturalDynamics(fam.BernoulliFamily(2), network(2, 2))
    return Model(dynamics, lik.StudentT(*readout(2, keep)))


def mixed(keep):
    family = fam.ProductFamily((fam.BetaFamily(1), fam.ContinuousBernoulliFamily(1)))
    return Model(dyn.NaturalDynamics(family, network(2, 3)), lik.Gaussian(*readout(2, keep)))


def diagonal(keep):
    return poisson(keep, family=fam.DiagonalGaussianFamily(2))


def low_rank(keep):
    weight = np.random.default_rng(2).normal(size=(5, 5)) / np.sqrt(5)
    likelihood = lik.Poisson(*readout(5, keep))
    return Model(dyn.ChaoticRNN(weight), likelihood, family=fam.LowRankGaussianFamily(5, rank=2))


def radial(keep):
    dynamics = dyn.ResidualRBF(2, 0.1, jax.random.key(0), num=5, num_inputs=U)
    likelihood = lik.Poisson(*readout(2, keep))
    return Model(dynamics, likelihood, family=fam.DiagonalGaussianFamily(2))


VKF = VariationalKalmanFilter
SVMC = StreamingVMC(num_particles=20, iterations=2, num_ancestors=4, hidden=4)
OVS = OnlineVariationalSmoother(iterations=5, num_samples=3, hidden=5, num_support=8)
PAIRS = {
    "poisson": Pair(VKF(), poisson),
    "linear": Pair(VKF(), linear, us=np.linspace(-1, 1, T)[:, None]),
    "student_t": Pair(VKF(), student_t),
    "joint": Pair(VKF(), joint),
    "custom": Pair(VKF(num_samples=16), custom, random=True),
    "gamma": Pair(VKF(), gamma, rounding=1e-12),
    "continuous_bernoulli": Pair(VKF("moment_matching"), continuous_bernoulli),
    "svmc": Pair(SVMC, linear, random=True, us=np.linspace(-1, 1, T)[:, None], rounding=1e-9),
    "ovs": Pair(
        OVS, linear, random=True, us=np.linspace(-1, 1, T)[:, None], rounding=1e-9, slow=True
    ),
    "svmc_saturating": Pair(SVMC, continuous_bernoulli, random=True, rounding=1e-9, long=True),
    "monte_carlo": Pair(VKF("monte_carlo", num_samples=16), poisson, random=True, slow=True),
    "moment_matching": Pair(VKF("moment_matching"), poisson, slow=True),
    "diagonal_gaussian": Pair(VKF(), diagonal, slow=True),
    "low_rank": Pair(VKF(), low_rank, rounding=1e-9),
    "beta": Pair(VKF(), beta, rounding=1e-12, long=True),
    "bernoulli": Pair(VKF(), bernoulli, rounding=1e-12, long=True),
    "mixed": Pair(VKF(), mixed, rounding=1e-12, slow=True),
    "kalman": Pair(Kalman(), linear, us=np.linspace(-1, 1, T)[:, None], slow=True),
    "extended": Pair(ExtendedKalman(), student_t),
    "unscented": Pair(UnscentedKalman(), joint, slow=True),
    "ensemble": Pair(EnsembleKalman(32), poisson, random=True),
    "particle": Pair(ParticleFilter(64), poisson, random=True),
    "particle_gamma": Pair(ParticleFilter(64), gamma, random=True, long=True),
    "vjf": Pair(
        VJF(hidden=4, warm_up=2),
        radial,
        random=True,
        us=np.ones((T, U)),
        rounding=1e-6,
        slow=True,
    ),
    "vjf_saturating": Pair(
        VJF(hidden=4), continuous_bernoulli, random=True, rounding=1e-9, long=True
    ),
    "vjf_direct": Pair(DirectVJF(iterations=5, learn=False), diagonal, random=True, rounding=1e-9),
    "vjf_direct_saturating": Pair(
        DirectVJF(iterations=5), continuous_bernoulli, random=True, rounding=1e-9, long=True
    ),
}


def pairs(*names):
    """Run a test on these pairs, or on all of them."""

    def choose(test):
        test.pairs = names or tuple(PAIRS)
        return test

    return choose


def marks(pair):
    return pytest.mark.long if pair.long else pytest.mark.slow if pair.slow else ()


def pytest_generate_tests(metafunc):
    if names := getattr(metafunc.function, "pairs", ()):
        slow = metafunc.module.SLOW
        chosen = [n for n in names if (PAIRS[n].slow or PAIRS[n].long) == slow]
        metafunc.parametrize("name", [pytest.param(n, marks=marks(PAIRS[n])) for n in chosen])


class Run(NamedTuple):
    """A model, a recording with gaps, and everything compiled once."""

    pair: Pair
    model: Model
    ys: jax.Array
    masks: jax.Array
    us: jax.Array
    step: Callable

    def effort(self):
        """Compile in full what must be equal bit for bit, quickly what may differ by rounding."""
        return nullcontext() if self.pair.rounding else in_full()


@cache
def prepare(name: str) -> Run:
    pair = PAIRS[name]
    model = pair.make(EVERY)
    us = np.zeros((T, 0)) if pair.us is None else pair.us
    _, ys = simulate(model, jax.random.key(4), T, jnp.asarray(us))
    masks = np.random.default_rng(5).random((T, N)) < 0.8
    masks[2] = False
    return Run(pair, model, ys, jnp.asarray(masks), jnp.asarray(us), jax.jit(pair.filter.step))


def keys(first=0):
    """The keys that `scan_filter` hands to its steps."""
    return [jax.random.fold_in(KEY, t) for t in range(first, first + T)]


@cache
def stepped(name: str):
    """States and infos of calling the compiled step bin by bin."""
    run = prepare(name)
    state = run.pair.filter.init(run.model)
    out = []
    for y, mask, u, key in zip(run.ys, run.masks, run.us, keys(), strict=True):
        with run.effort():
            state, info = run.step(run.model, state, y, mask, key, u)
        out.append((state, info))
    return out


@cache
def scanned(name: str):
    run = prepare(name)
    with run.effort():
        return scan_filter(run.pair.filter, run.model, run.ys, run.masks, run.us, key=KEY)


def assert_same(got, want):
    """Bit for bit, types included."""
    assert jax.tree.structure(got) == jax.tree.structure(want)

    def same(a, b):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)

    jax.tree.map(same, got, want)


def assert_close(got, want, tolerance):
    """Beliefs and bounds agree; counts of evaluations may differ by rounding."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def bounds(info):
    return info.elbo, info.elbo - info.gap, info.status


@pairs()
def test_scan_is_stepping_bit_for_bit(name):
    """As many states as bins, each the same as when stepping; the last one is returned."""
    state, trace = scanned(name)
    states, infos = zip(*stepped(name), strict=True)
    want = jax.tree.map(
        lambda *x: jnp.stack(x), *zip([s.belief for s in states], infos, strict=True)
    )
    rounding = prepare(name).pair.rounding
    if rounding:
        assert_close((state, tuple(trace[:2])), (states[-1], want), rounding)
    else:
        assert_same((state, tuple(trace[:2])), (states[-1], want))
    assert trace.prediction is None
    assert {len(leaf) for leaf in jax.tree.leaves(trace)} == {T}
    said = trace.info if isinstance(prepare(name).pair.filter, VKF) else trace.info.elbo
    for leaf in jax.tree.leaves((trace.belief, said)):
        assert np.all(np.isfinite(leaf))
    assert not np.any(trace.info.status)


@pairs("poisson", "linear", "custom", "particle_gamma")
def test_compiled_ahead_is_stepping_bit_for_bit(name):
    run = prepare(name)
    with run.effort():
        step = CompiledStep(run.pair.filter, run.model, keyed=True)
    carry = step.init()
    for t, (state, info) in enumerate(stepped(name)):
        carry = step(carry, run.ys[t], run.masks[t], run.us[t], keys()[t])
        assert_same((step.state(carry), step.info(carry)), (state, info))


@pairs()
def test_a_scan_can_be_continued(name):
    """A second scan from the state that the first one returned goes on as stepping does."""
    run = prepare(name)
    state, _ = scanned(name)
    with run.effort():
        again, trace = scan_filter(
            run.pair.filter, run.model, run.ys, run.masks, run.us, state=state, key=KEY, first=T
        )
    beliefs = []
    for y, mask, u, key in zip(run.ys, run.masks, run.us, keys(T), strict=True):
        with run.effort():
            state, _ = run.step(run.model, state, y, mask, key, u)
        beliefs.append(state.belief)
    want = jax.tree.map(lambda *x: jnp.stack(x), *beliefs)
    assert_close((again, trace.belief), (state, want), run.pair.rounding)


@pairs()
def test_what_is_not_a_number_does_no_lasting_harm(name):
    """The bin falls back and says so, and the next one is filtered as ever."""
    run, (state, _) = prepare(name), stepped(name)[0]
    seen = jnp.ones(N, bool)
    bad = run.ys[1].at[0].set(jnp.nan)
    with run.effort():
        state, info = run.step(run.model, state, bad, seen, keys()[1], run.us[1])
        assert info.status & Status.FELL_BACK
        assert np.isnan(info.elbo)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state.belief))
        state, info = run.step(run.model, state, run.ys[3], seen, keys()[3], run.us[3])
    assert info.status == 0
    assert np.isfinite(info.elbo)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state.belief))


@pairs("poisson", "particle", "svmc", "vjf_direct")
def test_a_new_trial_begins_with_a_restart(name):
    run, fresh = prepare(name), np.arange(T) == T // 2
    filter, state, beliefs = run.pair.filter, run.pair.filter.init(run.model), []
    with run.effort():
        _, trace = scan_filter(filter, run.model, run.ys, us=run.us, key=KEY, fresh=fresh)
    seen = jnp.ones(N, bool)
    for t, (y, u, key) in enumerate(zip(run.ys, run.us, keys(), strict=True)):
        state = filter.restart(run.model, state) if fresh[t] else state
        with run.effort():
            state, _ = run.step(run.model, state, y, seen, key, u)
        beliefs.append(state.belief)
    want = jax.tree.map(lambda *x: jnp.stack(x), *beliefs)
    assert_close(trace.belief, want, max(run.pair.rounding, 1e-9))


@pairs("poisson", "custom")
def test_two_scans_are_one_long_scan(name):
    run = prepare(name)
    ys, masks = jnp.concatenate([run.ys] * 2), jnp.concatenate([run.masks] * 2)
    middle, before = scanned(name)
    with run.effort():
        last, after = scan_filter(
            run.pair.filter, run.model, run.ys, run.masks, state=middle, key=KEY, first=T
        )
        whole_last, whole = scan_filter(run.pair.filter, run.model, ys, masks, key=KEY)
    assert_same(last, whole_last)
    assert_same(jax.tree.map(lambda a, b: jnp.concatenate([a, b]), before, after), whole)


@pairs()
def test_sessions_side_by_side_are_each_alone(name):
    """The first bins of a session are a session of their own."""
    run, lengths = prepare(name), (3, T, 1)
    filter, model = run.pair.filter, run.model
    ys, masks, us = ([array[:n] for n in lengths] for array in (run.ys, run.masks, run.us))
    found = scan_sessions(filter, model, ys, masks, us, key=KEY)
    for i, (n, (state, trace)) in enumerate(zip(lengths, found, strict=True)):
        key = jax.random.fold_in(KEY, i)
        last, whole = scan_filter(filter, model, run.ys, run.masks, run.us, key=key)
        want = jax.tree.map(lambda leaf, n=n: leaf[:n], whole)
        assert_close(trace.belief, want.belief, 1e-6)
        assert_close(bounds(trace.info), bounds(want.info), 1e-6)
        if n == T:
            assert_close(state, last, 1e-6)
        else:
            assert_close(state.belief, jax.tree.map(lambda leaf: leaf[-1], trace.belief), 0)


@pairs()
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_state_keeps_its_tree_and_types(name, dtype):
    run = prepare(name)
    model = as_float32(run.model) if dtype == jnp.float32 else run.model
    state = jax.eval_shape(run.pair.filter.init, model)
    y, u = run.ys[0].astype(dtype), run.us[0].astype(dtype)
    out, info = jax.eval_shape(run.pair.filter.step, model, state, y, run.masks[0], KEY, u)
    assert jax.tree.structure(out) == jax.tree.structure(state)
    leaves = zip(jax.tree.leaves(out), jax.tree.leaves(state), strict=True)
    assert all(a.dtype == b.dtype and a.shape == b.shape for a, b in leaves)
    floats = [x for x in jax.tree.leaves(out) if jnp.issubdtype(x.dtype, jnp.inexact)]
    assert {x.dtype for x in floats} == {jnp.dtype(dtype)}
    assert {x.shape for x in info} == {()}
    assert {info.elbo.dtype, info.gap.dtype} == {jnp.dtype(dtype)}
    assert jnp.issubdtype(info.status.dtype, jnp.integer)
    assert jnp.issubdtype(info.evaluations.dtype, jnp.integer)


@pairs("poisson", "student_t", "gamma", "beta", "extended", "unscented")
def test_float32_follows_float64(name):
    """Same recording, half the digits: within a twentieth of a standard deviation."""
    run = prepare(name)
    model = as_float32(run.model)
    _, small = scan_filter(run.pair.filter, model, run.ys, run.masks, run.us, key=KEY)
    _, trace = scanned(name)
    family = run.model.family
    for leaf in jax.tree.leaves((small.belief, small.info.elbo)):
        assert np.all(np.isfinite(leaf))
    mean, want = jax.vmap(family.mean)(small.belief), jax.vmap(family.mean)(trace.belief)
    var, wide = jax.vmap(family.var)(small.belief), jax.vmap(family.var)(trace.belief)
    assert mean.dtype == jnp.float32
    assert np.all(np.abs(mean - want) < 0.05 * np.sqrt(wide))
    np.testing.assert_allclose(var, wide, rtol=0.05)


@pairs()
def test_nothing_is_compiled_twice(name):
    """Other observations, masks, keys, inputs, states and parameters: one compilation."""
    run = prepare(name)
    stepped(name)
    other = jax.tree.map(lambda x: x * 1.01, run.model)
    state, _ = stepped(name)[-1]
    run.step(other, state, run.ys[0] + 1, ~run.masks[0], jax.random.key(9), run.us[0] - 1)
    assert run.step._cache_size() == 1


FIXED_CHANNELS = (
    "svmc",
    "svmc_saturating",
    "ovs",
    "vjf",
    "vjf_saturating",
    "vjf_direct_saturating",
)
"""Filters whose states hold the model, and with it the number of channels."""

# The ensemble draws a number for every channel, so that fewer channels mean other numbers.
OTHER_NUMBERS = ("monte_carlo", "moment_matching", "ensemble")


@pairs(*[name for name in PAIRS if name not in (*OTHER_NUMBERS, *FIXED_CHANNELS)])
def test_a_masked_channel_is_a_removed_one(name):
    run = prepare(name)
    kept = np.array([0, 2, 3])
    fewer = run.pair.make(kept)
    state, _ = stepped(name)[1]
    mask = np.isin(EVERY, kept)
    y = np.where(mask, run.ys[3], np.nan)
    got, info = run.step(run.model, state, y, jnp.asarray(mask), KEY, run.us[3])
    want, less = jax.jit(run.pair.filter.step)(
        fewer, state, run.ys[3][kept], jnp.ones(3, bool), KEY, run.us[3]
    )
    assert_close(got.belief, want.belief, 1e-6)
    assert_close(bounds(info), bounds(less), 1e-6)


@pairs()
def test_an_update_without_observations_is_the_prediction(name):
    run = prepare(name)
    filter = run.pair.filter
    if not hasattr(filter, "predict"):
        pytest.skip("a filter without a prediction")
    state, _ = stepped(name)[-1]
    before = jax.tree.map(np.array, state)
    predict_key, _ = jax.random.split(KEY)
    with run.effort():
        prediction = jax.jit(filter.predict)(run.model, state, predict_key, run.us[0])
    assert_same(jax.tree.map(np.array, state), before)
    nothing, none = np.full(N, np.nan), np.zeros(N, bool)
    updates = [run.step(run.model, state, nothing, none, KEY, run.us[0])]
    if name in ("poisson", "gamma"):
        with run.effort():
            updates.append(jax.jit(filter.update)(run.model, prediction, nothing, none, KEY))
    for updated, info in updates:
        if run.pair.rounding:
            assert_close(updated.belief, prediction.belief, run.pair.rounding)
        else:
            assert_same(updated.belief, prediction.belief)
        assert info.elbo == 0
        assert info.status == 0


@pairs("poisson")
def test_compiling_changes_nothing(name):
    run = prepare(name)
    state, _ = stepped(name)[0]
    args = run.model, state, run.ys[1], run.masks[1], keys()[1], run.us[1]
    eager = run.pair.filter.step(*args)
    assert_close(eager[0], stepped(name)[1][0], 1e-7)
    assert_close(bounds(eager[1]), bounds(stepped(name)[1][1]), 1e-7)


@pytest.mark.parametrize("num", [0, 1])
def test_very_short_recordings(num):
    run = prepare("poisson")
    with run.effort():
        state, trace = scan_filter(run.pair.filter, run.model, run.ys[:num], run.masks[:num])
    assert {len(leaf) for leaf in jax.tree.leaves(trace)} == {num}
    want = stepped("poisson")[0][0] if num else run.pair.filter.init(run.model)
    assert_same(state, want)
