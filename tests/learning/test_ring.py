"""The ring holds the last bins, and windows are stretches of them in order."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf.dynamics import Linear
from evkf.families import GaussianBelief
from evkf.learning.ring import Bins, Ring, draw_windows, forget, make_ring, push, refresh
from evkf.likelihoods import Gaussian
from evkf.model import Model
from tests.quick import quick_compilation  # noqa: F401

SIZE, LENGTH, NUM = 12, 3, 4
draw = jax.jit(draw_windows, static_argnums=(2, 3))


def bin_of(index):
    """A bin that carries its index wherever it can."""
    number = jnp.asarray(index, float)
    belief = GaussianBelief(number[None], number[None, None])
    return Bins(number[None], number[None] > 3, number[None], index % 5 == 0, belief)


@partial(jax.jit, static_argnums=1)
def add(ring: Ring, num: int) -> Ring:
    """Push bins numbered from the ring's count on."""
    body = lambda ring, _: (push(ring, bin_of(ring.count)), None)  # noqa: E731
    return jax.lax.scan(body, ring, None, num)[0]


@pytest.fixture(scope="module")
def model():
    return Model(Linear([[0.9]], 0.1, input_weight=[[1.0]]), Gaussian([[1.0]]))


def indices(drawn):
    """Numbers of the bins in each window; every field must agree, and where no trial begins so must
    what was believed before.
    """
    before = np.asarray(drawn.start.mean[..., 0])
    bins = drawn.bins
    inside = np.asarray(bins.y[..., 0])
    np.testing.assert_array_equal(bins.belief.cov[..., 0, 0], inside)
    np.testing.assert_array_equal(bins.u[..., 0], inside)
    np.testing.assert_array_equal(bins.mask[..., 0], inside > 3)
    np.testing.assert_array_equal(bins.fresh, inside % 5 == 0)
    begins = np.asarray(bins.fresh)[:, 0]
    np.testing.assert_array_equal(before[~begins], inside[~begins, 0] - 1)
    return inside.astype(int)


@pytest.mark.parametrize("num", [5, SIZE, 29])
def test_holds_the_last_bins(model, num):
    ring = add(make_ring(model, SIZE), num)
    held = np.arange(max(num - SIZE, 0), num)
    np.testing.assert_array_equal(ring.bins.y[held % SIZE, 0], held)
    np.testing.assert_array_equal(ring.bins.belief.mean[held % SIZE, 0], held)
    assert (int(ring.count), int(ring.oldest)) == (num, held[0])


@pytest.mark.parametrize("num_windows", [1, 3, NUM])
@pytest.mark.parametrize(("num", "keep"), [(LENGTH + 1, 99), (9, 99), (29, 99), (29, 6)])
def test_windows_are_consecutive_bins_of_the_ring(model, num, keep, num_windows):
    ring = forget(add(make_ring(model, SIZE), num), keep)
    held = np.arange(max(num - min(SIZE, keep), 0), num)
    for step in (0, 1, 7, 12345):
        drawn, enough = draw(ring, jnp.asarray(step), num_windows, LENGTH)
        assert bool(enough)
        numbers = indices(drawn)
        assert numbers.shape == (num_windows, LENGTH)
        np.testing.assert_array_equal(np.diff(numbers, axis=1), 1)
        assert numbers.min() >= held[0] + (held[0] % 5 != 0)
        assert numbers.max() <= held[-1]
        np.testing.assert_array_equal(ring.bins.y[drawn.slots, 0], numbers)


@pytest.mark.parametrize("num_windows", [1, NUM])
def test_windows_cover_the_ring_evenly(model, num_windows):
    ring = add(make_ring(model, SIZE), 29)
    steps = jnp.arange(400 // num_windows)
    drawn, _ = jax.vmap(lambda step: draw_windows(ring, step, num_windows, LENGTH))(steps)
    starts = np.asarray(drawn.start.mean).ravel().astype(int) - (29 - SIZE)
    visits = np.bincount(starts, minlength=SIZE - LENGTH)
    assert len(visits) == SIZE - LENGTH
    even = 400 / (SIZE - LENGTH)
    assert np.all(np.abs(visits - even) < 0.1 * even)
    # Within a step, windows are spread out too.
    spread = np.sort(starts.reshape(-1, num_windows), axis=1)
    assert num_windows == 1 or np.min(np.diff(spread)) >= 1


@pytest.mark.parametrize("num", [9, 27])
def test_the_oldest_bin_is_replayed_if_a_trial_begins_there(model, num):
    ring = add(make_ring(model, SIZE), num)
    steps = jnp.arange(100)
    drawn, _ = jax.vmap(lambda step: draw_windows(ring, step, 1, LENGTH))(steps)
    assert int(drawn.bins.y.min()) == int(ring.oldest)
    assert int(drawn.bins.y.max()) == num - 1


def test_enough_bins_for_a_window(model):
    ring = forget(add(make_ring(model, SIZE), 1), 0)
    said = []
    for _ in range(LENGTH + 2):
        said.append(bool(draw(ring, jnp.asarray(0), NUM, LENGTH)[1]))
        ring = add(ring, 1)
    assert said == [False] * (LENGTH + 1) + [True]
    assert not draw(forget(ring, LENGTH), jnp.asarray(0), NUM, LENGTH)[1]
    assert draw(forget(ring, LENGTH + 1), jnp.asarray(0), NUM, LENGTH)[1]


def test_forgetting_keeps_the_last_and_never_brings_back(model):
    ring = add(make_ring(model, SIZE), 29)
    assert int(forget(ring, 4).oldest) == 25
    assert int(forget(forget(ring, 4), 8).oldest) == 25
    assert int(forget(ring, 100).oldest) == 29 - SIZE
    assert int(add(forget(ring, 4), 2).oldest) == 25


def test_refresh_writes_where_the_bins_are(model):
    ring = add(make_ring(model, SIZE), 29)
    drawn, _ = draw(ring, jnp.asarray(3), 2, LENGTH)
    beliefs = jax.tree.map(lambda leaf: leaf + 100, drawn.bins.belief)
    renewed = refresh(ring, drawn, beliefs)
    touched = set(np.asarray(drawn.bins.y).ravel().astype(int))
    for number in range(29 - SIZE, 29):
        slot = number % SIZE
        wanted = number + 100 * (number in touched)
        assert renewed.bins.belief.mean[slot, 0] == wanted
        assert renewed.bins.belief.cov[slot, 0, 0] == wanted
    same = renewed._replace(bins=renewed.bins._replace(belief=ring.bins.belief))
    jax.tree.map(np.testing.assert_array_equal, same, ring)
