"""Lost variance: against closed forms, and tiny runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf.reproduce.runner import specification
from evkf.reproduce.tables import ExperimentResult
from evkf.reproduce.variance import experiment as variance
from evkf.reproduce.variance.report import draw, report, shortfalls
from tests.quick import quick_compilation  # noqa: F401

SPREADS, SAMPLES = [0.1, 0.4], 4000

NAME = "evkf.reproduce.variance.experiment"


@pytest.fixture(autouse=True, scope="module")
def few_points():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variance, "POINTS", 4)
        yield


@pytest.fixture(scope="module")
def results():
    given = {"spreads": SPREADS, "samples": SAMPLES}
    return [
        variance.run(
            specification(
                "evkf.reproduce.variance.experiment", [0], system=system, nonlinearity=knob, **given
            )
        )
        for system, knob in (("linear", 0.0), ("vdp", 1.5), ("network", 4.0), ("gamma", 0.0))
    ]


@pytest.fixture(scope="module")
def rows(results):
    return [row for result in results for row in result["rows"]]


def both_signs(key, num, dim):
    """Draws whose mean is zero and whose covariance is the identity, exactly."""
    draws = np.random.default_rng(key).normal(size=(num, dim))
    draws = np.concatenate([draws, -draws])
    return jnp.asarray(draws @ np.linalg.inv(np.linalg.cholesky(draws.T @ draws / len(draws))).T)


def test_linear_dynamics_lose_exactly_what_the_formula_says():
    model, points = variance.problem("linear", 0.0, 0.2, 0)
    found = variance.measure(model, points, 0.3, both_signs(0, SAMPLES // 2, 2), jax.random.key(0))
    A, Q = np.asarray(model.dynamics.weight), 0.04 * np.eye(2)
    lost = np.trace(A @ (0.09 * np.eye(2)) @ A.T)
    np.testing.assert_allclose(found.formula, lost)
    np.testing.assert_allclose(found.uncorrected, np.trace(Q))
    for part in (found.true, found.corrected, found.matching):
        np.testing.assert_allclose(part, lost + np.trace(Q), rtol=1e-6)
    np.testing.assert_allclose(found.shift, 0, atol=1e-6)


def test_gamma_dynamics_lose_less_by_what_averaging_gives_back():
    """Uncorrected the variance is E[f^2] / (b0 E[f]^2), where E is over the filter's nodes."""
    model, points = variance.problem("gamma", 0.0, 20**-0.5, 0)
    normal = jnp.zeros((SAMPLES, 2))
    found = variance.measure(model, points, 0.3, normal, jax.random.key(0))
    family = model.family
    belief = family.from_moments(points[0], 0.09 * jnp.eye(2))

    def f(z):
        return family.mean(model.transition(z, jnp.zeros(0)))

    images = jax.vmap(f)(family.sample(belief, jax.random.key(1), SAMPLES))
    mean, var = images.mean(axis=0), images.var(axis=0)
    lost = jnp.sum(var * (1 - 1 / (20 * mean**2)))
    np.testing.assert_allclose(found.true[0], 2 / 20 + var.sum(), rtol=0.05)
    np.testing.assert_allclose(found.true[0] - found.uncorrected[0], lost, rtol=0.15)
    np.testing.assert_allclose(found.corrected[0], 2 / 20 + found.formula[0], rtol=1e-6)
    assert found.shift[0] > 0


def test_the_formula_is_too_high_on_a_steep_stretch_and_too_low_on_a_flat_one():
    dynamics = variance.ChaoticRNN(jnp.eye(1), gamma=1.0, tau=1.0, dt=1.0)
    model = variance.Model(dynamics, variance.Poisson([[1.0]]))
    places, draws = jnp.array([[0.0], [3.0]]), both_signs(0, 500, 1)
    found = variance.measure(model, places, 1.0, draws, jax.random.key(0))
    lost = found.true - found.uncorrected
    assert found.formula[0] > 1.5 * lost[0]
    assert found.formula[1] < 0.5 * lost[1]


def test_tiny_runs_give_all_rows(rows):
    assert len(rows) == len(SPREADS) * (3 * len(variance.NOISES) + 4)
    for row in rows:
        assert row["method"] == "evkf"
        figures = [value for name, value in row.items() if name not in ("system", "method")]
        assert np.isfinite(figures).all()
        assert min(row["corrected"], row["matching"], row["lost"]) > 0
    exact = [row["ratio"] for row in rows if row["system"] == "linear"]
    np.testing.assert_allclose(exact, 1, atol=0.1)


def test_the_report_and_the_figure(results):
    found = ExperimentResult(results, quick=True)
    text = report(found)
    assert "One trial of 4 states" in text
    for title in ("## Linear", "## Van der Pol, damping 1.5", "## Network, gain 4", "## Gamma"):
        assert title in text
    assert len(draw(found).axes) == 4
    assert [spec["seeds"] for spec in variance.tasks(tuple(variance.METHODS), 2, True)] == 8 * [
        [0, 1]
    ]


def test_figures_show_every_ratio(results):
    far = [
        result
        | {"rows": [row | {"ratio": 7.0, "ratio_low": 0.1} for row in result["rows"]]}
        | {"series": [one | {"formula": [9 * x for x in one["lost"]]} for one in result["series"]]}
        for result in results
    ]
    _, ratio, gamma, single = draw(ExperimentResult(far, quick=True)).axes
    for ax, low, high in ((ratio, 0.1, 7), (gamma, 1, 7), (single, 1, 9)):
        bottom, top = ax.get_ylim()
        assert bottom < low
        assert top > high


def test_shortfalls_look_at_the_linear_case_alone():
    def missed(**ratios):
        rows = [{"system": name, "ratio": ratio} for name, ratio in ratios.items()]
        return shortfalls(ExperimentResult([{"rows": rows}]))

    assert missed(linear=1.01, network=3.0) == []
    assert len(missed(linear=0.9, network=3.0)) == 1
    (words,) = missed(linear=1.01, network=np.nan)
    assert "network" in words
