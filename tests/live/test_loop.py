"""The closed loop of a session: what is sent, what is not, and that all of it is written down."""

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from evkf.live.answers import Estimate, Flags, Refusal
from evkf.live.control import Controller, Steer
from evkf.live.desk import Action, Ask
from evkf.live.disk import DISK, Disk
from evkf.live.engine import Engine
from evkf.live.frames import Frame, encode, encode_end
from evkf.live.guard import Guard, Output, State, Word, say
from evkf.live.journal import Journal
from evkf.live.limits import Limits
from evkf.live.loop import GONE, SOUND, Closed, Loop
from evkf.live.pipes import pair
from evkf.live.plan import JOURNAL, build, parts
from evkf.live.ports import Phase
from evkf.live.records import Kind, decode
from evkf.live.rig import rig_counts, rig_model
from evkf.live.run import open_session, recall
from evkf.live.segments import read
from evkf.live.session import Session
from evkf.live.warden import STOPPED, Warden
from evkf.types import Status
from tests.live.test_session import BINS, COSTS, PLAN, Given, Kept, N
from tests.quick import fusing, quick_compilation  # noqa: F401

LIMITS = Limits([1.0, 1.0], [1e9, 1e9], [100.0, 100.0])
CLOSED = PLAN._replace(steer=[1.0, 0.0], horizon=1, speed=0.01)
"""Bins of a second: nothing ends by itself while a busy machine is slow."""
PERIOD = CLOSED.period


class Stimulator(list):
    """A stimulator that keeps what it is told, and whether the journal knew of it then."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder, self.unknown = folder, []

    def apply(self, output: Output) -> None:
        self.append(output)
        if any(output.values) and output.number not in journalled(self.folder):
            self.unknown.append(output)

    def close(self) -> None:
        pass


def journalled(folder: Path) -> list[int]:
    return [said["number"] for said in records(folder, Kind.COMMAND)]


def records(folder: Path, kind: Kind) -> list:
    there = read(folder / JOURNAL)
    return [decode(record.kind, record.payload) for record in there if record.kind == kind]


class Rig(NamedTuple):
    """A stimulator behind a guard, and how a loop reaches it."""

    told: Stimulator
    closed: Closed


@contextlib.contextmanager
def guarded(folder: Path, controller: Controller, window: float = 1.0) -> Iterator[Rig]:
    own, other = pair()
    told = Stimulator(folder)
    # It began long enough ago, unless the window is longer.
    guard = Guard(LIMITS._replace(window=window), PERIOD, time.monotonic_ns() - 10**9)
    warden = Warden(guard, other, folder, told)
    runs = threading.Thread(target=warden.run)
    runs.start()
    try:
        yield Rig(told, Closed(controller, own))
    finally:
        own.close()
        runs.join(20)
        assert not runs.is_alive()


def wait_for(condition: Callable[[], object]) -> bool:
    until = time.monotonic() + 20
    while not condition() and time.monotonic() < until:
        time.sleep(0.002)
    return bool(condition())


class Half:
    """A controller that asks for the same all the time."""

    wanted: object = (0.5, 0.0)

    def command(self, estimate: Estimate, u: np.ndarray) -> object:
        if isinstance(self.wanted, Exception):
            raise self.wanted
        if callable(self.wanted):
            return self.wanted()
        return self.wanted


class Sized(NamedTuple):
    """As much of an engine as a loop needs."""

    num_inputs: int = 2
    dtype: np.dtype = np.dtype(np.float32)
    steps: int = 0


class Bench:
    """A loop without a session, and a controller that asks for a half."""

    def __init__(self, folder: Path, rig: Rig, controller: Half, disk: Disk = DISK):
        self.journal = Journal.open(folder / JOURNAL, "process-crash", disk)
        self.lines, self.controller, self.rig = [], controller, rig
        self.loop = Loop(rig.closed, Sized(), PERIOD, self.journal, folder, self.lines.append)
        self.seq, self.folder = 0, folder
        # How far the sender's clock is ahead of ours.
        self.sent = self.ahead_ns = 0
        assert wait_for(lambda: self.loop._hear() or self.loop.state == State.HELD)

    def give(
        self,
        phase: Phase = Phase.READY,
        flags: Flags = Flags.NOTHING,
        behind: int = 0,
        **parts: object,
    ) -> None:
        """A bin, and what comes of it."""
        now, mean = time.monotonic_ns(), np.full(2, 0.01 * self.seq)
        self.sent = now + self.ahead_ns
        latent = mean, np.eye(2), np.ones(3), 0.0, 0, np.zeros((1, 2)), np.ones((1, 2))
        estimate = Estimate(self.seq, flags, *latent, self.sent, now, now)._replace(**parts)
        self.loop.input(now)
        self.seq += 1
        self.loop.after(estimate, self.seq, phase, behind)

    def turn_on(self) -> None:
        for _ in range(SOUND):
            self.give()
        assert wait_for(lambda: self.loop._hear() or self.loop.state == State.ARMED)
        self.give()
        assert wait_for(lambda: self.on == (0.5, 0.0))

    @property
    def on(self) -> tuple:
        return self.rig.told[-1].values

    def held(self) -> str:
        """Why it is held, once it is."""
        assert wait_for(lambda: self.loop._hear() or self.loop.state == State.HELD)
        assert self.on == (0.0, 0.0)
        return self.loop.why


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    controller = Half()
    with guarded(tmp_path, controller) as rig:
        made = Bench(tmp_path, rig, controller)
        yield made
        made.loop.close()
        made.journal.close()
        assert rig.told.unknown == []


def test_it_is_armed_after_sound_estimates_and_then_commands(bench: Bench):
    bench.turn_on()
    assert bench.rig.told[-1].number == SOUND + 1
    assert bench.loop.told == f"armed: {SOUND} sound estimates"
    bench.journal.wait(bench.journal.position, 10)
    states = [said["state"] for said in records(bench.folder, Kind.LOOP)]
    assert states == ["held", "armed"]
    assert bench.lines[-1].startswith("stimulation is armed")


NAN = np.array([0.0, np.nan])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"mean": NAN}, "not finite"),
        ({"cov": np.diag(NAN)}, "not finite"),
        ({"ahead": NAN[None]}, "not finite"),
        ({"ahead_var": NAN[None]}, "not finite"),
        ({"rate": NAN}, "not finite"),
        ({"phase": Phase.DEGRADED}, "the session is degraded"),
        ({"received_ns": 1, "sent_ns": 0}, "ms old"),
        ({"behind": 2}, "ms old"),
    ],
)
def test_an_estimate_that_is_not_to_be_trusted_ends_stimulation(bench: Bench, bad: dict, why: str):
    bench.turn_on()
    bench.give(**bad)
    assert why in bench.held()
    for _ in range(SOUND - 1):
        bench.give()
    bench.give(**bad)
    bench.give()
    assert bench.rig.told[-1].state == State.HELD
    bench.turn_on()


def test_an_estimate_that_does_not_change_ends_stimulation(bench: Bench):
    bench.turn_on()
    bench.give(mean=np.ones(2))
    bench.give(mean=np.ones(2))
    assert bench.held() == "the estimate is frozen"


@pytest.mark.parametrize(
    "poor", [{"flags": Flags.BRIDGED}, {"status": Status.FELL_BACK}, {"status": Status.CAPPED}]
)
def test_two_bins_without_an_update_end_stimulation(bench: Bench, poor: dict):
    bench.turn_on()
    bench.give(**poor)
    bench.give()
    assert wait_for(lambda: bench.rig.told[-1].number == bench.seq)
    assert bench.on == (0.5, 0.0)
    bench.give(**poor)
    bench.give(**poor)
    assert "2 bins were lost" in bench.held()


def test_bins_that_come_late_end_stimulation(bench: Bench):
    bench.turn_on()
    late = int(2 * PERIOD * 1e9)
    bench.loop._clock = lambda: time.monotonic_ns() + late
    bench.give(received_ns=bench.loop._clock(), sent_ns=bench.sent + 1)
    assert "ms old" in bench.held()


@pytest.mark.parametrize("seconds", [-100.0, 100.0])
def test_a_step_of_the_senders_clock_passes_by_itself(bench: Bench, seconds: float):
    bench.ahead_ns = 10**12
    bench.turn_on()
    bench.ahead_ns += int(seconds * 1e9)
    bench.give()
    if seconds < 0:
        assert bench.held().startswith("the sender's clock ran back by 99.")
        bench.turn_on()
    bench.give()
    assert wait_for(lambda: bench.rig.told[-1].number == bench.seq)
    assert bench.on == (0.5, 0.0)


def test_a_clock_that_is_not_steady_keeps_it_held(bench: Bench):
    bench.turn_on()
    for step in range(3 * SOUND):
        bench.ahead_ns = 10**11 * (step % 2)
        bench.give()
    assert "ran back" in bench.held()


class Attentive(Half):
    """A controller that is told of models."""

    def __init__(self) -> None:
        self.models: list = []

    def model_changed(self, model: object) -> None:
        if isinstance(model, Exception):
            raise model
        self.models.append(model)


class Known(NamedTuple):
    """As much of what is known as a loop needs."""

    steps: int
    model: object


def test_a_controller_is_told_of_models_that_were_learned(tmp_path: Path):
    controller = Attentive()
    with guarded(tmp_path, controller) as rig:
        bench = Bench(tmp_path, rig, controller)
        bench.loop.offer(Known(0, "as it began"))
        assert not bench.loop.has_news
        for steps, model in ((3, "old"), (4, "new")):
            bench.loop.offer(Known(steps, model))
        assert bench.loop.has_news
        bench.loop.tell_controller()
        assert controller.models == ["new"]
        assert not bench.loop.has_news
        bench.turn_on()
        bench.loop.offer(Known(5, ZeroDivisionError("no")))
        bench.loop.tell_controller()
        assert bench.held() == "the controller failed at a new model: ZeroDivisionError: no"
        bench.loop.close()
        bench.journal.close()


def test_controllers_need_not_care_for_models(bench: Bench):
    bench.loop.offer(Known(3, "learned"))
    assert not bench.loop.has_news


def test_the_end_is_written_down(bench: Bench):
    bench.turn_on()
    bench.loop.close()
    bench.journal.wait(bench.journal.position, 10)
    last = records(bench.folder, Kind.LOOP)[-1]
    assert last == {"state": "held", "why": "the session ends", "seq": bench.seq - 1}


def test_the_end_without_an_answer_of_the_guard_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("evkf.live.loop.ANSWER_S", 0.05)
    own, other = pair()
    with Journal.open(tmp_path / JOURNAL, "process-crash") as journal:
        Loop(Closed(Half(), own), Sized(), PERIOD, journal, tmp_path, print).close()
    other.close()
    assert records(tmp_path, Kind.LOOP)[-1]["state"] == GONE


def test_a_guard_that_does_not_arm_says_why(tmp_path: Path):
    controller = Half()
    with guarded(tmp_path, controller, window=1e3) as rig:
        bench = Bench(tmp_path, rig, controller)
        for _ in range(SOUND):
            bench.give()
        assert wait_for(lambda: bench.loop._hear() or "counts as charge" in bench.loop.told)
        assert bench.loop.state == State.HELD
        bench.loop.close()
        bench.journal.close()


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (ZeroDivisionError("no"), "the controller failed: ZeroDivisionError: no"),
        ((0.5,), "no 2 finite numbers"),
        ((0.5, float("inf")), "no 2 finite numbers"),
        (None, "no 2 finite numbers"),
        (lambda: time.sleep(0.6 * PERIOD) or (0.1, 0.1), "the controller took"),
    ],
)
def test_a_controller_that_misbehaves_ends_stimulation(bench: Bench, wanted: object, why: str):
    bench.turn_on()
    bench.controller.wanted = wanted
    bench.give()
    assert why in bench.held()


def test_what_was_on_is_the_input_that_follows(bench: Bench):
    bench.turn_on()
    assert wait_for(lambda: bench.loop.input(time.monotonic_ns())[0] > 0.05)
    kept = bench.loop.values.tolist()
    bench.journal.wait(bench.journal.position, 10)
    assert records(bench.folder, Kind.INPUT)[-1]["values"] == kept
    assert 0 < kept[0] <= 0.5
    assert kept[1] == 0


def test_the_operator_stops_and_arms(bench: Bench):
    bench.turn_on()
    bench.loop.ask(Ask.STOP, "smoke")
    assert wait_for(lambda: bench.rig.told[-1].state == State.STOPPED)
    assert wait_for((bench.folder / STOPPED).exists)
    for _ in range(3 * SOUND):
        bench.give()
    assert bench.rig.told[-1].state == State.STOPPED
    assert bench.loop.told == "stopped: the operator smoke"
    bench.loop.ask(Ask.ARM)
    assert wait_for(lambda: bench.rig.told[-1].state == State.HELD)
    bench.turn_on()


def test_a_stop_that_the_guard_had_no_room_for_is_told_again(tmp_path: Path):
    own, other = pair()
    with Journal.open(tmp_path / JOURNAL, "process-crash") as journal:
        loop = Loop(Closed(Half(), own), Sized(), PERIOD, journal, tmp_path, print)
        full = 0
        with contextlib.suppress(BlockingIOError):
            while own.send(bytes(1 << 10)):
                full += 1
        loop.ask(Ask.STOP, "smoke")
        for _ in range(full):
            other.recv(1 << 16)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1 << 16)
        latent = np.zeros(2), np.eye(2), np.ones(3), 0.0, 0, np.zeros((1, 2)), np.ones((1, 2))
        now = time.monotonic_ns()
        loop.after(Estimate(0, Flags.NOTHING, *latent, now, now, now), 1, Phase.READY)
        assert other.recv(1 << 16) == say(Word.STOP, "the operator smoke")
        other.close()
        loop.close()
    assert (tmp_path / STOPPED).read_text() == "the operator smoke\n"


@pytest.mark.parametrize("before", [True, False])
def test_a_stop_is_kept_where_no_guard_is_left_to_keep_it(tmp_path: Path, before: bool):
    own, other = pair()
    with Journal.open(tmp_path / JOURNAL, "process-crash") as journal:
        loop = Loop(Closed(Half(), own), Sized(), PERIOD, journal, tmp_path, print)
        if before:
            loop.ask(Ask.STOP)
        other.close()
        loop.input(time.monotonic_ns())
        assert loop.state == GONE
        if not before:
            loop.ask(Ask.STOP)
        assert wait_for(lambda: loop._stop is None)
        assert (tmp_path / STOPPED).read_text() == "the operator\n"
        loop.close()


def test_a_disk_that_hangs_holds_up_no_bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hangs = threading.Event()
    monkeypatch.setattr("evkf.live.loop.keep_stop", lambda *_: hangs.wait(60))
    own, other = pair()
    with Journal.open(tmp_path / JOURNAL, "process-crash") as journal:
        loop = Loop(Closed(Half(), own), Sized(), PERIOD, journal, tmp_path, print)
        other.close()
        loop.input(time.monotonic_ns())
        begin = time.monotonic()
        loop.ask(Ask.STOP)
        loop.input(time.monotonic_ns())
        assert time.monotonic() - begin < 10
        assert loop._stop == "the operator"
        hangs.set()
        assert wait_for(lambda: loop._stop is None)
        loop.close()


def test_a_guard_that_is_gone_is_told_of(tmp_path: Path):
    own, other = pair()
    journal, lines = Journal.open(tmp_path / JOURNAL, "process-crash"), []
    loop = Loop(Closed(Half(), own), Sized(), PERIOD, journal, tmp_path, lines.append)
    other.close()
    assert loop.input(time.monotonic_ns()).tolist() == [0.0, 0.0]
    assert loop.state == GONE
    assert "the guard has ended" in lines[-1]
    loop.close()
    journal.close()


def test_nothing_is_sent_that_is_not_durable(tmp_path: Path):
    disk, controller = Refusing(), Half()
    with guarded(tmp_path, controller) as rig:
        bench = Bench(tmp_path, rig, controller, disk)
        bench.turn_on()
        disk.refuses = True
        last = rig.told[-1].number
        bench.give()
        bench.give()
        assert wait_for(lambda: rig.told[-1].state == State.HELD)
        assert rig.told[-1].why == "no fresh command"
        assert not any(output.number > last and any(output.values) for output in rig.told)
        disk.refuses = False
        bench.loop.close()
        bench.journal.close()


class Refusing(Disk):
    """A disk that can be told to refuse."""

    refuses = False

    def write(self, handle: int, data: bytes | memoryview) -> int:
        if self.refuses:
            raise OSError(errno.ENOSPC, "full")
        return super().write(handle, data)


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    return rig_counts(rig_model(2, N, 0.01), BINS)


@pytest.fixture(scope="module")
def engine() -> Engine:
    with fusing():
        return build(CLOSED, parts(CLOSED, Path()))


@pytest.fixture(scope="module")
def start(engine: Engine) -> object:
    return engine.state


def opened(folder: Path, engine: Engine, source: Given, rig: Rig, **more: object) -> Session:
    CLOSED.write(folder)
    given = engine, COSTS, True, source, [Kept()]
    session = open_session(folder, CLOSED, *given, closed=rig.closed, log=None, **more)
    session._enter(Phase.READY, "")
    assert wait_for(lambda: rig.told)
    return session


def take(session: Session, source: Given, counts: np.ndarray, *seqs: int) -> None:
    for seq in seqs:
        source.turns.append([encode(Frame(seq, counts[seq]))])
        session.turn()


def test_a_controller_gets_the_model_of_every_checkpoint(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    source, controller = Given(), Attentive()
    with guarded(tmp_path, controller) as rig:
        session = opened(tmp_path, engine, source, rig)
        take(session, source, counts, *range(40))
        assert session.report().learned > 0
        assert controller.models == []
        session._spare.save_soon()
        due = engine.state.model
        assert wait_for(lambda: session.turn() or controller.models)
        session.close()
    jax.tree.map(np.testing.assert_array_equal, controller.models[0], due)


def steering(engine: Engine) -> Steer:
    return Steer.of(engine.state.model, [1.0, 0.0])


def test_a_closed_loop_is_computed_again_bit_for_bit(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    source = Given()
    with guarded(tmp_path, steering(engine)) as rig:
        session = opened(tmp_path, engine, source, rig)
        take(session, source, counts, *range(20), *range(22, 60))
        assert wait_for(lambda: any(rig.told[-1].values))
        time.sleep(0.1)
        take(session, source, counts, *range(60, 100))
        after = engine.state
        source.turns.append([encode_end(100)])
        session.turn()
        session.close()
    assert rig.told.unknown == []
    assert rig.told[-1].values == (0.0, 0.0)
    assert records(tmp_path, Kind.LOOP)[-1]["why"] == "the session ends"
    kept = [said["values"] for said in records(tmp_path, Kind.INPUT)]
    assert len({tuple(each) for each in kept}) > 3
    assert session.report().learned > 10
    engine.state = start
    found = recall(tmp_path, engine, True, whole=True)
    assert found.agreement.differ == ()
    assert found.agreement.bins == found.agreement.compared == 100
    jax.tree.map(np.testing.assert_array_equal, engine.state, after)
    assert np.abs(np.asarray(after.ring.bins.u)).max() > 0


def test_resuming_never_sends_a_command_again(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    source = Given()
    with guarded(tmp_path, Half()) as first:
        session = opened(tmp_path, engine, source, first)
        take(session, source, counts, *range(40))
        assert wait_for(lambda: first.told[-1].number == 40)
        # As when the process is killed: nothing is closed in order.
        first.closed.own.close()
        assert wait_for(lambda: first.told[-1].why == "the session is gone")
        session.journal.wait(session.journal.position, timeout=10)
        session.journal.close()
    engine.state = start
    player = recall(tmp_path, engine, True)
    assert player.due.input is not None
    source = Given()
    with guarded(tmp_path, Half()) as second:
        session = opened(tmp_path, engine, source, second, player=player)
        for _ in range(5):
            session.turn()
        assert [output.values for output in second.told] == [(0.0, 0.0)]
        take(session, source, counts, *range(30, 60))
        assert wait_for(lambda: second.told[-1].number == 60)
        session.close()
    on = [output.number for output in [*first.told, *second.told] if any(output.values)]
    assert on == sorted(set(on))
    assert first.told.unknown == second.told.unknown == []
    engine.state = start
    assert recall(tmp_path, engine, True, whole=True).agreement.differ == ()


def test_frames_with_inputs_are_refused_where_a_controller_gives_them(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    source = Given([encode(Frame(0, counts[0], u=np.zeros(2)))])
    with guarded(tmp_path, Half()) as rig:
        session = opened(tmp_path, engine, source, rig)
        session.turn()
        session.close()
    (refusal,) = (said for said in source.heard if isinstance(said, Refusal))
    assert refusal.code == "wrong_inputs"
    assert refusal.text == "2 inputs, 0 are due; a controller gives them"


def test_the_operator_of_a_session_stops_it(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    source, asked = Given(), []
    with guarded(tmp_path, Half()) as rig:
        session = opened(
            tmp_path, engine, source, rig, actions=lambda: [asked.pop()] if asked else []
        )
        take(session, source, counts, *range(20))
        assert wait_for(lambda: any(rig.told[-1].values))
        asked.append(Action(Ask.STOP, "smoke"))
        session.turn()
        assert wait_for(lambda: rig.told[-1].state == State.STOPPED)
        take(session, source, counts, *range(20, 40))
        assert session.report().stimulation == "stopped: the operator smoke"
        assert rig.told[-1].values == (0.0, 0.0)
        session.close()
    assert records(tmp_path, Kind.ACTION)[0]["ask"] == "stop"
