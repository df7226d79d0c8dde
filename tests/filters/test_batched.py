"""Many sessions: how they are laid out, gone on with, and refused."""

import jax
import numpy as np
import pytest

from evkf.dynamics import Linear
from evkf.errors import InputError
from evkf.filters import Kalman, VariationalKalmanFilter, scan_filter, scan_sessions
from evkf.filters.batched import FEW_LATENTS, MOST_WORK, SHORTEST, filled, group_lengths
from evkf.likelihoods import Gaussian, Poisson
from evkf.model import Model
from tests.quick import quick_compilation  # noqa: F401

N, KEY = 2, jax.random.key(0)
LENGTHS = (70, 0, 300, 9)
"""Of two groups, one of them filled up to four sessions more."""


@pytest.fixture(scope="module", params=[2, FEW_LATENTS + 1], ids="{} latents".format)
def model(request):
    """Of few latents, laid side by side, and of more, filtered one by one."""
    L = request.param
    dynamics = Linear(0.9 * np.eye(L) + 0.1 * np.eye(L, k=1), noise=0.1)
    return Model(dynamics, Gaussian(np.eye(N, L), noise=0.5))


@pytest.fixture(scope="module")
def days():
    rng = np.random.default_rng(0)
    ys = [rng.normal(size=(n, N)) for n in LENGTHS]
    masks = [rng.random(len(y)) < 0.7 for y in ys]
    return ys, masks


def assert_each(found, want):
    for got, one in zip(found, want, strict=True):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(one), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_every_session_is_as_if_alone(model, days):
    ys, masks = days
    found = scan_sessions(Kalman(), model, ys, masks)
    assert_each(found, [scan_filter(Kalman(), model, y, m) for y, m in zip(*days, strict=True)])
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(found))
    halves = [y[: len(y) // 2] for y in ys], [y[len(y) // 2 :] for y in ys]
    seen = [m[: len(m) // 2] for m in masks], [m[len(m) // 2 :] for m in masks]
    states = [state for state, _ in scan_sessions(Kalman(), model, halves[0], seen[0])]
    again = scan_sessions(Kalman(), model, halves[1], seen[1], states=states)
    assert_each([state for state, _ in again], [state for state, _ in found])


def test_going_on_keeps_the_randomness(model):
    filter = VariationalKalmanFilter("monte_carlo", num_samples=8)
    ys = np.random.default_rng(1).normal(size=(3, 8, N))
    whole = scan_sessions(filter, model, ys, key=KEY)
    states = [state for state, _ in scan_sessions(filter, model, ys[:, :5], key=KEY)]
    ends = scan_sessions(filter, model, ys[:, 5:], states=states, key=KEY, firsts=[5] * 3)
    assert_each([state for state, _ in ends], [state for state, _ in whole])


def test_threads_compute_in_the_precision_of_the_caller():
    L = FEW_LATENTS + 1
    ys = [np.ones((5, N), np.float32)] * 2
    for x64, dtype in ((False, "float32"), (True, "float64")):
        with jax.enable_x64(x64):
            dynamics = Linear(0.9 * np.eye(L), noise=0.1)
            model = Model(dynamics, Gaussian(np.eye(N, L), noise=0.5))
            found = scan_sessions(Kalman(), model, ys)
        assert {str(trace.belief.mean.dtype) for _, trace in found} == {dtype}


def test_few_sizes_and_little_filled_up():
    rng = np.random.default_rng(2)
    for spread in (0.1, 1.0, 3.0):
        lengths = np.exp(rng.normal(6, spread, size=200)).astype(int)
        groups = group_lengths(lengths)
        assert sorted(i for group in groups for i in group) == list(range(200))
        least = np.maximum(lengths, SHORTEST)
        work = sum(filled(least[group].max()) * len(group) for group in groups)
        assert work <= MOST_WORK * least.sum()
        assert len(groups) <= 1 + spread * 5
    sizes = np.array([filled(n) for n in range(1, 5000)])
    assert np.all((sizes >= np.arange(1, 5000)) & (sizes <= 1.25 * np.arange(1, 5000)))
    assert len(set(sizes)) < 50


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ys": []}, "no sessions (in ys)"),
        ({"ys": [np.zeros((3, N)), np.zeros((3, N + 1))]}, "(in ys[1])"),
        ({"ys": [np.zeros((3, N)), np.full((3, N), np.nan)]}, "(in ys[1][0, 0])"),
        ({"ys": [np.zeros((3, N)), -np.ones((3, N))]}, "(in ys[1][0, 0])"),
        ({"ys": np.zeros((2, N))}, "pass a list of sessions"),
        ({"masks": [np.ones(3, bool)]}, "1 masks for 2 sessions"),
        ({"masks": [None, np.ones(4, bool)]}, "(in masks[1])"),
        ({"us": [None, np.zeros((3, 1))]}, "(in us[1])"),
        ({"states": [None]}, "1 states for 2 sessions"),
        ({"states": [Kalman(), None]}, "(in states[0])"),
        ({"firsts": [0, 0, 0]}, "3 firsts for 2 sessions"),
        ({"key": 3}, "(in key)"),
        ({"filter": VariationalKalmanFilter}, "(in filter)"),
    ],
)
def test_what_is_refused(change, says):
    model = Model(Linear(np.eye(2), noise=0.1), Poisson(np.eye(N)))
    given = {"filter": VariationalKalmanFilter(), "ys": [np.zeros((3, N))] * 2} | change
    with pytest.raises(InputError) as caught:
        scan_sessions(model=model, **given)
    assert says in str(caught.value)
