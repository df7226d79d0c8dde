"""Values at extreme parameters against 80-digit references, in both precisions.

`reference.json` is made by `make_reference.py`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from evkf.families import BernoulliFamily
from tests.families.cases import (
    DTYPES,
    SIZE,
    UNIVARIATE,
    close,
    fill,
    fisher,
    gradient,
    inverse_fisher,
    jitted,
)

REFERENCE = json.loads(Path(__file__).with_name("reference.json").read_text())

# Bounds on the error. Densities are held to rounding of z, which at a shape of 1e6 is 1e-4 standard
# deviations in float32; the others to a few units in the last place. `scale` 1 makes the error of
# logarithms, which pass through 0, absolute below 1.
BOUNDS = {
    # name: (float32, float64, scale)
    "log_partition": (5e-7, 1e-15, 1),
    "mean_params": (5e-7, 1e-15, 0),
    "mean": (3e-7, 6e-16, 0),
    "var": (6e-7, 2e-15, 0),
    "entropy": (6e-7, 2e-15, 1),
    "fisher": (1e-6, 2e-15, 0),
    "inverse_fisher": (4e-6, 1e-14, 0),
    "log_prob": (3e-5, 1e-13, 1),
    "kl": (1e-5, 3e-14, 0),
}


def evaluate(family, nat, other, z):
    names = ("log_partition", "each_log_partition"), ("entropy", "each_entropy")
    values = {name: jitted(family, method)(nat) for name, method in names}
    values["mean_params"] = jitted(family, "to_mean")(nat)
    values["mean"], values["var"], _ = jitted(family, "each_moments")(nat)
    values["fisher"] = fisher(family, nat)
    values["inverse_fisher"] = inverse_fisher(family, nat)
    log_prob, kl = jitted(family, "each_log_prob"), jitted(family, "each_kl")
    values["log_prob"] = np.stack([log_prob(nat, x) for x in z.T], -1)
    values["kl"] = np.stack([kl(nat, x) for x in np.moveaxis(other, 1, 0)], -1)
    return values


@pytest.mark.parametrize("cls", UNIVARIATE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_reference(cls, dtype):
    table = {name: fill(values) for name, values in REFERENCE[cls.__name__].items()}
    inputs = (table[name].astype(dtype) for name in ("nat", "other", "z"))
    values = evaluate(cls(SIZE), *inputs)
    for name, (single, double, scale) in BOUNDS.items():
        got, want = np.asarray(values[name], np.float64), table[name]
        assert values[name].dtype == dtype, name
        relative = single if dtype == np.float32 else double
        if name == "mean_params" and cls.__name__ == "Gamma":
            scale = 1
        if name == "kl" and cls.__name__ == "DiagonalGaussianFamily":
            # A mean of m / sd standard deviations is known to so many times the rounding unit.
            scale = (table["mean"] ** 2 / table["var"])[:, None] * relative
        try:
            close(got, want, relative, scale)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.parametrize("dtype", DTYPES)
def test_saturated_bernoulli(dtype):
    family = BernoulliFamily(SIZE)
    nat = fill([[-1e4], [-200.0], [200.0], [1e4]], dtype)
    other = fill([[1e4], [-190.0], [0.0], [1e4]], dtype)
    points, weights = jitted(family, "each_rule")(nat)
    assert np.array_equal(points[:, :4], [[0] * 4, [1] * 4])
    assert np.array_equal(np.round(weights[:, :4]), [[1, 1, 0, 0], [0, 0, 1, 1]])
    assert np.all(np.isfinite(jitted(family, "natural_gradient")(nat, np.ones_like(nat))))
    close(jitted(family, "each_kl")(nat, other), fill([1e4, 0, np.log(2), 0]), 1e-6, scale=1e-9)
    assert np.all(np.isfinite(gradient(family, "kl")(nat, other)))
    assert np.all(np.isfinite(jitted(family, "each_moments")(nat)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_mean_parameters_at_the_edge_of_the_family(dtype):
    """Rounded beyond what any member has, they still give a valid one."""
    unit = float(np.finfo(dtype).eps)
    for cls, mean in [
        (
            "GammaFamily",
            [[0.0, 1.0], [unit, 1.0], [3.0, np.exp(3)], [-5.0, np.exp(-5) * (1 - unit)]],
        ),
        (
            "BetaFamily",
            [
                [np.log(0.5), np.log(0.5)],
                [np.log(0.9), np.log(0.1)],
                [np.log1p(-np.exp(-20.7)), -20.7],
                [-2, np.log1p(-np.exp(-2))],
            ],
        ),
        ("ContinuousBernoulliFamily", [[0.0], [1.0], [unit], [1 - unit]]),
        ("BernoulliFamily", [[0.0], [1.0], [unit], [1 - unit]]),
        ("DiagonalGaussianFamily", [[3.0, 9.0], [0.0, 0.0], [1e3, 1e6 * (1 - unit)], [1.0, 1.0]]),
    ]:
        family = next(c for c in UNIVARIATE if c.__name__ == cls)(SIZE)
        nat = jitted(family, "to_nat")(fill(mean, dtype))
        assert jitted(family, "valid")(nat), cls
        close(jitted(family, "to_mean")(nat), fill(mean), 30 * unit, scale=1)
