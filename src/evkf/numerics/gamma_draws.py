"""Gamma samples whose gradient is accurate for every shape."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evkf.numerics.special import Real, digamma, horner, log_gap
from evkf.types import Key

# Temme's expansion of the quantile (DLMF 8.12.21 ff.): with x = a (1 + m) and eta^2 / 2 = h(1 + m),
# eta = eta_0 + e_1(eta_0) / a + e_2(eta_0) / a^2 + ..., where eta_0 sqrt(a) is a Gaussian quantile.
_QUANTILE = (
    [-1 / 3, 1 / 36, 1 / 1620, -7 / 6480, 5 / 18144, -11 / 382725, -101 / 16329600],
    [-7 / 405, -7 / 2592, 533 / 204120, -1579 / 2099520, 109 / 1749600],
    [449 / 102060, -63149 / 20995200, 29233 / 36741600],
)


def log_gamma_draw(key: Key, shape_param: Real) -> Real:
    """Return the log of one sample from Gamma($a$, 1) for each entry $a$ of `shape_param`.

    The samples are those of `jax.random.loggamma`. The gradient by $a$ is that of a sample at a
    fixed quantile (the implicit gradient), as in JAX. Other than in JAX, the gradient is accurate
    even if the sample underflows, and takes no longer to compute at large $a$ than at small $a$.
    """
    return _attach(
        shape_param,
        lax.stop_gradient(jax.random.loggamma(key, shape_param, dtype=shape_param.dtype)),
    )


@jax.custom_jvp
def _attach(shape_param: Real, log_draw: Real) -> Real:
    return log_draw


@_attach.defjvp
def _(primals, tangents):
    shape_param, log_draw = primals
    large, tiny = shape_param > 1e3, log_draw < -40
    plain = jnp.where(large | tiny, 1, shape_param)
    draw = jnp.where(large | tiny, 1, jnp.exp(log_draw))
    slope = lax.random_gamma_grad(plain, draw) / draw  # pyright: ignore[reportCallIssue]
    # As x -> 0 the distribution function is x^a / Gamma(a + 1).
    slope = jnp.where(tiny, (digamma(shape_param + 1) - log_draw) / shape_param, slope)
    # At large shapes, use the expansion of `_QUANTILE`.
    excess = jnp.expm1(log_draw - jnp.log(shape_param))
    safe, one = jnp.where(excess == 0, 1, excess), jnp.ones_like(excess)
    chord = jnp.where(excess == 0, 1, jnp.sqrt(2 * log_gap(one, one + safe, safe)) / jnp.abs(safe))
    eta = chord * excess  # chord = eta / excess
    start, shift = eta, [jnp.zeros_like(eta)]
    for _ in range(2):
        shift = [horner(start, c) / shape_param**n for n, c in enumerate(_QUANTILE, 1)]
        start = eta - sum(shift)
    bend = [
        horner(start, np.polynomial.polynomial.polyder(c).tolist()) / shape_param**n
        for n, c in enumerate(_QUANTILE, 1)
    ]
    drift = sum(n * s for n, s in enumerate(shift, 1))
    far = (1 - chord * (0.5 * start * (1 + sum(bend)) + drift)) / shape_param
    return log_draw, jnp.where(large, far, slope) * tangents[0]
