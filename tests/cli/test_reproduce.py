"""`evkf reproduce NAME`: files, messages and refusals; the tasks themselves are made up."""

import json
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from evkf.cli import reproduce
from evkf.numerics import jax_config
from evkf.reproduce import runner
from evkf.reproduce.catalogue import TITLES, load
from evkf.reproduce.chaotic import experiment as chaotic
from evkf.reproduce.runner import StepTime
from evkf.reproduce.tables import Experiment, Picture
from evkf.reproduce.vdp import experiment as vdp
from tests.cli.test_app import invoke
from tests.reproduce import test_vdp


def answer(specs, store, scheduler, progress, recompute):
    """Rows in which eVKF is the best."""
    progress(len(specs), len(specs))
    return [
        {
            "rows": [
                {name: spec[name] for name in ("protocol", "method", "L")}
                | {"trial": seed, "rmse": 0.1 if spec["method"] == "evkf" else 0.2}
                for seed in spec["seeds"]
            ]
        }
        for spec in specs
    ]


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(runner, "run_tasks", answer)
    monkeypatch.setattr(jax_config, "low_latency", lambda: None)
    monkeypatch.setattr(chaotic, "ready", lambda what, bins: what)
    monkeypatch.setattr(runner, "time_steps", lambda whats, bins: [StepTime(0.5, 7.0)] * len(whats))


def test_all_files_are_written(made_up, tmp_path):
    ran = invoke("reproduce", "table1", "--trials", "3", "--out", str(tmp_path))
    assert ran.code == 0
    assert "all targets met" in ran.out
    assert "over 3 trials" in (tmp_path / "table1.md").read_text()
    stored = json.loads((tmp_path / "table1.json").read_text())
    assert set(stored) == {"name", "config", "versions", "device", "rows", "timing", "missed"}
    assert stored["config"]["trials"] == 3
    assert len(stored["rows"]) == 2 * len(chaotic.LATENTS) * len(chaotic.METHODS) * 3
    assert {row["step_ms"] for row in stored["timing"]} == {0.5}
    assert (tmp_path / "table1.png").stat().st_size > 10_000
    assert (tmp_path / "table1.svg").read_text().startswith("<?xml")
    again = invoke("reproduce", "table1", "--trials", "3", "--out", str(tmp_path))
    assert again.code == 2
    assert "--force" in again.err


def test_all_files_are_written_or_none(made_up, tmp_path, monkeypatch):
    def savefig(figure, place, format, dpi):
        place.touch()
        if format == "svg":
            raise KeyboardInterrupt

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)
    ran = invoke("reproduce", "table1", "--trials", "3", "--out", str(tmp_path))
    assert ran.code == 130
    assert not list(tmp_path.iterdir())


def test_a_missed_target_is_told(made_up, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "evkf.reproduce.chaotic.report.WITHIN", 0.5
    )  # of the best, which it is itself
    ran = invoke("reproduce", "table1", "--out", str(tmp_path))
    assert ran.code == 1
    assert "missed: public, L = 2" in ran.out
    assert "Missed: public, L = 2" in (tmp_path / "table1.md").read_text()
    quick = invoke("reproduce", "table1", "--quick", "--out", str(tmp_path / "quick"))
    assert quick.code == 0
    assert "no targets for this run" in quick.out


def test_whoever_interrupts_is_told_what_is_kept(made_up, tmp_path, monkeypatch):
    def run_tasks(specs, _store, _scheduler, progress, _recompute):
        progress(3, len(specs))
        raise KeyboardInterrupt

    monkeypatch.setattr("evkf.reproduce.runner.run_tasks", run_tasks)
    ran = invoke("reproduce", "table1", "--out", str(tmp_path))
    assert ran.code == 130
    assert "interrupted: 3 of" in ran.out
    assert f"kept in {tmp_path / 'tasks'}; the same command continues" in ran.out


def test_some_methods_alone(made_up, tmp_path):
    ran = invoke("reproduce", "table1", "--methods", "evkf,bpf", "--out", str(tmp_path))
    assert ran.code == 0
    stored = json.loads((tmp_path / "table1.json").read_text())
    assert {row["method"] for row in stored["rows"]} == {"evkf", "bpf"}


def test_an_unknown_method_is_refused(tmp_path):
    ran = invoke("reproduce", "table1", "--methods", "evkf,ekf", "--out", str(tmp_path))
    assert ran.code == 2
    assert "unknown method 'ekf' (in --methods): choose from evkf" in ran.err
    twice = invoke("reproduce", "table1", "--methods", "evkf,evkf", "--out", str(tmp_path))
    assert "a method twice" in twice.err
    without = invoke("reproduce", "vdp", "--methods", "ovs", "--out", str(tmp_path))
    assert "vdp without evkf (in --methods): add evkf" in without.err


@pytest.fixture
def oscillator(monkeypatch):
    """Rows and series of Van der Pol, as made up for its own tests."""

    def stored(specs, store, scheduler, progress, recompute):
        wanted = {(spec["kind"], spec["method"]) for spec in specs}
        every = test_vdp.made_up().results
        return [
            result
            for result in every
            if (result["rows"][0]["kind"], result["rows"][0]["method"]) in wanted
        ]

    monkeypatch.setattr(runner, "run_tasks", stored)
    monkeypatch.setattr(jax_config, "low_latency", lambda: None)
    ms = {"evkf": 0.1, "ovs": 50.0, "svmc": 30.0}
    monkeypatch.setattr(vdp, "ready", lambda what, bins: what["method"])
    monkeypatch.setattr(
        runner, "time_steps", lambda names, bins: [StepTime(ms.get(n, 1.0), 7.0) for n in names]
    )


def test_the_oscillator_has_a_table_and_a_figure(oscillator, tmp_path):
    ran = invoke("reproduce", "table2", "--trials", "2", "--out", str(tmp_path))
    assert ran.code == 0
    assert "all targets met" in ran.out
    stored = json.loads((tmp_path / "table2.json").read_text())
    assert len(stored["timing"]) == len(vdp.KINDS) * len(vdp.METHODS)
    ran = invoke("reproduce", "vdp", "--methods", "evkf", "--out", str(tmp_path))
    assert ran.code == 0
    assert "no targets for this run" in ran.out
    assert json.loads((tmp_path / "vdp.json").read_text())["timing"] == []
    for name in ("table2", "vdp"):
        assert f"({name}.png)" in (tmp_path / f"{name}.md").read_text()
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def stand_in(name, missed=()):
    """An experiment that takes no time, with two pictures."""
    module = SimpleNamespace(
        __name__="tests.reproduce.toy",
        METHODS=("evkf", "other"),
        TRIALS=3,
        QUICK_TRIALS=1,
        tasks=lambda methods, trials, quick: [
            {"method": method, "seeds": list(range(trials))} for method in methods
        ],
    )
    pictures = {
        key: Picture(f"Of {key}", lambda result: Figure()) for key in (name, f"{name}_more")
    }
    targets = None if missed is None else lambda result: list(missed)
    return Experiment(module, lambda result: f"# {name}\n", pictures, targets)


@pytest.fixture
def stand_ins(monkeypatch):
    """Three experiments: one has targets, one misses its own, one has none. Names of those run."""
    ran = []

    def run_tasks(specs, store, scheduler, progress, recompute):
        ran.append(recompute)
        return [{"rows": [spec | {"trial": seed} for seed in spec["seeds"]]} for spec in specs]

    every = {
        "met": stand_in("met"),
        "short": stand_in("short", ["too slow"]),
        "told": stand_in("told", None),
    }
    monkeypatch.setattr(reproduce, "TITLES", dict.fromkeys(every, "A stand-in."))
    monkeypatch.setattr(reproduce, "load", every.__getitem__)
    monkeypatch.setattr(runner, "run_tasks", run_tasks)
    monkeypatch.setattr(jax_config, "low_latency", lambda: None)
    return ran


def test_all_computes_what_is_not_there(stand_ins, tmp_path):
    config = {"quick": False, "trials": 3, "methods": ["evkf", "other"]}
    for path in reproduce.files("met", tmp_path):
        path.write_text(json.dumps({"config": config, "missed": [], "rows": []}))
    ran = invoke("reproduce", "all", "--out", str(tmp_path), "--json", str(tmp_path / "all.json"))
    assert ran.code == 1
    assert "met is there already" in ran.out
    assert "missed: too slow" in ran.out
    assert "no targets for this run" in ran.out
    assert "evkf reproduce reaching" in ran.out
    found = json.loads((tmp_path / "all.json").read_text())
    rows = {name: len(result["rows"]) for name, result in found.items()}
    assert rows == {"met": 0, "short": 6, "told": 6}
    text = (tmp_path / "short.md").read_text()
    shown = "![Of short](short.png)\n\n![Of short_more](short_more.png)\n"
    assert text == f"# short\n\nMissed: too slow.\n\n{shown}"
    names = {f"short{end}" for end in (".json", ".md", ".png", ".svg", "_more.png", "_more.svg")}
    assert {path.name for path in tmp_path.glob("short*")} == names
    assert stand_ins == [False, False]
    again = invoke("reproduce", "all", "--out", str(tmp_path))
    assert again.code == 1
    assert "short is there already, which missed 1 of its targets" in again.out
    other = invoke("reproduce", "all", "--out", str(tmp_path), "--trials", "2")
    assert other.code == 2
    assert "a result with trials = 3, not 2" in other.err
    assert len(stand_ins) == 2
    forced = invoke("reproduce", "all", "--out", str(tmp_path), "--force", "--quick")
    assert forced.code == 0
    assert stand_ins[2:] == [True, True, True]
    assert (tmp_path / "met.md").read_text().startswith("# met")


def test_all_leaves_a_result_that_is_there_in_part(stand_ins, tmp_path):
    (tmp_path / "told.md").write_text("mine")
    ran = invoke("reproduce", "all", "--out", str(tmp_path))
    assert ran.code == 2
    assert "told.md" in ran.err
    assert stand_ins == []


def test_every_picture_is_among_the_files_and_named_once(tmp_path):
    names = [key for name in TITLES for key in load(name).pictures]
    assert len(set(names)) == len(names)
    assert {"cb", "cb_methods"} <= {path.stem for path in reproduce.files("cb", tmp_path)}


@pytest.mark.parametrize("name", [*TITLES, "reaching", "all"])
def test_every_name_has_help(name):
    ran = invoke("reproduce", name, "--help")
    assert ran.code == 0
    assert "Examples:" in ran.out
