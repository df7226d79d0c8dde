"""The families under test, random members of them, and integrals over them."""

from functools import cache

import jax
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evkf.families import (
    BernoulliFamily,
    BetaFamily,
    ContinuousBernoulliFamily,
    DiagonalGaussianFamily,
    GammaFamily,
    Univariate,
)

UNIVARIATE = [
    DiagonalGaussianFamily,
    GammaFamily,
    BetaFamily,
    ContinuousBernoulliFamily,
    BernoulliFamily,
]
TWO_PARAMETER = [DiagonalGaussianFamily, GammaFamily, BetaFamily]
DTYPES = [np.float32, np.float64]
SIZE = 64
"""Members per hypothesis example: a family of this dimension is that many one-dimensional cases."""

properties = settings(
    max_examples=16,  # times SIZE: a thousand cases
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def cubes(*shape: int) -> st.SearchStrategy[np.ndarray]:
    """Arrays in the unit cube; `member` makes natural parameters of them."""
    return arrays(np.float64, shape, elements=st.floats(0, 1))


def member(cls: type[Univariate], cube: np.ndarray, dtype=np.float64, wide: bool = True):
    """Natural parameters from a unit cube of shape (L, 2): over the whole range, or its middle."""
    x, y = cube[:, 0], cube[:, 1]
    decades = (-3, 6) if wide else (0.2, 2.5)
    first, second = (10 ** (decades[0] + (decades[1] - decades[0]) * v) for v in (x, y))
    if cls is GammaFamily:
        nat = np.stack([first - 1, -(10 ** (6 * y - 3) if wide else 10 ** (2 * y - 1))], -1)
    elif cls is BetaFamily:
        nat = np.stack([first - 1, second - 1], -1)
    elif cls is DiagonalGaussianFamily:
        var = 10 ** (7 * y - 4) if wide else 10 ** (2 * y - 1)
        nat = np.stack([20 * (2 * x - 1) / var, -0.5 / var], -1)
    else:
        nat = ((100 if cls is ContinuousBernoulliFamily and wide else 30) * (2 * x - 1) ** 3)[
            :, None
        ]
    return nat.astype(dtype)


def compiled(function):
    """Compile, and hand back NumPy arrays: operations on JAX's would be compiled one by one."""
    fast = jax.jit(function)
    return lambda *args: jax.tree.map(np.asarray, fast(*args))


@cache
def jitted(family, name: str):
    """One compiled function per family and method, shared by all tests."""
    return compiled(getattr(family, name))


@cache
def gradient(family, name: str):
    """Gradient in the belief; for the divergence, in both beliefs."""
    return compiled(jax.grad(getattr(family, name), (0, 1) if name == "kl" else 0))


@cache
def along(family, function):
    """Compiled derivative of `function(family, x)` in a direction."""
    return compiled(lambda x, d: jax.jvp(lambda y: function(family, y), (x,), (d,))[1])


@cache
def densities(family):
    """Log densities and statistics at points of shape (S, L)."""
    log_prob, stats = jax.vmap(family.each_log_prob, (None, 0)), jax.vmap(family.stats)
    return compiled(lambda nat, points: (log_prob(nat, points), stats(points)))


def fisher(family, nat) -> np.ndarray:
    """Fisher information $\\nabla^2 A$ of every dimension, as the derivatives of `to_mean`."""
    units = np.eye(family.num_params, dtype=nat.dtype)
    push = along(family, type(family).to_mean)
    return np.stack([push(nat, np.broadcast_to(u, nat.shape)) for u in units], -1)


def inverse_fisher(family, nat) -> np.ndarray:
    """Columns of $F^{-1}$ as the natural gradients of the unit vectors."""
    units = np.eye(family.num_params, dtype=nat.dtype)
    solve = jitted(family, "natural_gradient")
    return np.stack([solve(nat, np.broadcast_to(u, nat.shape)) for u in units], -1)


def fill(rows, dtype=np.float64) -> np.ndarray:
    """Repeat rows up to SIZE of them, to share the functions compiled for that many."""
    rows = np.asarray(rows, dtype)
    return np.resize(rows, (SIZE, *rows.shape[1:]))


def close(got, want, relative: float, scale=0.0) -> None:
    """Assert |got - want| <= relative (|want| + scale), naming the worst entry."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    error = np.abs(got - want) / (relative * (np.abs(want) + scale) + 1e-300)
    error = np.where(got == want, 0, error)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    assert error[worst] <= 1, (
        f"{got[worst]} for {want[worst]} at {worst}: {error[worst]:.3g} x bound"
    )


def rule(cls: type[Univariate], nat: np.ndarray, num: int = 3001) -> tuple[np.ndarray, np.ndarray]:
    """Points and log weights, shape (num, L), of an accurate rule for integrals over the support.

    The trapezoidal rule in log z (Gamma), logit z (Beta) or z (Gaussian) is exact to rounding;
    Gauss–Legendre serves the continuous Bernoulli.
    """
    nat = np.asarray(nat, np.float64)
    if cls is BernoulliFamily:
        return np.stack([np.zeros(len(nat)), np.ones(len(nat))]), np.zeros((2, len(nat)))
    if cls is ContinuousBernoulliFamily:
        x, w = np.polynomial.legendre.leggauss(200)
        ones = np.ones(len(nat))
        return 0.5 * (1 + x[:, None]) * ones, np.log(0.5 * w[:, None]) * ones
    centre, var, _ = jitted(cls(len(nat)), "each_moments")(nat)
    if cls is DiagonalGaussianFamily:
        width = np.sqrt(var)
        low, high = centre - 12 * width, centre + 12 * width
    elif cls is GammaFamily:
        shape = nat[:, 0] + 1
        centre = np.log(centre)
        low = centre - 40 / shape - 12 / np.sqrt(shape)
        high = centre + np.log1p(40 / shape + 12 / np.sqrt(shape))
    else:
        a, b = nat[:, 0] + 1, nat[:, 1] + 1
        width = 12 * np.sqrt(1 / a + 1 / b)
        low = np.maximum(np.log(a / b) - width - 40 / a, -33)
        high = np.minimum(np.log(a / b) + width + 40 / b, 33)
    x = low + (high - low) * np.linspace(0, 1, num)[:, None]
    log_step = np.log((high - low) / (num - 1))
    if cls is DiagonalGaussianFamily:
        return x, np.broadcast_to(log_step, x.shape)
    if cls is GammaFamily:
        return np.exp(x), x + log_step
    z = 1 / (1 + np.exp(-x))
    return z, np.log(z) - np.logaddexp(0, x) + log_step
