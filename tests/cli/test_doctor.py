"""Whether a machine can hold a rate: what is measured, how, and what is refused."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from evkf.cli.running import _check_load
from evkf.errors import InputError
from evkf.live.engine import Costs
from evkf.live.machine import PRIORITY, Hiccups, real_time
from evkf.live.plan import Plan
from tests.cli.test_app import invoke

LIGHT = Costs(1e-4, 1e-3, 1e-3, 2e-3, compile=3.0)
HEAVY = LIGHT._replace(observe_p99=0.0071)
"""More than 70 % of 10 ms."""


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Priorities that hiccups were measured at; no engine is built."""
    found = []

    def measure(period: float, seconds: float) -> Hiccups:
        found.append(os.sched_getparam(0).sched_priority)
        return Hiccups(1e-4, 2e-4, 3e-4, 0.02)

    engine = SimpleNamespace(num_latents=2, num_channels=100)
    for name, stand_in in {
        "low_latency": lambda: None,
        "measure_hiccups": measure,
        "_engine": lambda *_: engine,
    }.items():
        monkeypatch.setattr(f"evkf.cli.doctor.{name}", stand_in)
    return found


@pytest.mark.parametrize(
    ("costs", "asked", "code", "words"),
    [
        (LIGHT, (), 0, "holds bins of 10 ms, learning in most bins"),
        (HEAVY, (), 1, "cannot hold bins of 10 ms: filtering may take 70% of them"),
        (HEAVY, ("--overload",), 0, "holds bins of 10 ms"),
        (HEAVY, ("--bin-width", "0.02"), 0, "holds bins of 20 ms"),
    ],
)
def test_a_rate_that_cannot_be_held_is_told(
    costs: Costs,
    asked: tuple[str, ...],
    code: int,
    words: str,
    at: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.setattr("evkf.cli.doctor.rehearse", lambda *_, **__: costs)
    file = tmp_path / "found.json"
    done = invoke("doctor", *asked, "--json", str(file))
    assert done.code == code
    assert words in done.out
    told = json.loads(file.read_text())
    assert told["holds"] == (code == 0)
    assert told["costs"]["observe_p99"] == costs.observe_p99
    with real_time() as refused:
        assert told["real_time"] == (refused is None)


def test_hiccups_are_those_that_a_session_would_have(
    at: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("evkf.cli.doctor.rehearse", lambda *_, **__: LIGHT)
    invoke("doctor")
    with real_time() as refused:
        assert at == [PRIORITY if refused is None else 0]


def test_a_session_above_the_load_does_not_begin_unless_told_to():
    plan, say = Plan("rig", 0.01), Console(quiet=True)
    _check_load(plan, LIGHT, overload=False, say=say)
    _check_load(plan, HEAVY, overload=True, say=say)
    with pytest.raises(InputError, match=r"71% of a bin.*--overload"):
        _check_load(plan, HEAVY, overload=False, say=say)
