"""Shared by all parts: figures with targets, calls timed in turn, compilations counted."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from evkf.filters import CompiledStep, VariationalKalmanFilter
from evkf.filters.base import Info
from evkf.model import Model

Say = Callable[[str], object]
"""Prints a line."""

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class Figure(NamedTuple):
    """One number, and what it should be.

    Attributes:
        name: What was measured, as a sentence without its full stop.
        value: The number.
        unit: Of it; empty for a count.
        target: What it should be; None for a number without a target.
        least: Whether the target is the least it should be; otherwise the most.
        part: The part of the benchmark that measured it.
        error: Standard error of the value, where it is a mean.

    Example:
        >>> figure = Figure("a step at L = 2", 2.5, "empty calls", 3, least=False, part="step")
        >>> figure.met, figure.wanted
        (True, '≤ 3')
    """

    name: str
    value: float
    unit: str
    target: float | None
    least: bool
    part: str
    error: float | None = None

    @property
    def met(self) -> bool:
        """True if there is no target or it is reached; a value that is not a number is short."""
        if self.target is None:
            return True
        return self.value >= self.target if self.least else self.value <= self.target

    @property
    def wanted(self) -> str:
        """The target in words."""
        if self.target is None:
            return "—"
        return f"{'≥' if self.least else '≤'} {number(self.target)}"

    @property
    def found(self) -> str:
        """The value in words."""
        error = "" if self.error is None else f" ± {number(self.error)}"
        return f"{number(self.value)}{error} {self.unit}".strip()

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        """A figure from its row; what JSON has no number for is not a number."""
        found = cls(*(row[name] for name in cls._fields))
        return found if row["value"] is not None else found._replace(value=math.nan)

    def row(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "met": None if self.target is None else self.met}


class Part(NamedTuple):
    """Results of a part of the benchmark: rows for JSON, and its figures."""

    rows: list[dict[str, Any]]
    figures: list[Figure]


def number(value: float) -> str:
    """Three digits, and no more zeros than needed.

    Example:
        >>> number(2.5), number(0.00012345), number(21234567.0), number(1500.0), number(10000)
        ('2.5', '0.000123', '2.12e+07', '1500', '10000')
    """
    if np.isfinite(value) and 1000 <= abs(value) < 1e5:
        return f"{value:.0f}"
    return f"{value:.3g}"


class Stream:
    """A compiled step fed with the bins of a recording in turn, on the device beforehand.

    Args:
        model: The model.
        ys: Observations, (bins, channels); taken from the start again when they are over.
    """

    def __init__(self, model: Model, ys: jax.Array):
        start = time.perf_counter()
        self._step = CompiledStep(VariationalKalmanFilter(), model)
        self.compile_s = time.perf_counter() - start
        self._ys = cycle([jnp.asarray(y) for y in np.asarray(ys)])
        self._seen = jnp.ones(ys.shape[1], bool)
        self._carry = self._step.init()
        self._read = np.asarray(self._carry)

    def __call__(self) -> None:
        """Take in one bin and read the result back; nothing else, because this is timed."""
        self._carry = self._step(self._carry, next(self._ys), self._seen)
        self._read = np.asarray(self._carry)

    @property
    def info(self) -> Info:
        """Info of the last step, as plain numbers."""
        return Info(*self._read[-len(Info._fields) :])


def time_in_turn(calls: Sequence[Callable[[], Any]], num: int, warm_up: int) -> np.ndarray:
    """Seconds of every call, (num, calls): one after another, so that all see the same machine."""
    times = np.zeros((num, len(calls)))
    for i in range(-warm_up, num):
        for j, call in enumerate(calls):
            start = time.perf_counter()
            call()
            took = time.perf_counter() - start
            if i >= 0:
                times[i, j] = took
    return times


def empty_call() -> Callable[[], np.ndarray]:
    """A compiled `x + 1` on a scalar, its result read back: the floor of any call."""
    one = jnp.ones(())
    add = jax.jit(lambda x: x + 1).lower(one).compile()
    return lambda: np.asarray(add(one))


@contextmanager
def count_compiles() -> Iterator[list[float]]:
    """Collect the durations of all compilations inside the block."""
    durations: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILE_EVENT:
            durations.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield durations
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
