"""Continuous Bernoulli dynamics: the generator, the judging, a run in small, report and figures."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

from evkf.analysis.metrics import transition_kl
from evkf.dynamics import NaturalDynamics, Network
from evkf.families import ContinuousBernoulliFamily, GaussianFamily
from evkf.filters import DirectVJF
from evkf.reproduce.cb import experiment as cb
from evkf.reproduce.cb.figure import draw_cb, draw_methods, draw_table3
from evkf.reproduce.cb.report import EXPERIMENTS, PAPER, claims, report, report_figure
from evkf.reproduce.tables import ExperimentResult
from tests.quick import quick_compilation  # noqa: F401

NAMES, ON = tuple(cb.METHODS), (True, False)
RUN = (("cb", "oracle"), ("cb", "direct"), ("gaussian", "evkf"))
"""What is run here: one of every way. The other methods are tried one by one elsewhere."""


def turned(states):
    """60 R(0.9) (2z - 1), by hand."""
    x, y = 2 * np.transpose(states) - 1
    cos, sin = np.cos(0.9), np.sin(0.9)
    return 60 * np.transpose([cos * x - sin * y, sin * x + cos * y])


def test_the_truth_turns_the_square_and_stays_in_it():
    true, states, ys = cb.problem(2000, 3)
    z = np.array([0.2, 0.9])
    nat = true.dynamics.transition(jnp.asarray(z), jnp.zeros(0))[:, 0]
    np.testing.assert_allclose(nat, turned(z), rtol=1e-12)
    assert states.min() >= 0
    assert states.max() <= 1
    assert 0.2 < cb.in_corner(states).mean() < 1
    np.testing.assert_allclose(np.var(ys - states @ true.likelihood.C.T), 0.3, rtol=0.03)
    nats = turned(states[:-1])
    means = 1 / -np.expm1(-nats) - 1 / nats
    np.testing.assert_allclose(np.mean(states[1:] - means, axis=0), 0, atol=0.02)


def test_kl_is_that_of_integration():
    true, states, _ = cb.problem(4, 0)
    other = NaturalDynamics(
        ContinuousBernoulliFamily(2), Network([2, 3, 2], jax.random.key(0), 20.0)
    )

    def kl(a, b):
        one, two = (lambda z, x=x: x * z - np.log(np.expm1(x) / x) for x in (a, b))
        return quad(lambda z: np.exp(one(z)) * (one(z) - two(z)), 0, 1, epsabs=1e-12)[0]

    none = jnp.zeros(0)
    moves = [
        [np.asarray(system.transition(jnp.asarray(z), none))[:, 0] for z in states]
        for system in (true.dynamics, other)
    ]
    want = np.sum([kl(a, b) for a, b in zip(*map(np.ravel, moves), strict=True)]) / len(states)
    got = transition_kl(true.dynamics, other, jnp.asarray(states))
    np.testing.assert_allclose(got, want, rtol=1e-7)


def test_intervals_hold_nine_tenths():
    nat = np.array([[[-40.0], [0.5]], [[3.0], [0.0]]])
    low, high = cb.interval(ContinuousBernoulliFamily(2), jnp.asarray(nat))
    for x, a, b in zip(nat.ravel(), low.ravel(), high.ravel(), strict=True):
        x = x or 1e-9
        for z, share in ((a, 0.05), (b, 0.95)):
            np.testing.assert_allclose(np.expm1(x * z) / np.expm1(x), share, rtol=1e-5)
    beliefs = GaussianFamily(1).from_moments(jnp.zeros(1), 4 * jnp.eye(1))
    low, high = cb.interval(GaussianFamily(1), jax.tree.map(lambda x: x[None], beliefs))
    np.testing.assert_allclose([low, high], [[[-3.29]], [[3.29]]])


@pytest.fixture(scope="module")
def ran():
    """The oracle and a method of either kind on two short trials, with the least effort."""
    few = cb.METHODS | {
        "direct": {
            kind: method._replace(make=lambda on: DirectVJF(iterations=2, num_samples=2, learn=on))
            for kind, method in cb.METHODS["direct"].items()
        }
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cb, "METHODS", few)
        patch.setattr(cb, "QUICK_LEARNED", 12)
        patch.setattr(cb, "QUICK_JUDGED", cb.SHOWN + cb.ONWARD)
        specs = [spec for spec in cb.tasks(NAMES, 2, True) if (spec["kind"], spec["method"]) in RUN]
        return [json.loads(json.dumps(cb.run(spec))) for spec in specs]


def test_all_figures_of_all_trials_come_out(ran):
    for (kind, method), result in zip(RUN, ran, strict=True):
        assert [row["trial"] for row in result["rows"]] == [0, 1]
        for row in result["rows"]:
            assert (row["kind"], row["method"]) == (kind, method)
            numbers = {name for name in row if name not in ("kind", "method", "trial")}
            assert ("kl" in numbers) == (kind == "cb")
            assert {"log_q", "log_chamfer", "rmse", "roughness"} <= numbers
            assert all(np.isfinite(row[name]) for name in numbers), row
        shown, hidden = result["series"]
        assert ("nat" in shown) == (kind == "cb")
        assert np.shape(shown["onward"]) == (cb.PATHS, cb.ONWARD, 2)
        assert hidden == {}


@pytest.mark.parametrize("what", cb.timings(NAMES, False), ids=lambda what: "-".join(what.values()))
def test_every_method_takes_the_start_it_is_given(what):
    method, (true, _, _) = cb.METHODS[what["method"]][what["kind"]], cb.problem(2, 0)
    model = method.start(true.likelihood, 0)
    make = method.make
    for filter in (make,) if isinstance(make, cb.Learner) else map(make, ON):
        assert jax.tree.leaves(jax.eval_shape(filter.init, model))


def everybody(results):
    """What was run, told of all the other methods as well."""
    oracle, *ran = results
    return [oracle] + [
        result | {"rows": [row | {"method": name} for row in result["rows"]]}
        for kind, result in zip(cb.KINDS, ran, strict=True)
        for name in NAMES
        if kind in cb.METHODS[name]
    ]


def test_figures_are_drawn_and_the_report_is_written(ran):
    timing = [what | {"step_ms": 1.25} for what in cb.timings(NAMES, False)]
    found = ExperimentResult(everybody(ran), timing, 2, quick=True)
    for draw, num in ((draw_cb, 8), (draw_methods, 20), (draw_table3, 3)):
        figure = draw(found)
        figure.draw_without_rendering()
        assert len(figure.axes) == num
    text = report(found)
    assert text.count("| 1.2 |") == 9
    assert "Quick" in text
    assert "over 2 trials" in text
    assert "nan" not in text
    assert "box of ±10" in text
    panels = report_figure(found)
    assert all(f"**{panel}**" in panels for panel in ("A", "B", "C", "Above", "Below"))
    assert all(f"`{name}`" in panels for name in EXPERIMENTS["cb"].pictures)
    for kind in PAPER.values():
        for figures in kind.values():
            assert all(f"| {figure} |" in text for figure in figures.values())


def made_up(**figures):
    """Rows of eVKF and VJF in both kinds, as (log q, KL, log Chamfer) of each."""
    names = ("log_q", "kl", "log_chamfer")
    return [
        {"kind": kind, "method": method, "trial": trial} | dict(zip(names, found, strict=True))
        for key, found in figures.items()
        for kind, method in [key.split("_")]
        for trial in range(2)
    ]


def test_claims_are_marked_both_ways():
    good = {"cb_evkf": (3, 0.1, -3), "cb_vjf": (2, 1.0, -2)}
    good |= {"gaussian_evkf": (4, 9, -1), "gaussian_vjf": (3, 10, 0)}
    found = claims(made_up(**good))
    assert len(found) == 8
    assert all(claim.holds for claim in found)
    swap = {"evkf": "vjf", "vjf": "evkf", "cb": "gaussian", "gaussian": "cb"}
    bad = {"_".join(swap[part] for part in key.split("_")): good[key] for key in good}
    assert not any(claim.holds for claim in claims(made_up(**bad)))
    assert "**Not confirmed**: eVKF has the lowest KL" in report(
        ExperimentResult([{"rows": made_up(**bad)}])
    )


def test_a_rival_that_diverges_does_not_win():
    lost = {"cb_evkf": (3, 0.1, -3), "cb_vjf": (np.nan, np.inf, np.nan)}
    found = claims(made_up(**lost))
    assert len(found) == 3
    assert all(claim.holds for claim in found)
    assert all("every other method diverges" in claim.figures for claim in found)
    ours = {"cb_evkf": (np.nan, np.nan, np.nan), "cb_vjf": (3, 0.1, -3)}
    assert not any(claim.holds for claim in claims(made_up(**ours)))
    three = claims(made_up(**lost, cb_svmc=(4, 0.05, -4)))
    assert not any(claim.holds for claim in three)
    assert all("SVMC" in claim.figures for claim in three)


def test_every_trial_is_judged_by_draws_of_its_own():
    true, states, _ = cb.problem(40, 0)
    floors = [cb.judge_dynamics(true, None, states, seed)["log_chamfer"] for seed in (0, 1)]
    assert floors[0] != floors[1]
    assert cb.judge_dynamics(true, None, states, 1)["log_chamfer"] == floors[1]
