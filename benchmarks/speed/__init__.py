"""Parts of the benchmark of speed, which `benchmarks/bench.py` runs."""

from collections.abc import Callable

from speed import low_rank, others, precision, products, sessions, sizes, stability, steps
from speed.core import Part, Say

PARTS: dict[str, Callable[[bool, int, Say], Part]] = {
    "step": steps.run,
    "products": products.run,
    "low-rank": low_rank.run,
    "stability": stability.run,
    "sizes": sizes.run,
    "precision": precision.run,
    "sessions": sessions.run,
    "others": others.run,
}
"""Functions of quick, seed and a function that prints, in the order in which parts run."""
