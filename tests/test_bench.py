"""The benchmark: what its parts measure at tiny sizes, and what is said of it."""

import contextlib
import functools
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import bench
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from speed import PARTS, core, low_rank, precision, products, sessions, sizes, stability, steps
from speed.core import Figure, Part
from speed.report import draw, markdown, table

from evkf.errors import InputError
from evkf.reproduce.runner import device
from tests.quick import quick_compilation  # noqa: F401

WHERE = {"platform": "cpu", "name": "8086", "cores": 1}
STORED = {"sessions": {"rows": [{"steps_per_s": 1}]}}


BENCH_FILES = {"bench.json", "bench.md", "bench.png", "bench.svg"}


class Result(NamedTuple):
    code: int
    out: str
    err: str


def invoke(*args: str) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = bench.main(args)
    return Result(code, out.getvalue(), err.getvalue())


def check(part: Part, name: str) -> None:
    """Rows that JSON can hold, and figures with a value of that part."""
    json.dumps(part.rows)
    json.dumps([figure.row() for figure in part.figures])
    assert part.rows
    assert part.figures
    for figure in part.figures:
        assert figure.part == name
        assert math.isfinite(figure.value), figure
        assert figure.name in markdown(part.figures, WHERE, "today", quick=True, drawn=False)


@pytest.mark.parametrize(
    ("value", "least", "met"),
    [(2.0, False, True), (4.0, False, False), (4.0, True, True), (math.nan, True, False)],
)
def test_targets_are_least_or_most(value: float, least: bool, met: bool):
    figure = Figure("a step", value, "ms", 3.0, least, "step")
    assert figure.met is met
    assert figure.row()["met"] is met


def test_figures_without_target_are_met_and_say_so():
    figure = Figure("a step", 2.0, "ms", None, False, "step", error=0.25)
    assert figure.met
    assert figure.row()["met"] is None
    assert (figure.found, figure.wanted) == ("2 ± 0.25 ms", "—")
    assert table([figure]).row_count == 1


@pytest.mark.parametrize("likelihood", steps.LIKELIHOODS)
def test_models_have_the_size_asked_for(likelihood: str):
    model = steps.build(steps.Cell(3, 7, likelihood), seed=0)
    assert (model.dynamics.dim, model.likelihood.num_channels) == (3, 7)


def test_measured_times_are_plausible():
    row = steps.measure(steps.Cell(3, 7, "gaussian"), num_calls=30, seed=0)
    assert 0 < row.empty_us < row.median_us <= row.p99_us
    assert row.ratio == pytest.approx(row.median_us / row.empty_us)
    assert row.scan_us > 0
    assert row.compile_s > 0
    assert row.evaluations >= 1
    assert (row.not_ok, row.compiles_after_first) == (0, 0)
    assert len(steps.line(row)) == len(steps.HEADER.splitlines()[-1])


def test_steps_against_their_targets():
    cell = steps.Cell(2, 100, "poisson")
    times = {"compile_s": 1, "median_us": 20.0, "p99_us": 30, "scan_us": 5, "empty_us": 5}
    row = steps.Row(*cell, **times, ratio=4, evaluations=2, not_ok=0, compiles_after_first=1)
    ratio, scan, again = steps.figures([row])
    assert (ratio.value, ratio.met) == (4, False)
    assert (scan.value, scan.met) == (4, True)
    assert (again.value, again.met) == (1, False)


def test_compilations_are_counted():
    double = jax.jit(lambda x: 2 * x)
    scalar, vector = jnp.ones(()), jnp.ones(3)
    for x, num in ((scalar, 1), (scalar, 0), (vector, 1)):
        with core.count_compiles() as compiles:
            double(x)
        assert len(compiles) == num


def test_calls_are_timed_in_turn():
    order = []
    times = core.time_in_turn([lambda: order.append("a"), lambda: order.append("b")], 3, 1)
    assert times.shape == (3, 2)
    assert order == ["a", "b"] * 4


def test_products_of_a_step(monkeypatch: pytest.MonkeyPatch):
    cell = steps.Cell(5, 20, "poisson")
    row = products.measure(cell, 3, seed=0)
    assert row["ratio"] == pytest.approx(row["step_ms"] / row["products_ms"])
    assert row["evaluations"] >= 1
    monkeypatch.setattr(products, "measure_apart", lambda *_: row)
    check(products.run(True, 0, str), "products")
    assert products.Products(5, 20, 0)(2).dtype == np.float32


def test_bins_of_low_rank_are_streamed():
    with jax.enable_x64(False):
        step = low_rank.stream(6, 20, seed=0)
        step()
    assert (step.info.status, step.info.evaluations > 0) == (0, True)


def test_low_rank_beside_full(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(low_rank, "stream", lambda *_: lambda: None)
    monkeypatch.setattr(low_rank, "NETWORK", 5)
    monkeypatch.setattr(low_rank, "RANK", 2)
    monkeypatch.setattr(low_rank, "QUICK_BINS", 20)
    found = low_rank.run(True, 0, str)
    check(found, "low-rank")
    error, nats = found.figures[2:]
    assert 0.8 < error.value < 1.3
    assert abs(nats.value) < 0.5


def test_stability_looks_at_every_bin(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stability, "QUICK_SIZE", (5, 20))
    monkeypatch.setattr(stability, "QUICK_BINS", 20)
    monkeypatch.setattr(stability, "CHUNK", 10)
    found = stability.run(True, 0, str)
    check(found, "stability")
    assert [row["first_bin"] for row in found.rows] == [0, 10]
    assert found.figures[0].value == 0


def test_sizes_and_their_picture(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sizes, "stream", lambda *_: lambda: None)
    found = sizes.run(True, 0, str)
    check(found, "sizes")
    assert len(found.rows) == 10
    left, right = draw(found.rows).axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("latents", "units")
    assert {text.get_text() for text in left.texts} >= {"full covariance", "slope 1"}


def test_precision_of_the_same_recording(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "CELLS", {"Van der Pol": steps.Cell(2, 10, "poisson")})
    monkeypatch.setattr(precision, "QUICK_BINS", 30)
    found = precision.run(True, 0, str)
    check(found, "precision")
    assert found.figures[0].met


def test_sessions_and_a_cpu_to_compare_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sessions, "ON_CPU", (3,))
    monkeypatch.setattr(sessions, "NEURONS", 12)
    monkeypatch.setattr(sessions, "LATENTS", 3)
    found = sessions.run(True, 0, str, cpu=10.0)
    check(found, "sessions")
    (row,) = found.rows
    assert (row["not_ok"], row["finite"]) == (0, True)
    assert found.figures[1].value == pytest.approx(row["steps_per_s"] / 10)
    file = tmp_path / "bench.json"
    stored = {"device": WHERE, "parts": {"sessions": {"rows": found.rows}}}
    file.write_text(json.dumps(stored), encoding="utf-8")
    assert sessions.read_steps(file) == row["steps_per_s"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file"),
        ("{", "no result"),
        ('{"device": {"platform": "cpu"}, "parts": {}}', "no result"),
        (json.dumps({"device": {"platform": "gpu"}, "parts": STORED}), "of a gpu"),
    ],
)
def test_no_cpu_to_compare_with(tmp_path: Path, text: str | None, says: str):
    file = tmp_path / "bench.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=says) as caught:
        sessions.read_steps(file)
    assert caught.value.where == str(file)


def test_all_parts_have_a_name():
    assert list(PARTS) == [
        "step",
        "products",
        "low-rank",
        "stability",
        "sizes",
        "precision",
        "sessions",
        "others",
    ]
    assert device().keys() == {"platform", "name", "cores"}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that measure nothing; this process has computed already."""
    sizes = [
        {"against": against, "kind": kind, "L": 2 * size, "N": size, "ms": 0.5 * size}
        for against in ("L", "N")
        for kind in ("low rank", "full covariance")
        for size in (10, 20)
    ]

    def run(name: str, quick: bool, seed: int, say: Callable[[str], object]) -> Part:
        say(f"measuring {name}")
        value = 4.0 if name == "precision" else 2.0
        figure = Figure(f"cost of {name}", value, "ms", 3.0, False, name)
        return Part(sizes if name == "sizes" else [{"seed": seed}], [figure])

    for name in PARTS:
        monkeypatch.setitem(PARTS, name, functools.partial(run, name))
    monkeypatch.setattr(bench, "low_latency", lambda: None)


@pytest.mark.usefixtures("parts")
def test_bench_writes_all_it_found_and_says_what_fell_short(tmp_path: Path):
    result = invoke("--quick", "--seed", "3", "--out", str(tmp_path / "new"))
    assert result.code == 1, result.err
    assert "missed: cost of precision: 4 ms, target ≤ 3" in result.out
    assert {path.name for path in (tmp_path / "new").iterdir()} == BENCH_FILES
    written = json.loads((tmp_path / "new" / "bench.json").read_text(encoding="utf-8"))
    assert written["config"] == {"parts": list(PARTS), "quick": True, "seed": 3, "against": None}
    assert written.keys() == {"command", "config", "versions", "device", "date", "parts"}
    assert written["parts"]["step"]["rows"] == [{"seed": 3}]
    assert written["parts"]["step"]["figures"][0]["met"] is True
    page = (tmp_path / "new" / "bench.md").read_text(encoding="utf-8")
    assert "| cost of precision | 4 ms | ≤ 3 | ✗ |" in page
    again = invoke("--out", str(tmp_path / "new"))
    assert again.code == 2
    assert "--force" in again.err


@pytest.mark.usefixtures("parts")
def test_bench_runs_the_parts_named_in_their_order(tmp_path: Path):
    folder = ("--out", str(tmp_path))
    result = invoke("products", "step", *folder, "--json", "-")
    assert result.code == 0, result.err
    assert list(json.loads(result.out)["parts"]) == ["step", "products"]
    assert "all targets met" in result.err
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.md"}
    assert invoke("step", *folder, "--force", "--quiet") == (0, "", "")


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("stap",), "step, products, low-rank"),
        (("step", "--against", "bench.json"), "sessions"),
        (("--against", "no.json"), "no such file"),
    ],
)
def test_bench_refuses_before_it_measures(tmp_path: Path, args: tuple[str, ...], says: str):
    result = invoke(*args, "--out", str(tmp_path))
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert says in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("parts")
def test_bench_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> Part:
        raise KeyboardInterrupt

    monkeypatch.setitem(PARTS, "products", interrupt)
    assert invoke("step", "products", "--out", str(tmp_path / "new")).code == 130
    assert not (tmp_path / "new").exists()


def test_bench_too_late_says_so(tmp_path: Path):
    result = invoke("precision", "--out", str(tmp_path))
    assert result.code == 2
    assert "JAX has computed already" in result.err
