"""Gamma draws: the gradient follows the quantile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from evkf.numerics.gamma_draws import log_gamma_draw
from tests.quick import quick_compilation  # noqa: F401


@jax.jit
def _draw_and_slope(a):
    return jax.jvp(lambda a: log_gamma_draw(jax.random.key(2), a), (a,), (jnp.ones_like(a),))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [0.5, 20.0, 900.0, 1100.0, 3e4, 1e6])
def test_gradient_of_gamma_draws_keeps_the_quantile(shape, dtype):
    """Against central differences of SciPy's quantiles."""
    a = jnp.full(200, shape, dtype)
    log_draw, slope = (np.asarray(x) for x in _draw_and_slope(a))
    assert slope.dtype == dtype
    log_draw = log_draw.astype(np.float64)
    exact, step = float(a[0]), 1e-4 * float(a[0])
    level = scipy.special.gammainc(exact, np.exp(log_draw))
    use = (level > 0.01) & (level < 0.99)
    up, down = (np.log(scipy.special.gammaincinv(exact + s, level)) for s in (step, -step))
    tolerance = 3e-4 if dtype == np.float32 and 100 < shape < 1000 else 3e-5
    want = (up - down) / (2 * step)
    np.testing.assert_allclose(slope[use], want[use], rtol=tolerance, atol=tolerance / exact)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradient_where_the_draw_itself_underflows(dtype):
    """There F(x) = x^a / Gamma(a + 1), beyond what SciPy's quantiles can represent."""
    a = jnp.full(200, 0.003, dtype)
    log_draw, slope = (np.asarray(x) for x in _draw_and_slope(a))
    small = log_draw < -20
    assert np.mean(small) > 0.5
    want = (scipy.special.digamma(float(a[0]) + 1) - log_draw.astype(np.float64)) / float(a[0])
    tolerance = 1e-5 if dtype == np.float32 else 1e-8
    np.testing.assert_allclose(slope[small], want[small], rtol=tolerance)
