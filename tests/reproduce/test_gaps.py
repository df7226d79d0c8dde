"""Gaps: slacks against closed forms where everything is Gaussian, and tiny runs."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from evkf.reproduce.gaps import experiment as gaps
from evkf.reproduce.gaps.experiment import EVKF, Evidence, Slacks
from evkf.reproduce.gaps.report import EXPERIMENTS, draw, report, shortfalls
from evkf.reproduce.runner import specification
from evkf.reproduce.tables import ExperimentResult
from tests.oracles import kalman_loop
from tests.quick import quick_compilation  # noqa: F401

BINS = 10
PLAIN = ["uncorrected"]
METHODS = {"linear": [*PLAIN, "corrected"], "vdp": PLAIN, "gamma": PLAIN}

NAME = "evkf.reproduce.gaps.experiment"


@pytest.fixture(scope="module")
def linear():
    """The linear system without correction: model, observations, bins and slacks."""
    model, _, ys = gaps.problem("linear", BINS, 0)
    bins = gaps.follow(EVKF(correct=False), model, ys)
    late = gaps.pick(bins, slice(gaps.SKIP, None))
    return model, np.asarray(ys), late, gaps.slacks(model, late, ys[gaps.SKIP :])


@pytest.fixture(scope="module")
def results():
    given = {"bins": BINS, "runs": 2, "particles": 100}
    return [
        gaps.run(specification(NAME, [0], system=system, methods=methods, **given))
        for system, methods in METHODS.items()
    ]


@pytest.fixture(scope="module")
def rows(results):
    return [row for result in results for row in result["rows"]]


def test_the_evidence_is_that_of_a_kalman_filter_by_hand(linear):
    model, ys, _, _ = linear
    A, Q = np.asarray(model.dynamics.weight), 0.04 * np.eye(2)
    C, seen = np.asarray(model.likelihood.C), np.ones(ys.shape, bool)
    zero, b = np.zeros(2), np.zeros(5)
    _, _, exact = kalman_loop(A, Q, C, b, np.eye(5), zero, np.eye(2), ys, seen)
    np.testing.assert_allclose(gaps.exact_evidence(model, ys), exact, rtol=1e-10)
    many = gaps.evidence(model, ys, 0, 8, 2500)
    assert np.all(np.abs(many.value - exact) < 5 * many.error)
    assert np.all((many.error > 0) & (many.error < 0.1))


def test_slacks_are_the_closed_forms_of_gaussians(linear):
    """p~ is N(Am, Q + APA'), q-bar is N(Am, Q), and expectations of logs are quadratic."""
    model, ys, bins, found = linear
    ys = ys[gaps.SKIP :]
    A, Q, C = np.asarray(model.dynamics.weight), 0.04 * np.eye(2), np.asarray(model.likelihood.C)
    for t in range(len(ys)):
        mean, wide = A @ bins.before.mean[t], Q + A @ bins.before.cov[t] @ A.T
        m, P = np.asarray(bins.belief.mean[t]), np.asarray(bins.belief.cov[t])

        def expected(cov, mean=mean, m=m, P=P):
            log = multivariate_normal.logpdf(m, mean, cov)
            return log - 0.5 * np.trace(np.linalg.solve(cov, P))

        inner = expected(Q) - 0.5 * np.trace(np.linalg.solve(Q, wide - Q))
        np.testing.assert_allclose(found.F[t], expected(wide) - expected(Q), atol=1e-7)
        np.testing.assert_allclose(found.E[t], expected(wide) - inner, atol=1e-7)
        for cov, got in ((wide, found.pushed[t]), (Q, found.predicted[t])):
            exact = multivariate_normal.logpdf(ys[t], C @ mean, C @ cov @ C.T + np.eye(5))
            np.testing.assert_allclose(got, exact, atol=1e-6)


def test_slacks_add_up_and_bounds_hold(linear):
    _, _, bins, found = linear
    gap = np.asarray(bins.gap)
    assert gap.min() >= 0
    np.testing.assert_allclose(found.E - found.F, gap, atol=1e-7)
    # conjugate: L is the evidence under the prediction
    np.testing.assert_allclose(bins.L, found.predicted, atol=1e-6)
    assert np.all(bins.L - gap <= found.pushed)


def test_nodes_of_gammas_have_their_moments():
    family = gaps.gamma.GammaFamily(2)
    beliefs = jnp.stack([family.from_moments(jnp.array([1.5, 0.5]), 0.1 * jnp.eye(2))])
    points, weights = gaps.nodes(family, beliefs, 16)
    stats = jnp.stack([jnp.log(points[0]), points[0]], -1)
    got = jnp.tensordot(weights, stats, 1)
    np.testing.assert_allclose(got, family.to_mean(beliefs[0]), atol=1e-6)


def test_tiny_runs_give_all_rows_and_no_violation(rows):
    found = [(row["system"], row["method"]) for row in rows]
    assert found == [(system, method) for system in METHODS for method in METHODS[system]]
    assert all(row["L_above_predicted"] == 0 for row in rows)
    for row in (row for row in rows if row["method"] == "uncorrected"):
        assert (row["violations"], row["M_above_pushed"]) == (0, 0)
        assert row["gap_least"] > 0
        assert row["adds_up"] < (1e-6 if row["system"] == "linear" else 0.05)


def test_violations_are_counted_and_named():
    zero = np.zeros(3)
    found = Slacks(zero, zero, np.array([-1.0, 0.0, 0.0]), zero)
    gap = np.array([0.1, -0.1, np.nan])
    row = gaps.judge(zero, gap, found, Evidence(zero, zero), None) | gaps.count(zero, gap)
    assert (row["violations"], row["M_above_pushed"], row["L_above_predicted"]) == (2, 3, 0)
    row |= {"system": "gamma", "method": "uncorrected"}
    missed = shortfalls(ExperimentResult([{"rows": [row]}]))
    assert "L < M in 2 of 3 bins" in missed[0]
    assert len(missed) == 2


def test_the_report_and_the_figure(results):
    found = ExperimentResult(results, quick=True)
    assert shortfalls(found) == []
    text = report(found)
    assert "one trial" in text
    assert "No bound was found violated" in text
    assert "exact evidence" in text
    above = [text.get_text() for text in draw(found).legends[0].get_texts()]
    assert above[0] == "$\\log p(y_t | y_{<t})$"
    assert len(draw(found).axes) == 6
    assert [spec["bins"] for spec in gaps.tasks(("corrected",), 4, False)] == 6 * [gaps.BINS]


def test_what_was_not_tested_is_not_called_kept(rows):
    text = report(
        ExperimentResult([{"rows": [row for row in rows if row["method"] == "corrected"]}])
    )
    assert "No bound was found violated" not in text
    assert "L ≥ M and M" in text
    assert EXPERIMENTS["gaps"].needs == ("uncorrected",)
