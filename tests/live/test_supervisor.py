"""Sessions under a supervisor: each lives and dies on its own."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evkf.errors import InputError
from evkf.live.plan import LOG, PLAN
from evkf.live.supervisor import SELDOM_S, SOON_S, STEADY_S, Charge, Fate, Supervisor, start_session

LIVES = "import time; time.sleep(60)"


def python(code: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-S", "-c", code])


class Begun:
    """Starts what it is told to, and keeps how it was asked."""

    def __init__(self, *codes: str):
        self.codes, self.asked = list(codes), []

    def __call__(self, file: Path, known: bool) -> subprocess.Popen:
        self.asked.append((file.stem, known))
        return python(self.codes.pop(0) if len(self.codes) > 1 else self.codes[0])


def until(condition: Callable[[], bool], look: Callable[[], None], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        look()
        time.sleep(0.01)
    assert condition()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("left", "right"):
        (tmp_path / f"{name}.toml").write_text("neurons = 8\n")
    return tmp_path


def test_what_is_killed_is_taken_up_again_and_the_other_is_left_alone(folder: Path):
    begun, lines = Begun(LIVES), []
    supervisor = Supervisor(folder, lines.append, begun)
    left, right = supervisor.charges
    for charge in supervisor.charges:
        charge.look()
    other = right.process
    (folder / "left").mkdir()
    (folder / "left" / PLAN).write_text("{}")
    assert left.process is not None
    left.process.kill()
    until(lambda: left.deaths == 1, left.look)
    until(lambda: left.fate == Fate.RUNS, left.look)
    right.look()
    assert begun.asked == [("left", False), ("right", False), ("left", True)]
    assert right.process is other
    assert right.fate == Fate.RUNS
    assert any("left: died by SIGKILL" in line for line in lines)
    assert any("left: resumed, process" in line for line in lines)
    supervisor.run(lambda: True)
    assert all(charge.process.poll() is not None for charge in supervisor.charges)


def test_what_ends_or_is_refused_is_not_started_again(folder: Path):
    begun, lines = Begun("", "raise SystemExit(2)"), []
    supervisor = Supervisor(folder, lines.append, begun)
    supervisor.run(lambda: False, every=0.01)
    assert [charge.fate for charge in supervisor.charges] == [Fate.ENDED, Fate.REFUSED]
    assert len(begun.asked) == 2
    assert any("right: refused, see" in line for line in lines)


def test_what_dies_at_once_is_tried_ever_more_seldom(folder: Path):
    now, waits = [0.0], []
    begun = Begun(*["raise SystemExit(1)"] * 9, LIVES)
    charge = Charge(folder / "left.toml", begun, print, lambda: now[0])
    for deaths in range(1, 10):
        charge.look()
        until(lambda deaths=deaths: charge.deaths == deaths, charge.look)
        waits.append(charge._again - now[0])
        now[0] = charge._again
    assert waits[:3] == [SOON_S, 2 * SOON_S, 4 * SOON_S]
    assert waits[-1] == SELDOM_S
    (folder / "left").mkdir()
    other = "lsl: looking for a stream\n"
    ready = f"{other}starting -> ready: bins are taken in as they come\n"
    for deaths, line, wait in ((10, "", SELDOM_S), (11, other, SELDOM_S), (12, ready, SOON_S)):
        charge.look()
        (folder / "left" / LOG).write_text(line)
        charge.look()
        now[0] += STEADY_S + 1
        assert charge.process is not None
        charge.process.kill()
        until(lambda deaths=deaths: charge.deaths == deaths, charge.look)
        assert charge._again - now[0] == wait
        now[0] = charge._again


def test_an_empty_folder_is_told_of(tmp_path: Path):
    with pytest.raises(InputError, match=r"NAME\.toml"):
        Supervisor(tmp_path, print)


def test_sessions_end_with_their_supervisor_however_that_is(folder: Path):
    code = f"""
import sys, time
from pathlib import Path
from evkf.live import supervisor
supervisor.command_of = lambda file, known: [sys.executable, "-S", "-c", {LIVES!r}]
print(supervisor.start_session(Path({str(folder / "left.toml")!r}), False).pid, flush=True)
time.sleep(60)
"""
    mother = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert mother.stdout is not None
    child = int(mother.stdout.readline())
    os.kill(child, 0)
    mother.send_signal(signal.SIGKILL)
    mother.wait()
    mother.stdout.close()
    until(lambda: not alive(child), lambda: None)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in ("Z", "X")
    except FileNotFoundError:
        return False


def test_what_a_session_says_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch):
    said = [sys.executable, "-S", "-c", "print('no such thing')"]
    monkeypatch.setattr("evkf.live.supervisor.command_of", lambda *_: said)
    (folder / "left.log").write_text("before\n")
    start_session(folder / "left.toml", False).wait()
    assert (folder / "left.log").read_text() == "before\nno such thing\n"
    assert (folder / "left.log").stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_started_leaves_the_others_alone(folder: Path):
    def start(file: Path, known: bool) -> subprocess.Popen:
        if file.stem == "left":
            raise OSError("no more processes")
        return python(LIVES)

    lines: list[str] = []
    supervisor = Supervisor(folder, lines.append, start)
    for charge in supervisor.charges:
        charge.look()
    assert [charge.fate for charge in supervisor.charges] == [Fate.WAITS, Fate.RUNS]
    assert any("left: could not be started (no more processes)" in line for line in lines)
    supervisor.run(lambda: True)


def test_a_disk_that_fails_ends_no_session(folder: Path, monkeypatch: pytest.MonkeyPatch):
    stat, fails, lines = Path.stat, [False], []

    def failing(path: Path, **options: bool) -> os.stat_result:
        if fails[0] and folder / "left" in path.parents:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(path, **options)

    def start(file: Path, known: bool) -> subprocess.Popen:
        return python("raise SystemExit(2)" if file.stem == "left" else LIVES)

    monkeypatch.setattr(Path, "stat", failing)
    supervisor = Supervisor(folder, lines.append, start)
    left, right = supervisor.charges
    left.look()
    right.look()
    assert left.process is not None
    assert right.process is not None
    left.process.wait()
    fails[0] = True
    supervisor.run(lambda: left.deaths == 2, every=0.01)
    assert "left: ended with code 2" in lines[2]
    assert "left: could not be started ([Errno 5]" in lines[3]
    assert left.fate == Fate.ENDED
    assert right.process.poll() == -signal.SIGTERM


def test_what_had_begun_is_tried_again_whatever_it_says(folder: Path):
    (folder / "left").mkdir()
    (folder / "left" / PLAN).write_text("{}")
    charge = Charge(folder / "left.toml", Begun("raise SystemExit(2)"), print)
    until(lambda: charge.deaths == 1, charge.look)
    assert charge.fate == Fate.WAITS


def test_what_began_after_it_was_started_is_tried_again_too(folder: Path):
    def start(file: Path, known: bool) -> subprocess.Popen:
        code = "input(); raise SystemExit(2)"
        return subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)

    charge = Charge(folder / "left.toml", start, print)
    charge.look()
    (folder / "left").mkdir()
    (folder / "left" / PLAN).write_text("{}")
    assert charge.process is not None
    charge.process.communicate(b"\n")
    charge.look()
    assert (charge.fate, charge.deaths) == (Fate.WAITS, 1)
