"""Files of version 1 are read, and go on as they did there; later formats are refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from evkf.data.storage import load_tree, read_meta, save_tree
from evkf.dynamics import Linear, NaturalDynamics, Network
from evkf.errors import InputError
from evkf.estimators.evkf import EVKF
from evkf.estimators.saved import _kind
from evkf.estimators.settings import Learning
from evkf.families import GammaFamily
from tests.quick import quick_compilation  # noqa: F401

HERE = Path(__file__).parent
FITTED = HERE / "version_1_fitted.safetensors"
WARMING = HERE / "version_1_warming.safetensors"


@pytest.fixture(scope="module")
def numbers():
    """Recording, and numbers of version 1, as `make_version_1.py` wrote them."""
    with np.load(HERE / "version_1.npz") as file:
        return dict(file)


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_a_model_of_version_1_goes_on(numbers):
    ys = numbers["ys"]
    model = EVKF.load(FITTED)
    learning = Learning(
        passes=2, hidden=4, warm_up=60, ring=32, parts=("dynamics", "noise", "readout")
    )
    assert model.get_params(deep=False) == EVKF(2, learning=learning).get_params(deep=False)
    assert read_meta(FITTED)["note"] == {"units": list("abcdef"), "bin_width": 0.02}
    close(model.transform(ys[100:]), numbers["fitted_transform"])
    close(model.forecast_one(), numbers["fitted_forecast"])
    model.partial_fit(ys[100:])
    close(model.estimate_.mean, numbers["fitted_mean"])
    close(model.estimate_.cov, numbers["fitted_cov"])
    close(model.state_.raw, numbers["fitted_raw"])
    close(model.score(ys), numbers["fitted_score"])


def test_a_warm_up_of_version_1_goes_on(numbers, tmp_path):
    ys, us = numbers["ys"], numbers["us"]
    blank = Linear(np.eye(2), 1.0, None, np.zeros((2, 1)))
    model = EVKF.load(WARMING, dynamics=blank)
    np.testing.assert_array_equal(model.dynamics.input_weight, [[0.5], [0.0]])
    assert model.learning == Learning(hidden=4, warm_up=60, ring=32, watch=True)
    assert (model.bins_missing_, model.seed, model.bin_width) == (20, 3, 0.02)
    close(model.forecast_one(), numbers["warming_forecast"])
    model.save(tmp_path / "again.safetensors")
    model = EVKF.load(tmp_path / "again.safetensors", dynamics=blank)
    model.partial_fit(ys[40:100], inputs=us[40:100])
    for y, u in zip(ys[100:], us[100:], strict=True):
        model.learn_one(y, inputs=u)
    close(model.estimate_.mean, numbers["warming_mean"])
    close(model.estimate_.cov, numbers["warming_cov"])
    close(model.state_.raw, numbers["warming_raw"])
    close(model.evidence_.nats, numbers["warming_nats"])


def test_families_have_other_names_in_version_1():
    dynamics = NaturalDynamics(GammaFamily(2), Network([2, 3, 4], np.zeros(2, np.uint32)))
    assert "GammaFamily(" in repr(dynamics)
    assert "=Gamma(" in _kind(dynamics)


def test_a_later_format_is_refused(tmp_path):
    path = tmp_path / "later.safetensors"
    meta = json.loads(json.dumps(read_meta(WARMING))) | {"format": 3}
    save_tree(path, {}, meta)
    with pytest.raises(InputError, match="an EVKF of format 3; this version of evkf reads up to 2"):
        EVKF.load(path)
    assert load_tree(path, {})[1]["format"] == 3
