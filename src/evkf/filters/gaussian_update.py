"""The variational update of a full Gaussian belief by conjugate-computation VI.

Everything happens in coordinates whitened by the prediction, $z = \\bar m + \\bar S u$ with
$\\bar q(u) = N(0, I)$: the factorised matrix is $I$ plus the information of the data, whose
eigenvalues are at least one for log-concave models, and the divergence needs no inverse of the
prediction.

A belief over u is one vector: $h = Jm$, then the lower triangle of the precision $J$. What XLA
does with it is a handful of kernels, which is what a step costs at small sizes.

Paper: eq:variational_update.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from evkf.expectations import Ell, Evaluate, Whitened
from evkf.numerics import cholesky, inverse_lower, pack, tree_where, unpack
from evkf.types import Matrix, Scalar, Vector

NEAR = 0.3
"""Residual below which steps are extrapolated."""
SETTLED = 1e-3
"""Nats left to gain below which the residual of the next step can be foretold from the last two."""

Packed = Float[Array, " D"]


class Solution(NamedTuple):
    """Where an update ended: mean and root of the covariance of u, and how it got there."""

    mean: Vector
    root: Matrix
    elbo: Scalar
    evaluations: Int[Array, ""]
    residual: Scalar
    converged: Bool[Array, ""]


class Point(NamedTuple):
    """A belief over u and what was found there."""

    nat: Packed
    gap: Packed
    """From here to where CVI at rate 1 goes."""
    elbo: Scalar
    size: Scalar
    """Magnitude of the terms of the bound, which sets its rounding error."""
    gain: Scalar
    """What the bound will gain from moving the mean, to second order."""
    root: Matrix
    """Root of the covariance."""


class Carry(NamedTuple):
    point: Point
    steps: Float[Array, "M D"]
    """The last steps taken, newest first."""
    changes: Float[Array, "M D"]
    """How the gap changed along each."""
    rate: Scalar
    evaluations: Int[Array, ""]
    residual: Scalar
    foretold: Scalar
    exact: Bool[Array, ""]
    """Whether the gap at the point is the true one, not that of a tamed first site."""


def conjugate_update(ell: Whitened, dim: int, dtype: jnp.dtype) -> Solution:
    """The exact posterior when the expected log-likelihood is quadratic: one step."""
    identity = jnp.eye(dim, dtype=dtype)
    first = ell.evaluate(jnp.zeros(dim, dtype), identity)
    nat = jnp.concatenate([first.grad, pack(identity) - first.curv])
    mean, root = _moments(nat, dim)
    elbo = ell.evaluate(mean, root).value - _divergence(mean, root)
    zero = jnp.zeros((), dtype)
    return Solution(mean, root, elbo, jnp.asarray(1), zero, jnp.asarray(True))


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
    fixed point of CVI at rate 1, extrapolated along the last step once it is near (Anderson's
    method; along the last three where the model is not log-concave). One trip of the loop is one
    factorisation and one evaluation. The residual of the fixed point falls out of it, and its decay
    foretells that of the next step; when this is small enough, the step is taken without another
    look, and the bound there is extrapolated to second order.

    Args:
        ell: The expected log-likelihood in whitened coordinates.
        dim: Latent dimensions.
        dtype: Of the belief.
        log_concave: If not, H may be indefinite away from the optimum and steps are bent into the
            cone.
        max_evaluations: Bound on evaluations of gradient and curvature.
        tolerance: Relative residual at which to stop.
    """
    # Inner product of natural parameters (h, -J/2), each off-diagonal entry counted twice.
    weight = jnp.asarray(
        np.concatenate([np.ones(dim), 0.5 - 0.25 * np.eye(dim)[np.tril_indices(dim)]])
    )
    weight = weight.astype(dtype)

    eps = float(jnp.finfo(dtype).eps)

    def norm(x: Packed) -> Scalar:
        return jnp.sqrt(jnp.sum(weight * x**2))

    def keep_going(carry: Carry) -> Bool[Array, ""]:
        return (carry.foretold > tolerance) & (carry.evaluations < max_evaluations)

    def body(carry: Carry) -> Carry:
        here, rate = carry.point, carry.rate
        direct = (rate == 1) & (carry.residual < NEAR)
        toward = _extrapolate(here.gap, carry.steps, carry.changes, weight, direct)
        nat = here.nat + rate * toward
        if not log_concave:
            nat = _into_cone(nat, here.root, rate * toward)
        there = _look(nat, dim, ell.evaluate)
        left = norm(there.gap) / norm(there.nat)
        # A step that halves the residual may lose what rounding or quadrature make of the bound.
        halves = 2 * left < carry.residual
        rounding = 8 * eps * (here.size + 1)
        slack = rounding + jnp.where(halves, jnp.minimum(carry.residual, 0.1) ** 2, 0)
        climbs = there.elbo >= here.elbo - slack
        taken = climbs | (jnp.isfinite(there.elbo) & ~jnp.isfinite(here.elbo))
        step, change = there.nat - here.nat, there.gap - here.gap
        contraction = norm(step + change) / jnp.maximum(norm(step), eps)
        decay = jnp.clip(left / carry.residual, contraction, 1)
        foretold = jnp.where(carry.exact & (there.gain < SETTLED), left * decay, left)
        # Nothing to gain but rounding: in float32 the residual itself may never get small enough.
        finished = (there.gain < rounding) & (left < 10 * math.sqrt(eps))
        foretold = jnp.where(finished, 0, foretold)
        return Carry(
            tree_where(taken, there, here),
            jnp.where(taken, _push(carry.steps, step), carry.steps),
            jnp.where(taken, _push(carry.changes, change), carry.changes),
            jnp.where(taken, jnp.minimum(1, 2 * rate), 0.3 * rate),
            carry.evaluations + 1,
            jnp.where(taken, left, carry.residual),
            jnp.where(taken, foretold, carry.foretold),
            carry.exact | taken,
        )

    zero, identity = jnp.zeros(dim, dtype), jnp.eye(dim, dtype=dtype)
    origin = jnp.concatenate([zero, pack(identity)])
    found, exact = ell.start(zero, identity)
    first = _point(origin, zero, identity, found)
    left = norm(first.gap) / norm(first.nat)
    foretold = jnp.where(exact, left, jnp.inf)
    none = jnp.zeros((3, len(origin)), dtype)
    start = Carry(first, none, none, jnp.ones((), dtype), jnp.asarray(1), left, foretold, exact)
    end = lax.while_loop(keep_going, body, start)
    point, converged = end.point, end.foretold <= tolerance
    nat = jnp.where(converged, point.nat + point.gap, point.nat)
    spread = point.root.T @ unpack(point.gap[dim:], dim) @ point.root
    gain = point.gain + 0.25 * jnp.sum(spread**2)
    elbo = jnp.where(converged, point.elbo + gain, point.elbo)
    mean, root = _moments(nat, dim)
    return Solution(mean, root, elbo, end.evaluations, end.foretold, converged)


def _moments(nat: Packed, dim: int) -> tuple[Vector, Matrix]:
    """Mean, and an upper triangular root of the covariance."""
    root = inverse_lower(cholesky(unpack(nat[dim:], dim))).T
    return root @ (nat[:dim] @ root), root


def _divergence(mean: Vector, root: Matrix) -> Scalar:
    """KL from N(mean, root root') to the standard normal."""
    square = jnp.sum(root**2) + mean @ mean - mean.shape[0]
    return 0.5 * square - jnp.sum(jnp.log(jnp.diagonal(root)))


def _look(nat: Packed, dim: int, evaluate: Evaluate) -> Point:
    mean, root = _moments(nat, dim)
    return _point(nat, mean, root, evaluate(mean, root))


def _point(nat: Packed, mean: Vector, root: Matrix, ell: Ell) -> Point:
    value, grad, curv = ell
    dim, kl = len(mean), _divergence(mean, root)
    identity = pack(jnp.eye(dim, dtype=mean.dtype))
    gap = jnp.concatenate([grad - unpack(curv, dim) @ mean, identity - curv]) - nat
    force = (grad - mean) @ root
    return Point(nat, gap, value - kl, jnp.abs(value) + jnp.abs(kl), 0.5 * force @ force, root)


def _extrapolate(
    gap: Packed,
    steps: Float[Array, "M D"],
    changes: Float[Array, "M D"],
    weight: Packed,
    direct: Bool[Array, ""],
) -> Packed:
    """Anderson's step: the gap, less what the last steps say will be left of it."""
    weighted = changes * weight
    products, along = weighted @ changes.T, weighted @ gap
    sizes = jnp.diagonal(products)
    ridge = jnp.where(sizes > 0, max(1e-10, 10 * jnp.finfo(gap.dtype).eps) * sizes, 1)
    if len(ridge) == 1:
        shares = along / (sizes + ridge)
    else:
        inverse = inverse_lower(cholesky(products + jnp.diag(ridge)))
        shares = inverse.T @ (inverse @ along)
    shares = jnp.where(direct & jnp.all(jnp.isfinite(shares)), shares, 0)
    return gap - shares @ (steps + changes)


def _push(stack: Float[Array, "M D"], newest: Packed) -> Float[Array, "M D"]:
    return jnp.concatenate([newest[None], stack[:-1]])


def _into_cone(nat: Packed, root: Matrix, step: Packed) -> Packed:
    """Replace $J + S$ by $J + S + \\tfrac12 S J^{-1} S$, always positive definite, where it is
    not.
    """
    dim = len(root)
    definite = jnp.all(jnp.isfinite(cholesky(unpack(nat[dim:], dim))))
    bent = unpack(step[dim:], dim) @ root
    more = jnp.where(definite, 0, 0.5 * pack(bent @ bent.T))
    return jnp.concatenate([nat[:dim], nat[dim:] + more])
