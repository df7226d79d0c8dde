"""Tests run in float64; the float32 set passes float32 arrays."""

import gc
from collections.abc import Iterator

import jax
import pytest

jax.config.update("jax_enable_x64", True)


def pytest_collection_finish() -> None:
    """Packages stay: the garbage collector need not look at them again and again."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def forget_compiled() -> Iterator[None]:
    """Drop what a module compiled: every program holds mappings of memory, of which a process may
    have only so many (65,530 on Linux), and the whole suite compiles more.
    """
    yield
    jax.clear_caches()
