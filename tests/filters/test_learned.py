"""What all filters that learn inside their step must do."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf import likelihoods as lik
from evkf.dynamics import ResidualMLP
from evkf.errors import InputError
from evkf.families import DiagonalGaussian
from evkf.filters import VJF, DirectVJF, OnlineVariationalSmoother, StreamingVMC, scan_filter
from evkf.filters.learned import MIN_STD, bounded
from evkf.model import Model
from evkf.types import Status
from tests.quick import quick_compilation  # noqa: F401

KEY = jax.random.key(0)
C = np.array([[1.0, 0.5], [-0.3, 0.8], [0.2, 0.2]])
MODEL = Model(
    ResidualMLP(2, 0.1, KEY, hidden=3), lik.Gaussian(C, noise=0.5), family=DiagonalGaussian(2)
)
SEEN, Y = jnp.ones(3, bool), jnp.array([0.3, -0.2, 0.1])
SMALL = {
    VJF: {"hidden": 3, "warm_up": 0},
    DirectVJF: {"iterations": 3, "num_samples": 2},
    StreamingVMC: {"num_particles": 10, "iterations": 2, "num_ancestors": 4, "units": 3},
    OnlineVariationalSmoother: {"iterations": 3, "num_samples": 2, "units": 3, "num_support": 6},
}


class Begun(NamedTuple):
    """A filter one bin into a recording, its step compiled."""

    kind: type
    step: object
    state: object


@pytest.fixture(scope="module", params=SMALL, ids=lambda kind: kind.__name__)
def begun(request):
    filter = request.param(**SMALL[request.param])
    step = jax.jit(filter.step)
    state, info = step(MODEL, filter.init(MODEL), Y, SEEN, KEY)
    assert info.status == Status.OK
    return Begun(request.param, step, state)


def box(state):
    return np.stack([state.model.dynamics.low, state.model.dynamics.high])


def test_only_what_was_observed_counts_as_visited(begun):
    """Not the wide beliefs of gaps, nor what a failed update fell back to."""
    _, step, state = begun
    assert np.all(np.isfinite(box(state)))
    for y, mask in ((Y, ~SEEN), (jnp.full(3, 1e200), SEEN)):
        after = state
        for t in range(3):
            after, _ = step(MODEL, after, y, mask, jax.random.fold_in(KEY, t))
        np.testing.assert_array_equal(box(after), box(state))


def test_noise_that_is_learned_stays_above_the_floor(begun):
    _, step, state = begun
    low = jnp.full(2, -20.0)
    state = eqx.tree_at(lambda s: s.model.dynamics.noise.log_std, state, low)
    state, info = step(MODEL, state, jnp.zeros(3), SEEN, KEY)
    assert info.status == Status.OK
    assert np.all(state.model.dynamics.noise.log_std >= np.log(MIN_STD))


def test_noise_that_is_not_learned_may_be_less():
    quiet = eqx.tree_at(lambda m: m.dynamics.noise.log_std, MODEL, jnp.full(2, -20.0))
    assert np.all(bounded(quiet, ("dynamics",)).dynamics.noise.log_std == -20)
    assert np.all(bounded(quiet, ("noise",)).dynamics.noise.log_std == np.log(MIN_STD))


def test_what_was_learned_can_be_frozen(begun):
    """The state of a filter that learns is that of one that does not, and back."""
    kind, step, state = begun
    frozen = kind(**SMALL[kind], learn=False)
    after, trace = scan_filter(frozen, state.model, Y[None], state=state, key=KEY)
    assert np.all(np.isfinite(jax.tree.leaves(trace.belief)[0]))
    jax.tree.map(np.testing.assert_array_equal, after.model, state.model)
    again, info = step(MODEL, after, Y, SEEN, KEY)
    assert info.status == Status.OK
    bent, before = (x.model.dynamics.network.weights[0] for x in (again, state))
    assert np.any(bent != before)


@pytest.mark.parametrize("kind", SMALL)
def test_parts_without_numbers_are_refused(kind):
    model = Model(MODEL.dynamics, lik.Poisson(C), family=DiagonalGaussian(2))
    with pytest.raises(InputError, match=r"without numbers in \('observation',\)"):
        kind(parts=("observation",)).init(model)
    kind(parts=("observation",), learn=False).init(model)


@pytest.mark.parametrize("kind", SMALL)
def test_counts_are_whole_numbers(kind):
    for name in SMALL[kind]:
        with pytest.raises(InputError, match=f"{name} = 2.5"):
            kind(**{name: 2.5})
