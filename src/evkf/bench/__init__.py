"""All figures of speed: what `evkf bench` measures, part by part."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from evkf.bench import low_rank, others, precision, products, sessions, sizes, stability, steps
from evkf.bench.core import Part, Say

Run = Callable[[bool, int, Say], Part]

PARTS: dict[str, Run] = {
    "step": steps.run,
    "products": products.run,
    "low-rank": low_rank.run,
    "stability": stability.run,
    "sizes": sizes.run,
    "precision": precision.run,
    "sessions": sessions.run,
    "others": others.run,
}
"""What is measured, in this order: a function of quick, seed and whom to tell."""


def parts(folder: Path | None = None, cpu: float | None = None) -> dict[str, Run]:
    """The same with their settings.

    Args:
        folder: Where the environment of other packages is or will be.
        cpu: Steps per second over many sessions on a CPU, to compare with.
    """
    found = dict(PARTS)
    if folder is not None:
        found["others"] = partial(others.run, folder=folder)
    if cpu is not None:
        found["sessions"] = partial(sessions.run, cpu=cpu)
    return found
