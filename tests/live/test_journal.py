"""What the journal calls durable is there afterwards, whatever happens in between."""

import errno
import itertools
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from evkf.errors import InputError
from evkf.live import journal as module
from evkf.live import tail
from evkf.live.disk import Disk
from evkf.live.journal import Journal
from evkf.live.segments import HOLE, JournalError, Record, hole, read, segment_path
from tests.live.disks import ForgetfulDisk

POLICIES = ("process-crash", "power-loss")
KIND = 9


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.002)


def payload(position):
    """Told from any other by its content."""
    return position.to_bytes(4, "little") * (1 + position % 7)


def fill(journal, num):
    """Append what belongs at the next positions."""
    for position in range(journal.position, journal.position + num):
        assert journal.append(KIND, payload(position)) == position


def check(records, first=0):
    """Everything read is what was appended there; how many there are."""
    records = list(records)
    wanted = [Record(i, KIND, payload(i)) for i in range(first, first + len(records))]
    assert records == wanted
    return len(records)


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def failing(*calls, error=errno.EIO):
    return lambda call: error if call in calls else None


def test_the_forgetful_disk_forgets(tmp_path):
    """Else the tests with it would show nothing."""
    left = set()
    for seed in range(20):
        disk, path = ForgetfulDisk(seed), tmp_path / f"{seed}"
        handle = disk.open_append(path)
        disk.write(handle, b"ab")
        disk.sync(handle)
        if seed % 2:
            disk.sync_folder(tmp_path)
        disk.refuse = failing("sync")
        disk.write(handle, b"cd")
        with pytest.raises(OSError, match="error"):
            disk.sync(handle)
        disk.refuse = failing()
        disk.sync(handle)
        disk.write(handle, b"e")
        disk.cut()
        with pytest.raises(OSError, match="power is off"):
            disk.write(handle, b"f")
        disk.close(handle)
        left.add((seed % 2, path.read_bytes() if path.exists() else None))
    assert left == {(i, b"ab\0\0" + e) for i in (0, 1) for e in (b"", b"e")} | {(0, None)}


def held(call, gate):
    """Let a call wait until a gate is opened."""
    return lambda name: None if name != call or gate.wait(30) else errno.EIO


@pytest.mark.parametrize("policy", POLICIES)
def test_records_come_back_over_many_openings(tmp_path, policy):
    folder = tmp_path / "new" / "journal"
    sessions = set()
    for opening in range(4):
        with Journal.open(folder, policy, segment_bytes=400) as journal:
            assert journal.position == journal.durable == 50 * opening
            fill(journal, 50)
            assert journal.wait(journal.position, timeout=10)
            assert journal.durable == 50 * opening + 50
            sessions.add(journal.session)
        assert journal.trouble is None
        assert check(read(folder)) == 50 * opening + 50
    sizes = [path.stat().st_size for path in folder.glob("*.journal")]
    assert len(sizes) > 8
    assert max(sizes) <= 400
    assert len(sessions) == 1


def test_durable_only_after_the_sync(tmp_path):
    disk, gate = ForgetfulDisk(), threading.Event()
    disk.refuse = held("sync", gate)
    with Journal.open(tmp_path, "power-loss", disk) as journal:
        fill(journal, 1)
        until(lambda: list(read(tmp_path)) != [])
        assert not journal.wait(1, timeout=0.03)
        assert journal.durable == 0
        assert journal.exposure_ms >= 30
        gate.set()
        assert journal.wait(1, timeout=10)
        assert journal.exposure_ms >= 30


@pytest.mark.parametrize("call", ["open_append", "write", "sync"])
def test_appending_does_not_wait_for_the_disk_and_commits_go_in_groups(tmp_path, call):
    disk, gate = ForgetfulDisk(), threading.Event()
    disk.refuse = held(call, gate)
    with Journal.open(tmp_path, "power-loss", disk) as journal:
        fill(journal, 500)
        assert journal.durable == 0
        gate.set()
        assert journal.wait(500, timeout=10)
    assert disk.calls < 40
    assert check(read(tmp_path)) == 500


@pytest.mark.parametrize("before", [0, 30])
@pytest.mark.parametrize(
    ("policy", "calls", "error"),
    [
        ("process-crash", ["write"], errno.ENOSPC),
        ("process-crash", ["write", "truncate", "open_append", "sync"], errno.EROFS),
        ("process-crash", ["sync"], errno.EIO),
        ("power-loss", ["write"], errno.ENOSPC),
        ("power-loss", ["write", "truncate", "open_append", "sync", "sync_folder"], errno.EROFS),
        ("power-loss", ["sync"], errno.EIO),
        ("power-loss", ["sync_folder"], errno.EIO),
        ("power-loss", ["truncate"], errno.EIO),
    ],
)
def test_a_disk_that_refuses_for_a_while(tmp_path, policy, before, calls, error):
    disk = ForgetfulDisk()
    journal = Journal.open(tmp_path, policy, disk, segment_bytes=700)
    fill(journal, before)
    assert journal.wait(before, timeout=10)
    disk.refuse = failing(*calls, error=error)
    fill(journal, 200)
    until(lambda: journal.trouble is not None)
    seen = journal.trouble
    fill(journal, 10)
    time.sleep(0.02)
    assert errno.errorcode[error] in seen
    assert ".journal" in seen
    stuck = journal.durable
    assert stuck < before + 210
    assert check(itertools.islice(read(tmp_path), stuck)) == stuck
    disk.refuse = failing()
    assert journal.wait(before + 210, timeout=10)
    assert journal.trouble is None
    assert journal.exposure_ms >= 20
    if policy == "power-loss":
        disk.cut()
    journal.close()
    assert check(read(tmp_path)) == before + 210
    with Journal.open(tmp_path, policy) as journal:
        fill(journal, 5)
    assert check(read(tmp_path)) == before + 215


def test_what_a_failed_sync_left_is_written_anew(tmp_path):
    disk = ForgetfulDisk()
    with Journal.open(tmp_path, "power-loss", disk) as journal:
        fill(journal, 3)
        assert journal.wait(3, timeout=10)
        old = segment_path(tmp_path, 0).stat().st_size
        attempts = itertools.count()
        disk.refuse = lambda call: errno.EIO if call == "sync" and next(attempts) < 4 else None
        fill(journal, 3)
        assert journal.wait(6, timeout=10)
        assert len(list(tmp_path.glob("*.journal"))) == 2
        disk.cut()
    data = segment_path(tmp_path, 0).read_bytes()
    assert not any(data[old:])
    assert check(read(tmp_path)) == 6


def moody(seed, share):
    """Refuse a share of the calls."""
    rng, errors = np.random.default_rng(seed), [errno.ENOSPC, errno.EIO, errno.EROFS]
    return lambda call: int(rng.choice(errors)) if rng.random() < share else None


@pytest.mark.parametrize("seed", range(50))
def test_what_was_durable_survives_a_loss_of_power_at_any_call(tmp_path, seed):
    rng = np.random.default_rng(seed)
    kept = 0
    for _ in range(2):
        disk = ForgetfulDisk(seed)
        journal = Journal.open(tmp_path, "power-loss", disk, segment_bytes=300)
        assert journal.position >= kept
        first = journal.position
        disk.cut_at = disk.calls + int(rng.integers(1, 60))
        disk.refuse = moody(seed, rng.choice([0.0, 0.0, 0.3]))
        for _ in range(40):
            fill(journal, int(rng.integers(1, 8)))
            if rng.random() < 0.7:
                journal.wait(journal.position, timeout=0.002)
            if disk.off:
                break
        disk.cut()
        # A sync may have been done and not yet been told of; nothing is told without one.
        kept = journal.durable
        journal.close(patience=0.01)
        assert kept <= journal.durable <= check(read(tmp_path))
        assert first <= journal.durable
        kept = journal.durable


def test_a_full_queue_makes_a_hole_that_is_never_called_durable(tmp_path):
    disk = ForgetfulDisk()
    told = []
    journal = Journal.open(tmp_path, "power-loss", disk, backlog_limit=200, on_durable=told.append)
    disk.refuse = failing("write", error=errno.ENOSPC)
    size = len(payload(0)) + 9
    for _ in range(40):
        journal.append(KIND, payload(0))
    num = 200 // size
    assert journal.lost == (range(num, 40),)
    assert journal.durable == 0
    disk.refuse = failing()
    until(lambda: journal.settled == 40)
    assert not journal.wait(40, timeout=10)
    assert journal.wait(num, timeout=10)
    after = journal.append(KIND, b"after")
    until(lambda: journal.durable_through(after))
    assert after == 40
    assert journal.durable == num
    through = [journal.durable_through(position) for position in range(-1, 42)]
    assert through == [False, *[True] * num, *[False] * (40 - num), True, False]
    journal.close()
    assert journal.trouble is None
    assert max(told) == num
    found = list(read(tmp_path))
    assert [record.position for record in found] == [*range(num), num, 40]
    assert [hole(record) for record in found if record.kind == HOLE] == [range(num, 40)]
    with Journal.open(tmp_path, "power-loss") as journal:
        assert journal.lost == (range(num, 40),)
        assert (journal.position, journal.settled, journal.durable) == (41, 41, num)


def test_holes_come_and_go_while_the_disk_is_slow(tmp_path):
    disk = ForgetfulDisk()
    disk.delay_s = {"sync": 0.002}
    journal = Journal.open(tmp_path, "power-loss", disk, backlog_limit=300, segment_bytes=1000)
    for position in range(3000):
        journal.append(KIND, payload(position))
        if position % 50 == 0:
            time.sleep(0.001)
    journal.close()
    lost = set(itertools.chain(*journal.lost))
    assert 0 < len(lost) < 3000
    found = list(read(tmp_path))
    kept = [record for record in found if record.kind != HOLE]
    assert kept == [Record(i, KIND, payload(i)) for i in range(3000) if i not in lost]
    written = [hole(record) for record in found if record.kind == HOLE]
    assert tuple(written) == journal.lost
    assert journal.settled == 3000
    assert all(journal.durable_through(i) == (i not in lost) for i in range(3000))


def test_closing_in_trouble_leaves_the_rest_and_says_so(tmp_path):
    disk = ForgetfulDisk()
    journal = Journal.open(tmp_path, "process-crash", disk)
    fill(journal, 5)
    assert journal.wait(5, timeout=10)
    disk.refuse = failing("write", error=errno.ENOSPC)
    fill(journal, 7)
    begin = time.monotonic()
    journal.close(patience=0.05)
    assert time.monotonic() - begin < 2
    assert "ENOSPC" in journal.trouble
    assert "closed with 7 records" in journal.trouble
    assert not journal.wait(12, timeout=10)
    assert journal.durable == 5
    journal.close()
    with Journal.open(tmp_path, "process-crash") as journal:
        # What was written in part may be there, but was not promised.
        there = journal.position
        assert 5 <= there < 12
        fill(journal, 2)
    assert check(read(tmp_path)) == there + 2


def test_closing_goes_on_while_there_is_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(tail, "BATCH_BYTES", 60)
    disk = ForgetfulDisk()
    disk.delay_s = {"sync": 0.02}
    journal = Journal.open(tmp_path, "power-loss", disk)
    fill(journal, 60)
    journal.close(patience=0.15)
    assert journal.trouble is None
    assert check(read(tmp_path)) == journal.durable == 60


def test_a_disk_that_hangs_keeps_the_folder_locked_after_closing(tmp_path):
    disk, gate = ForgetfulDisk(), threading.Event()
    disk.refuse = held("write", gate)
    journal = Journal.open(tmp_path, "process-crash", disk)
    fill(journal, 3)
    journal.close(patience=0.05)
    assert "closed with 3 records" in journal.trouble
    with pytest.raises(InputError, match="being written already"):
        Journal.open(tmp_path, "process-crash")
    gate.set()
    until(lambda: not journal._thread.is_alive())
    assert journal.trouble is None
    with Journal.open(tmp_path, "process-crash") as journal:
        assert journal.position == 3


def test_one_writer_at_a_time(tmp_path):
    with Journal.open(tmp_path, "process-crash"):
        with pytest.raises(InputError, match="being written already"):
            Journal.open(tmp_path, "process-crash")
        assert list(read(tmp_path)) == []
    Journal.open(tmp_path, "process-crash").close()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_journal_that_cannot_be_opened_is_not_left_locked(tmp_path, policy):
    with Journal.open(tmp_path, policy) as journal:
        fill(journal, 3)
    path = segment_path(tmp_path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + b"\xff" + whole[41:])
    with pytest.raises(JournalError):
        Journal.open(tmp_path, policy)
    path.write_bytes(whole)
    Journal.open(tmp_path, policy).close()


def test_appending_after_each_cut_goes_on_exactly_there(tmp_path):
    with Journal.open(tmp_path, "process-crash") as journal:
        fill(journal, 1000)
    path = segment_path(tmp_path, 0)
    whole = path.read_bytes()
    for size in np.random.default_rng(0).integers(0, len(whole) + 1, 25):
        path.write_bytes(whole[:size])
        num = check(read(tmp_path))
        with Journal.open(tmp_path, "process-crash") as journal:
            assert journal.position == num
            fill(journal, 3)
        assert check(read(tmp_path)) == num + 3


def test_many_threads_may_append(tmp_path):
    positions = [[] for _ in range(4)]
    with Journal.open(tmp_path, "process-crash") as journal:

        def work(mine):
            for i in range(300):
                mine.append((journal.append(KIND, b"%d" % i), i))

        threads = [threading.Thread(target=work, args=(mine,)) for mine in positions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    wanted = dict(itertools.chain(*positions))
    assert len(wanted) == 1200
    assert all(mine == sorted(mine) for mine in positions)
    assert {record.position: int(record.payload) for record in read(tmp_path)} == wanted


def test_the_callback_tells_of_every_commit_and_may_fail(tmp_path, monkeypatch):
    told, raised = [], []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_value))

    def on_durable(durable):
        told.append((durable, threading.current_thread().name))
        raise ValueError("a mistake of the caller")

    with Journal.open(tmp_path, "power-loss", on_durable=on_durable) as journal:
        for position in range(5):
            fill(journal, 1)
            assert journal.wait(position + 1, timeout=10)
    assert [durable for durable, _ in told] == [1, 2, 3, 4, 5]
    assert {name for _, name in told} == {"evkf-journal"}
    assert [str(error) for error in raised] == 5 * ["a mistake of the caller"]
    assert check(read(tmp_path)) == 5


def test_the_callback_may_close_the_journal(tmp_path):
    with Journal.open(
        tmp_path, "process-crash", on_durable=lambda durable: journal.close()
    ) as journal:
        fill(journal, 1)
        until(lambda: journal._stopped)
    assert check(read(tmp_path)) == 1


def test_a_mistake_in_the_commit_thread_is_told(tmp_path, monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_value))

    class Broken(Disk):
        def write(self, handle, data):
            raise RuntimeError("broken")

    journal = Journal.open(tmp_path, "process-crash", Broken())
    fill(journal, 2)
    assert not journal.wait(2, timeout=10)
    assert "broken" in journal.trouble
    fill(journal, 1)
    journal.close()
    assert "closed with 3 records" in journal.trouble
    assert [str(error) for error in raised] == ["broken"]
    Journal.open(tmp_path, "process-crash").close()


def test_input_is_checked(tmp_path):
    with pytest.raises(InputError, match="policy 'none'"):
        Journal.open(tmp_path, "none")
    with pytest.raises(InputError, match="segment_bytes"):
        Journal.open(tmp_path, "power-loss", segment_bytes=10)
    with Journal.open(tmp_path, "power-loss", segment_bytes=100) as journal:
        for kind in (0, 1, 2, 7, 256, -1):
            with pytest.raises(InputError, match="kind"):
                journal.append(kind, b"")
        with pytest.raises(InputError, match="a record of 55 bytes"):
            journal.append(KIND, bytes(55))
        with pytest.raises(TypeError):
            journal.append(KIND, 3)  # pyright: ignore[reportArgumentType]
        assert journal.append(KIND, bytes(54)) == 0
        assert journal.append(KIND, np.array([1.0, 2.0])) == 1  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="closed"):
        journal.append(KIND, b"")
    assert [record.payload for record in read(tmp_path)][1] == np.array([1.0, 2.0]).tobytes()


KILLED = """
import os, signal, sys, time
from pathlib import Path
from evkf.live.journal import Journal

def payload(position):
    return position.to_bytes(4, "little") * (1 + position % 7)

def write(folder, policy, out):
    def tell(durable):
        os.write(out, b"%d\\n" % durable)
    journal = Journal.open(folder, policy, segment_bytes=20000, on_durable=tell)
    while True:
        journal.append(9, payload(journal.position))
        if journal.position % 40 == 0:
            time.sleep(0.0005)

for name in ("process-crash", "power-loss"):
    for life in range(5):
        end, out = os.pipe()
        child = os.fork()
        if not child:
            write(Path(sys.argv[1], name), name, out)
        os.close(out)
        first = os.read(end, 1)
        time.sleep(0.01 + 0.013 * life)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(end) as told:
            lines = (first.decode() + told.read()).splitlines()
        print(name, lines[-1], flush=True)
"""


def test_what_was_durable_survives_kills(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = dict(line.split() for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) == 10
    for policy in POLICIES:
        assert check(read(tmp_path / policy)) >= int(told[policy]) > 100
