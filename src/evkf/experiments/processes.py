"""A function in fresh processes of this machine: one that dies is replaced, and harms no other."""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

Function = Callable[[str], str]

MOST_LOST = 3
"""Processes that a text may take down with it."""


def map_in_processes(
    function: Function, texts: dict[str, str]
) -> Iterator[tuple[str, str | None, int | None]]:
    """What a function makes of texts, as they come, in one process for every core.

    Each process has a pipe of its own, which ends with it, even in the middle of an answer: none is
    waited for in vain. A text whose process dies is given to others, up to `MOST_LOST` of them. All
    end with this iterator, and with the process that it is in.

    Args:
        function: Of a module, so that others can import it.
        texts: By name.

    Yields:
        A name and the answer; or a name, None, and the exit code of the last process that died.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    todo, lost = list(texts), Counter[str]()
    processes: dict[Connection, BaseProcess] = {}
    idle: list[Connection] = []
    busy: dict[Connection, str] = {}
    try:
        while todo or busy:
            while todo and len(busy) < (cores or 1):
                pipe = idle.pop() if idle else _start(function, processes)
                busy[pipe] = todo.pop(0)
                with suppress(OSError):  # of a process that died while idle: seen below
                    pipe.send_bytes(texts[busy[pipe]].encode())
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                name = busy.pop(pipe)
                try:
                    answer = pipe.recv_bytes().decode()
                except (EOFError, OSError):
                    code = _end(pipe, processes.pop(pipe))
                    lost[name] += 1
                    if lost[name] < MOST_LOST:
                        todo.insert(0, name)
                    else:
                        yield name, None, code
                else:
                    idle.append(pipe)
                    yield name, answer, None
    finally:
        for pipe, process in processes.items():
            _end(pipe, process)


def _start(function: Function, processes: dict[Connection, BaseProcess]) -> Connection:
    """One process more, and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(function, theirs), daemon=True)
    with _deaf():
        process.start()
        processes[ours] = process
    theirs.close()
    return ours


@contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that no Ctrl-C reaches: it is for this one, which ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else `start` does it, and hears again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(function: Function, pipe: Connection) -> None:
    """Answer what comes through a pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(function(pipe.recv_bytes().decode()).encode())


def _end_with_parent() -> None:
    """Also when it is killed, and in the middle of an answer."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end(pipe: Connection, process: BaseProcess) -> int | None:
    """Its exit code."""
    pipe.close()
    process.kill()
    process.join()
    return process.exitcode
