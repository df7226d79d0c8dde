"""Sessions in chunks are filtered as in one piece."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from evkf.data import Recording, write_arrays
from evkf.data.files import load, open_hdf5
from evkf.data.open import open_recording, stream_recording
from evkf.dynamics import ResidualMLP
from evkf.errors import InputError
from evkf.filters import VariationalKalmanFilter
from evkf.likelihoods import Poisson
from evkf.model import Model
from evkf.recordings.units import UnitModel, filter_chunks, filter_to_hdf5, infer, infer_many
from tests.quick import quick_compilation  # noqa: F401

N = 4


@pytest.fixture(scope="module")
def model() -> UnitModel:
    C = np.random.default_rng(0).normal(size=(N, 2))
    dynamics = ResidualMLP(2, 0.05, jax.random.key(0), hidden=4)
    parts = Model(dynamics, Poisson(C, np.zeros(N)))
    return UnitModel(parts, VariationalKalmanFilter(), tuple(map(str, range(N))), 0.02)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Trials that all have the same name, and cells that were not observed."""
    rng = np.random.default_rng(1)
    counts = rng.poisson(1.0, (24, N))
    recording = Recording(
        counts,
        0.02,
        (10, 6, 8),
        masks=rng.random(counts.shape) < 0.8,
        trials={"trial": np.array(["a", "a", "a"])},
    )
    path = tmp_path_factory.mktemp("session") / "a.h5"
    write_arrays(path, recording)
    return path


@pytest.mark.parametrize("chunk_bins", [8, 24])
def test_chunks_are_what_the_whole_is(model, source, chunk_bins):
    whole = open_recording(source)
    expected = infer(model, whole)
    parts = list(filter_chunks(model, stream_recording(source, chunk_bins=chunk_bins)))
    for name in ("fresh", "times", "trial"):
        found = np.concatenate([getattr(part, name) for _, part in parts])
        np.testing.assert_allclose(found, getattr(expected, name))
    for name in ("mean", "cov", "rates", "predicted", "elbo"):
        found = np.concatenate([getattr(part, name) for _, part in parts])
        np.testing.assert_allclose(found, getattr(expected, name), rtol=1e-6, atol=1e-9)


def test_what_is_written_is_complete(model, source, tmp_path):
    out, told = tmp_path / "out.h5", []
    chunks = stream_recording(source, chunk_bins=8)
    bins, total = filter_to_hdf5(out, model, chunks, progress=lambda x: told.append(x.num_bins))
    expected = infer(model, open_recording(source))
    assert (bins, told) == (24, [8, 8, 8])
    np.testing.assert_allclose(total, expected.elbo.sum())
    with open_hdf5(out) as file:
        np.testing.assert_allclose(load(file["predicted"]), expected.predicted)
        np.testing.assert_allclose(load(file["times"]), open_recording(source).times)
        assert load(file["trial"]).tolist() == [0] * 10 + [1] * 6 + [2] * 8
    with pytest.raises(InputError, match="already"):
        filter_to_hdf5(out, model, stream_recording(source))
    with pytest.raises(InputError, match="no chunks"):
        filter_to_hdf5(tmp_path / "none.h5", model, [])


def test_many_at_once_are_each_alone(model, source):
    whole = open_recording(source)
    days = [whole.take([2]), whole, whole.take([1, 0])]
    for found, day in zip(infer_many(model, days), days, strict=True):
        for name in ("mean", "cov", "elbo", "rates", "predicted", "trial", "times"):
            got, want = getattr(found, name), getattr(infer(model, day), name)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)
    bad = replace(whole, counts=-whole.counts - 1, source="day2.npz")
    with pytest.raises(InputError, match=r"day2\.npz: counts\[0, "):
        infer_many(model, [whole, bad])
    with pytest.raises(InputError, match="no recordings"):
        infer_many(model, [])
