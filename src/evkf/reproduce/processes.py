"""A function in fresh processes of this machine: one that dies is replaced, and harms no other."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker

Function = Callable[[str], str]

MOST_LOST = 3
"""Processes that a text may take down with it."""


def map_in_processes(
    function: Function, texts: dict[str, str]
) -> Generator[tuple[str, str | None]]:
    """What a function makes of texts, as they come, in one process for every core.

    Every process is a pool of its own, so that a text that kills its own harms no other; it is
    tried in `MOST_LOST` of them. All end with this iterator, and with the process that it is in.

    Args:
        function: Of a module, so that others can import it.
        texts: By name.

    Yields:
        A name and the answer; None if all processes died of it.
    """
    own, ended = threading.local(), threading.Event()
    before = set(multiprocessing.active_children())

    def take(text: str) -> str | None:
        for _ in range(MOST_LOST):
            if ended.is_set():
                break
            if not hasattr(own, "pool"):
                context = multiprocessing.get_context("spawn")
                own.pool = ProcessPoolExecutor(1, context, initializer=_begin)
            try:
                with _deaf():
                    answer = own.pool.submit(function, text)
                return answer.result()
            except BrokenProcessPool:
                del own.pool
        return None

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = ThreadPoolExecutor(min(cores or 1, len(texts)))
    futures = {threads.submit(take, text): name for name, text in texts.items()}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        ended.set()
        threads.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in futures):  # one may be starting just now
            for process in set(multiprocessing.active_children()) - before:
                process.kill()
            time.sleep(0.01)


@contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that no Ctrl-C reaches: it is for this one, which ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else starting a process does it, and hears again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Also when it is killed, and in the middle of a text."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
