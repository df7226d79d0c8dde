"""`evkf reproduce NAME`: what is written, told and refused; the tasks themselves are made up."""

import json

import pytest

from evkf.commands import reproduce
from evkf.experiments import chaotic
from evkf.experiments.catalogue import EXPERIMENTS
from evkf.experiments.streams import StepTime
from tests.test_cli import invoke


def answer(specs, store, scheduler, tell, anew):
    """Rows in which eVKF is the best."""
    tell(len(specs), len(specs))
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
    monkeypatch.setattr(reproduce, "run_tasks", answer)
    monkeypatch.setattr(reproduce, "low_latency", lambda: None)
    monkeypatch.setattr(chaotic, "time_one", lambda what: StepTime(0.5, 7.0))


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
        "evkf.experiments.chaotic_report.WITHIN", 0.5
    )  # of the best, which it is itself
    ran = invoke("reproduce", "table1", "--out", str(tmp_path))
    assert ran.code == 1
    assert "missed: public, L = 2" in ran.out
    quick = invoke("reproduce", "table1", "--quick", "--out", str(tmp_path / "quick"))
    assert quick.code == 0
    assert "no targets for this run" in quick.out


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


@pytest.mark.parametrize("name", [*EXPERIMENTS, "reaching", "all"])
def test_every_name_has_help(name):
    ran = invoke("reproduce", name, "--help")
    assert ran.code == 0
    assert "Examples:" in ran.out
