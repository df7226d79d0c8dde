"""Tasks: computed once, in any process, whatever happens to it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from evkf.errors import InputError
from evkf.reproduce import runner
from evkf.reproduce.runner import TaskError, address, blocks, run_tasks, specification, work
from evkf.reproduce.source import digest

ROOT = Path(__file__).parents[2]
LONG = 60
"""Seconds that no task gets to the end of."""


def toys(folder, *specials):
    """Tasks of one trial each, and what is special about them."""
    return [
        specification("tests.reproduce.toy", [seed], folder=str(folder)) | special
        for seed, special in enumerate(specials)
    ]


def rows(results):
    return [row for result in results for row in result["rows"]]


def computed(folder):
    path = folder / "computed"
    return sorted(map(int, path.read_text().split())) if path.exists() else []


def stored(folder):
    """Seeds of what is stored."""
    every = [json.loads(path.read_text()) for path in (folder / "store").glob("[!.]*.json")]
    return sorted(entry["spec"]["seeds"][0] for entry in every)


class Ran(NamedTuple):
    folder: Path
    specs: list
    told: list
    error: str


GOOD, LOST = [0, 2, 3, 5], 2


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Six tasks, all computed: one fails, one kills its process, one every process it gets.

    A wrong result of the first is stored before.
    """
    folder, told = tmp_path_factory.mktemp("ran"), []
    specs = toys(folder, {}, {"fails": True}, {}, {"dies": "once"}, {"dies": "always"}, {})
    (folder / "store").mkdir()
    wrong = json.dumps({"spec": specs[0], "result": {"rows": [{"trial": 0, "square": 1}]}})
    (folder / "store" / f"{address(specs[0])}.json").write_text(wrong)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "MOST_LOST", LOST)
        patch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")  # which rows may not tell
        with pytest.raises(TaskError) as raised:
            run_tasks(specs, folder / "store", None, lambda *said: told.append(said), True)
    return Ran(folder, specs, told, str(raised.value))


def test_what_fails_is_told_and_the_rest_is_stored(ran):
    assert "2 of 6 tasks failed, the first with ArithmeticError: as told" in ran.error
    assert "[1]" in ran.error
    assert stored(ran.folder) == GOOD
    assert ran.told == [(done, 6) for done in range(len(GOOD) + 1)]


def test_a_process_that_is_killed_is_replaced_and_harms_no_other(ran):
    assert computed(ran.folder) == sorted([*range(6), 3, *[4] * (LOST - 1)])


def test_a_task_that_always_kills_its_process_is_told(tmp_path, monkeypatch):
    def lose(work, texts):
        yield from ((name, None) for name in texts)

    monkeypatch.setattr(runner, "map_in_processes", lose)
    with pytest.raises(TaskError, match="with the death of 3 processes"):
        run_tasks(toys(tmp_path, {}), tmp_path)


def test_tasks_are_computed_once_and_keep_their_order(ran):
    good, told = [ran.specs[i] for i in (5, 3, 2, 0)], []
    before = computed(ran.folder)
    found = rows(run_tasks(good, ran.folder / "store", progress=lambda *said: told.append(said)))
    assert [(row["trial"], row["square"]) for row in found] == [(5, 25), (3, 9), (2, 4), (0, 0)]
    for row in found:
        assert (row["precision"], row["backend"], row["threads"]) == ("float64", "cpu", ["1", 1])
    assert told == [(4, 4)]
    assert computed(ran.folder) == before


@pytest.fixture
def start(tmp_path):
    """Run tasks in a command of its own."""
    code = (
        "import json, signal, sys\n"
        # What runs in the background of a shell is born deaf to it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path\n"
        "from evkf.reproduce.runner import run_tasks\n"
        "if __name__ == '__main__':\n"
        f"    run_tasks(json.loads(sys.argv[1]), Path({str(tmp_path / 'store')!r}))\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)

    def run(specs):
        return subprocess.Popen(
            [sys.executable, str(script), json.dumps(specs)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupted_run_goes_on_where_it_was(start, tmp_path, monkeypatch):
    """Ctrl-C ends the run and its processes; what was finished stays."""
    specs = toys(tmp_path, {}, {"seconds": LONG})
    with start(specs) as running:
        wait_until(lambda: stored(tmp_path) == [0] and computed(tmp_path) == [0, 1])
        os.killpg(running.pid, signal.SIGINT)  # to its processes too, as terminals do
        _, said = running.communicate(timeout=LONG / 2)
    assert running.returncode == -signal.SIGINT
    assert said.count("Traceback") == 1
    taken = []

    def take(texts, scheduler):
        taken.extend(texts)
        yield from ((name, {"result": "new"}) for name in texts)

    monkeypatch.setattr(runner, "_outcomes", take)
    assert run_tasks(specs, tmp_path / "store")[1] == "new"
    assert taken == [address(specs[1])]


def test_nothing_of_a_killed_run_runs_on(start, tmp_path):
    with start(toys(tmp_path, {"seconds": LONG})) as running:
        wait_until(lambda: computed(tmp_path) == [0])
        running.kill()
        # Ends when the last process that could write to it has; a task alone would take longer.
        running.communicate(timeout=LONG / 2)
    assert running.returncode == -signal.SIGKILL
    assert stored(tmp_path) == []


def test_a_cluster_gives_the_same_rows_and_outlives_a_worker(ran, tmp_path):
    distributed = pytest.importorskip("distributed")
    good = [ran.specs[i] for i in GOOD]
    (ran.folder / "died").unlink()
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
    ) as cluster:
        found = run_tasks(good, tmp_path, cluster.scheduler_address)
    assert (ran.folder / "died").exists()
    assert rows(found) == rows(run_tasks(good, ran.folder / "store"))


@pytest.mark.parametrize("where", ["tcp://127.0.0.1:1", "nowhere", "foo://a:1"])
def test_no_scheduler_is_said(tmp_path, monkeypatch, where):
    monkeypatch.setattr(runner, "PATIENCE", 0.5)
    with pytest.raises(InputError, match="no scheduler answers"):
        run_tasks(toys(tmp_path, {}), tmp_path, where)


def test_without_dask_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"evkf\[cluster\]"):
        run_tasks(toys(tmp_path, {}), tmp_path, "tcp://127.0.0.1:1")


def test_the_source_of_rows_is_part_of_their_address(tmp_path, monkeypatch):
    spec = toys(tmp_path, {})[0]
    assert spec["versions"]["source"] == digest("tests.reproduce.toy")
    monkeypatch.setattr(runner, "digest", lambda module: "other")
    assert address(toys(tmp_path, {})[0]) != address(spec)


def test_a_worker_of_another_version_refuses(tmp_path):
    spec = toys(tmp_path, {})[0]
    other = spec | {"versions": {"evkf": "0", "jax": "0"}}
    assert "install the same versions" in json.loads(work(json.dumps(other)))["error"]
    assert address(other) != address(spec)


def test_a_damaged_result_is_refused(tmp_path):
    spec = toys(tmp_path, {})[0]
    for text in ('{"result": ', '{"spec": 1}', "[]"):
        (tmp_path / f"{address(spec)}.json").write_text(text)
        with pytest.raises(InputError, match="delete the file"):
            run_tasks([spec], tmp_path)


def test_blocks_depend_on_the_number_of_trials_alone():
    assert [len(block) for block in blocks(10, 5)] == [5, 5]
    assert blocks(7, 3) == [[0, 1, 2], [3, 4, 5], [6]]
