"""The special functions against 60-digit values at the extremes, SciPy, and each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from evkf.numerics.special import (
    bregman,
    digamma,
    digamma_rise,
    log_gap,
    log_uniform,
    relative_entropy,
    softplus,
    stirling,
    trigamma,
    trigamma_drop,
)

both = pytest.mark.parametrize("dtype", [np.float32, np.float64])

# fmt: off
# x, and the function with its first three derivatives there.
STIRLING = [
    (2**-10, 2.5539800443502183, -505.6441386237412, 523265.64258939214, -1072693250.3977839),
    (0.5, 0.15342640972002736, -0.27036284546147815, 0.9348022005446793, -4.82879664423432),
    (1.0, 0.08106146679532726, -0.07721566490153287, 0.14493406684822643, -0.4041138063191886),
    (4.0, 0.020790672103765093, -0.005176692688090146, 0.0025729557371153254, -0.0019147322451144968),  # noqa: E501
    (64.0, 0.0013020727376910496, -2.0344555435691104e-5, 6.357518389301558e-7, -2.97998976603495e-8),  # noqa: E501
    (2**13, 1.0172526036613918e-5, -1.2417634309702664e-9, 3.0316489968747426e-13, -1.1102230191106192e-16),  # noqa: E501
    (2**23, 9.934107462565099e-9, -1.1842378929334987e-15, 2.8234431575143263e-22, -1.0097419586828903e-28),  # noqa: E501
]
LOG_UNIFORM = [
    (9.999999974752427e-7, 5.000000404042878e-7, 0.5000000833333331, 0.08333333333332917, -8.333333312293028e-9),  # noqa: E501
    (0.5, 0.2603950509927567, 0.5414940825367983, 0.08230191096723624, -0.004085068147780116),
    (1.9990234375, 1.1607982639570236, 0.6564502691167071, 0.06899661512476271, -0.012317817066429065),  # noqa: E501
    (2.0009765625, 1.1620805249741943, 0.6565850046330016, 0.06897255189832038, -0.01232292429043967),  # noqa: E501
    (50.0, 46.087976994571854, 0.98, 0.0004, -1.6e-5),
    (10000.0, 9990.789659628024, 0.9999, 1e-8, -2e-12),
]
# x, d, and over [x, x + d]: rise of psi, fall of psi' - 1/x, divergence of Stirling's remainder.
STEPS = [
    (2**-10, 2**-20, 0.9990259567381278, 2044.0048793836681, 2.377987094545511e-7),
    (2**-10, 1.0, 1024.0, 1047552.9990243902, 503.1711447093108),
    (1.0, 2**-20, 1.5687302784713891e-6, 1.3390652307937219e-6, 6.590832453367526e-14),
    (3.0, 0.875, 0.2972151565008354, 0.025474171910529326, 0.0017967034550100973),
    (3.0, 1.125, 0.36820012578868455, 0.029868274938456344, 0.002791604244680021),
    (2**20, 2**-10, 9.313230182711483e-10, 8.470333499677917e-22, 6.893171764854211e-26),
    (2**20, 2**10, 0.0009760864382625903, 8.868794917841436e-16, 7.571728248904954e-14),
    (2**-10, 2**20, 1038.4385535646336, 1047553.6425893921, 530206305.74754804),
]
# fmt: on


def close(got, want, units: float, dtype=np.float64) -> None:
    """Assert agreement to so many units of rounding, relative."""
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, rtol=units * np.finfo(dtype).eps, atol=0)


@both
@pytest.mark.parametrize(("ladder", "table"), [(stirling, STIRLING), (log_uniform, LOG_UNIFORM)])
def test_ladders_at_the_extremes(ladder, table, dtype):
    x, *values = np.array(table).T
    x = jnp.asarray(x, dtype)
    for order, want in enumerate(values):
        close(jax.jit(ladder, static_argnums=1)(x, order), want, 40, dtype)
    for order, want in enumerate(values[1:]):
        slope = jax.jit(jax.grad(lambda x, order=order: jnp.sum(ladder(x, order))))
        close(slope(x), want, 40, dtype)


@both
def test_steps_at_the_extremes(dtype):
    x, step, rise, drop, divergence = np.array(STEPS).T
    x, step = jnp.asarray(x, dtype), jnp.asarray(step, dtype)
    close(jax.jit(digamma_rise)(x, step), rise, 10, dtype)
    close(jax.jit(trigamma_drop)(x, step), drop, 10, dtype)
    remainder = jax.jit(lambda x, d: bregman(stirling, x, x + d, d, x / 3))
    close(remainder(x, step), divergence, 200, dtype)


@both
def test_log_uniform_is_symmetric_and_smooth_through_zero(dtype):
    x = jnp.asarray(np.concatenate([np.logspace(-20, 4, 200), [0.0, 2.0]]), dtype)
    close(log_uniform(-x, 1) + log_uniform(x, 1), np.ones(x.shape), 1, dtype)
    close(log_uniform(-x, 2), log_uniform(x, 2), 0, dtype)
    zero = jnp.zeros((), dtype)
    assert [float(log_uniform(zero, n)) for n in (0, 1, 3)] == [0.0, 0.5, 0.0]
    close(log_uniform(zero, 2), 1 / 12, 1, dtype)
    close(jax.grad(log_uniform)(zero, 3), -1 / 120, 1, dtype)


def test_polygammas_against_scipy():
    x = np.logspace(-3, 7, 300)
    close(digamma(jnp.asarray(x)) + 2, scipy.special.digamma(x) + 2, 200)
    close(trigamma(jnp.asarray(x)), scipy.special.polygamma(1, x), 20)


@both
def test_log_gap(dtype):
    u = np.concatenate([np.logspace(-7, 5, 100), -np.logspace(-7, -0.01, 100)]).astype(dtype)
    exact = u.astype(np.longdouble)
    want = np.where(
        np.abs(exact) < 1e-2,
        sum((-1) ** k * exact**k / k for k in range(2, 12)),
        exact - np.log1p(exact),
    )
    one = jnp.ones_like(jnp.asarray(u))
    close(jax.jit(log_gap)(one, 1 + u, u), want.astype(np.float64), 4, dtype)
    slope = jax.jit(jax.grad(lambda y: jnp.sum(log_gap(one, y, u))))
    close(slope(1 + u), (exact / (1 + exact)).astype(np.float64), 20, dtype)
    # x h(y / x) at x = 1: its slope in x is -log(y / x).
    total = jax.jit(jax.value_and_grad(lambda x: jnp.sum(relative_entropy(x, 1 + u, u))))
    value, slope = total(one)
    close(value, want.astype(np.float64).sum(), 10, dtype)
    close(slope, -np.log1p(exact).astype(np.float64), 200, dtype)


@both
def test_bregman_derivatives(dtype):
    """Across the change of method: slope at the end, and curvature times the step at the base."""
    base = jnp.full(6, 3.0, dtype)
    end = base + jnp.array([1e-3, 0.1, 0.99, 1.01, 5.0, -2.0], dtype)
    total = jax.jit(jax.grad(lambda b, e: jnp.sum(bregman(stirling, b, e, e - b, b / 3)), (0, 1)))
    by_base, by_end = total(base, end)
    exact_b, exact_e = (jnp.asarray(x, jnp.float64) for x in (base, end))
    step = exact_e - exact_b
    close(by_base, -stirling(exact_b, 2) * step, 20, dtype)
    close(by_end, stirling(exact_e, 1) - stirling(exact_b, 1), 1e4, dtype)


def test_softplus_ladder():
    x = jnp.array([-40.0, -1.0, 0.0, 3.0, 40.0])
    close(softplus(x, 0), np.logaddexp(0, x), 2)
    close(softplus(x, 2), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))) ** 2, 4)
    slope = jax.vmap(jax.grad(lambda v: softplus(v, 2)))
    close(slope(x), softplus(x, 3), 1)
