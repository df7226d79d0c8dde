"""scikit-learn's own checks of the baselines, with the reason for each that cannot pass."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from evkf.estimators.gpfa import GPFA
from evkf.estimators.linear_system import LinearDynamicalSystem
from tests.quick import quick_compilation  # noqa: F401

CANNOT_PASS = {
    "check_dtype_object": "arrays of objects are refused, not cast",
    "check_methods_sample_order_invariance": "bins of a trial have an order",
    "check_methods_subset_invariance": "the states of a bin depend on other bins of its trial",
}


@parametrize_with_checks(
    [GPFA(latents=1, max_iterations=1), LinearDynamicalSystem(1, iterations=1)],
    expected_failed_checks=lambda estimator: CANNOT_PASS,
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)
