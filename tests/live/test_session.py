"""Sessions: what comes out for what goes in, and what is left in the folder."""

import errno
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from evkf.analysis.forecasting import forecast
from evkf.live.answers import Ack, Flags, Refusal, decode_answer
from evkf.live.checkpoint import save
from evkf.live.desk import Action, Ask
from evkf.live.engine import Costs, Engine
from evkf.live.export import recall_recording
from evkf.live.frames import Frame, encode, encode_end
from evkf.live.journal import Journal
from evkf.live.messages import FrameError
from evkf.live.plan import CHECKPOINTS, JOURNAL, Plan, build, parts, resized
from evkf.live.ports import Due, Phase
from evkf.live.recall import EVERY, Agreement, records
from evkf.live.records import Kind, decode, encode_words
from evkf.live.rig import rig_counts, rig_model
from evkf.live.run import open_session, recall, replay
from evkf.live.segments import end_of, read
from evkf.live.session import Session
from tests.live.disks import ForgetfulDisk
from tests.quick import fusing, quick_compilation  # noqa: F401

N, BINS = 12, 150
PLAN = Plan("zeromq", 0.01, latents=2, channels=N, num_windows=2, window=4, speed=0.05)
"""Slow, so that a busy machine has time to learn."""
COSTS = Costs(1e-4, 1e-4, 1e-4, 1e-4, 1.0)


class Given:
    """A source that hands on what it is told to, and keeps the answers."""

    gone = False

    def __init__(self, *turns: list[bytes]):
        self.turns, self.heard, self.closed = list(turns), [], False
        self.odd: dict[str, int] = {}

    def receive(self, timeout: float, most: int) -> list:
        if not self.turns:
            time.sleep(timeout)
            return []
        return [("rig", data) for data in self.turns.pop(0)]

    def answer(self, peer: object, data: bytes) -> None:
        self.heard.append(decode_answer(data))

    def close(self) -> None:
        self.closed = True


class Kept(list):
    """A sink that keeps estimates."""

    publish = list.append

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    return rig_counts(rig_model(2, N, 0.01), BINS)


@pytest.fixture(scope="module")
def engine() -> Engine:
    with fusing():
        return build(PLAN, parts(PLAN, Path()))


@pytest.fixture(scope="module")
def start(engine: Engine) -> object:
    return engine.state


def frames(counts: np.ndarray, *seqs: int) -> list[bytes]:
    return [encode(Frame(seq, counts[seq])) for seq in seqs]


def opened(folder: Path, engine: Engine, source: Given, sink: Kept, **more: object) -> Session:
    PLAN.write(folder)
    return open_session(folder, PLAN, engine, COSTS, True, source, [sink], log=None, **more)


def run(folder: Path, engine: Engine, start: object, *turns: list[bytes]) -> tuple:
    engine.state = start
    source, sink = Given(*turns), Kept()
    report = opened(folder, engine, source, sink).run()
    return report, source, sink


def again_agrees(folder: Path, engine: Engine, start: object) -> bool:
    return not again(folder, engine, start).differ


def again(folder: Path, engine: Engine, start: object) -> Agreement:
    """How the session in a folder compares when it is computed again."""
    engine.state = start
    return recall(folder, engine, True, whole=True).agreement


def test_bins_in_latents_out(tmp_path: Path, engine: Engine, start: object, counts: np.ndarray):
    turns = [frames(counts, seq) for seq in range(BINS)]
    report, source, sink = run(tmp_path, engine, start, *turns, [encode_end(BINS)])
    assert [said.seq for said in sink] == list(range(BINS))
    assert report.phase == Phase.CLOSED
    assert report.counters.delivered == BINS
    assert report.acknowledged == BINS - 1
    assert source.heard[-1] == Ack(BINS - 1)
    assert source.closed
    assert report.learned > BINS / 2
    with fusing():
        found = replay(tmp_path, Plan.read(tmp_path))
    assert found.bins == found.compared == BINS
    assert found.learned == report.learned
    assert found.differ == ()


def test_is_the_scan_of_the_learner(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    turns = [frames(counts, seq) for seq in range(BINS)]
    _, _, sink = run(tmp_path, engine, start, *turns, [encode_end(BINS)])
    learned = [Flags.LEARNED in said.flags for said in [*sink[1:], sink[-1]]]
    learned[-1] = True
    made = parts(PLAN, tmp_path)
    begin = made.learner.init(made.model, jax.random.key(PLAN.seed))
    with fusing():
        _, trace = made.learner.scan(begin, counts.astype(float), learns=np.array(learned))
    np.testing.assert_array_equal([said.mean for said in sink], trace.belief.mean)
    np.testing.assert_array_equal([said.cov for said in sink], trace.belief.cov)


def test_lost_doubled_and_disordered_bins(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    order = [0, 1, 2, 4, 3, 5, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 2, 7, 17]
    turns = [frames(counts, seq) for seq in order]
    report, _, sink = run(tmp_path, engine, start, *turns, [encode_end(20)])
    assert [said.seq for said in sink] == list(range(20))
    bridged = [said.seq for said in sink if Flags.BRIDGED in said.flags]
    assert bridged == [7, 18, 19]
    assert report.counters[2:6] == (2, 1, 1, 3)  # duplicates, late, reordered, lost
    assert again(tmp_path, engine, start).differ == ()


def test_refused_frames_are_told_of_and_passed_over(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    bad = encode(Frame(3, counts[3].astype(float) - 5))
    turns = [*(frames(counts, seq) for seq in range(3)), [bad], [b"nonsense"], frames(counts, 4)]
    report, source, sink = run(tmp_path, engine, start, *turns, [encode_end(5)])
    refusals = [said for said in source.heard if isinstance(said, Refusal)]
    assert [(said.code, said.seq) for said in refusals] == [("negative", 3), ("too_short", None)]
    assert report.refused == 2
    assert [Flags.BRIDGED in said.flags for said in sink] == [False, False, False, True, False]


def test_a_jump_is_followed_when_it_is_confirmed(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    far = [encode(Frame(seq, counts[seq % BINS])) for seq in range(10**6, 10**6 + 4)]
    turns = [*(frames(counts, seq) for seq in range(3)), *([data] for data in far)]
    report, source, sink = run(tmp_path, engine, start, *turns, [encode_end(10**6 + 4)])
    assert [said.seq for said in sink] == [0, 1, 2, *range(10**6 + 1, 10**6 + 4)]
    assert [said.code for said in source.heard if isinstance(said, Refusal)] == ["jump"]
    assert report.counters.restarts == 1
    assert again(tmp_path, engine, start).differ == ()


def test_a_stream_that_ended_is_known_to_have_when_it_is_taken_up_again(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    session = opened(tmp_path, engine, Given(frames(counts, *range(10)), [encode_end(10)]), Kept())
    session.turn()
    session.turn()
    session.close()
    # The last checkpoint is of all records: the one that tells of the end is not read again.
    kept = [path.stem for path in (tmp_path / CHECKPOINTS).iterdir()]
    assert kept == ["000000000010"]
    engine.state = start
    due = recall(tmp_path, engine, True).due
    assert (engine.bins, due.seq, due.ended) == (10, 10, True)


def test_goes_on_after_an_interruption(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    sink, source = Kept(), Given(*(frames(counts, seq) for seq in range(60)))
    session = opened(tmp_path, engine, source, sink)
    for _ in range(60):
        session.turn()
    # As when the process is killed: nothing is closed, and another takes up the folder.
    session.journal.wait(session.journal.position, timeout=10)
    session.journal.close()
    after, whole = engine.state, list(sink)
    engine.state = start
    player = recall(tmp_path, engine, True)
    assert player.due.seq == 60
    jax.tree.map(np.testing.assert_array_equal, engine.state, after)
    second, more = Given(*(frames(counts, seq) for seq in range(50, BINS))), Kept()
    second.turns.append([encode_end(BINS)])
    session = opened(tmp_path, engine, second, more, player=player)
    report = session.run()
    assert more[0].seq == 59
    np.testing.assert_array_equal(more[0].mean, whole[-1].mean)
    assert [said.seq for said in more[1:]] == list(range(60, BINS))
    assert report.counters.duplicates == 10
    found = again(tmp_path, engine, start)
    assert found.bins == BINS
    assert found.differ == ()


def _give(session: Session, source: Given, counts: np.ndarray, seqs: Iterable[int]) -> None:
    for seq in seqs:
        source.turns.append(frames(counts, seq))
        session.turn()


def _until(session: Session, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        session.turn()
    assert condition()


def test_a_disk_that_refuses(tmp_path: Path, engine: Engine, start: object, counts: np.ndarray):
    engine.state = start
    disk, source, sink, lines = ForgetfulDisk(), Given(), Kept(), []
    PLAN.write(tmp_path)
    session = open_session(
        tmp_path, PLAN, engine, COSTS, True, source, [sink], log=lines.append, disk=disk
    )
    session._enter(Phase.READY, "")

    give, until = partial(_give, session, source, counts), partial(_until, session)
    give(range(10))
    until(lambda: Ack(9) in source.heard)
    disk.refuse = lambda call: errno.ENOSPC if call == "write" else None
    give(range(10, 20))
    until(lambda: session.phase == Phase.DEGRADED)
    assert "ENOSPC" in session.why
    give(range(20, 30))
    assert [said.seq for said in sink] == list(range(30))
    assert source.heard[-1] == Ack(9)
    disk.refuse = lambda call: None
    until(lambda: session.phase == Phase.READY)
    until(lambda: Ack(29) in source.heard)
    session.close()
    time.sleep(0.1)  # for the thread that logs
    assert sum("degraded" in line for line in lines) == 2


def test_a_sender_that_begins_anew_is_followed(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    first = [[encode(Frame(seq, counts[seq], sent_ns=100 + seq))] for seq in range(20)]
    again = [[encode(Frame(seq, counts[seq], sent_ns=900 + seq))] for seq in range(10)]
    # What is only sent again, as it was, is a duplicate.
    far = [encode(Frame(10**6, counts[0], sent_ns=110))]
    turns = [*first, first[0], first[1], far, *again, [encode_end(5)], [encode_end(10)]]
    report, source, sink = run(tmp_path, engine, start, *turns)
    assert [said.seq for said in sink] == [*range(20), *range(1, 10)]
    refusals = [said.code for said in source.heard if isinstance(said, Refusal)]
    assert refusals == ["jump", "anew", "behind"]
    assert report.counters.restarts == 1
    assert report.counters.duplicates == 2
    assert report.phase == Phase.CLOSED
    assert again_agrees(tmp_path, engine, start)
    with fusing():
        recording = recall_recording(tmp_path, PLAN, parts(PLAN, tmp_path)).recording
    assert recording.lengths == (20, 9)
    np.testing.assert_allclose(recording.start_times, [0.0, 0.2])


def test_bins_of_a_sender_that_began_anew_are_not_acknowledged_by_those_before(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    disk, source, sink = ForgetfulDisk(), Given(), Kept()
    session = opened(tmp_path, engine, source, sink, disk=disk)
    session._enter(Phase.READY, "")

    def give(*seqs: int, sent: int) -> None:
        for seq in seqs:
            source.turns.append([encode(Frame(seq, counts[seq], sent_ns=sent + seq))])
            session.turn()

    give(*range(20), sent=100)
    _until(session, lambda: Ack(19) in source.heard)
    disk.refuse = lambda call: errno.ENOSPC if call == "write" else None
    give(*range(20, 30), sent=100)
    source.heard.clear()
    give(*range(4), 3, sent=900)
    assert [said.seq for said in sink[-3:]] == [1, 2, 3]
    assert not any(isinstance(said, Ack) for said in source.heard)
    disk.refuse = lambda call: None
    _until(session, lambda: Ack(3) in source.heard)
    assert all(said.seq <= 3 for said in source.heard)
    session.close()


def test_what_could_not_be_kept_is_told_of(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    disk, source, sink = ForgetfulDisk(), Given(), Kept()
    journal = Journal.open(tmp_path / "journal", "process-crash", disk, backlog_limit=4000)
    session = opened(tmp_path, engine, source, sink, journal=journal, disk=disk)
    session._enter(Phase.READY, "")
    give = partial(_give, session, source, counts)
    give(range(10))
    _until(session, lambda: Ack(9) in source.heard)
    disk.refuse = lambda call: errno.ENOSPC if call == "write" else None
    give(range(10, 60))
    refused = [said.seq for said in source.heard if isinstance(said, Refusal)]
    assert refused[-1] == 59
    assert {said.code for said in source.heard if isinstance(said, Refusal)} == {"not_kept"}
    assert len(session._receipts) < 30
    disk.refuse = lambda call: None
    _until(session, lambda: session.phase == Phase.READY)
    give(range(60, 80))
    _until(session, lambda: Ack(79) in source.heard)
    # A checkpoint was made after the hole, from which the session goes on as it was.
    _until(session, lambda: any((tmp_path / "checkpoints").glob("*")))
    give(range(80, 90))
    session.journal.wait(session.journal.position, timeout=0.5)
    before = engine.state
    session.close()
    engine.state = start
    assert recall(tmp_path, engine, True).due.seq == 90
    jax.tree.map(np.testing.assert_array_equal, engine.state, before)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_survives_a_loss_of_power(
    seed: int, tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    disk, source, sink = ForgetfulDisk(seed), Given(), Kept()
    disk.cut_at = int(np.random.default_rng(seed).integers(20, 120))
    plan = PLAN._replace(policy="power-loss")
    plan.write(tmp_path)
    session = open_session(tmp_path, plan, engine, COSTS, True, source, [sink], disk=disk)
    session._enter(Phase.READY, "")
    for seq in range(100):
        _give(session, source, counts, [seq])
        if disk.off:
            break
    acknowledged = max((said.seq for said in source.heard if isinstance(said, Ack)), default=-1)
    disk.cut()
    session.journal.close(patience=0.01)
    engine.state = start
    player = recall(tmp_path, engine, True)
    assert player.due.seq > acknowledged
    assert player.agreement.differ == ()


def test_a_checkpoint_beyond_the_journal_is_passed_over(
    tmp_path: Path, engine: Engine, start: object
):
    with Journal.open(tmp_path / JOURNAL, "process-crash") as journal:
        for _ in range(5):
            journal.append(Kind.PHASE, encode_words(phase="ready"))
    assert end_of(tmp_path / JOURNAL) == 5
    engine.state = start
    engine.observe(np.ones(N))
    early = engine.state
    save(tmp_path / CHECKPOINTS, 1, early, {"position": "3", "due": "[1, false, 0]"})
    engine.observe(np.zeros(N))
    save(tmp_path / CHECKPOINTS, 2, engine.state, {"position": "9", "due": "[2, false, 0]"})
    engine.state = start
    assert recall(tmp_path, engine, True).due.seq == 1
    jax.tree.map(np.testing.assert_array_equal, engine.state, early)
    names = [each.name for each in (tmp_path / CHECKPOINTS).iterdir()]
    assert names == ["000000000001.safetensors"]


def test_a_folder_without_a_session_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="no session"):
        Plan.read(tmp_path)
    (tmp_path / "session.json").write_text('{"colour": 1}')
    with pytest.raises(ValueError, match="not a plan"):
        Plan.read(tmp_path)


def test_a_plan_comes_back_as_it_was(tmp_path: Path):
    PLAN.write(tmp_path)
    assert Plan.read(tmp_path) == PLAN


def test_the_learner_of_a_plan_can_be_made_smaller():
    learner = parts(PLAN, Path()).learner
    assert (learner.num_windows, learner.window) == (2, 4)
    assert resized(learner, 8, 10).optimiser is learner.optimiser


def test_what_the_source_noted_is_in_the_report(tmp_path: Path, engine: Engine, start: object):
    engine.state = start
    source = Given()
    session = opened(tmp_path, engine, source, Kept())
    source.odd["stray"] = 3
    assert session.report().plain["odd"] == {"stray": 3}
    session.close()


def test_the_operator_freezes_learning_marks_and_saves(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    engine.state = start
    asked: list[Action] = []
    source, sink = Given(), Kept()
    session = opened(tmp_path, engine, source, sink, actions=lambda: [asked.pop()] if asked else [])
    session._enter(Phase.READY, "")
    give = partial(_give, session, source, counts)
    give(range(20))
    before = session.report().learned
    assert before > 0
    asked[:] = [Action(Ask.MARK, "light on"), Action(Ask.FREEZE)]
    session.turn()
    session.turn()
    give(range(20, 40))
    assert session.report().learned == before
    assert session.report().frozen
    asked[:] = [Action(Ask.SAVE)]
    session.turn()
    _until(session, lambda: any((tmp_path / "checkpoints").glob("*.safetensors")))
    session.journal.wait(session.journal.position, 5.0)
    marks = [
        decode(record.kind, record.payload)
        for record in read(tmp_path / "journal")
        if record.kind == Kind.ACTION
    ]
    assert [mark["ask"] for mark in marks] == ["freeze", "mark", "save"]
    assert marks[1] == {"ask": "mark", "text": "light on", "seq": 20}
    session.close()
    engine.state = start
    player = recall(tmp_path, engine, True)
    assert player.due == Due(40, frozen=True)
    source, sink = Given(), Kept()
    again = opened(tmp_path, engine, source, sink, player=player)
    assert again.report().frozen
    again._do(Action(Ask.THAW))
    assert not again.report().frozen
    again.close()


@pytest.mark.parametrize(("paced", "heard"), [(0.01, 2), (0.0, 0)])
def test_the_operator_sets_the_pace_of_a_source_of_ours(
    tmp_path: Path,
    engine: Engine,
    start: object,
    counts: np.ndarray,
    paced: float,
    heard: int,
):
    engine.state = start
    said: list[bytes] = []
    asked = [Action(Ask.SPEED, "4"), Action(Ask.RESET)]
    source = Given(frames(counts, 0, 1), [encode_end(2)])
    session = opened(
        tmp_path, engine, source, Kept(), actions=lambda: [asked.pop(0)] if asked else []
    )
    session.settings = session.settings._replace(paced=paced)
    source.answer = lambda peer, data: said.append(data)  # type: ignore[method-assign]
    report = session.run()
    assert report.phase == Phase.CLOSED
    done = [Action.decode(data) for data in said if data[:1] == b"{"]
    assert done == [Action(Ask.SPEED, "4"), Action(Ask.RESET)][:heard]
    assert session._period == (2_500_000 if paced else 200_000_000)
    actions = [record for record in read(tmp_path / JOURNAL) if record.kind == Kind.ACTION]
    kept = [decode(record.kind, record.payload)["ask"] for record in actions]
    assert kept == ["speed", "reset"]
    assert again_agrees(tmp_path, engine, start)


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "nan", "1e9"])
def test_a_speed_that_is_none_is_refused(text: str):
    with pytest.raises(FrameError, match="speed"):
        Action.decode(Action(Ask.SPEED, text).encode())


def test_estimates_look_ahead_and_carry_the_time_of_their_bin(tmp_path: Path, counts: np.ndarray):
    plan = PLAN._replace(horizon=5)
    made = parts(plan, Path())
    engine = build(plan, made)
    times = [1000 + seq * round(plan.period * 1e9) for seq in range(3)]
    given = [encode(Frame(seq, counts[seq], sent_ns=times[seq])) for seq in (0, 2)]
    source, sink = Given([*given, encode_end(3)]), Kept()
    open_session(tmp_path, plan, engine, COSTS, True, source, [sink]).run()
    first, lost, last = sink
    assert [said.sent_ns for said in sink] == times
    ahead = forecast(made.learner.filter, made.model, engine.state.filter.belief, 5)
    np.testing.assert_allclose(last.ahead, ahead.mean, rtol=1e-5)
    np.testing.assert_allclose(last.ahead_var, np.diagonal(ahead.cov, axis1=1, axis2=2), rtol=1e-5)
    assert first.ahead.shape == lost.ahead_var.shape == (5, 2)


def test_a_bin_of_which_nothing_was_observed_is_called_bridged(
    tmp_path: Path, engine: Engine, start: object, counts: np.ndarray
):
    masks = np.ones((3, N), bool)
    masks[1] = False
    given = [encode(Frame(seq, counts[seq], masks[seq])) for seq in range(3)]
    _, _, sink = run(tmp_path, engine, start, [*given, encode_end(3)])
    assert [Flags.BRIDGED in said.flags for said in sink] == [False, True, False]


def test_who_reads_a_journal_is_told_how_far_it_is(tmp_path: Path):
    journal, told = Journal.open(tmp_path / "journal", "process-crash"), []
    for _ in range(2 * EVERY + 1):
        journal.append(Kind.BIN, b"a record")
    journal.close()
    found = list(records(tmp_path / "journal", lambda *far: told.append(far)))
    assert len(found) == end_of(tmp_path / "journal")
    end = len(found)
    assert told == [(0, end), (EVERY, end), (2 * EVERY, end), (end, end)]
    assert len(list(records(tmp_path / "journal", first=end - 3))) == 3
