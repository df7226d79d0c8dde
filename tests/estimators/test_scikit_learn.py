"""`EVKF` is an estimator of scikit-learn, by its own checks and in its tools."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from evkf.dynamics import Linear
from evkf.estimators.evkf import EVKF
from evkf.estimators.settings import Learning
from tests.quick import quick_compilation  # noqa: F401

ORDER = "bins are a sequence: the order of rows matters"
MESSAGE = "refused, in words of this package that the check does not know"
NOT_TABLE = {
    "check_methods_sample_order_invariance": ORDER,
    "check_methods_subset_invariance": ORDER,
    "check_n_features_in_after_fitting": MESSAGE,
    "check_complex_data": MESSAGE,
    "check_estimators_nan_inf": MESSAGE,
    "check_fit2d_1sample": MESSAGE,
    "check_fit2d_predict1d": MESSAGE,
    "check_dtype_object": "objects are refused, also where they hold numbers",
    "check_estimators_pickle": "compiled programs cannot be pickled: there are save and load",
    "check_parameters_default_constructible": "`learning` has a default that cannot be changed",
}
"""Checks that are expected to fail, and why."""


def test_own_checks_of_scikit_learn():
    """Of a cheap estimator: every size of data is compiled anew."""
    learning = Learning(warm_up=4, ring=0, loss="kl", parts=("readout",))
    estimator = EVKF(1, "gaussian", Linear([[0.9]], 0.1), learning=learning)
    checked = check_estimator(
        estimator, expected_failed_checks=NOT_TABLE, on_skip=None, on_fail="raise"
    )
    outcomes = {}
    for each in checked:
        outcomes.setdefault(each["status"], set()).add(each["check_name"])
    assert outcomes["xfail"] == set(NOT_TABLE)
    assert outcomes.get("skipped", set()) <= {"check_array_api_input"}
    assert len(outcomes["passed"]) > 25


@pytest.fixture(scope="module")
def counts():
    return np.random.default_rng(0).poisson(1.0, (60, 4))


def test_settings_of_learning_are_searched(counts):
    """Two trials, of 30 bins each: two sizes of data at most are compiled."""
    learning = Learning(hidden=2, warm_up=20, ring=16)
    pipeline = make_pipeline(FunctionTransformer(), EVKF(1, learning=learning))
    grid = {"evkf__learning__rate": [0.0001, 0.1], "evkf__seed": [0, 1]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(counts)
    scores = search.cv_results_["mean_test_score"]
    assert np.all(np.isfinite(scores))
    assert len(set(scores)) == 4
    best = search.best_estimator_[-1]
    assert best.learning.rate == search.best_params_["evkf__learning__rate"]
    assert (best.learning.hidden, learning.rate) == (2, 0.01)
    assert search.transform(counts).shape == (60, 1)


def test_defaults_are_not_shared():
    one, two = EVKF(), EVKF()
    assert one.set_params(learning__ring=64) is one
    assert (one.learning.ring, two.learning.ring, EVKF().learning.ring) == (64, 4096, 4096)
    other = clone(one)
    assert other.learning == one.learning
    assert other.learning is not one.learning
    nested = {name for name in one.get_params() if name.startswith("learning__")}
    assert nested == {f"learning__{name}" for name in Learning().get_params()}
