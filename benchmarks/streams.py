"""A recording fed to a filter one bin at a time, as a rig would, with the time of every step."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from evkf.filters import CompiledStep, Filter
from evkf.model import Model
from evkf.types import Belief, Status

WARM_UP = 20


class Stream(NamedTuple):
    """What came of a recording."""

    state: Any
    """After the last bin."""
    belief: Belief
    """One row a bin."""
    smoothed: Belief | None
    """Of the bin before, for methods that look back one bin."""
    fell_back: int
    step_ms: float
    """Median time of a step."""
    empty_us: float
    """Median time of an empty compiled call, made between the steps."""


class Streamed:
    """A filter compiled for models of one shape.

    Args:
        filter: The filter.
        model: Any model of that shape.
    """

    def __init__(self, filter: Filter, model: Model):
        self.step = CompiledStep(filter, model, keyed=True)
        self.empty = jax.jit(lambda x: x + 1)

    def __call__(self, model: Model, ys: np.ndarray, seed: int, state: Any = None) -> Stream:
        """Go through a recording, from a state of the same filter if one is given."""
        step = self.step
        step.load(model)
        carry = step.init()
        if state is not None:
            flat, start = ravel_pytree(state)[0], ravel_pytree(step.state(carry))[0]
            assert len(flat) == len(start), "the state of another filter, or of another model"
            carry = carry.at[: len(flat)].set(flat)
        keys = list(jax.random.split(jax.random.key(seed), len(ys)))
        ys, seen, one = np.asarray(ys), np.ones(ys.shape[1], bool), np.ones(())
        rows = [y.astype(carry.dtype) for y in ys]
        said, steps, empties = [], [], []

        @jax.jit
        def read(carry):
            state = step.state(carry)
            return state.belief, getattr(state, "smoothed", None), step.info(carry).status

        for y, key in zip(rows, keys, strict=True):
            begin = time.perf_counter_ns()
            carry = jax.block_until_ready(step(carry, y, seen, None, key))
            middle = time.perf_counter_ns()
            jax.block_until_ready(self.empty(one))
            empties.append(time.perf_counter_ns() - middle)
            steps.append(middle - begin)
            said.append(read(carry))
        belief, smoothed, status = jax.tree.map(lambda *x: np.stack(x), *said)
        return Stream(
            step.state(carry),
            belief,
            smoothed,
            int(np.sum(status & Status.FELL_BACK > 0)),
            float(np.median(steps[WARM_UP:])) / 1e6,
            float(np.median(empties[WARM_UP:])) / 1e3,
        )
