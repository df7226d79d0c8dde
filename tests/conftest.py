"""Tests run in float64; the float32 set passes float32 arrays."""

import gc
import os
import tempfile
from collections.abc import Iterator

import jax
import pytest

jax.config.update("jax_enable_x64", True)


CACHE = "JAX_COMPILATION_CACHE_DIR"


def pytest_configure(config: pytest.Config) -> None:
    """What one test compiled for a second or longer, another takes from a folder that all processes
    of this run share, those that tests start too.
    """
    if CACHE not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="evkf-compiled-")
        config.add_cleanup(folder.cleanup)
        os.environ[CACHE] = folder.name
    jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])


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
