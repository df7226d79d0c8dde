"""The demonstration as a live session: what it prints, writes and leaves."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from evkf.cli import demo as command
from evkf.cli.showcase import _played, session_beside_truth
from evkf.errors import InputError
from evkf.live.frames import Frame, encode
from evkf.live.plan import Plan
from evkf.live.ports import Report
from evkf.live.records import Bin, Kind, Step
from evkf.live.rig import tape_bins
from evkf.live.segments import Record
from tests.quick import quick_environment


@pytest.mark.slow
def test_a_demonstration_is_a_session_with_its_page_and_ends_by_itself(tmp_path: Path):
    out = tmp_path / "demo"
    asked = [sys.executable, "-m", "evkf", "demo", "--out", str(out), "--json", "-"]
    done = subprocess.run(
        [*asked, "--seconds", "4", "--neurons", "30"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
        env=quick_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "the page is at http://127.0.0.1:" in done.stderr
    summary = json.loads(done.stdout)
    assert (summary["bins"], summary["neurons"], summary["statuses"]) == (400, 30, {"OK": 400})
    assert summary["timing"]["estimate"]["median_us"] > 0
    names = {path.name for path in out.iterdir()}
    assert names == {"demo.png", "demo.svg", "summary.json", "config.json", "session"}
    with jax.enable_x64(False):
        recording, estimate = session_beside_truth(out / "session")
    assert recording.counts.shape == (400, 30)
    error = np.abs(estimate.mean - recording.states)[100:]
    assert np.median(error) < 0.5
    assert estimate.late.dynamics is not estimate.early.dynamics


def test_a_session_without_bins_has_nothing_to_show(tmp_path: Path):
    Plan("rig", 0.01, channels=3).write(tmp_path)
    (tmp_path / "journal").mkdir()
    with pytest.raises(InputError, match="without bins"):
        session_beside_truth(tmp_path)


def test_the_truth_begins_again_with_the_tape():
    """After a reset; who takes up the session goes by numbers again."""
    step = Step(0, 0, 0.0, np.zeros(2), np.ones(2), 0)
    records = []
    for seq, fresh in enumerate((True, False, True, False)):
        frame = encode(Frame(seq, np.array([seq, 1]), fresh=fresh))
        records += [Record(0, Kind.BIN, Bin(0, frame).encode())]
        records += [Record(0, Kind.STEP, step._replace(seq=seq).encode())]
    records += [Record(0, Kind.BEGIN, b""), records[-1]]
    steps, begun, counts = _played(records)
    assert [step.seq for step in steps] == [0, 1, 2, 3, 3]
    assert begun == [0, 0, 2, 2, 0]
    assert counts[3].tolist() == [3, 1]


def test_the_tape_of_a_rig_is_no_longer_than_memory_allows():
    assert tape_bins(None, 10_000, 0.001) == 6000
    assert tape_bins(100, 10_000, 0.001) == 100


def test_a_demonstration_that_was_told_to_end_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Plan] = []

    def run(folder: Path, plan: Plan, say: Console, overload: bool) -> Report:
        asked.append(plan)
        assert folder.is_dir()
        assert overload
        return Report.starting("")._replace(bins=399)

    monkeypatch.setattr(command, "run_new", run)
    monkeypatch.setattr(command, "low_latency", lambda: None)
    options = command.DemoOptions(out=tmp_path, seconds=4.0, neurons=30)
    with pytest.raises(KeyboardInterrupt):
        inspect.unwrap(command.run_demo)(options, quiet=True)
    assert (asked[0].source, asked[0].bins, asked[0].channels) == ("rig", 400, 30)
    assert not list(tmp_path.glob("*.*"))
