"""What a compiled step costs, in counts that are the same on every machine with this XLA.

`python -m tests.test_step_cost` prints the counts as they are now; when they have fallen, write
them into `SEEN`.
"""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from speed import low_rank, steps
from speed.core import count_compiles

from evkf.filters import CompiledStep, VariationalKalmanFilter
from evkf.model import Model

HEADROOM = 1.15
"""What another version of XLA may make of the same program."""


class Counts(NamedTuple):
    """Of one compiled step; a loop counts as one trip through it.

    Attributes:
        flops: Floating-point operations.
        bytes: Read and written, were there no cache.
        outside: Kernels started outside of loops: what a small step costs.
        inside: Kernels started by one trip through every loop.
    """

    flops: float
    bytes: float
    outside: int
    inside: int


SEEN = {
    # a stream of few latents: only the number of kernels matters
    "L = 2, N = 100": Counts(flops=23319, bytes=62071, outside=90, inside=49),
    # kernels still cost more than arithmetic
    "L = 10, N = 200": Counts(flops=199929, bytes=488298, outside=114, inside=57),
    # low rank: bytes are what counts, for C is gone through again and again
    "rank 16, L = 64, N = 500": Counts(19007100, 7257321, outside=334, inside=214),
}
MODELS: dict[str, Callable[[], Model]] = {
    "L = 2, N = 100": lambda: steps.build(steps.Cell(2, 100, "poisson"), 0),
    "L = 10, N = 200": lambda: steps.build(steps.Cell(10, 200, "poisson"), 0),
    "rank 16, L = 64, N = 500": lambda: low_rank.build(64, 500, 0),
}

FREE = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element"}
"""What XLA does not start a kernel for."""
TO_HOST = {"infeed", "outfeed", "send", "recv"}


@cache
def compiled(name: str) -> CompiledStep:
    with jax.enable_x64(False):
        return CompiledStep(VariationalKalmanFilter(), MODELS[name]())


def program(name: str) -> str:
    """What XLA made of the step."""
    return compiled(name)._call.as_text() or ""


class Computation(NamedTuple):
    """Part of a compiled program."""

    opcodes: Counter
    bodies: list[str]
    """Of its loops."""
    called: list[str]
    """What else it runs: conditions of loops, branches, calls."""


def read(text: str) -> tuple[str, dict[str, Computation]]:
    """The name of the entry, and all computations by name."""
    found: dict[str, Computation] = {}
    entry, here = "", Computation(Counter(), [], [])
    for line in text.splitlines():
        start = re.match(r"(ENTRY )?%(\S+) \(.*\{$", line)
        if start:
            here = found[start[2]] = Computation(Counter(), [], [])
            entry = start[2] if start[1] else entry
        instruction = re.match(r"\s+(?:ROOT )?%\S+ = .*?\b([a-z][a-z0-9-]*)\(", line)
        if not instruction:
            continue
        here.opcodes[instruction[1]] += 1
        if instruction[1] in ("while", "call", "conditional"):
            here.bodies.extend(re.findall(r"\bbody=%([^\s,]+)", line))
            named = r"\b(?:to_apply|true_computation|false_computation)=%([^\s,]+)"
            here.called.extend(re.findall(named, line))
            for branches in re.findall(r"branch_computations=\{([^}]*)\}", line):
                here.called.extend(re.findall(r"%([^\s,]+)", branches))
    return entry, found


def kernels(text: str) -> tuple[int, int]:
    """Started outside of loops, and by one trip through every loop."""
    entry, found = read(text)

    def count(name: str, loop: bool) -> np.ndarray:
        opcodes, bodies, called = found[name]
        own = sum(num for opcode, num in opcodes.items() if opcode not in FREE)
        total = np.array([0, own] if loop else [own, 0])
        total += sum((count(body, True) for body in bodies), np.zeros(2, int))
        return total + sum((count(other, loop) for other in called), np.zeros(2, int))

    outside, inside = count(entry, False)
    return int(outside), int(inside)


def counts(name: str) -> Counts:
    analysis = compiled(name)._call.cost_analysis()
    assert isinstance(analysis, dict)
    return Counts(analysis["flops"], analysis["bytes accessed"], *kernels(program(name)))


@pytest.mark.parametrize("name", SEEN)
def test_a_step_does_not_grow(name: str):
    for what, found, seen in zip(Counts._fields, counts(name), SEEN[name], strict=True):
        assert found <= HEADROOM * seen, f"{what}: {found}, was {seen}"


@pytest.mark.parametrize("name", SEEN)
def test_a_step_stays_on_the_device(name: str):
    text = program(name)
    _, found = read(text)
    opcodes = {opcode for part in found.values() for opcode in part.opcodes}
    assert not opcodes & TO_HOST
    targets = re.findall(r'custom_call_target="([^"]*)"', text)
    assert not [target for target in targets if "callback" in target]


@pytest.mark.parametrize("name", SEEN)
def test_a_bin_is_one_call_of_one_program(name: str, monkeypatch: pytest.MonkeyPatch):
    """With nothing compiled before, whatever else ran would have to be compiled first."""
    step, calls = compiled(name), []
    call = step._call
    monkeypatch.setattr(step, "_call", lambda *args: calls.append(1) or call(*args))
    num = MODELS[name]().likelihood.num_channels
    with jax.enable_x64(False):
        y, seen, carry = jnp.ones(num), jnp.ones(num, bool), step.init()
        jax.clear_caches()
        with count_compiles() as compiles:
            for _ in range(3):
                carry = step(carry, y, seen)
                np.asarray(carry)
    assert (len(calls), len(compiles)) == (3, 0)


def test_reading_the_first_bin_compiles_nothing():
    """What a stream asks for after its first bin was compiled with the step."""
    jax.clear_caches()
    name = next(iter(SEEN))
    step = compiled.__wrapped__(name)
    num = MODELS[name]().likelihood.num_channels
    y, seen = np.ones(num, np.float32), np.ones(num, bool)
    with jax.enable_x64(False), count_compiles() as compiles:
        carry = step(step.init(), y, seen)
        np.asarray(step.state(carry).belief.mean)
        int(step.info(carry).status)
    assert not compiles


def test_kernels_are_counted_by_where_they_run():
    """The loop itself and what follows it, outside; what it repeats, inside."""

    def run(x: jax.Array) -> jax.Array:
        return jnp.sin(jax.lax.fori_loop(0, jnp.int32(x[0]), lambda i, x: jnp.cos(x) @ x * x, x))

    lowered = jax.jit(run).lower(jnp.ones(5))
    outside, inside = kernels(lowered.compile().as_text() or "")
    assert 2 <= outside <= 8
    assert 2 <= inside <= 8


if __name__ == "__main__":
    for each in SEEN:
        print(f'    "{each}": {counts(each)},')
