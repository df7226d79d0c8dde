"""Estimates with names on their axes."""

import sys

import numpy as np
import pytest

from evkf.data import Recording
from evkf.errors import InputError
from evkf.recordings.labelled import to_xarray
from evkf.recordings.units import Inferred


@pytest.fixture
def recording() -> Recording:
    starts = np.array([3.0, 1.0])
    return Recording(np.ones((5, 2), int), 0.5, (2, 3), starts, units={"id": ["a", "b"]})


@pytest.fixture
def found() -> Inferred:
    rng = np.random.default_rng(0)
    return Inferred(*(rng.normal(size=(5, *shape)) for shape in ((3,), (3, 3), (2,), (2,), ())))


def test_axes_have_times_trials_units_and_latents(recording, found):
    table = to_xarray(recording, found)
    np.testing.assert_array_equal(table.time, [3.0, 3.5, 1.0, 1.5, 2.0])
    np.testing.assert_array_equal(table.trial, [0, 0, 1, 1, 1])
    for name in ("mean", "cov", "rates", "predicted", "elbo"):
        np.testing.assert_array_equal(table[name], getattr(found, name))
    np.testing.assert_array_equal(table["mean"].sel(latent="z2"), found.mean[:, 2])
    np.testing.assert_array_equal(
        table["cov"].sel(latent="z0", other_latent="z1"), found.cov[:, 0, 1]
    )
    assert [table.rates.units, table.time.units, table.bin_width] == ["Hz", "s", 0.5]
    assert to_xarray(recording, found, signals=True).rates.units == "a.u."


def test_rates_become_a_data_frame(recording, found):
    frame = to_xarray(recording, found).rates.to_pandas()
    assert frame.columns.tolist() == ["a", "b"]
    np.testing.assert_array_equal(frame["b"], found.rates[:, 1])


def test_what_belongs_to_another_recording_is_refused(recording, found):
    with pytest.raises(InputError, match="what was found"):
        to_xarray(recording.take([0]), found)


def test_without_xarray_the_error_names_the_extra(recording, found, monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(InputError, match=r'pip install "evkf\[xarray\]"'):
        to_xarray(recording, found)
