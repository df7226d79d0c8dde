"""The page under load: frames per second, and memory of its tab over an hour of simulated time.

A session of 1,000 channels and 20 latents at 1 kHz is played by a process of its own, and shown in
Debian's Chromium without a graphics card. Frames are counted as Bokeh paints them. Memory is what
is left after the garbage was collected, while the same session runs many times faster.

    python benchmarks/page_fps.py [--quick] [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from closing import close
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu"]
SESSION = {"latents": 20, "channels": 1000, "bin_width": 0.001, "horizon": 20, "truth": False}

LEAST = 20.0
"""Frames per second."""

GROWTH = 0.05
"""Share by which memory may grow from the middle third of the run to the last."""

HOUR_S, SPEED, SAMPLES = 3600, 12.0, 18
WARM_S, FULL_S, QUICK_S, QUICK_HOUR_S = 4.0, 60.0, 10.0, 300


@contextmanager
def played(**more: Any) -> Iterator[str]:
    """Address of a page; the session is played by another process."""
    command = [sys.executable, "-m", "tests.web.fake_page", json.dumps({**SESSION, **more})]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def frames(page: Page, seconds: float) -> dict[str, float]:
    """How often the page is painted, and what a frame costs the thread that does it."""
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def read() -> tuple[float, float, float]:
        told = {
            each["name"]: each["value"] for each in tools.send("Performance.getMetrics")["metrics"]
        }
        return time.perf_counter(), page.evaluate("evkf.paints[0]"), told["TaskDuration"]

    begin = read()
    page.wait_for_timeout(1000 * seconds)
    wall, painted, busy = (after - before for before, after in zip(begin, read(), strict=True))
    return {"frames_per_second": painted / wall, "ms_per_frame": 1000 * busy / max(painted, 1)}


def memory(page: Page, seconds: float) -> list[dict[str, float]]:
    """Megabytes of the tab's heap and its nodes, again and again."""
    tools = page.context.new_cdp_session(page)
    found = []
    for _ in range(SAMPLES):
        page.wait_for_timeout(1000 * seconds / SAMPLES)
        tools.send("HeapProfiler.collectGarbage")
        heap = tools.send("Runtime.getHeapUsage")
        nodes = tools.send("Memory.getDOMCounters")["nodes"]
        # Arrays of numbers, which messages and bitmaps are made of, are not part of the heap.
        arrays = heap.get("backingStorageSize", 0)
        told = {"megabytes": (heap["usedSize"] + arrays) / 1e6, "nodes": nodes}
        found.append(told | {"time": page.evaluate("evkf.store.now")})
    return found


def growth(samples: list[dict[str, float]], name: str) -> float:
    """Share by which a figure grew from the middle third to the last."""
    third = len(samples) // 3
    middle, last = (
        statistics.median(sample[name] for sample in part)
        for part in (samples[third : 2 * third], samples[2 * third :])
    )
    return last / max(middle, 1e-9) - 1


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    span = QUICK_HOUR_S if asked.quick else HOUR_S
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        with played() as address:
            page.goto(address)
            page.wait_for_timeout(1000 * WARM_S)
            painted = frames(page, QUICK_S if asked.quick else FULL_S)
        page.close()
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        with played(speed=SPEED) as address:
            page.goto(address)
            page.wait_for_timeout(1000 * WARM_S)
            samples = memory(page, span / SPEED)
        browser.close()
    grown = {name: growth(samples, name) for name in ("megabytes", "nodes")}
    load = os.getloadavg()[0]
    result = {"session": SESSION, **painted, "grown": grown, "load": load, "memory": samples}
    missed = []
    if painted["frames_per_second"] < LEAST:
        missed.append(f"{painted['frames_per_second']:.1f} frames per second, not {LEAST:.0f}")
    for name, share in grown.items():
        if share > GROWTH:
            missed.append(f"{name} grew by {share:.1%}")
    shown = samples[-1]
    print(f"{shown['time']:.0f} s were simulated")
    print(f"{shown['megabytes']:.1f} MB of memory, {shown['nodes']} nodes")
    print("grown " + ", ".join(f"{name} {share:+.1%}" for name, share in grown.items()))
    print(f"{painted['ms_per_frame']:.1f} ms of a core per frame, load {load:.1f}")
    print(f"{painted['frames_per_second']:.1f} frames per second")
    return close(result, missed, asked.json)


if __name__ == "__main__":
    sys.exit(main())
