"""Tasks: computed once, in any process, whatever happens to it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evkf.errors import InputError
from evkf.experiments import runner
from evkf.experiments.runner import TaskError, address, blocks, run_tasks, specification, work

ROOT = Path(__file__).parents[2]
NUM = 4


def toys(folder, num=NUM, **special):
    """Tasks of one trial each; `special` is for the second."""
    specs = [
        specification("tests.experiments.toy", [seed], folder=str(folder)) for seed in range(num)
    ]
    return [specs[0], specs[1] | special, *specs[2:]]


def rows(results):
    return [row for result in results for row in result["rows"]]


def squares(results):
    return [(row["trial"], row["square"]) for row in rows(results)]


SQUARES = [(seed, seed**2) for seed in range(NUM)]


def computed(folder):
    return sorted(map(int, (folder / "computed").read_text().split()))


def test_tasks_are_computed_once_and_keep_their_order(tmp_path):
    told = []
    found = run_tasks(toys(tmp_path), tmp_path / "store", tell=lambda *said: told.append(said))
    assert squares(found) == SQUARES
    for row in rows(found):
        assert (row["precision"], row["backend"], row["threads"]) == ("float64", "cpu", ["1", 1])
    assert told == [(done, NUM) for done in range(NUM + 1)]
    more = toys(tmp_path, NUM + 1)
    assert rows(run_tasks(more, tmp_path / "store"))[:NUM] == rows(found)
    assert computed(tmp_path) == list(range(NUM + 1))
    run_tasks(more[:2], tmp_path / "store", anew=True)
    assert computed(tmp_path) == [0, 0, 1, 1, 2, 3, 4]


def test_a_process_that_is_killed_is_replaced(tmp_path):
    assert squares(run_tasks(toys(tmp_path, dies="once"), tmp_path / "store")) == SQUARES


def test_what_fails_is_told_and_the_rest_is_stored(tmp_path):
    store = tmp_path / "store"
    with pytest.raises(TaskError, match=r"1 of 4 tasks failed.*ArithmeticError: as told.*\[1\]"):
        run_tasks(toys(tmp_path, fails=True), store)
    assert len(list(store.iterdir())) == NUM - 1


def test_a_task_that_always_kills_its_process_harms_no_other(tmp_path):
    store = tmp_path / "store"
    with pytest.raises(TaskError, match=r"1 of 4 tasks failed.*BrokenProcessPool"):
        run_tasks(toys(tmp_path, dies="always"), store)
    assert len(list(store.iterdir())) == NUM - 1


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    """Ctrl-C ends the run and its processes; what was finished stays."""
    specs = json.dumps(toys(tmp_path, seconds=60))
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from evkf.experiments.runner import run_tasks\n"
        "if __name__ == '__main__':\n"
        f"    run_tasks(json.loads(sys.argv[1]), Path({str(tmp_path / 'store')!r}))\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    running = subprocess.Popen(
        [sys.executable, str(script), specs],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "store").glob("*.json"))) < NUM - 1:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    assert running.wait(120) != 0
    quick = toys(tmp_path)
    assert squares(run_tasks(quick, tmp_path / "store")) == SQUARES
    assert computed(tmp_path) == [0, 1, 1, 2, 3]


def test_a_cluster_gives_the_same_rows_and_outlives_a_worker(tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    ) as cluster:
        special = toys(tmp_path, dies="once")
        found = run_tasks(special, tmp_path / "cluster", cluster.scheduler_address)
    assert rows(found) == rows(run_tasks(special, tmp_path / "machine"))
    assert squares(found) == SQUARES


@pytest.mark.parametrize("where", ["tcp://127.0.0.1:1", "nowhere", "foo://a:1"])
def test_no_scheduler_is_said(tmp_path, monkeypatch, where):
    monkeypatch.setattr(runner, "PATIENCE", 0.5)
    with pytest.raises(InputError, match="no scheduler answers"):
        run_tasks(toys(tmp_path), tmp_path, where)


def test_without_dask_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"evkf\[cluster\]"):
        run_tasks(toys(tmp_path), tmp_path, "tcp://127.0.0.1:1")


def test_a_worker_of_another_version_refuses(tmp_path):
    spec = toys(tmp_path)[0]
    other = spec | {"versions": {"evkf": "0", "jax": "0"}}
    assert "install the same versions" in json.loads(work(json.dumps(other)))["error"]
    assert address(other) != address(spec)


def test_a_damaged_result_is_refused(tmp_path):
    spec = toys(tmp_path)[0]
    for text in ('{"result": ', '{"spec": 1}', "[]"):
        (tmp_path / f"{address(spec)}.json").write_text(text)
        with pytest.raises(InputError, match="delete the file"):
            run_tasks([spec], tmp_path)


def test_blocks_depend_on_the_number_of_trials_alone():
    assert [len(block) for block in blocks(10, 5)] == [5, 5]
    assert blocks(7, 3) == [[0, 1, 2], [3, 4, 5], [6]]
