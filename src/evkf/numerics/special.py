r"""Special functions that are accurate where the usual formulas lose their digits.

At extreme parameters, families need small differences of large numbers. For example
$\log\Gamma(10^6)$ is 1.3e7, while the KL divergence between two Gammas of such shape may be 1e-7.
So the large parts are removed by hand (by Stirling's formula and $r - 1 - \log r$), and the rest
is computed as a sum of terms of one sign.

Functions that have an argument `order` are called ladders here: `f(x, n)` returns the n-th
derivative at x, for n from 0 (the function itself) to 3. Each derivative has its own accurate
formula, and JAX differentiates `f(x, n)` to `f(x, n + 1)`.

"Accurate relative to itself" means that the relative error is near the rounding error, even if the
value is tiny.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Real = Float[Array, "..."]
Ladder = Callable[[Real, int], Real]

_SHIFT = 8


_BERNOULLI = [
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798),
    *(-174611 / 330, 854513 / 138, -236364091 / 2730, 8553103 / 6, -23749461029 / 870),
    *(8615841276005 / 14322, -7709321041217 / 510, 2577687858367 / 6),
    -26315271553053477373 / 1919190,
]
r"""Bernoulli numbers $B_2, B_4, \dots, B_{36}$, correctly rounded; those of SciPy lose four
digits."""


def _double(x: Real) -> bool:
    return jnp.finfo(x.dtype).bits > 32


def horner(x: Real, coefficients: list[float]) -> Real:
    """Return the polynomial at x, given its coefficients, lowest power first."""
    total = jnp.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def _ladder(body: Ladder) -> Ladder:
    """Return the ladder `body`, such that JAX differentiates order n < 3 to order n + 1."""

    @partial(jax.custom_jvp, nondiff_argnums=(1,))
    def ladder(x: Real, order: int) -> Real:
        return body(x, order)

    @ladder.defjvp
    def _(order, primals, tangents):
        (x,), (dx,) = primals, tangents
        if order < 3:
            return ladder(x, order), ladder(x, order + 1) * dx
        return jax.jvp(lambda v: body(v, order), (x,), (dx,))

    return ladder


# r - 1 - log r


def _atanh_gap(square: Real) -> Real:
    r"""Return $\operatorname{atanh}(y)/y - 1$, given $y^2 \le 1/9$."""
    num = 17 if _double(square) else 8
    return square * horner(square, [1 / (2 * k + 3) for k in range(num)])


@jax.custom_jvp
def log_gap(x: Real, y: Real, excess: Real) -> Real:
    r"""Return $h(y/x)$ with $h(r) = r - 1 - \log r$: never negative, accurate relative to itself.

    Args:
        x: A positive number. JAX differentiates by x and y only, not by `excess`.
        y: A positive number.
        excess: $y/x - 1$, which callers can compute more accurately than the rounded $y/x$ gives.

    Example:
        >>> x, step = jnp.float32(1.0), jnp.float32(1e-4)
        >>> bool(abs(log_gap(x, x + step, step / x) / 4.99967e-9 - 1) < 1e-6)
        True
    """
    ratio = y / x
    half = excess / (1 + ratio)
    series = half * (excess - 2 * _atanh_gap(half**2))
    return jnp.where(jnp.abs(excess) < 0.5, series, excess - jnp.log(ratio))


@log_gap.defjvp
def _(primals, tangents):
    x, y, excess = primals
    return log_gap(x, y, excess), excess * (tangents[1] / y - tangents[0] / x)


@jax.custom_jvp
def relative_entropy(x: Real, y: Real, excess: Real) -> Real:
    r"""Return $x\log(x/y) - x + y = x h(y/x)$; arguments and $h$ as for `log_gap`."""
    return x * log_gap(x, y, excess)


@relative_entropy.defjvp
def _(primals, tangents):
    x, y, excess = primals
    log_ratio = jnp.where(jnp.abs(excess) < 0.5, jnp.log1p(excess), jnp.log(y / x))
    # x excess / y is 1 - x / y, without the overflow of excess where y / x is large.
    change = x * (excess / y) * tangents[1] - log_ratio * tangents[0]
    return relative_entropy(x, y, excess), change


# Stirling's remainder and the polygamma functions


@_ladder
def stirling(x: Real, order: int) -> Real:
    r"""Return a derivative of Stirling's remainder $r$, the error of Stirling's formula.

    The remainder is $r(x) = \log\Gamma(x) - (x - 1/2)\log x + x - \log(2\pi)/2$.

    Args:
        x: Positive numbers.
        order: 0 returns $r(x)$; 1, 2 and 3 return its first, second and third derivative.
    """
    # The asymptotic series is accurate at x + 8. The differences r(x) - r(x + 1) that are added
    # to get back to x are all positive, so nothing cancels and no branch is needed.
    shifted = x[..., None] + jnp.arange(_SHIFT, dtype=x.dtype)
    inverse = 1 / (shifted * (shifted + 1))
    if order < 2:
        odd = 1 / (2 * shifted + 1)
        direct = (shifted + 0.5) * jnp.log1p(1 / shifted) - 1
        step = jnp.where(shifted < 1, direct, _atanh_gap(odd**2))
        if order == 1:
            step = 2 * odd * (step - 0.25 * inverse)
    elif order == 2:
        step = 0.5 * inverse**2
    else:
        step = -(2 * shifted + 1) * inverse * inverse * inverse  # inverse**3 would underflow
    # The order-th derivative of sum_k B_2k / (2k (2k - 1)) x^(1 - 2k).
    series = [
        (-1) ** order * b * math.prod(range(2 * k - 1, 2 * k - 1 + order)) / (2 * k * (2 * k - 1))
        for k, b in enumerate(_BERNOULLI[: 14 if _double(x) else 5], 1)
    ]
    far = 1 / (x + _SHIFT)
    return jnp.sum(step, axis=-1) + far ** (order + 1) * horner(far**2, series)


def digamma(x: Real) -> Real:
    r"""Return the digamma function $\psi(x)$, the derivative of $\log\Gamma$, for $x > 0$."""
    return jnp.log(x) - 0.5 / x + stirling(x, 1)


def trigamma(x: Real) -> Real:
    r"""Return the trigamma function $\psi'(x)$ for $x > 0$, as a sum of positive terms."""
    return (1 + 0.5 / x) / x + stirling(x, 2)


@jax.custom_jvp
def digamma_rise(x: Real, step: Real) -> Real:
    r"""Return $\psi(x + d) - \psi(x)$ for $x, d > 0$, where $d$ is `step`; accurate if small."""
    end = x + step
    return jnp.log1p(step / x) + 0.5 * step / x / end + rise(stirling, x, end, step, x / 3)


@digamma_rise.defjvp
def _(primals, tangents):
    x, step = primals
    end = x + step
    fall = step / x / end + trigamma_drop(x, step)
    return digamma_rise(x, step), trigamma(end) * tangents[1] - fall * tangents[0]


def trigamma_drop(x: Real, step: Real) -> Real:
    r"""Return how much $\psi'(x) - 1/x$ falls from $x$ to $x + d$, where $d > 0$ is `step`."""
    end = x + step
    rational = 0.5 * step / x / end * (1 / x + 1 / end)
    return rational - rise(lambda v, order: stirling(v, order + 1), x, end, step, x / 3)


# Small differences of smooth functions


def _quadrature(f: Ladder, base: Real, step: Real, moment: int) -> Real:
    r"""Return $\int_0^1 (1-t)^k f''(b + t d)\,dt$ by Gauss–Legendre quadrature.

    $b$ is `base`, $d$ is `step` and $k$ is `moment`.
    """
    nodes, weights = np.polynomial.legendre.leggauss(8 if _double(base) else 4)
    t = jnp.asarray(0.5 * (1 + nodes), base.dtype)
    w = jnp.asarray(0.5 * weights * (0.5 * (1 - nodes)) ** moment, base.dtype)
    return f(base[..., None] + t * step[..., None], 2) @ w


def rise(f: Ladder, base: Real, end: Real, step: Real, radius: Real | float) -> Real:
    """Return $f'(e) - f'(b)$, accurate relative to itself.

    If `step` is below `radius`, the integral of $f''$ is used, in which nothing cancels.

    Args:
        f: A ladder: `f(x, n)` is the n-th derivative.
        base: $b$.
        end: $e$.
        step: $e - b$, which callers can compute more accurately than the rounded $e$ and $b$ give.
        radius: At most a third of the distance from $b$ to the nearest singularity of f.
    """
    direct = f(end, 1) - f(base, 1)
    return jnp.where(jnp.abs(step) < radius, step * _quadrature(f, base, step, 0), direct)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def bregman(f: Ladder, base: Real, end: Real, step: Real, radius: Real | float) -> Real:
    """Return $f(e) - f(b) - (e - b) f'(b)$, accurate relative to itself; arguments as for `rise`.

    This is the Bregman divergence of f. JAX differentiates by `base` and `end`, not by `step`.
    """
    direct = f(end, 0) - f(base, 0) - step * f(base, 1)
    return jnp.where(jnp.abs(step) < radius, step**2 * _quadrature(f, base, step, 1), direct)


@bregman.defjvp
def _(f, primals, tangents):
    base, end, step, radius = primals
    slope = rise(f, base, end, step, radius)
    change = slope * tangents[1] - f(base, 2) * step * tangents[0]
    return bregman(f, base, end, step, radius), change


# Log-partitions of the one-parameter families on [0, 1]


@_ladder
def log_uniform(x: Real, order: int) -> Real:
    r"""Return a derivative of $A(x) = \log\int_0^1 e^{xz}\,dz = \log((e^x - 1)/x)$.

    $A$ is the log-partition of the continuous Bernoulli family, and is smooth at 0. `order` 0
    returns $A(x)$; 1, 2 and 3 return its first, second and third derivative.
    """
    size = jnp.abs(x)
    small = size < 2
    # Both branches are computed, at arguments where they are finite. First, the derivative of
    # x / 2 + sum_k B_2k x^2k / (2k (2k)!).
    near = jnp.where(small, x, 0)
    first = max(1, (order + 1) // 2)
    terms = [
        b / (2 * k * math.factorial(2 * k - order))
        for k, b in enumerate(_BERNOULLI[: 18 if _double(x) else 9], 1)
        if k >= first
    ]
    series = near ** (2 * first - order) * horner(near**2, terms)
    if order < 2:
        series = series + 0.5 * near ** (1 - order)
    # Then the closed form at -|x|, and from it the one at |x| by z -> 1 - z.
    far = jnp.where(small, 2, size)
    fall, rest = jnp.exp(-far), -jnp.expm1(-far)
    if order == 0:
        negative = jnp.log(rest / far)
        positive = far + negative
    elif order == 1:
        negative = 1 / far - fall / rest
        positive = 1 - negative
    elif order == 2:
        negative = positive = 1 / far**2 - fall / rest**2
    else:
        negative = 2 / far**3 - fall * (1 + fall) / rest**3
        positive = -negative
    return jnp.where(small, series, jnp.where(x > 0, positive, negative))


@_ladder
def softplus(x: Real, order: int) -> Real:
    r"""Return a derivative of $\log(1 + e^x)$; `order` 0 returns the function itself."""
    if order == 0:
        return jax.nn.softplus(x)
    up, down = jax.nn.sigmoid(x), jax.nn.sigmoid(-x)
    return (up, up * down, up * down * (down - up))[order - 1]
