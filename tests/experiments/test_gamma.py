"""Gamma dynamics: the system, the reference by particles, and tiny runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import gamma as scipy_gamma

from evkf.experiments import gamma
from evkf.experiments.gamma_figure import draw
from evkf.experiments.gamma_report import report, shortfalls
from evkf.experiments.runner import specification
from evkf.families import Gamma
from tests.quick import quick_compilation  # noqa: F401

BINS, SEEDS = 12, [0, 1]


@pytest.fixture(scope="module")
def results():
    """Every method and the particles, on few bins and with few particles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gamma, "PARTICLES", 300)
        return [
            gamma.run(specification("gamma", 1, SEEDS, b0=20, method=method, bins=BINS))
            for method in (gamma.PARTICLE, *gamma.METHODS)
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


def test_transitions_have_mean_f_and_variance_one_over_b0():
    model, _, _ = gamma.problem(20, 1, 0)
    z = jnp.array([1.0, 2.0])
    belief = model.transition(z, jnp.zeros(0))
    np.testing.assert_allclose(model.family.var(belief), 1 / 20)
    f = jax.nn.softplus(gamma.network()(z))
    np.testing.assert_allclose(model.family.mean(belief), f, atol=2e-4)


def test_coverage_and_log_density_are_those_of_scipy():
    model, states, _ = gamma.problem(20, BINS, 0)
    shape, rate = np.array([3.0, 5.0]), np.array([2.0, 4.0])
    beliefs = jnp.tile(jnp.stack([shape - 1, -rate], -1), (BINS, 1, 1))
    row = gamma.judge(model, beliefs, states)
    exact = scipy_gamma(shape, scale=1 / rate)
    np.testing.assert_allclose(row["log_q"], exact.logpdf(states).sum(axis=1).mean())
    inside = (states > exact.ppf(0.05)) & (states < exact.ppf(0.95))
    np.testing.assert_allclose(row["coverage_90"], inside.mean())


def test_gammas_are_matched_to_the_particles_of_a_wide_belief():
    """Without information the particles of the first bin are draws from the push-forward, whose
    moments a large sample gives as well.
    """
    model, _, ys = gamma.problem(20, 1, 0)
    blind = gamma.problem(20, 1, 0)[0]
    object.__setattr__(blind.likelihood, "C", 0 * model.likelihood.C)
    filter = gamma.ParticleFilter(20_000)
    models, keys = gamma.stack([blind]), gamma.stack([jax.random.key(0)])
    found = gamma.match(filter, models, jnp.asarray(ys)[None], keys)
    start_key, move_key = jax.random.split(jax.random.key(1))
    z = model.family.sample(model.prior, start_key, 20_000)
    after = jax.vmap(lambda z: model.transition(z, jnp.zeros(0)))(z)
    keys = jax.random.split(move_key, len(z))
    z = jax.vmap(lambda b, key: model.family.sample(b, key, 1)[0])(after, keys)
    family = Gamma(2)
    np.testing.assert_allclose(family.mean(found.moments[0, 0]), z.mean(axis=0), rtol=0.01)
    np.testing.assert_allclose(family.var(found.moments[0, 0]), z.var(axis=0), rtol=0.05)
    stats = jnp.stack([jnp.log(z), z], -1).mean(axis=0)
    np.testing.assert_allclose(family.to_mean(found.mean_log[0, 0]), stats, atol=0.02)


def test_tiny_runs_give_all_rows(rows):
    names = (*gamma.REFERENCES, *gamma.METHODS)
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
    assert gamma.timings(("corrected",), True) == []


def test_the_report_and_the_figure(results, rows):
    text = report(rows, [], 2, True)
    for label in (*gamma.REFERENCES.values(), *gamma.METHODS.values(), "b0 = 20"):
        assert label in text
    assert len(draw(results).axes) == 6


def test_shortfalls_name_both_targets():
    def row(method, log_q):
        return {"b0": 5, "method": method, "log_q": log_q}

    rows = [row("mean_log", 1.0), row("moments", 1.1), row("corrected", 0.8)]
    (far, worse) = shortfalls([*rows, row("uncorrected", 0.9)], [])
    assert "0.300 nats" in far
    assert "no better" in worse
    assert shortfalls([*rows[:2], row("corrected", 1.0), row("uncorrected", 0.9)], []) == []
