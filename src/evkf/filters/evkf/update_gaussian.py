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

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from evkf.expectations.dispatch import Moments, Whitened, standard
from evkf.numerics.linalg import (
    cholesky,
    diagonal,
    inverse_lower,
    inverse_positive,
    pack,
    total,
    unpack,
)
from evkf.types import Matrix, Scalar

NEAR = 0.3
"""Residual below which steps are extrapolated."""
SETTLED = 1e-3
"""Nats left to gain below which the residual of the next step can be foretold from the last two."""

Packed = Float[Array, " D"]


class Solution(NamedTuple):
    """Where an update ended: the moments of u, and how it got there."""

    moments: Moments
    elbo: Scalar
    evaluations: Int[Array, ""]
    residual: Scalar
    converged: Bool[Array, ""]


class Point(NamedTuple):
    """A belief over u, what was found there, and how it was reached."""

    nat: Packed
    gap: Packed
    """From here to where CVI at rate 1 goes."""
    cov: Matrix
    elbo: Scalar
    size: Scalar
    """Magnitude of the terms of the bound, which sets its rounding error."""
    gain: Scalar
    """What the bound will gain from moving the mean, to second order."""
    residual: Scalar
    foretold: Scalar
    """Residual after the next step."""
    exact: Scalar
    """One where the gap is the true one, zero where it is that of a tamed first site."""
    rate: Scalar
    """Of the next step."""
    steps: Float[Array, "M D"]
    """The last steps taken, newest first."""
    changes: Float[Array, "M D"]
    """How the gap changed along each."""


def conjugate_update(ell: Whitened, dim: int, dtype: jnp.dtype) -> Solution:
    """The exact posterior when the expected log-likelihood is quadratic: one step."""
    first = ell.evaluate(standard(dim, dtype))
    nat = jnp.concatenate([first.grad, pack(jnp.eye(dim, dtype=dtype)) - first.curv])
    found = _moments(nat, dim)
    elbo = ell.evaluate(found).value - _divergence(found)
    zero = jnp.zeros((), dtype)
    return Solution(found, elbo, jnp.asarray(1), zero, jnp.asarray(True))


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
    shares = np.concatenate([np.ones(dim), 0.5 - 0.25 * np.eye(dim)[np.tril_indices(dim)]])
    weight = jnp.asarray(shares, dtype)
    eps = float(jnp.finfo(dtype).eps)

    found, exact = ell.start()
    identity, one = np.eye(dim, dtype=dtype), np.ones((), dtype)
    none = np.zeros((1 if log_concave else 3, len(weight)), dtype)
    nat = np.concatenate([np.zeros(dim, dtype), identity[np.tril_indices(dim)]])
    gap = jnp.concatenate([found.grad, -found.curv])
    left = jnp.sqrt(total(weight * gap**2) / (nat**2 @ shares).astype(dtype))
    # One vector: every array that a loop carries costs a copy and a choice of its own. What is
    # known of it is added as one constant.
    zero = jnp.zeros((), dtype)
    first = Point(
        jnp.zeros_like(gap),
        gap,
        jnp.zeros_like(identity),
        elbo=found.value,
        size=jnp.abs(found.value),
        gain=0.5 * total(found.grad**2),
        residual=left,
        foretold=jnp.where(exact, left, jnp.inf),
        exact=exact.astype(dtype),
        rate=zero,
        steps=jnp.zeros_like(none),
        changes=jnp.zeros_like(none),
    )
    start, unravel = ravel_pytree((zero, first))
    known = jax.tree.map(lambda leaf: np.zeros(leaf.shape, dtype), first)
    known = known._replace(nat=nat, cov=identity, rate=one)
    start = start + np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((one, known))])

    def keep_going(flat: Array) -> Bool[Array, ""]:
        evaluations, here = unravel(flat)
        return (here.foretold > tolerance) & (evaluations < max_evaluations)

    def body(flat: Array) -> Array:
        evaluations, here = unravel(flat)
        rate = here.rate
        direct = (rate == 1) & (here.residual < NEAR)
        toward = _extrapolate(here.gap, here.steps, here.changes, weight, direct)
        nat = here.nat + rate * toward
        if not log_concave:
            nat = _into_cone(nat, here.cov, rate * toward)
        at = _moments(nat, dim)
        value, grad, curv = ell.evaluate(at)
        moved = grad - unpack(curv, dim) @ at.mean
        gap = jnp.concatenate([moved, identity[np.tril_indices(dim)] - curv]) - nat
        step, change = nat - here.nat, gap - here.gap
        squares = jnp.stack([gap, nat, step + change, step]) ** 2 @ weight
        left = jnp.sqrt(squares[0] / squares[1])
        contraction = jnp.sqrt(squares[2] / jnp.maximum(squares[3], eps**2))
        force = grad - at.mean
        divergence, gain = _divergence(at), 0.5 * total((at.cov @ force) * force)
        elbo, size = value - divergence, jnp.abs(value) + jnp.abs(divergence)
        # A step that halves the residual may lose what rounding or quadrature make of the bound.
        halves = 2 * left < here.residual
        rounding = 8 * eps * (here.size + 1)
        slack = rounding + jnp.where(halves, jnp.minimum(here.residual, 0.1) ** 2, 0)
        climbs = elbo >= here.elbo - slack
        taken = climbs | (jnp.isfinite(elbo) & ~jnp.isfinite(here.elbo))
        decay = jnp.clip(left / here.residual, contraction, 1)
        foretold = jnp.where((here.exact > 0) & (gain < SETTLED), left * decay, left)
        # Nothing to gain but rounding: in float32 the residual itself may never get small enough.
        finished = (gain < rounding) & (left < 10 * math.sqrt(eps))
        there = Point(
            nat,
            gap,
            at.cov,
            elbo,
            size,
            gain,
            residual=left,
            foretold=jnp.where(finished, 0, foretold),
            exact=jnp.asarray(one),
            rate=jnp.minimum(1, 2 * rate),
            steps=_push(here.steps, step),
            changes=_push(here.changes, change),
        )
        back = here._replace(rate=0.3 * rate)
        both = (ravel_pytree((evaluations + 1, point))[0] for point in (there, back))
        return jnp.where(taken, *both)

    evaluations, end = unravel(lax.while_loop(keep_going, body, start))
    converged = end.foretold <= tolerance
    spread = end.cov @ unpack(end.gap[dim:], dim)
    gain = end.gain + 0.25 * total(spread * spread.T)
    elbo = jnp.where(converged, end.elbo + gain, end.elbo)
    at = _moments(jnp.where(converged, end.nat + end.gap, end.nat), dim)
    return Solution(at, elbo, evaluations.astype(int), end.foretold, converged)


def _moments(nat: Packed, dim: int) -> Moments:
    """From natural parameters; up to two dimensions by cofactors, which lose too much of three."""
    precision = unpack(nat[dim:], dim)
    if dim <= 2:
        cov, log_det = inverse_positive(precision)
        return Moments(cov @ nat[:dim], cov, cholesky(cov), -log_det)
    root = inverse_lower(cholesky(precision)).T
    log_det = 2 * total(jnp.log(diagonal(root)))
    return Moments(root @ (nat[:dim] @ root), root @ root.T, root, log_det)


def _divergence(moments: Moments) -> Scalar:
    """KL to the standard normal."""
    mean, cov, _, log_det = moments
    return 0.5 * (total(diagonal(cov) + mean**2 - 1) - log_det)


def _extrapolate(
    gap: Packed,
    steps: Float[Array, "M D"],
    changes: Float[Array, "M D"],
    weight: Packed,
    direct: Bool[Array, ""],
) -> Packed:
    """Anderson's step: the gap, less what the last steps say will be left of it."""
    products = jnp.concatenate([changes, gap[None]]) @ (changes * weight).T
    products, along = products[:-1], products[-1]
    sizes = jnp.diagonal(products)
    ridge = jnp.where(sizes > 0, max(1e-10, 10 * jnp.finfo(gap.dtype).eps) * sizes, 1)
    if len(ridge) == 1:
        shares = along / (sizes + ridge)
    else:
        inverse = inverse_lower(cholesky(products + jnp.diag(ridge)))
        shares = inverse.T @ (inverse @ along)
    shares = jnp.where(direct & jnp.isfinite(total(shares)), shares, 0)
    return gap - shares @ (steps + changes)


def _push(stack: Float[Array, "M D"], newest: Packed) -> Float[Array, "M D"]:
    return jnp.concatenate([newest[None], stack[:-1]])


def _into_cone(nat: Packed, cov: Matrix, step: Packed) -> Packed:
    """Replace $J + S$ by $J + S + \\tfrac12 S J^{-1} S$, always positive definite, where it is
    not.
    """
    dim = len(cov)
    definite = jnp.all(jnp.isfinite(cholesky(unpack(nat[dim:], dim))))
    bent = unpack(step[dim:], dim)
    more = jnp.where(definite, 0, 0.5 * pack(bent @ cov @ bent))
    return jnp.concatenate([nat[:dim], nat[dim:] + more])
