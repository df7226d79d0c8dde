"""What this machine can hold: how late it wakes, what calls cost, what it permits."""

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from evkf.live.engine import Costs, Engine

MOST = 0.7
"""Share of a bin that filtering may take."""

PRIORITY = 10
"""Among real-time processes; others of the system that must come first have more."""

LOWEST = 1
"""Likewise, for learning: what sends and receives comes before it, but not ordinary processes:
they would prolong it by milliseconds while the next bin waits."""

SWITCH_S = 0.0002
"""Seconds after which a thread of Python gives way to another that waits: by itself, 5 ms."""


class Hiccups(NamedTuple):
    """How late a sleeping process wakes, in seconds."""

    median: float
    p99: float
    p999: float
    worst: float


def measure_hiccups(period: float, seconds: float = 3.0) -> Hiccups:
    """Sleep to a rhythm and see how late each beat is.

    Example:
        >>> found = measure_hiccups(0.001, seconds=0.05)
        >>> 0 <= found.median <= found.p99 <= found.p999 <= found.worst
        True
    """
    late, begin = [], time.perf_counter()
    for beat in range(1, max(int(seconds / period), 10) + 1):
        due = begin + beat * period
        left = due - time.perf_counter()
        if left > 0:
            time.sleep(left)
        late.append(max(time.perf_counter() - due, 0.0))
    return Hiccups(*(float(np.quantile(late, share)) for share in (0.5, 0.99, 0.999, 1.0)))


def rehearse(engine: Engine, wanted: bool = True, num: int = 200) -> Costs:
    """What calls of an engine cost at the priority that a session has for learning.

    Args:
        engine: Whose state is afterwards as before.
        wanted: Whether real-time priority is.
        num: Bins to try it on.
    """
    with real_time(wanted), aside(LOWEST):
        return engine.rehearse(num)


class Load(NamedTuple):
    """What a bin asks of the machine, as shares of it."""

    filtering: float
    learning: float

    @property
    def holds(self) -> bool:
        """Whether the rate can be held; learning does not count, it is skipped under load."""
        return self.filtering <= MOST


def reckon(costs: Costs, period: float) -> Load:
    """The load of a session; at no given pace there is none.

    Example:
        >>> costs = Costs(0.0002, 0.0004, 0.001, 0.002, compile=3.0)
        >>> reckon(costs, 0.01).holds, reckon(costs, 0.0005).holds
        (True, False)
    """
    if not period:
        return Load(0.0, 0.0)
    return Load(costs.observe_p99 / period, costs.learn / period)


def become_real_time(priority: int = PRIORITY, thread: int = 0) -> str | None:
    """Give this thread, and those it starts, real-time priority; why not, if that is refused.

    Args:
        priority: Among real-time threads.
        thread: Another to give it to, by the system's number of it.
    """
    if not hasattr(os, "sched_setscheduler"):
        return "this system has none"
    try:
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        return f"{error.strerror or error}; on Linux, CAP_SYS_NICE or an rtprio limit permits it"
    return None


@contextlib.contextmanager
def real_time(wanted: bool = True) -> Iterator[str | None]:
    """Run a block at real-time priority, and threads that are started in it for good.

    Other threads of this process have the lowest meanwhile: one that holds Python's lock, or has a
    share in a computation, and is kept waiting by ordinary processes keeps this one waiting.

    Yields:
        Why not, if that is refused.
    """
    if not wanted or not hasattr(os, "sched_getscheduler"):
        yield become_real_time() if wanted else None
        return
    before, refused = (os.sched_getscheduler(0), os.sched_getparam(0)), become_real_time()
    lifted = [] if refused else _lift_others()
    try:
        yield refused
    finally:
        if refused is None:
            os.sched_setscheduler(0, *before)
        for thread in lifted:
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _lift_others() -> list[int]:
    """Give ordinary threads of this process the lowest real-time priority."""
    lifted = []
    for thread in _threads() - {threading.get_native_id()}:
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                become_real_time(LOWEST, thread)
                lifted.append(thread)
    return lifted


def _threads() -> set[int]:
    """Those of this process, by the system's numbers: Python's alone where it does not tell."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return {each.native_id for each in threading.enumerate() if each.native_id is not None}


@contextlib.contextmanager
def aside(priority: int = 0) -> Iterator[None]:
    """Run a block at a lower priority: 0 is that of ordinary processes, which others inherit.

    Args:
        priority: Among real-time threads; 0 is none of them.
    """
    if not hasattr(os, "sched_getscheduler") or os.sched_getscheduler(0) != os.SCHED_FIFO:
        yield
        return
    before = os.sched_getparam(0)
    policy = os.SCHED_FIFO if priority else os.SCHED_OTHER
    os.sched_setscheduler(0, policy, os.sched_param(priority))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_FIFO, before)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run a block in which garbage is collected only when told, and threads give way soon."""
    collects, switches = gc.isenabled(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(switches)
        if collects:
            gc.enable()
        gc.unfreeze()
