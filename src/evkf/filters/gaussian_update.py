"""The variational update of a full Gaussian belief by conjugate-computation VI.

Everything happens in coordinates whitened by the prediction, $z = \\bar m + \\bar S u$ with
$\\bar q(u) = N(0, I)$: the factorised matrix is $I$ plus the information of the data, whose
eigenvalues are at least one for log-concave models, and the divergence needs no inverse of the prediction.

Paper: eq:variational_update.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from evkf.expectations import Ell, Evaluate, Whitened
from evkf.numerics import cholesky, inverse_lower
from evkf.types import Matrix, Scalar, Vector

NEAR = 0.3
"""Residual below which steps are extrapolated."""
SETTLED = 1e-3
"""Nats left in the mean below which the residual of the next step can be foretold from the last two."""


class Solution(NamedTuple):
    """Where an update ended: mean and root of the covariance of u, and how it got there."""

    mean: Vector
    root: Matrix
    elbo: Scalar
    evaluations: Int[Array, ""]
    residual: Scalar
    converged: Bool[Array, ""]


class Nat(NamedTuple):
    """$(h, J)$ with $J$ the precision and $h = J m$, or a difference of two such."""

    linear: Vector
    precision: Matrix


class Point(NamedTuple):
    """A belief over u and what was found there."""

    nat: Nat
    mean: Vector
    root: Matrix
    elbo: Scalar
    gap: Nat
    """From here to where CVI at rate 1 goes."""
    size: Scalar
    """Magnitude of the terms of the bound, which sets its rounding error."""


class Carry(NamedTuple):
    point: Point
    steps: Nat
    """The last steps taken, newest first."""
    changes: Nat
    """How the gap changed along each."""
    rate: Scalar
    evaluations: Int[Array, ""]
    residual: Scalar
    foretold: Scalar


def conjugate_update(ell: Whitened, dim: int, dtype: jnp.dtype) -> Solution:
    """The exact posterior when the expected log-likelihood is quadratic: one step."""
    identity = jnp.eye(dim, dtype=dtype)
    first = ell.evaluate(jnp.zeros(dim, dtype), identity)
    point = _look(Nat(first.grad, identity - first.curv), ell.evaluate)
    zero = jnp.zeros((), dtype)
    return Solution(point.mean, point.root, point.elbo, jnp.asarray(1), zero, jnp.asarray(True))


def cvi_update(
    ell: Whitened,
    dim: int,
    dtype: jnp.dtype,
    log_concave: bool,
    max_evaluations: int,
    tolerance: float,
) -> Solution:
    """Climb $ELL - KL$ by full natural-gradient steps, shortened until they climb.

    A step goes to $J = I - H$, $h = g - Hu$, with g and H the expected gradient and Hessian: the
    fixed point of CVI at rate 1, extrapolated along the last step once it is near (Anderson's method;
    along the last three where the model is not log-concave). One trip of the loop is one factorisation and one evaluation. The residual of the fixed point
    falls out of it, and its decay foretells that of the next step; when this is small enough, the
    step is taken without another look, and the bound there is extrapolated to second order.

    Args:
        ell: The expected log-likelihood in whitened coordinates.
        dim: Latent dimensions.
        dtype: Of the belief.
        log_concave: If not, H may be indefinite away from the optimum and steps are bent into the cone.
        max_evaluations: Bound on evaluations of gradient and curvature.
        tolerance: Relative residual at which to stop.
    """

    def keep_going(carry: Carry) -> Bool[Array, ""]:
        return (carry.foretold > tolerance) & (carry.evaluations < max_evaluations)

    def body(carry: Carry) -> Carry:
        here, rate = carry.point, carry.rate
        direct = (rate == 1) & (carry.residual < NEAR)
        toward = _extrapolate(here.gap, carry.steps, carry.changes, direct)
        nat = Nat(*jax.tree.map(lambda x, d: x + rate * d, here.nat, toward))
        if not log_concave:
            bent = _into_cone(nat.precision, here.root, rate * toward.precision)
            nat = Nat(nat.linear, bent)
        there = _look(nat, ell.evaluate)
        left = _relative(there.gap, there.nat)
        # A step that halves the residual may lose what rounding or quadrature make of the bound.
        halves = 2 * left < carry.residual
        slack = 8 * jnp.finfo(dtype).eps * (here.size + 1)
        slack = slack + jnp.where(halves, jnp.minimum(carry.residual, 0.1) ** 2, 0)
        climbs = there.elbo >= here.elbo - slack
        taken = climbs | (jnp.isfinite(there.elbo) & ~jnp.isfinite(here.elbo))
        step, change = _minus(there.nat, here.nat), _minus(there.gap, here.gap)
        image = Nat(*jax.tree.map(jnp.add, step, change))
        contraction = jnp.sqrt(_dot(image, image) / _dot(step, step))
        decay = jnp.clip(left / carry.residual, contraction, 1)
        foretold = jnp.where(_mean_left(there) < SETTLED, left * decay, left)
        return Carry(
            _choose(taken, there, here),
            _choose(taken, _push(carry.steps, step), carry.steps),
            _choose(taken, _push(carry.changes, change), carry.changes),
            jnp.where(taken, jnp.minimum(1, 2 * rate), 0.3 * rate),
            carry.evaluations + 1,
            jnp.where(taken, left, carry.residual),
            jnp.where(taken, foretold, carry.foretold),
        )

    depth = 1 if log_concave else 3
    origin = Nat(jnp.zeros(dim, dtype), jnp.eye(dim, dtype=dtype))
    none = Nat(jnp.zeros((depth, dim), dtype), jnp.zeros((depth, dim, dim), dtype))
    first = _look(origin, ell.start)
    left = _relative(first.gap, first.nat)
    start = Carry(first, none, none, jnp.ones((), dtype), jnp.asarray(1), left, left)
    end = lax.while_loop(keep_going, body, start)
    point, converged = end.point, end.foretold <= tolerance
    last = _moments(Nat(*jax.tree.map(jnp.add, point.nat, point.gap)))
    sound = converged & jnp.all(jnp.isfinite(last[1]))
    mean, root = _choose(sound, last, (point.mean, point.root))
    spread = point.root.T @ point.gap.precision @ point.root
    gain = jnp.where(sound, _mean_left(point) + 0.25 * jnp.sum(spread**2), 0)
    return Solution(mean, root, point.elbo + gain, end.evaluations, end.foretold, converged)


def _moments(nat: Nat) -> tuple[Vector, Matrix]:
    """Mean, and an upper triangular root of the covariance."""
    root = inverse_lower(cholesky(nat.precision)).T
    return root @ (nat.linear @ root), root


def _look(nat: Nat, evaluate: Evaluate) -> Point:
    mean, root = _moments(nat)
    log_det = jnp.sum(jnp.log(jnp.diagonal(root)))
    kl = 0.5 * (jnp.sum(root**2) + mean @ mean - mean.shape[0]) - log_det
    ell: Ell = evaluate(mean, root)
    target = Nat(ell.grad - ell.curv @ mean, jnp.eye(mean.shape[0], dtype=mean.dtype) - ell.curv)
    size = jnp.abs(ell.value) + jnp.abs(kl)
    return Point(nat, mean, root, ell.value - kl, _minus(target, nat), size)


def _mean_left(point: Point) -> Scalar:
    """What the bound will gain from moving the mean, to second order."""
    force = point.gap.linear - point.gap.precision @ point.mean
    return 0.5 * jnp.sum((force @ point.root) ** 2)


def _extrapolate(gap: Nat, steps: Nat, changes: Nat, direct: Bool[Array, ""]) -> Nat:
    """Anderson's step: the gap, less what the last steps say will be left of it."""
    products = jax.vmap(jax.vmap(_dot, (None, 0)), (0, None))(changes, changes)
    along = jax.vmap(_dot, (0, None))(changes, gap)
    sizes = jnp.diagonal(products)
    ridge = jnp.where(sizes > 0, 1e-10 * sizes, 1)
    if len(ridge) == 1:
        weights = along / (sizes + ridge)
    else:
        weights = jnp.linalg.solve(products + jnp.diag(ridge), along)
    weights = jnp.where(direct & jnp.all(jnp.isfinite(weights)), weights, 0)
    move = jax.tree.map(lambda s, c: jnp.tensordot(weights, s + c, 1), steps, changes)
    return _minus(gap, move)


def _push(stack: Nat, newest: Nat) -> Nat:
    return Nat(*jax.tree.map(lambda s, n: jnp.concatenate([n[None], s[:-1]]), stack, newest))


def _into_cone(precision: Matrix, root: Matrix, step: Matrix) -> Matrix:
    """Replace $J + S$ by $J + S + \\tfrac12 S J^{-1} S$, always positive definite, where it is not."""
    definite = jnp.all(jnp.isfinite(cholesky(precision)))
    bent = step @ root
    return jnp.where(definite, precision, precision + 0.5 * bent @ bent.T)


def _relative(gap: Nat, nat: Nat) -> Scalar:
    return jnp.sqrt(_dot(gap, gap) / _dot(nat, nat))


def _dot(a: Nat, b: Nat) -> Scalar:
    """Inner product of natural parameters $(h, -\\tfrac12 J)$."""
    return a.linear @ b.linear + 0.25 * jnp.sum(a.precision * b.precision)


def _minus(a: Nat, b: Nat) -> Nat:
    return Nat(a.linear - b.linear, a.precision - b.precision)


def _choose(condition: Bool[Array, ""], yes, no):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
