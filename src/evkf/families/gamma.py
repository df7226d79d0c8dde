"""The Gamma family: positive latent states."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evkf.families.base import Univariate
from evkf.numerics.gamma_draws import log_gamma_draw
from evkf.numerics.special import bregman, log_gap, relative_entropy, stirling
from evkf.types import Belief, Key, Nat, Vector

_LOG_2PI = math.log(2 * math.pi)
_LEAST_SHAPE = 1e-4
_LEAST_MEAN = 1e-12


class GammaFamily(Univariate):
    r"""Independent positive states $z$, with Gamma shape $\alpha$ and rate $\beta$.

    The mean is $m = \alpha/\beta$ and the variance $\alpha/\beta^2$. The sufficient statistics are
    $t(z) = (\log z, z)$, the natural parameters $\lambda = (\alpha - 1, -\beta)$, the
    log-partition $A = \log\Gamma(\alpha) - \alpha\log\beta$, and the mean parameters
    $\mu = (\psi(\alpha) - \log\beta, m)$, with the digamma function $\psi$.

    Results are accurate for shapes from 1e-3 to 1e6, because large terms that cancel are removed by
    hand. For example the log density is computed as $-\alpha h(z/m) - \log z +
    \tfrac12\log(\alpha/2\pi) - r(\alpha)$, with $h(x) = x - 1 - \log x$ and Stirling's remainder
    $r$ (see `evkf.numerics.special`).

    In float32 the *mean* parameters do not hold enough digits to recover a shape above 1e5, because
    the shape is in the small difference $\log m - \mu_1 \approx 1/(2\alpha)$. `to_nat` then returns
    valid natural parameters that have these mean parameters, to rounding, and a shape of at most
    4e6.

    Args:
        dim: Number of latent dimensions.

    Example:
        >>> import jax.numpy as jnp
        >>> family = GammaFamily(1)
        >>> belief = family.from_moments(jnp.array([3.0]), jnp.array([[1.5]]))
        >>> [round(float(x), 4) for x in belief[0]]
        [5.0, -2.0]
    """

    dim: int = eqx.field(static=True)
    correctable: ClassVar[bool] = True
    num_params: ClassVar[int] = 2
    support: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def each_log_partition(self, nat: Float[Array, "L K"]) -> Vector:
        shape, rate = _unpack(nat)
        return (
            shape * (jnp.log(shape / rate) - 1)
            - 0.5 * (jnp.log(shape) - _LOG_2PI)
            + stirling(shape, 0)
        )

    def each_log_prob(self, nat: Float[Array, "L K"], z: Vector) -> Vector:
        shape, rate = _unpack(nat)
        scaled = z * rate
        spread = relative_entropy(shape, scaled, (scaled - shape) / shape)
        return 0.5 * (jnp.log(shape) - _LOG_2PI) - spread - jnp.log(z) - stirling(shape, 0)

    def each_entropy(self, nat: Float[Array, "L K"]) -> Vector:
        shape, rate = _unpack(nat)
        gaussian = 0.5 * (jnp.log(shape) + _LOG_2PI + 1) - jnp.log(rate)
        return gaussian - 0.5 / shape + stirling(shape, 0) + (1 - shape) * stirling(shape, 1)

    def each_kl(self, nat: Float[Array, "L K"], other: Float[Array, "L K"]) -> Vector:
        shape, rate = _unpack(nat)
        shape_o, rate_o = _unpack(other)
        step = other - nat
        # Ratio of the means, minus one: if it is small, from the differences of the parameters.
        shift, scale = -step[:, 0] / shape_o, -step[:, 1] / rate
        moved = shape * (rate_o / rate)
        near = jnp.maximum(jnp.abs(shift), jnp.abs(scale)) < 0.5
        excess = jnp.where(near, scale + shift * (rate_o / rate), moved / shape_o - 1)
        means = relative_entropy(shape_o, moved, excess)
        shapes = 0.5 * log_gap(shape, shape_o, step[:, 0] / shape)
        return means + shapes + bregman(stirling, shape, shape_o, step[:, 0], shape / 3)

    def each_moments(self, nat: Float[Array, "L K"]) -> tuple[Vector, Vector, Vector]:
        shape, rate = _unpack(nat)
        mean = shape / rate
        return mean, mean / rate, 2 / jnp.sqrt(shape)

    def natural_gradient(self, nat: Nat, grad: Nat) -> Nat:
        shape, rate = _unpack(nat)
        schur = 0.5 / shape**2 + stirling(shape, 2)  # trigamma(shape) - 1 / shape
        first = (grad[:, 0] - rate / shape * grad[:, 1]) / schur
        return jnp.stack([first, rate / shape * (rate * grad[:, 1] - first)], -1)

    def each_to_nat(self, mean_params: Float[Array, "L K"]) -> Float[Array, "L K"]:
        r"""Return natural parameters by Newton's method.

        It solves $\log\alpha - \psi(\alpha) = \log\mu_2 - \mu_1$ for the shape $\alpha$.
        """
        mean = mean_params[:, 1]
        eps = float(jnp.finfo(mean.dtype).eps)
        gap = jnp.maximum(jnp.log(mean) - mean_params[:, 0], eps)
        # Minka's start has an error of at most 1.5 %; each form is used where nothing cancels.
        root = jnp.sqrt((gap - 3) ** 2 + 24 * gap)
        shape = jnp.where(gap < 3, (3 - gap + root) / (12 * gap), 2 / (gap - 3 + root))
        for _ in range(4):
            # In logarithms both sides are nearly straight lines.
            value = 0.5 / shape - stirling(shape, 1)
            slope = -0.5 / shape - shape * stirling(shape, 2)
            shape = shape * jnp.exp(-jnp.log(value / gap) * value / slope)
        return _pack(mean, jnp.maximum(shape, eps))

    def each_from_moments(self, mean: Vector, var: Vector) -> Float[Array, "L K"]:
        """Return natural parameters that have a given mean and variance.

        The mean is raised to at least 1e-12. The variance divided by the squared mean is clipped to
        the range from the rounding unit (1e-7 in float32) to 1e4.
        """
        mean = jnp.maximum(mean, _LEAST_MEAN)
        most = 1 / float(jnp.finfo(mean.dtype).eps)
        return _pack(mean, jnp.clip((mean / jnp.sqrt(var)) ** 2, _LEAST_SHAPE, most))

    def each_valid(self, nat: Float[Array, "L K"]) -> Bool[Array, " L"]:
        return (nat[:, 0] > -1) & (nat[:, 1] < 0)

    def to_mean(self, nat: Nat) -> Nat:
        shape, rate = _unpack(nat)
        mean = shape / rate
        return jnp.stack([jnp.log(mean) - 0.5 / shape + stirling(shape, 1), mean], -1)

    def stats(self, z: Vector) -> Nat:
        return jnp.stack([jnp.log(z), z], -1)

    @property
    def log_base(self) -> float:
        return 0.0

    def sample(self, belief: Belief, key: Key, num: int) -> Float[Array, "S L"]:
        """Draw samples; a sample that underflows is the smallest positive normal number.

        The gradient is that of a sample at a fixed quantile (the implicit gradient).
        """
        shape, rate = _unpack(belief)
        draws = log_gamma_draw(key, jnp.broadcast_to(shape, (num, self.dim)))
        return self.inside(jnp.exp(draws - jnp.log(rate)))

    def from_unconstrained(self, raw: Float[Array, " R"]) -> Nat:
        """Return natural parameters of any real vector.

        The first L entries give the means, softplus(entry) + 1e-4. The last L entries give the
        shapes, softplus(entry) + 1e-3.
        """
        mean = jax.nn.softplus(raw[: self.dim]) + 1e-4
        return _pack(mean, jax.nn.softplus(raw[self.dim :]) + 1e-3)

    @property
    def has_log_mgf(self) -> bool:
        return True

    def log_mgf(self, nat: Nat, C: Float[Array, "N L"]) -> Float[Array, "N L"]:
        r"""Return the log moment-generating functions, $-\alpha \log(1 - c/\beta)$ at $c = C_{nl}$.

        They are infinite unless $c < \beta$.
        """
        shape, rate = _unpack(nat)
        ratio = C / rate
        feasible = ratio < 1
        return jnp.where(feasible, -shape * jnp.log1p(-jnp.where(feasible, ratio, 0)), jnp.inf)


def _unpack(nat: Float[Array, "L 2"]) -> tuple[Vector, Vector]:
    """Return the shape and the rate of each dimension."""
    return nat[:, 0] + 1, -nat[:, 1]


def _pack(mean: Vector, shape: Vector) -> Float[Array, "L 2"]:
    return jnp.stack([shape - 1, -shape / mean], -1)
