"""Table 2: what is learned side by side, how it is judged, and what the report tells."""

import itertools

import jax.numpy as jnp
import numpy as np

from evkf.learning import Learner
from evkf.reproduce.runner import specification
from evkf.reproduce.streams import learn, pick, stack
from evkf.reproduce.tables import ExperimentResult
from evkf.reproduce.vdp import experiment as vdp
from evkf.reproduce.vdp import report as vdp_report
from tests.quick import quick_compilation  # noqa: F401


def test_learning_side_by_side_is_learning_alone():
    learner = Learner(ring=32, num_windows=2, window=4)
    trials = [vdp.problem("gaussian", 15, seed) for seed in range(2)]
    starts = [vdp.start(true.likelihood, seed) for seed, (true, _, _) in enumerate(trials)]
    ys = jnp.stack([jnp.asarray(ys) for _, _, ys in trials])
    found, _ = learn(learner, stack(starts), ys, 5)
    for i, (_, _, ys) in enumerate(trials):
        state, trace = learner.scan(learner.init(starts[i]), ys)
        np.testing.assert_allclose(pick(found.belief, i).mean, trace.belief.mean, rtol=1e-6)
        model, z = state.model, trace.belief.mean[-1]
        for ahead in found.ahead[i, -1]:
            z = model.dynamics.mean(z, jnp.zeros(0))
            np.testing.assert_allclose(ahead, z, rtol=1e-6)


def test_the_oracle_is_judged_by_the_floor():
    spec = specification(
        "evkf.reproduce.vdp.experiment", [0], kind="gaussian", method=vdp.ORACLE, learned=100
    )
    result = vdp.run(spec)
    (row,), (series,) = result["rows"], result["series"]
    assert row["kl"] == 0
    assert row["log_chamfer"] < 0
    assert len(series["moving_rmse"]) == (100 + vdp.JUDGED) // vdp.MOVING
    assert np.shape(series["field"]) == (vdp.GRID.size // 2, 2)
    z = vdp.GRID.reshape(-1, 2)[7]
    true, _, _ = vdp.problem("gaussian", 2, 0)
    moved = np.asarray(true.dynamics.mean(jnp.asarray(z), jnp.zeros(0))) - z
    np.testing.assert_allclose(series["field"][7], moved, atol=1e-5)


def test_dynamics_are_judged_by_their_distance():
    true, states, _ = vdp.problem("gaussian", 700, 0)
    walk = vdp.start(true.likelihood, 0)
    same = vdp.judge_dynamics(true, true, states, 0)
    other = vdp.judge_dynamics(true, walk, states, 0)
    assert same["kl"] == 0
    assert other["kl"] > 0.1
    assert other["log_chamfer"] > same["log_chamfer"]


def made_up(best="evkf", **changed):
    """Two trials in which one method leads in everything, and times of a step in ms."""
    results = []
    bins = 200 + vdp.JUDGED
    wave = np.stack([np.sin(np.arange(bins) / 20), np.cos(np.arange(bins) / 20)], axis=1)
    field = np.ones((vdp.GRID.size // 2, 2)) * [1.0, 0.5]
    for kind, method in itertools.product(vdp.KINDS, (vdp.ORACLE, *vdp.METHODS)):
        good = method == best
        rows = [
            {"kind": kind, "method": method, "trial": trial, "log_q": 1.0 if good else 0.0}
            | {"kl": 0.1 if good else 1.0, "log_chamfer": -2.0 if good else 1.0 + trial}
            | {"rmse_late": 0.2, "rmse_judged": 0.2, "roughness": 1.0}
            for trial in range(2)
        ]
        series = [
            {"moving_rmse": [0.3 + 0.01 * trial] * (bins // vdp.MOVING)} for trial in range(2)
        ]
        series[0] |= {"mean": wave, "std": 0.1 + 0 * wave, "states": wave, "field": field}
        if method == "evkf":
            series[0] |= {"ahead": np.repeat(wave[:200, None], vdp.AHEAD, axis=1)}
        results.append({"rows": rows, "series": series})
    ms = {"evkf": 0.1, "ovs": 50.0, "vjf": 0.2, "svmc": 3.0} | changed
    timing = [
        {"kind": kind, "method": name, "step_ms": value, "empty_us": 7.0}
        for kind in vdp.KINDS
        for name, value in ms.items()
    ]
    return ExperimentResult(results, timing, 2)


def test_targets_are_missed_where_they_are():
    assert vdp_report.shortfalls(made_up()) == []
    assert len(vdp_report.shortfalls(made_up(best="ovs"))) == 2 * 3 * 3
    slow = vdp_report.shortfalls(made_up(vjf=0.05, svmc=1.0))
    assert len(slow) == 4
    assert any("not 20 times" in words for words in slow)


def test_the_report_and_the_figures_show_every_method():
    found = made_up()
    text = vdp_report.report(found)
    for name in (*(method.label for method in vdp.METHODS.values()), vdp.ORACLE):
        assert f"| {name} |" in text
    assert "**1.000 ± 0.000** (0.57)" in text
    assert "over 2 trials" in text
    assert "2 trials" in vdp_report.report_figure(found)
    assert len(vdp_report.draw_table2(found).axes) == 2
    assert len(vdp_report.draw_vdp(found).axes) == 6 + 2 * len(vdp.METHODS)
