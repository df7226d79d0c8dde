"""Table 1: trials side by side are those filtered alone, and the report tells what is in rows."""

import itertools

import numpy as np
import pytest

from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.reproduce.chaotic import experiment as chaotic
from evkf.reproduce.chaotic import report as chaotic_report
from evkf.reproduce.runner import specification
from evkf.reproduce.tables import ExperimentResult
from tests.quick import quick_compilation  # noqa: F401


@pytest.mark.parametrize("protocol", chaotic.PROTOCOLS)
def test_trials_side_by_side_are_as_if_alone(protocol):
    spec = specification(
        "evkf.reproduce.chaotic.experiment", [0, 3], protocol=protocol, method="evkf", L=2, bins=12
    )
    rows = chaotic.run(spec)["rows"]
    for row in rows:
        model, zs, ys = chaotic.problem(protocol, 2, 12, row["trial"])
        _, trace = scan_filter(VariationalKalmanFilter(), model, ys)
        off = np.asarray(trace.belief.mean - zs)
        per_bin = np.sqrt((off**2).mean(axis=1)).mean()
        whole = np.sqrt((off**2).sum(axis=1).mean())
        assert row["rmse"] == pytest.approx(per_bin if protocol == "public" else whole, rel=1e-6)
    assert [row["trial"] for row in rows] == [0, 3]
    assert rows[0]["rmse"] != rows[1]["rmse"]


def test_diagonal_beliefs_start_from_the_same_prior():
    model, _, _ = chaotic.problem("public", 3, 2, 0)
    own = chaotic.diagonal(model)
    np.testing.assert_allclose(own.family.cov(own.prior), model.prior.cov)


def test_every_task_of_the_table_is_there_once():
    specs = chaotic.tasks(tuple(chaotic.METHODS), 7, quick=False)
    keys = {(s["protocol"], s["method"], s["L"], seed) for s in specs for seed in s["seeds"]}
    assert len(keys) == 2 * len(chaotic.METHODS) * len(chaotic.LATENTS) * 7
    assert sum(len(s["seeds"]) for s in specs) == len(keys)
    assert len(chaotic.tasks(("evkf",), 2, quick=True)) < 5


def made_up(evkf=0.1, others=0.2, wide=0.1):
    """Two trials: eVKF's error, that of the others, and eVKF's at 128 latents."""
    rows = [
        {
            "protocol": protocol,
            "method": method,
            "L": L,
            "trial": trial,
            "rmse": (wide if L == 128 else evkf) if method == "evkf" else others,
            "coverage_90": 0.9,
            "fell_back": 0,
        }
        for protocol, method, L, trial in itertools.product(
            chaotic.PROTOCOLS, chaotic.METHODS, chaotic.LATENTS, range(2)
        )
    ]
    timing = [{"method": "evkf", "L": 2, "step_ms": 0.25, "empty_us": 7.0}]
    return ExperimentResult([{"rows": rows}], timing, 2)


def test_targets_are_missed_where_they_are():
    assert chaotic_report.shortfalls(made_up()) == []
    assert len(chaotic_report.shortfalls(made_up(evkf=0.21, wide=0.21))) == 10
    assert chaotic_report.shortfalls(made_up(wide=0.11)) == [
        "public: 0.1100 at L = 128 is above 1.05 times 0.1000"
    ]


def test_the_report_and_the_figure_show_every_method():
    text = chaotic_report.report(made_up())
    assert "over 2 trials" in text
    for method in chaotic.METHODS.values():
        assert f"| {method.label} |" in text
    assert "**0.1000 ± 0.0000** | 0.047" in text
    left, right = chaotic_report.draw(made_up()).axes
    assert len(left.get_legend_handles_labels()[1]) == len(chaotic.METHODS)
    assert "whole state" in right.get_title("left")
