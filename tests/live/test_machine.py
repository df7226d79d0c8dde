"""Priorities of a session's threads."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from evkf.live.machine import LOWEST, PRIORITY, aside, real_time
from evkf.live.pipes import beside, pair

with real_time() as refused:
    pytestmark = pytest.mark.skipif(
        refused is not None, reason="real-time priority is not permitted"
    )


@pytest.fixture
def other() -> Iterator[int]:
    """A thread beside this one, by the system's number of it."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id is not None
    yield thread.native_id
    end.set()
    thread.join()


def priority(thread: int = 0) -> int:
    return os.sched_getparam(thread).sched_priority


def test_other_threads_come_before_ordinary_processes_too(other: int):
    with real_time() as refused:
        assert refused is None
        assert (priority(), priority(other)) == (PRIORITY, LOWEST)
    assert os.sched_getscheduler(0) == os.sched_getscheduler(other) == os.SCHED_OTHER


def test_what_had_a_priority_keeps_it(other: int):
    os.sched_setscheduler(other, os.SCHED_FIFO, os.sched_param(PRIORITY))
    with real_time():
        assert priority(other) == PRIORITY
    assert priority(other) == PRIORITY


def test_a_thread_that_ends_meanwhile_is_let_go():
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    with real_time():
        end.set()
        thread.join()


def wait_for_the_end(own: socket.socket) -> None:
    own.recv(1)


def test_what_is_started_beside_is_an_ordinary_process():
    own, other = pair()
    with real_time():
        process = beside("evkf-test", wait_for_the_end, (other,))
    assert process.pid is not None
    assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER
    assert other.fileno() == -1
    own.close()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize("lower", [0, LOWEST])
def test_aside_lowers_and_restores(lower: int):
    with real_time():
        with aside(lower):
            assert priority() == lower
            assert os.sched_getscheduler(0) == (os.SCHED_FIFO if lower else os.SCHED_OTHER)
        assert priority() == PRIORITY


def test_aside_restores_what_there_was():
    with real_time(), aside(LOWEST):
        with aside():
            assert priority() == 0
        assert priority() == LOWEST


def test_nothing_changes_where_it_is_not_wanted(other: int):
    with real_time(wanted=False) as refused, aside(LOWEST):
        assert refused is None
        assert os.sched_getscheduler(0) == os.sched_getscheduler(other) == os.SCHED_OTHER
