"""Trials that go on from where they were are those of one pass; steps are timed in turn."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf.filters import VariationalKalmanFilter as EVKF
from evkf.reproduce.cb import experiment as cb
from evkf.reproduce.chaotic import experiment as chaotic
from evkf.reproduce.runner import TOGETHER, TURN, time_steps
from evkf.reproduce.streams import pick, stack, stream
from evkf.reproduce.vdp import experiment as vdp
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


def test_steps_are_timed_in_turn():
    taken = []

    def slow(bin):
        taken.append(("slow", bin))
        # Every so often a step takes long, as one that learns does.
        time.sleep(0.03 if bin % TOGETHER == 0 else 0)

    def fast(bin):
        taken.append(("fast", bin))

    begin, end = TOGETHER, TOGETHER + 3 * TURN
    long, short = time_steps([slow, fast], range(begin, end))
    assert long.step_ms == pytest.approx(30 / TOGETHER, rel=0.5)
    assert 0 < short.empty_us / 1e3 < long.step_ms
    for name in ("slow", "fast"):
        assert [bin for who, bin in taken if who == name] == list(range(end))
    turns = [who for who, _ in taken[2 * begin :: TURN]]
    assert turns == ["slow", "fast"] * 3


@pytest.mark.parametrize(
    ("module", "what"),
    [
        (chaotic, {"protocol": "public", "method": "evkf", "L": 2}),
        (vdp, {"kind": "gaussian", "method": "evkf"}),
        (vdp, {"kind": "gaussian", "method": "vjf"}),
        (cb, {"kind": "cb", "method": "vjf"}),
    ],
    ids=lambda value: value.get("method") if isinstance(value, dict) else value.__name__[17:],
)
def test_methods_are_ready_for_bin_after_bin(module, what):
    with jax.enable_x64(False):
        call = module.ready(what, 3)
        first, later = (jax.tree.leaves(call(bin)) for bin in (0, 1))
    assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(first, later, strict=True))
    assert jax.config.jax_enable_x64
