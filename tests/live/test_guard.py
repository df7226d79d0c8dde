"""The guard: what it lets through, and that its process ends stimulation whatever happens."""

import contextlib
import gc
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from evkf.errors import InputError
from evkf.live import warden
from evkf.live.guard import HOLD, Command, Guard, Output, State, Word, say
from evkf.live.limits import Limits
from evkf.live.pipes import pair
from evkf.live.plan import PLAN
from evkf.live.warden import STOPPED, PipeStimulator, Warden, start_guard, tell_guard

LIMITS = Limits([1.0, 1.0], [1e9, 1e9], [1e3, 1e3], window=0.001)
PERIOD = 10_000_000
FAR = 1 << 60


def armed() -> Guard:
    guard = Guard(LIMITS, PERIOD / 1e9, -PERIOD)
    output = guard.heed(say(Word.ARM, "so"), 0)
    assert output is not None
    assert (output.state, output.values) == (State.ARMED, (0.0, 0.0))
    return guard


def command(number: int, expires_ns: int = FAR, values: tuple = (0.5, -0.5)) -> bytes:
    return Command(number, number, expires_ns, values).encode()


def test_nothing_is_on_before_it_is_armed():
    guard = Guard(LIMITS, 0.01, -PERIOD)
    assert guard.heed(command(1), 0) is None
    assert guard.now(0).values == (0.0, 0.0)


def test_a_command_is_on_until_it_ends():
    guard = armed()
    output = guard.heed(command(1), PERIOD)
    assert output is not None
    assert output[:3] == (State.ARMED, 1, (0.5, -0.5))
    assert output.until_ns == PERIOD + HOLD * PERIOD
    assert guard.tick(output.until_ns - 1) is None
    ended = guard.tick(output.until_ns)
    assert ended is not None
    assert ended[:3] == (State.HELD, 1, (0.0, 0.0))
    assert guard.heed(command(2), output.until_ns + 1) is None


def test_a_command_ends_earlier_if_it_expires():
    output = armed().heed(command(1, expires_ns=PERIOD + 5), PERIOD)
    assert output is not None
    assert output.until_ns == PERIOD + 5


@pytest.mark.parametrize("old", [command(3), command(2), command(5, expires_ns=PERIOD)])
def test_commands_that_are_old_or_come_again_change_nothing(old: bytes):
    guard = armed()
    assert guard.heed(command(3), PERIOD) is not None
    assert guard.heed(old, PERIOD + 1) is None
    assert guard.now(PERIOD + 1).values == (0.5, -0.5)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b'"word"',
        b'{"word": "dance"}',
        b'{"number": 9}',
        b"[" * 100_000,
        command(9, values=(float("nan"), 0.0)),
        command(9, values=(0.1,)),
        command(9).replace(b"9", b"1e999", 1),
        command(9).replace(b"[0.5, -0.5]", b'"much"'),
    ],
)
def test_nonsense_ends_what_is_on(bad: bytes):
    guard = armed()
    guard.heed(command(1), PERIOD)
    output = guard.heed(bad, PERIOD + 1)
    assert output is not None
    assert (output.state, output.values) == (State.HELD, (0.0, 0.0))


def test_a_stop_holds_until_it_is_lifted_and_the_session_arms():
    guard = armed()
    guard.heed(command(1), PERIOD)
    output = guard.heed(say(Word.STOP), PERIOD + 1)
    assert output is not None
    assert (output.state, output.values) == (State.STOPPED, (0.0, 0.0))
    for data in (say(Word.ARM), say(Word.HALT), command(2), b"nonsense"):
        assert guard.heed(data, PERIOD + 2) is None
    assert guard.state == State.STOPPED
    guard.heed(say(Word.LIFT), PERIOD + 3)
    assert guard.state == State.HELD
    assert guard.heed(command(3), PERIOD + 4) is None
    guard.heed(say(Word.ARM), PERIOD + 5)
    assert guard.heed(command(4), 2 * PERIOD) is not None


def test_what_was_on_before_it_began_counts_as_charge():
    guard = Guard(LIMITS._replace(window=0.5), PERIOD / 1e9, begun_ns=7)
    last = int(0.5e9) + 6
    output = guard.heed(say(Word.ARM), last - 100_000_000)
    assert output is not None
    assert (output.state, output.values) == (State.HELD, (0.0, 0.0))
    assert output.why == "what was on before counts as charge for 0.1 s more"
    assert guard.heed(command(1), last) is None
    assert guard.obey(Word.ARM, "", last) is not None
    assert guard.state == State.HELD
    guard.heed(say(Word.ARM), last + 1)
    assert guard.state == State.ARMED


def test_a_guard_that_is_late_counts_what_stayed_on():
    # On for a whole window it is all the charge; until it should have ended, a sixth of that.
    limits = Limits([1.0], [1e9], [0.05], window=0.1)
    guard = Guard(limits, PERIOD / 1e9, begun_ns=-(10**9))
    guard.heed(say(Word.ARM), 0)
    assert guard.heed(command(1, values=(0.5,)), 0).values == (0.5,)
    late = 10**9
    assert guard.tick(late).state == State.HELD
    guard.heed(say(Word.ARM), late)
    assert guard.heed(command(2, values=(0.5,)), late + PERIOD).values == (0.0,)
    guard.heed(say(Word.HALT), late + PERIOD)
    guard.heed(say(Word.ARM), late + 2 * 10**8)
    assert guard.heed(command(3, values=(0.5,)), late + 2 * 10**8).values == (0.5,)


class Ends(NamedTuple):
    """The ends that lead to a guard in a process or thread of its own."""

    session: socket.socket
    rig: socket.socket
    folder: Path

    def heard(self) -> Output:
        """The next that the stimulator is told."""
        self.rig.settimeout(30)
        return Output.decode(self.rig.recv(1 << 16))

    def turn_on(self, number: int) -> None:
        """Have it armed, and something on."""
        self.session.send(say(Word.ARM))
        while self.heard().state != State.ARMED:
            time.sleep(LIMITS.window)
            self.session.send(say(Word.ARM))
        self.session.send(command(number))
        output = self.heard()
        assert (output.number, output.values) == (number, (0.5, -0.5))

    def close(self) -> None:
        self.session.close()
        self.rig.close()


LONG = 20.0
"""Seconds of a bin, where nothing is to end by itself."""


@contextlib.contextmanager
def process(folder: Path, period: float) -> Iterator[tuple[Ends, int]]:
    (session, other), (near, rig) = pair(), pair()
    begun = start_guard(other, folder, LIMITS, period, PipeStimulator(near))
    ends = Ends(session, rig, folder)
    assert begun.pid is not None
    try:
        assert ends.heard().state == State.HELD
        yield ends, begun.pid
    finally:
        ends.close()
        begun.join(30)
        assert begun.exitcode is not None


@contextlib.contextmanager
def thread(folder: Path, period: float = LONG, why: str | None = None) -> Iterator[Ends]:
    (session, other), (near, rig) = pair(), pair()
    guard = Guard(LIMITS, period, time.monotonic_ns(), why)
    made = Warden(guard, other, folder, PipeStimulator(near))
    runs = threading.Thread(target=made.run)
    runs.start()
    ends = Ends(session, rig, folder)
    try:
        yield ends
    finally:
        ends.close()
        runs.join(30)
        assert not runs.is_alive()


def test_a_guard_in_its_process(tmp_path: Path):
    with process(tmp_path, LONG) as (ends, _):
        ends.turn_on(1)
        stopped = tell_guard(tmp_path, Word.STOP)
        assert stopped is not None
        assert (stopped.state, stopped.values) == (State.STOPPED, (0.0, 0.0))
        assert ends.heard().values == (0.0, 0.0)
        assert (tmp_path / STOPPED).exists()
        lifted = tell_guard(tmp_path, Word.LIFT)
        assert lifted is not None
        assert lifted.state == ends.heard().state == State.HELD
        assert not (tmp_path / STOPPED).exists()
        ends.turn_on(2)
        # What is on ends when the session's end closes, as it does if that is killed.
        ends.session.close()
        output = ends.heard()
        assert (output.values, output.why) == ((0.0, 0.0), "the session is gone")
        assert ends.rig.recv(10) == b""
    with pytest.raises(ValueError, match="no guard"):
        tell_guard(tmp_path, Word.STOP)


def test_a_guard_that_hangs_is_ended_by_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warden, "ANSWER_S", 0.2)
    with process(tmp_path, LONG) as (ends, pid):
        ends.turn_on(1)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ValueError, match="does not answer"):
            tell_guard(tmp_path, Word.LIFT)
        assert tell_guard(tmp_path, Word.STOP) is None
        assert ends.rig.recv(10) == b""
        assert (tmp_path / STOPPED).exists()


def test_what_is_on_ends_without_a_fresh_command(tmp_path: Path):
    with thread(tmp_path, period=0.1) as ends:
        ends.heard()
        ends.turn_on(1)
        begin = time.monotonic()
        output = ends.heard()
        assert (output.values, output.why) == ((0.0, 0.0), "no fresh command")
        assert 0.1 < time.monotonic() - begin < 10


def test_a_stop_outlives_the_guard(tmp_path: Path):
    with thread(tmp_path) as ends:
        ends.heard()
        ends.session.send(say(Word.STOP, "smoke"))
        assert ends.heard().state == State.STOPPED
        assert wait_for((tmp_path / STOPPED).exists)
    assert (tmp_path / STOPPED).read_text() == "smoke\n"
    with thread(tmp_path, why="smoke") as ends:
        output = ends.heard()
        assert (output.state, output.why) == (State.STOPPED, "smoke")


@pytest.mark.parametrize("by_door", [True, False])
def test_a_stop_needs_no_disk_and_is_kept_when_there_is_one(tmp_path: Path, by_door: bool):
    (tmp_path / PLAN).write_text("{}")
    with thread(tmp_path) as ends:
        ends.heard()
        ends.turn_on(1)
        # As a disk that refuses: nothing can be written to that name.
        (tmp_path / STOPPED).mkdir()
        if by_door:
            assert tell_guard(tmp_path, Word.STOP).state == State.STOPPED
        else:
            ends.session.send(say(Word.STOP, "the operator"))
        output = ends.heard()
        assert (output.state, output.values) == (State.STOPPED, (0.0, 0.0))
        # It answers when it has tried.
        assert tell_guard(tmp_path).state == State.STOPPED
        (tmp_path / STOPPED).rmdir()
        assert wait_for((tmp_path / STOPPED).exists)
    assert (tmp_path / STOPPED).read_text() == "the operator\n"


def test_a_guard_is_stopped_though_the_disk_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / PLAN).write_text("{}")
    hangs = threading.Event()
    monkeypatch.setattr("evkf.live.warden.keep_stop", lambda *_: hangs.wait(60))
    with thread(tmp_path) as ends:
        ends.heard()
        ends.turn_on(1)
        asking = threading.Thread(target=tell_guard, args=(tmp_path, Word.STOP))
        asking.start()
        output = ends.heard()
        assert (output.state, output.values) == (State.STOPPED, (0.0, 0.0))
        hangs.set()
        asking.join()


def test_a_stop_is_kept_whatever_the_operator_writes(tmp_path: Path):
    with thread(tmp_path) as ends:
        ends.heard()
        ends.session.send(say(Word.STOP, "\ud800"))
        assert ends.heard().state == State.STOPPED
        assert tell_guard(tmp_path).state == State.STOPPED
    assert (tmp_path / STOPPED).read_text() == "?\n"


class Ring:
    """What only a collection of garbage frees."""

    def __init__(self) -> None:
        self.itself = self


class Littering:
    """A stimulator that leaves garbage."""

    def __init__(self) -> None:
        self.left: weakref.WeakSet[Ring] = weakref.WeakSet()

    def apply(self, output: Output) -> None:
        self.left.add(Ring())

    def close(self) -> None:
        pass


@pytest.mark.parametrize("on", [False, True])
def test_garbage_is_collected_although_collection_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool
):
    monkeypatch.setattr(warden, "TIDY_NS", 0)
    session, other = pair()
    littering = Littering()
    guard = Guard(LIMITS, LONG, -(10**9))
    made = Warden(guard, other, tmp_path, littering)
    gc.disable()
    try:
        for number in range(20):
            session.send(say(Word.ARM) if on else b"nonsense")
            session.send(command(number + 1))
            assert made._turn()
            assert (guard.until_ns is not None) == on
            assert len(littering.left) == 0
    finally:
        gc.enable()
        for each in (session, other, made._door):
            each.close()


def test_visitors_who_talk_nonsense_are_told_what_is_on(tmp_path: Path):
    with thread(tmp_path) as ends:
        ends.heard()
        ends.turn_on(1)
        for said in (b"dance", bytes(1000), b"arm", b"halt"):
            with visit(tmp_path) as way:
                way.send(said)
                assert Output.decode(way.recv(1 << 16)).values == (0.5, -0.5)
        with visit(tmp_path), visit(tmp_path):
            pass
        assert tell_guard(tmp_path).number == 1


@contextlib.contextmanager
def visit(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as way:
        with warden._address(folder) as where:
            way.settimeout(30)
            way.connect(where)
        yield way


def test_a_stimulator_that_fails_is_a_stop(tmp_path: Path):
    with thread(tmp_path) as ends:
        ends.heard()
        ends.turn_on(1)
        ends.rig.close()
        ends.session.send(command(2))
        ends.session.settimeout(30)
        while (output := Output.decode(ends.session.recv(1 << 16))).state != State.STOPPED:
            pass
        assert "the stimulator failed: BrokenPipeError" in output.why


def wait_for(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


def test_a_stop_holds_for_a_guard_that_begins_later(tmp_path: Path):
    (tmp_path / PLAN).write_text("{}")
    with pytest.raises(InputError, match="until `evkf arm`"):
        tell_guard(tmp_path, Word.STOP)
    with thread(tmp_path) as ends:
        assert ends.heard().state == State.STOPPED
