"""Sessions taken up again: which checkpoint counts, and what the journal's end says."""

from pathlib import Path

import jax
import numpy as np
import pytest

from evkf.live import run
from evkf.live.checkpoint import save
from evkf.live.engine import Engine
from evkf.live.journal import Journal
from evkf.live.plan import CHECKPOINTS, JOURNAL, Plan, build, parts
from evkf.live.records import Kind, encode_words
from evkf.live.segments import end_of

PLAN = Plan("rig", 0.01, latents=2, channels=5, num_windows=2, window=4)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build(PLAN, parts(PLAN, Path()))


def test_a_checkpoint_beyond_the_journal_is_passed_over(tmp_path: Path, engine: Engine):
    with Journal.open(tmp_path / JOURNAL, "process-crash") as journal:
        for _ in range(5):
            journal.append(Kind.PHASE, encode_words(phase="ready"))
    assert end_of(tmp_path / JOURNAL) == 5
    start = engine.state
    engine.observe(np.ones(5))
    early = engine.state
    save(tmp_path / CHECKPOINTS, 1, early, {"position": "3", "due": "[1, false, 0]"})
    engine.observe(np.zeros(5))
    save(tmp_path / CHECKPOINTS, 2, engine.state, {"position": "9", "due": "[2, false, 0]"})
    engine.state = start
    player = run.recall(tmp_path, engine, True)
    assert player.due.seq == 1
    names = [each.name for each in (tmp_path / CHECKPOINTS).iterdir()]
    assert names == ["000000000001.safetensors"]
    jax.tree.map(np.testing.assert_array_equal, engine.state, early)


def test_a_folder_without_a_session_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="no session"):
        Plan.read(tmp_path)
    (tmp_path / "session.json").write_text('{"colour": 1}')
    with pytest.raises(ValueError, match="not a plan"):
        Plan.read(tmp_path)


def test_a_plan_comes_back_as_it_was(tmp_path: Path):
    PLAN.write(tmp_path)
    assert Plan.read(tmp_path) == PLAN
