"""The Beta family: states between 0 and 1, with density peaked inside or at the ends."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from evkf.families.base import Univariate
from evkf.numerics.gamma_draws import log_gamma_draw
from evkf.numerics.special import (
    bregman,
    digamma_rise,
    log_gap,
    relative_entropy,
    rise,
    stirling,
    trigamma_drop,
)
from evkf.types import Belief, Key, Nat, Vector

_LEAST_SHAPE = 1e-4


class BetaFamily(Univariate):
    r"""Independent states $z$ between 0 and 1, with Beta shapes $\alpha$ and $\beta$.

    The concentration is $s = \alpha + \beta$, the mean $m = \alpha/s$, and the variance
    $m(1-m)/(s+1)$. The sufficient statistics are $t(z) = (\log z, \log(1-z))$, the natural
    parameters $\lambda = (\alpha - 1, \beta - 1)$, the log-partition
    $A = \log B(\alpha, \beta)$, and the mean parameters
    $\mu = (\psi(\alpha) - \psi(s), \psi(\beta) - \psi(s))$, with the Beta function $B$ and the
    digamma function $\psi$.

    Results are accurate for shapes from 1e-3 to 1e6, because large terms that cancel are removed by
    hand. For example the log density is computed as $-\alpha h(z/m) - \beta h((1-z)/(1-m))
    - \log z(1-z) + \tfrac12\log(\alpha\beta/2\pi s) - r(\alpha) - r(\beta) + r(s)$, with
    $h(x) = x - 1 - \log x$ and Stirling's remainder $r$ (see `evkf.numerics.special`).

    In float32 the *mean* parameters of a narrow belief do not hold enough digits to recover the
    shapes, as for `GammaFamily`.

    Example:
        >>> import jax.numpy as jnp
        >>> family = BetaFamily(1)
        >>> belief = family.from_moments(jnp.array([0.25]), jnp.array([[0.0375]]))
        >>> [round(float(x), 4) for x in belief[0]]
        [0.0, 2.0]
    """

    dim: int = eqx.field(static=True)
    correctable: ClassVar[bool] = True
    num_params: ClassVar[int] = 2
    support: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def each_log_partition(self, nat: Float[Array, "L K"]) -> Vector:
        return _log_beta(_unpack(nat))

    def each_log_prob(self, nat: Float[Array, "L K"], z: Vector) -> Vector:
        shapes = _unpack(nat)
        scaled = jnp.stack([z, 1 - z]) * jnp.sum(shapes, 0)
        cross = z * shapes[1] - (1 - z) * shapes[0]  # s (z - m)
        spread = relative_entropy(shapes, scaled, jnp.stack([cross, -cross]) / shapes)
        return -jnp.sum(spread, 0) - jnp.log(z) - jnp.log1p(-z) - _saddle(shapes)

    def each_entropy(self, nat: Float[Array, "L K"]) -> Vector:
        shapes = _unpack(nat)
        others, total = shapes[::-1], jnp.sum(shapes, 0, keepdims=True)
        bend = shapes * rise(stirling, shapes, total, others, shapes / 3)
        return _saddle(shapes) + 0.5 + jnp.sum(bend - digamma_rise(shapes, others), 0)

    def each_kl(self, nat: Float[Array, "L K"], other: Float[Array, "L K"]) -> Vector:
        q, p, step = _unpack(nat), _unpack(other), (other - nat).T
        s_q, s_p = jnp.sum(q, 0), jnp.sum(p, 0)
        # Determinant of the shapes q and p: if q and p are near, use their difference.
        near = jnp.all(jnp.abs(step) < 0.5 * q, 0)
        cross = jnp.where(near, p[0] * step[1] - step[0] * p[1], q[0] * p[1] - p[0] * q[1])
        cross = jnp.stack([cross, -cross])
        means = relative_entropy(p, q * (s_p / s_q), cross / s_q / p)
        # h(a_p/a_q) + h(b_p/b_q) - h(s_p/s_q), as a sum of terms that cannot cancel.
        shapes = q[::-1] / s_q * log_gap(q, p, step / q)
        shapes = shapes + relative_entropy(q / s_q, p / s_p, -cross / s_p / q)
        base, end, move = (jnp.concatenate([x, jnp.sum(x, 0, keepdims=True)]) for x in (q, p, step))
        remainder = bregman(stirling, base, end, move, base / 3)
        return jnp.sum(means + 0.5 * shapes + remainder[:2], 0) - remainder[2]

    def each_moments(self, nat: Float[Array, "L K"]) -> tuple[Vector, Vector, Vector]:
        a, b = _unpack(nat)
        s = a + b
        mean = a / s
        skew = 2 * (b - a) / (s + 2) * jnp.sqrt((s + 1) / a / b)
        return mean, mean * (b / s) / (s + 1), skew

    def natural_gradient(self, nat: Nat, grad: Nat) -> Nat:
        return _solve(_curvature(_unpack(nat)), grad.T).T

    def each_to_nat(self, mean_params: Float[Array, "L K"]) -> Float[Array, "L K"]:
        r"""Return natural parameters by Newton's method.

        It solves $\psi(s) - \psi(\alpha) = -\mu_1$ and $\psi(s) - \psi(\beta) = -\mu_2$.
        """
        target = -mean_params.T
        # Geometric means sum to less than one. Rounding may hide this: raise the smaller target.
        eps = float(jnp.finfo(target.dtype).eps)
        large = jnp.exp(-jnp.max(target, 0))
        least = -jnp.log1p(-jnp.minimum((1 + 4 * eps) * large, 1 - eps))
        target = jnp.where(target == jnp.min(target, 0), jnp.maximum(target, least), target)
        gap = jnp.maximum(-jnp.expm1(-jnp.min(target, 0)) - large, eps * large)

        def improve(_, shapes):
            value = digamma_rise(shapes, shapes[::-1])
            # In logarithms of shapes and targets: every regime is nearly a power law.
            step = _solve(_curvature(shapes), value * jnp.log(value / target)) / shapes
            return shapes * jnp.exp(step / jnp.maximum(jnp.max(jnp.abs(step), 0) / 2, 1))

        start = 0.5 + 0.5 * jnp.exp(-target) / gap  # from psi(x) ~ log(x - 1/2)
        return jnp.maximum(lax.fori_loop(0, 8, improve, start), eps).T - 1

    def each_from_moments(self, mean: Vector, var: Vector) -> Float[Array, "L K"]:
        """Return natural parameters that have a given mean $m$ and variance.

        The variance is at most $m(1-m)/(1+10^{-4})$. The concentration is at most one divided by
        the rounding unit, and each shape at least 1e-4.
        """
        mean = self.inside(mean)
        most = 1 / float(jnp.finfo(mean.dtype).eps)
        total = jnp.clip(mean * (1 - mean) / var - 1, _LEAST_SHAPE, most)
        shapes = jnp.stack([total * mean, total * (1 - mean)], -1)
        return jnp.maximum(shapes, _LEAST_SHAPE) - 1

    def each_valid(self, nat: Float[Array, "L K"]) -> Bool[Array, " L"]:
        return jnp.all(nat > -1, axis=-1)

    def to_mean(self, nat: Nat) -> Nat:
        shapes = _unpack(nat)
        return -digamma_rise(shapes, shapes[::-1]).T

    def stats(self, z: Vector) -> Nat:
        return jnp.stack([jnp.log(z), jnp.log1p(-z)], -1)

    @property
    def log_base(self) -> float:
        return 0.0

    def sample(self, belief: Belief, key: Key, num: int) -> Float[Array, "S L"]:
        """Draw samples $x/(x + y)$ from Gamma samples $x$ and $y$; never exactly 0 or 1.

        The gradient is that of a sample at a fixed quantile (the implicit gradient).
        """
        shapes = jnp.broadcast_to(belief + 1, (num, self.dim, 2))
        draws = log_gamma_draw(key, shapes)
        return self.inside(jax.nn.sigmoid(draws[..., 0] - draws[..., 1]))

    def from_unconstrained(self, raw: Float[Array, " R"]) -> Nat:
        """Return natural parameters of any real vector.

        The first L entries give the means $m$ by a sigmoid, the last L entries the concentrations
        $s$ by a softplus. The shapes are $s m + 10^{-3}$ and $s (1 - m) + 10^{-3}$.
        """
        lean, total = raw[: self.dim], jax.nn.softplus(raw[self.dim :])
        shapes = jnp.stack([total * jax.nn.sigmoid(lean), total * jax.nn.sigmoid(-lean)], -1)
        return shapes + 1e-3 - 1


def _unpack(nat: Float[Array, "L 2"]) -> Float[Array, "2 L"]:
    """Return the two shapes."""
    return nat.T + 1


def _saddle(shapes: Float[Array, "2 L"]) -> Vector:
    r"""Return $\log B(\alpha, \beta)$ minus its large part $\alpha\log m + \beta\log(1-m)$.

    $B$ is the Beta function of the shapes $\alpha$ and $\beta$, and $m = \alpha/(\alpha + \beta)$.
    """
    remainder = stirling(jnp.concatenate([shapes, jnp.sum(shapes, 0, keepdims=True)]), 0)
    return (
        0.5 * jnp.log(2 * math.pi * jnp.sum(1 / shapes, 0))
        + remainder[0]
        + remainder[1]
        - remainder[2]
    )


@jax.custom_jvp
def _log_beta(shapes: Float[Array, "2 L"]) -> Vector:
    return _saddle(shapes) - jnp.sum(shapes * jnp.log1p(shapes[::-1] / shapes), 0)


@_log_beta.defjvp
def _(primals, tangents):
    (shapes,), (change,) = primals, tangents
    return _log_beta(shapes), -jnp.sum(digamma_rise(shapes, shapes[::-1]) * change, 0)


def _curvature(shapes: Float[Array, "2 L"]) -> tuple[Float[Array, "2 L"], Vector, Vector]:
    """Return the diagonal, negated off-diagonal and determinant of the Fisher information.

    The part $1/x$ of every trigamma function cancels in the determinant, so the formula of the
    determinant leaves this part out.
    """
    total = jnp.sum(shapes, 0)
    drop = trigamma_drop(shapes, shapes[::-1])
    share = shapes[::-1] / shapes / total
    excess = 0.5 / total**2 + stirling(total, 2)
    off = 1 / total + excess
    det = jnp.sum(drop * share[::-1], 0) + drop[0] * drop[1] - excess * (off + 1 / total)
    return share + drop, off, jnp.maximum(det, jnp.finfo(det.dtype).tiny)


def _solve(
    curvature: tuple[Float[Array, "2 L"], Vector, Vector], right: Float[Array, "2 L"]
) -> Float[Array, "2 L"]:
    """Return $F^{-1}$ times a vector, given the result of `_curvature` for the matrix $F$."""
    diagonal, off, det = curvature
    second = (diagonal[0] * right[1] + off * right[0]) / det
    return jnp.stack([(right[0] + off * second) / diagonal[0], second])
