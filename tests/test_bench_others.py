"""The comparison with other packages: the same model for all, and clear words when one lacks."""

import math
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal
from speed import others
from speed import others_worker as worker
from speed.steps import Cell, build

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError

CELL = Cell(2, 12, "poisson")


def problem_of(cell: Cell) -> tuple[worker.Problem, GaussianDynamics]:
    model = build(cell, seed=0)
    system, arrays = others.problem(model, np.zeros((1, cell.N)))
    assert isinstance(model.dynamics, GaussianDynamics)
    return worker.Problem(system, arrays, 1, 1, 0), model.dynamics


def other(package: str, log_density: float) -> others.Other:
    return others.Other(2, 12, 5, package, "", "1", 1.0, log_density, 0.1, 0, 1.0)


def test_scores_are_those_of_scipy():
    rng = np.random.default_rng(0)
    truth, mean = rng.normal(size=(2, 20, 3))
    root = rng.normal(size=(20, 3, 3))
    cov = root @ root.transpose(0, 2, 1) + np.eye(3)
    found = worker.scores(mean, cov, truth)
    each = [multivariate_normal(m, P).logpdf(z) for m, P, z in zip(mean, cov, truth, strict=True)]
    assert found["log_density"] == pytest.approx(np.mean(each))
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((truth - mean) ** 2)))
    assert found["bins_lost"] == 0


@pytest.mark.parametrize("bad", [np.nan, -1.0])
def test_lost_bins_are_not_hidden(bad: float):
    cov = np.tile(np.eye(2), (5, 1, 1))
    cov[3, 1, 1] = bad
    found = worker.scores(np.zeros((5, 2)), cov, np.zeros((5, 2)))
    assert math.isnan(found["log_density"])
    assert (found["rmse"], found["bins_lost"]) == (0, 1)


@pytest.mark.parametrize("cell", [CELL, Cell(3, 7, "poisson")])
def test_worker_has_the_model_of_the_benchmark(cell: Cell):
    problem, dynamics = problem_of(cell)
    zs = np.random.default_rng(0).normal(size=(4, cell.L))
    likelihood = build(cell, seed=0).likelihood
    none = jnp.zeros(0)
    for z, batch_mean, batch_rate in zip(zs, problem.mean(zs), problem.rate(zs), strict=True):
        np.testing.assert_allclose(problem.mean(z), dynamics.mean(z, none), rtol=1e-10)
        np.testing.assert_allclose(batch_mean, dynamics.mean(z, none), rtol=1e-10)
        np.testing.assert_allclose(batch_rate, likelihood.mean(z), rtol=1e-10)
        slope = jax.jacfwd(lambda z: dynamics.mean(z, none))(z)
        np.testing.assert_allclose(problem.jacobian(z), slope, rtol=1e-10, atol=1e-12)


def test_filters_of_another_process_come_near_ours():
    rows = others.compare(Path(sys.executable), CELL, 0, 150, packages=["filterpy"], repeats=1)
    assert [row.package for row in rows] == ["evkf", "filterpy", "filterpy"]
    assert [row.variant for row in rows[1:]] == ["EKF", "UKF"]
    ours = rows[0]
    for row in rows:
        assert row[:3] == (2, 12, 150)
        assert row.step_us > 0
        assert row.empty_us > 0
        assert row.bins_lost == 0
        assert row.rmse == pytest.approx(ours.rmse, rel=0.1)
        assert row.log_density == pytest.approx(ours.log_density, abs=0.2)


def test_breakdown_leaves_nan():
    problem = problem_of(CELL)[0]._replace(repeats=2)
    problem.arrays["ys"] = np.zeros((6, CELL.N))

    def make() -> worker.Step:
        left = iter(range(3))

        def step(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if next(left, None) is None:
                raise np.linalg.LinAlgError
            return np.zeros(2), np.eye(2)

        return step

    run = worker.run_loop("one that breaks", problem, make)
    assert worker.scores(run.mean, run.cov, np.zeros((6, 2)))["bins_lost"] == 3
    assert run.step_s > 0


def test_interpreter_without_the_packages_says_how_to_get_them(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    with pytest.raises(InputError, match="No module named 'numpy'") as caught:
        others.compare(python, CELL, 0, 5)
    assert caught.value.where == str(python)
    assert f"-m pip install --no-deps -r {others.REQUIREMENTS}" in caught.value.remedy


def test_missing_interpreter_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no interpreter"):
        others.compare(tmp_path / "python", CELL, 0, 5)


def test_other_likelihoods_are_refused():
    with pytest.raises(InputError, match="gaussian"):
        others.compare(Path(sys.executable), Cell(2, 12, "gaussian"), 0)


def test_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, calls, said = tmp_path / "env", [], []

    def call(command: list[str], where: Path) -> None:
        calls.append(command)
        if "venv" in command:
            (where / "bin").mkdir(parents=True)
            (where / "bin" / "python").touch()

    monkeypatch.setattr(others, "_call", call)
    python = others.environment(folder, said.append)
    assert python == folder / "bin" / "python"
    assert others.environment(folder, said.append) == python
    assert (len(calls), len(said)) == (2, 1)
    assert "--no-deps" in calls[1]


def test_environment_of_other_requirements_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", "pyvenv.cfg", others.MARKER):
        (tmp_path / name).touch()
    calls = []
    monkeypatch.setattr(others, "_call", lambda command, where: calls.append(command))
    others.environment(tmp_path, str)
    assert "--clear" in calls[0]


def test_environment_leaves_other_folders_alone(tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="other things"):
        others.environment(tmp_path, str)
    with pytest.raises(InputError, match="a file"):
        others.environment(tmp_path / "thesis.tex", str)


@pytest.mark.slow
def test_environment_that_pip_cannot_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = tmp_path / "requirements.txt"
    text.write_text("--no-index\nevkf-no-such-package==1\n", encoding="utf-8")
    monkeypatch.setattr(others, "REQUIREMENTS", text)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(InputError, match="evkf-no-such-package") as caught:
        others.environment(tmp_path / "env", str)
    assert caught.value.where == str(tmp_path / "env")
    assert not (tmp_path / "env" / others.MARKER).exists()


def test_requirements_are_pinned_with_our_jax():
    lines = others.REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    assert {pin.partition("==")[0] for pin in pins} >= set(others.PACKAGES)
    ours = Path(__file__).resolve().parent.parent / "requirements" / "run.txt"
    locked = ours.read_text(encoding="utf-8").splitlines()
    assert {pin for pin in pins if pin.startswith(("jax==", "jaxlib=="))} <= set(locked)


def test_nearest_has_the_best_density():
    rows = [other("dynamax", math.nan), other("dynamax", 1.0), other("dynamax", 2.0)]
    assert others.nearest([*rows, other("filterpy", 3.0)]) == rows[2]
    assert others.nearest(rows[:1]) is None


def test_figures_against_dynamax():
    """Times against the faster of both, densities against the better of every seed."""

    def row(package: str, variant: str, step_us: float, log_density: float) -> others.Other:
        return other(package, log_density)._replace(variant=variant, step_us=step_us)

    nan = math.nan
    seeds = [
        [row("evkf", "", 10, 3.0), row("dynamax", "EKF", 30, 1.0), row("dynamax", "UKF", 90, 2.0)],
        [
            row("evkf", "", 20, 5.0),
            row("dynamax", "EKF", 30, nan),
            row("dynamax", "UKF", 90, 2),
        ],
    ]
    times, density = others.against_dynamax(CELL, seeds)
    assert (times.value, times.met) == (2, True)
    assert (density.value, density.error) == (2, pytest.approx(1.0))
    lost = [[each._replace(log_density=math.nan) for each in rows] for rows in seeds]
    assert others.against_dynamax(CELL, lost)[1].value == math.inf


def test_seeds_are_compared_one_after_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked = []

    def compare(python: Path, cell: Cell, seed: int, bins: int, packages: tuple) -> list:
        asked.append((cell, seed, packages))
        return [other("evkf", 1.0), other("dynamax", 0.5)]

    monkeypatch.setattr(others, "environment", lambda folder, say: folder)
    monkeypatch.setattr(others, "compare", compare)
    found = others.run(False, 3, str, tmp_path)
    assert [(seed, packages) for _, seed, packages in asked[:2]] == [
        (3, others.PACKAGES),
        (4, ("dynamax",)),
    ]
    assert len(found.rows) == 2 * 2 * others.SEEDS
    assert all(figure.met for figure in found.figures)


def test_environment_is_in_the_folder_of_caches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert others.cache_folder() == Path("/caches/evkf/others")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert others.cache_folder().parts[-3:] == (".cache", "evkf", "others")
