"""Less effort in compiling, for tests that compile much and compute little.

XLA spends most of a compilation in its fusion emitters and in LLVM's optimisation. What is compiled
without them is the same program, rounded differently here and there.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from jax._src import compiler

PLAIN = {"xla_cpu_use_fusion_emitters": False}
"""Compiles in half the time, and computes as fast."""
QUICK = PLAIN | {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    # Parts of a program compiled side by side take longer in all, and tests fill the cores already.
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Compiles in a quarter of the time; long computations are slower."""


@contextmanager
def compiling(**options: bool | int) -> Iterator[None]:
    """Compile with these options of XLA, wherever it is asked to; the innermost counts."""
    outer = compiler.get_compile_options

    def inner(*args, env_options_overrides=None, **rest):
        return outer(*args, env_options_overrides=options | (env_options_overrides or {}), **rest)

    compiler.get_compile_options = inner
    try:
        yield
    finally:
        compiler.get_compile_options = outer


def fusing():
    """Within a quick module, fuse as users' programs do: for what must be equal bit for bit."""
    return compiling(xla_cpu_use_fusion_emitters=True)


def in_full():
    """Within a quick module, compile as users' programs are."""
    full = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    return compiling(xla_cpu_use_fusion_emitters=True, **full)


def quick_environment() -> dict[str, str]:
    """The same for a process of its own."""
    flags = [f"--{name}={value}".lower() for name, value in QUICK.items()]
    return os.environ | {"XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *flags])}


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    """Import this into a test module to use it there."""
    with compiling(**QUICK):
        yield


@pytest.fixture(autouse=True, scope="module")
def plain_compilation() -> Iterator[None]:
    """The same for modules that compute much."""
    with compiling(**PLAIN):
        yield
