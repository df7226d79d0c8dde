"""Settings of JAX that make one small step at a time fast on a CPU."""

import os

import jax
from jax._src import xla_bridge

from evkf.errors import InputError

OPTION = "xla_backend_extra_options"
SMALL_LOOP = "xla_cpu_small_while_loop_byte_threshold=131072"
"""Option by which XLA compiles a loop over little memory as one kernel; some versions of XLA ignore
this option."""

_prepared = False


def low_latency() -> None:
    """Make filtering one bin at a time fast on a CPU; call this before JAX computes anything.

    JAX then runs programs in the calling thread, because waking another thread takes longer than a
    small step. Small loops are compiled as one kernel. Both settings hold for everything that JAX
    runs on a CPU in this process. Results change only by rounding. A second call does nothing.

    Raises:
        InputError: JAX has computed something already.

    Example:
        >>> import evkf
        >>> evkf.low_latency()  # doctest: +SKIP
    """
    global _prepared
    if _prepared:
        return
    if xla_bridge.backends_are_initialized():
        raise InputError(
            "JAX has computed already",
            "low_latency()",
            "call it right after the imports, before anything makes an array or a model",
        )
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    os.environ["XLA_FLAGS"] = with_small_loops(os.environ.get("XLA_FLAGS", ""))
    _prepared = True


def with_small_loops(flags: str) -> str:
    """Return the flags of XLA with `SMALL_LOOP` added, unless that option is set already.

    Example:
        >>> with_small_loops("--a=1 --xla_backend_extra_options=b=2").split()[1]
        '--xla_backend_extra_options=b=2,xla_cpu_small_while_loop_byte_threshold=131072'
    """
    if SMALL_LOOP.partition("=")[0] in flags:
        return flags
    words = flags.split()
    for i, word in enumerate(words):
        if word.lstrip("-").startswith(f"{OPTION}="):
            words[i] = f"{word},{SMALL_LOOP}"
            return " ".join(words)
    return " ".join([*words, f"--{OPTION}={SMALL_LOOP}"])
