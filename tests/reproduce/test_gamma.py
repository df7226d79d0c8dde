"""Gamma dynamics: the system, the reference by particles, and tiny runs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import gamma as scipy_gamma

from evkf.reproduce.gamma import experiment as gamma
from evkf.reproduce.gamma.report import behind, draw, report, shortfalls
from evkf.reproduce.runner import specification
from evkf.reproduce.tables import ExperimentResult
from tests.quick import quick_compilation  # noqa: F401

BINS, SEEDS, PARTICLES = 12, [0, 1], 2000
METHODS = ("corrected", "uncorrected")
"""Moment matching has tests of its own."""

NAME = "evkf.reproduce.gamma.experiment"


@pytest.fixture(scope="module")
def problem():
    return gamma.problem(20, BINS, 0)


@pytest.fixture(scope="module")
def results():
    """Methods and the particles, on few bins and with few particles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gamma, "PARTICLES", PARTICLES)
        return [
            gamma.run(specification(NAME, SEEDS, b0=20, method=method, bins=BINS))
            for method in (gamma.PARTICLE, *METHODS)
        ]


@pytest.fixture(scope="module")
def rows(results):
    return [row for result in results for row in result["rows"]]


def test_states_turn_round_the_centre_onto_the_cycle():
    def move(z, _):
        z = jax.nn.softplus(gamma.network()(z))
        return z, z

    path = np.asarray(jax.lax.scan(move, jnp.array([2.0, 1.5]), length=400)[1])[200:]
    off = path - gamma.CENTRE
    angle = np.unwrap(np.arctan2(off[:, 1], off[:, 0]))
    np.testing.assert_allclose(np.linalg.norm(off, axis=1), gamma.RADIUS, atol=0.2)
    np.testing.assert_allclose(np.diff(angle).mean(), gamma.TURN, rtol=0.1)


def test_transitions_have_mean_f_and_variance_one_over_b0(problem):
    model = problem[0]
    z = jnp.array([1.0, 2.0])
    belief = model.transition(z, jnp.zeros(0))
    np.testing.assert_allclose(model.family.var(belief), 1 / 20)
    f = jax.nn.softplus(gamma.network()(z))
    np.testing.assert_allclose(model.family.mean(belief), f, atol=2e-4)


def test_coverage_and_log_density_are_those_of_scipy(problem):
    model, states, _ = problem
    shape, rate = np.array([3.0, 5.0]), np.array([2.0, 4.0])
    beliefs = jnp.tile(jnp.stack([shape - 1, -rate], -1), (BINS, 1, 1))
    row = gamma.judge(model, beliefs, states)
    exact = scipy_gamma(shape, scale=1 / rate)
    np.testing.assert_allclose(row["log_q"], exact.logpdf(states).sum(axis=1).mean())
    inside = (states > exact.ppf(0.05)) & (states < exact.ppf(0.95))
    np.testing.assert_allclose(row["coverage_90"], inside.mean())


def test_gammas_are_matched_to_the_particles_of_a_wide_belief(problem):
    """Without information the particles of the first bin are draws from the push-forward, whose
    moments another sample gives as well.
    """
    model, _, ys = problem
    blind = eqx.tree_at(lambda m: m.likelihood.C, model, 0 * model.likelihood.C)
    models, keys = gamma.stack([blind] * 2), gamma.stack([jax.random.key(0)] * 2)
    found = gamma.match(gamma.ParticleFilter(PARTICLES), models, gamma.stack([ys] * 2), keys)
    rng, family = np.random.default_rng(0), model.family
    shape, rate = np.asarray(model.prior[:, 0]) + 1, -np.asarray(model.prior[:, 1])
    z = rng.gamma(shape, 1 / rate, (20_000, 2))
    f = np.asarray(jax.nn.softplus(jax.vmap(gamma.network())(z)))
    z = rng.gamma(20 * f**2, 1 / (20 * f))
    np.testing.assert_allclose(family.mean(found.moments[0, 0]), z.mean(axis=0), rtol=0.02)
    np.testing.assert_allclose(family.var(found.moments[0, 0]), z.var(axis=0), rtol=0.15)
    stats = np.stack([np.log(z), z], -1).mean(axis=0)
    np.testing.assert_allclose(family.to_mean(found.mean_log[0, 0]), stats, atol=0.03)
    np.testing.assert_allclose(found.correlation[0, 0], np.corrcoef(z.T)[0, 1], atol=0.1)


def test_tiny_runs_give_all_rows(rows):
    names = (*gamma.REFERENCES, *METHODS)
    assert [(row["method"], row["trial"]) for row in rows] == [(n, s) for n in names for s in SEEDS]
    for row in rows:
        assert np.isfinite([row["log_q"], row["rmse"], row["carried"]]).all()
        assert row["fell_back"] == 0
        assert 0 <= row["coverage_90"] <= 1


def test_the_correction_keeps_what_is_carried(rows):
    carried = {row["method"]: row["carried"] for row in rows if row["trial"] == 0}
    assert carried["uncorrected"] < carried["corrected"]


def test_tasks_name_every_method_and_block():
    specs = gamma.tasks(("corrected",), 10, False)
    assert len(specs) == 2 * 2 * len(gamma.PRECISIONS)


def test_the_report_and_the_figure(results):
    found = ExperimentResult(results, trials=2, quick=True)
    text = report(found)
    assert "over 2 trials" in text
    for label in (*gamma.REFERENCES.values(), *(gamma.METHODS[name] for name in METHODS)):
        assert f"| {label} |" in text
    assert "b0 = 20" in text
    assert "Both hold" not in text
    assert len(draw(found).axes) == 6


def test_a_full_run_does_not_claim_what_it_missed(results):
    rows = [row for result in results for row in result["rows"]]
    lost = [row | {"log_q": np.nan} if row["method"] == "corrected" else row for row in rows]
    found = ExperimentResult([{"rows": lost}])
    assert shortfalls(found)[0].startswith("b0 = 20: eVKF is nan nats")
    assert "Both hold" not in report(found)


def made_up(ours, plain):
    """Rows of one trial, the better reference at 1.1."""
    figures = {"mean_log": 1.0, "moments": 1.1, "corrected": ours, "uncorrected": plain}
    return [
        {"b0": 5, "trial": 0, "method": name, "log_q": log_q} for name, log_q in figures.items()
    ]


@pytest.mark.parametrize(
    ("ours", "plain", "words"),
    [
        (1.0, 0.7, []),
        (0.8, 0.5, ["0.300 nats per bin behind"]),
        (1.0, 0.9, ["0.100 nats per bin worse"]),
        (0.8, 0.9, ["0.300 nats per bin behind", "-0.100 nats per bin worse"]),
        (np.nan, 0.5, ["nan nats per bin behind", "nan nats per bin worse"]),
        (-np.inf, 0.5, ["inf nats per bin behind", "-inf nats per bin worse"]),
        (1.0, np.nan, ["nan nats per bin worse"]),
    ],
)
def test_shortfalls_name_both_targets(ours, plain, words):
    missed = shortfalls(ExperimentResult([{"rows": made_up(ours, plain)}]))
    assert len(missed) == len(words)
    assert all(word in said for word, said in zip(words, missed, strict=True))


def test_without_a_reference_the_target_is_missed():
    rows = [row for row in made_up(1.0, 0.5) if row["method"] in gamma.METHODS]
    (said,) = shortfalls(ExperimentResult([{"rows": rows}]))
    assert "behind Gammas" in said
    broken = [row | {"log_q": np.nan} for row in made_up(1.0, 0.5)[:2]]
    assert shortfalls(ExperimentResult([{"rows": broken + rows}])) == [said]


def test_behind_is_of_the_better_reference():
    got = {row["method"]: row["behind"] for row in behind(made_up(1.0, 0.5))}
    np.testing.assert_allclose([got["moments"], got["mean_log"], got["corrected"]], [0, 0.1, 0.1])
