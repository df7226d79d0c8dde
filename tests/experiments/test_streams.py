"""Streams: trials that go on from where they were are those of one pass."""

import jax
import jax.numpy as jnp
import numpy as np

from evkf.experiments import vdp
from evkf.experiments.streams import pick, stack, stream
from evkf.filters import VariationalKalmanFilter as EVKF
from tests.quick import quick_compilation  # noqa: F401

BINS, THEN = 9, 5


def test_going_on_from_a_state_is_one_pass():
    problems = [vdp.problem("gaussian", BINS, seed) for seed in range(2)]
    models = stack([true for true, _, _ in problems])
    ys = jnp.stack([jnp.asarray(ys) for _, _, ys in problems])
    keys = stack([jax.random.key(seed) for seed in range(2)])
    whole = stream(EVKF(), models, ys, keys)
    first = stream(EVKF(), models, ys[:, :THEN], keys)
    rest = stream(EVKF(), models, ys[:, THEN:], keys, first.state)
    anew = stream(EVKF(), models, ys[:, THEN:], keys).belief
    late = pick(whole.belief, slice(None), slice(THEN, None))
    for got, want, other in zip(rest.belief, late, anew, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)
        assert not np.allclose(other, want, rtol=1e-3)
    for got, want in zip(rest.state.belief, whole.state.belief, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)
