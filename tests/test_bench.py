"""The benchmark of a step: what it measures, and what it refuses."""

import jax
import jax.numpy as jnp
import pytest

from evkf import bench
from evkf.errors import InputError


def test_cells_are_all_combinations():
    cells = bench.cells([2, 3], [10, 20], ["poisson", "gaussian"])
    assert len(cells) == len(set(cells)) == 8
    assert cells[0] == bench.Cell(2, 10, "poisson")


def test_unknown_likelihood_lists_the_choices():
    with pytest.raises(InputError, match="poisson, gaussian") as caught:
        bench.cells([2], [10], ["poison"])
    assert caught.value.where == "--likelihood"


@pytest.mark.parametrize(("latents", "neurons"), [([0], [10]), ([2], [10, -1])])
def test_sizes_below_one_are_refused(latents: list[int], neurons: list[int]):
    with pytest.raises(InputError):
        bench.cells(latents, neurons, ["poisson"])


@pytest.mark.parametrize("likelihood", bench.LIKELIHOODS)
def test_models_have_the_size_asked_for(likelihood: str):
    model = bench.build(bench.Cell(3, 7, likelihood), seed=0)
    assert (model.dynamics.dim, model.likelihood.num_channels) == (3, 7)


def test_measured_times_are_plausible():
    row = bench.measure(bench.Cell(3, 7, "gaussian"), num_calls=30, seed=0)
    assert 0 < row.empty_us < row.median_us <= row.p99_us
    assert row.ratio == pytest.approx(row.median_us / row.empty_us)
    assert row.scan_us > 0
    assert row.compile_s > 0
    assert row.evaluations >= 1
    assert (row.not_ok, row.compiles_after_first) == (0, 0)
    assert len(bench.line(row)) == len(bench.HEADER.splitlines()[-1])


def test_compilations_are_counted():
    double = jax.jit(lambda x: 2 * x)
    scalar, vector = jnp.ones(()), jnp.ones(3)
    with bench.count_compiles() as compiles:
        double(scalar)
    assert len(compiles) == 1
    with bench.count_compiles() as compiles:
        double(scalar)
    assert len(compiles) == 0
    with bench.count_compiles() as compiles:
        double(vector)
    assert len(compiles) == 1
