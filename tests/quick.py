"""Faster compilation, for tests that compile much and compute little.

XLA spends most of a compilation in its fusion emitters and in LLVM's optimisation. Without them it
makes the same program, but for rounding.
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
    """Compile with these options of XLA; the innermost context applies."""
    outer = compiler.get_compile_options

    def inner(*args, env_options_overrides=None, **rest):
        return outer(*args, env_options_overrides=options | (env_options_overrides or {}), **rest)

    compiler.get_compile_options = inner
    try:
        yield
    finally:
        compiler.get_compile_options = outer


def fusing():
    """Fuse within a quick module as for users, for results that must be equal bit for bit."""
    return compiling(xla_cpu_use_fusion_emitters=True)


def in_full():
    """Compile within a quick module as for users."""
    full = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    return compiling(xla_cpu_use_fusion_emitters=True, **full)


def quick_environment() -> dict[str, str]:
    """Return the environment of a process that compiles as a quick module does."""
    flags = [f"--{name}={value}".lower() for name, value in QUICK.items()]
    return os.environ | {"XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *flags])}


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    """Compile a test module with `QUICK`, if imported there."""
    with compiling(**QUICK):
        yield


@pytest.fixture(autouse=True, scope="module")
def plain_compilation() -> Iterator[None]:
    """Compile a test module that computes much with `PLAIN`, if imported there."""
    with compiling(**PLAIN):
        yield
