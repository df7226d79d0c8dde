"""Settings of JAX for streams on a CPU, made before it computes anything."""

import os

import jax
from jax._src import xla_bridge

from evkf.errors import InputError

OPTION = "xla_backend_extra_options"
SMALL_LOOP = "xla_cpu_small_while_loop_byte_threshold=131072"
"""Makes XLA compile a loop over little memory as one kernel; other versions of XLA ignore it."""

_prepared = False


def low_latency() -> None:
    """Prepare this process for streams on a CPU; call it first, before JAX computes anything.

    Programs are run by the calling thread, because waking another thread costs more than a small
    step, and small loops are compiled as one kernel. Both settings hold for everything that JAX
    runs in this process on a CPU; results are the same but for rounding. A second call does
    nothing.

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
    """Add `SMALL_LOOP` to the flags of XLA, unless they set it already.

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
