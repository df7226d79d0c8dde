"""Growth of the time of a step with latents and with channels."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from speed.core import Figure, Part, Say, time_in_turn
from speed.low_rank import RANK, stream

LATENTS, CHANNELS = (64, 128, 256, 512, 1024), (1000, 2000, 4000, 8000, 16_000)
AT_CHANNELS, AT_LATENTS = 2000, 256
"""Sizes that stay fixed while the other grows."""
MOST_FULL = 512
"""Latents up to which full covariances are timed too."""
QUICK_LATENTS, QUICK_CHANNELS = (64, 128, 256), (1000, 2000)
MOST_SLOPE = 1.1
CALLS, QUICK_CALLS, WARM_UP = 100, 3, 2


def run(quick: bool, seed: int, say: Say) -> Part:
    """Low rank and full covariance at every size; slopes of low rank, without targets if quick."""
    latents, channels = (QUICK_LATENTS, QUICK_CHANNELS) if quick else (LATENTS, CHANNELS)
    cells = [("L", L, AT_CHANNELS) for L in latents] + [("N", AT_LATENTS, N) for N in channels]
    rows: list[dict[str, Any]] = []
    for against, L, N in cells:
        for kind, rank in (("low rank", RANK), ("full covariance", None)):
            if rank is None and L > MOST_FULL:
                continue
            with jax.enable_x64(False):
                step = stream(L, N, seed, rank)
                times = time_in_turn([step], QUICK_CALLS if quick else CALLS, WARM_UP)
            ms = 1e3 * float(np.median(times))
            rows.append({"against": against, "kind": kind, "L": L, "N": N, "ms": ms})
            say(f"L = {L}, N = {N}, {kind}: {ms:.2f} ms")
    figures = []
    at = {
        "L": f"latents, rank {RANK}, N = {AT_CHANNELS}",
        "N": f"units, rank {RANK}, L = {AT_LATENTS}",
    }
    for against, what in at.items():
        sizes, times = series(rows, against, "low rank")
        name = f"slope of the log cost of a step on log {what}"
        target = None if quick else MOST_SLOPE
        figures.append(Figure(name, slope(sizes, times), "", target, False, "sizes"))
    return Part(rows, figures)


def series(rows: Sequence[dict[str, Any]], against: str, kind: str) -> tuple[list, list]:
    """Sizes and times of one curve."""
    some = [row for row in rows if (row["against"], row["kind"]) == (against, kind)]
    return [row[against] for row in some], [row["ms"] for row in some]


def slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The power of size that times grow with, by least squares of their logarithms.

    Example:
        >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
        2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
