r"""The variational update of a full Gaussian belief by conjugate-computation VI (CVI).

The update is computed in whitened coordinates u, where $z = \bar m + \bar S u$; here $\bar m$ is
the predicted mean and $\bar S$ the Cholesky factor of the predicted covariance. The prediction of u
is $\bar q(u) = N(0, I)$. A belief about u has mean m, covariance P and precision $J = P^{-1}$.
Whitening has two advantages. The matrix to factorise is $J = I - H$, with H the expected Hessian of
the log-likelihood (ELL: its expectation); for log-concave models all eigenvalues of J are at least
one. And the Kullback-Leibler divergence (KL) from the prediction needs no inverse of the predicted
covariance. A belief about u is stored as one vector: $h = Jm$, then the lower triangle of J. For
small models the time of an iteration is the number of compiled operations, which one vector keeps
low.

The likelihood enters through `gaussian_ell`; for Poisson counts the formulas are
`Poisson.each_site` and `each_start` in likelihoods/poisson.py.

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

from evkf.expectations.dispatch import GaussianEll, Moments, gaussian_ell, is_conjugate
from evkf.families import GaussianBelief
from evkf.filters.evkf.results import AdditiveCross, Limits, Prediction, Updated, natural_gap
from evkf.model import Model
from evkf.numerics.linalg import (
    all_finite,
    cholesky,
    diagonal,
    factorisable,
    inverse_lower,
    inverse_positive,
    pack,
    total,
    unpack,
)
from evkf.types import Key, Mask, Matrix, Observation, Scalar

NEAR = 0.3
"""Relative residual below which steps are extrapolated (Anderson's method)."""
SETTLED = 1e-3
"""Nats left to gain by moving the mean: at or below this number, the next residual is
predicted from the last two residuals.
"""

Packed = Float[Array, " D"]


class WhitenedSolution(NamedTuple):
    """The updated belief about u.

    Attributes:
        moments: Mean and covariance of u.
        elbo: The bound $L_t$, in nats.
        evaluations: Number of evaluations of gradient and curvature.
        residual: Relative residual of the fixed-point equation, predicted for the belief returned.
        converged: True if the residual is at most the tolerance.
    """

    moments: Moments
    elbo: Scalar
    evaluations: Int[Array, ""]
    residual: Scalar
    converged: Bool[Array, ""]


class CVIPoint(NamedTuple):
    """One iterate of CVI, and what the next iteration needs.

    Attributes:
        nat: The belief about u: h, then the lower triangle of J.
        gap: The CVI step at rate 1 from this iterate, which is zero at the optimum.
        cov: Covariance of u.
        elbo: The bound, in nats.
        size: Sum of the absolute terms of the bound, which determines the rounding error.
        gain: Gain of the bound if the mean takes the full step, to second order, in nats.
        residual: Norm of `gap` divided by the norm of `nat`.
        next_residual: Predicted residual after the next step; 0 where rounding allows no better.
        exact: 1 where `gap` is exact; 0 where `gap` is from the damped first step of `each_start`.
        rate: Fraction of the step to take next.
        steps: The last steps taken, newest first.
        changes: Change of `gap` during each of these steps.
    """

    nat: Packed
    gap: Packed
    cov: Matrix
    elbo: Scalar
    size: Scalar
    gain: Scalar
    residual: Scalar
    next_residual: Scalar
    exact: Scalar
    rate: Scalar
    steps: Float[Array, "M D"]
    changes: Float[Array, "M D"]


def update_gaussian(
    model: Model,
    prediction: Prediction,
    y: Observation,
    mask: Mask,
    sampling: tuple[Key, int],
    limits: Limits,
) -> Updated:
    """Update a Gaussian prediction by an observation, and return the result.

    Args:
        model: The state-space model.
        prediction: The prediction; its belief is a `GaussianBelief`.
        y: Observation, (channels,).
        mask: True where observed, (channels,).
        sampling: JAX random key and number of samples, for likelihoods whose expectation is
            sampled.
        limits: When CVI stops. A conjugate (Gaussian) likelihood takes one exact step instead.
    """
    mean, cov = prediction.belief
    dtype, dim = mean.dtype, mean.shape[0]
    root = cholesky(cov)
    ell = gaussian_ell(model.likelihood, mean, root, y, mask, *sampling)
    if is_conjugate(model.likelihood):
        solution = conjugate_update(ell, dim, dtype)
    else:
        solution = cvi_update(ell, dim, dtype, model.likelihood.log_concave, limits)
    moments = solution.moments
    spread = root @ moments.root
    belief = GaussianBelief(mean + root @ moments.mean, factorisable(spread @ spread.T))
    cross = prediction.cross
    if isinstance(cross, AdditiveCross):
        # L_t - M_t = E_q[log qbar] - E_q E_{q_{t-1}}[log p(z_t | z_{t-1})]
        noise = model.dynamics.noise  # pyright: ignore[reportAttributeAccessIssue]
        second = diagonal(moments.cov) + moments.mean**2
        predicted = total(jnp.log(diagonal(root)) + 0.5 * second)
        shift = belief.mean - cross.mean
        square = noise.relative_trace(belief.cov + shift[:, None] * shift) + cross.spread
        gap = noise.log_det_root() + 0.5 * square - predicted
    else:
        gap = natural_gap(model, prediction, model.family.nat(belief))
    return Updated(
        belief=belief,
        elbo=solution.elbo,
        gap=gap,
        evaluations=solution.evaluations,
        residual=solution.residual,
        converged=solution.converged,
        sound=all_finite(belief, solution.residual),
    )


def conjugate_update(ell: GaussianEll, dim: int, dtype: jnp.dtype) -> WhitenedSolution:
    """Return the exact posterior after one step, for a Gaussian likelihood.

    Args:
        ell: The expected log-likelihood in whitened coordinates, which is quadratic in u.
        dim: Number of latents.
        dtype: Floating-point type of the belief.
    """
    first = ell.evaluate(Moments.standard(dim, dtype))
    nat = jnp.concatenate([first.grad, pack(jnp.eye(dim, dtype=dtype)) - first.curv])
    moments = _moments(nat, dim)
    elbo = ell.evaluate(moments).value - _divergence(moments)
    zero = jnp.zeros((), dtype)
    return WhitenedSolution(moments, elbo, jnp.asarray(1), zero, jnp.asarray(True))


def cvi_update(
    ell: GaussianEll, dim: int, dtype: jnp.dtype, log_concave: bool, limits: Limits
) -> WhitenedSolution:
    """Maximise the bound $ELL - KL$ by natural-gradient steps, and return the maximum.

    Let g be the expected gradient and H the expected Hessian of the log-likelihood, under the
    belief about u of mean m. A full step (CVI at rate 1) goes to the precision $J = I - H$ and to
    $h = g - Hm$. A step that lowers the bound is shortened and tried again. Near the optimum,
    steps are extrapolated from the last step (Anderson's method); from the last three steps if the
    likelihood is not log-concave.

    One iteration takes one factorisation and one evaluation of g and H, which give the residual of
    the fixed-point equation. From the decay of the residual the next residual is predicted. Once
    the predicted residual is below the tolerance, the last step is taken without another
    evaluation, and the gain of that step is added to the bound to second order.

    Args:
        ell: The expected log-likelihood in whitened coordinates.
        dim: Number of latents.
        dtype: Floating-point type of the belief.
        log_concave: True if H is always negative semidefinite. If False, a step to a precision that
            is not positive definite is changed so that the precision becomes positive definite.
        limits: Largest number of evaluations, and the relative residual at which to stop.
    """
    max_evaluations, tolerance = limits
    # Inner product of natural parameters (h, -J/2), each off-diagonal entry counted twice.
    shares = np.concatenate([np.ones(dim), 0.5 - 0.25 * np.eye(dim)[np.tril_indices(dim)]])
    weight = jnp.asarray(shares, dtype)
    eps = float(jnp.finfo(dtype).eps)

    start_terms, exact = ell.start()
    identity, one = np.eye(dim, dtype=dtype), np.ones((), dtype)
    none = np.zeros((1 if log_concave else 3, len(weight)), dtype)
    nat = np.concatenate([np.zeros(dim, dtype), identity[np.tril_indices(dim)]])
    gap = jnp.concatenate([start_terms.grad, -start_terms.curv])
    left = jnp.sqrt(total(weight * gap**2) / (nat**2 @ shares).astype(dtype))
    # The loop carries one vector, because every further array takes a copy and a select. The
    # constant entries of the first point are added in one sum.
    zero = jnp.zeros((), dtype)
    first = CVIPoint(
        jnp.zeros_like(gap),
        gap,
        jnp.zeros_like(identity),
        elbo=start_terms.value,
        size=jnp.abs(start_terms.value),
        gain=0.5 * total(start_terms.grad**2),
        residual=left,
        next_residual=jnp.where(exact, left, jnp.inf),
        exact=exact.astype(dtype),
        rate=zero,
        steps=jnp.zeros_like(none),
        changes=jnp.zeros_like(none),
    )
    start, unravel = ravel_pytree((zero, first))
    constants = jax.tree.map(lambda leaf: np.zeros(leaf.shape, dtype), first)
    constants = constants._replace(nat=nat, cov=identity, rate=one)
    start = start + np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((one, constants))])

    def keep_going(flat: Array) -> Bool[Array, ""]:
        evaluations, here = unravel(flat)
        return (here.next_residual > tolerance) & (evaluations < max_evaluations)

    def body(flat: Array) -> Array:
        evaluations, here = unravel(flat)
        rate = here.rate
        direct = (rate == 1) & (here.residual < NEAR)
        toward = _extrapolate(here.gap, here.steps, here.changes, weight, direct)
        nat = here.nat + rate * toward
        if not log_concave:
            # Where J + S is not positive definite, go to J + S + S J^-1 S / 2, which always is.
            definite = jnp.all(jnp.isfinite(cholesky(unpack(nat[dim:], dim))))
            bent = unpack(rate * toward[dim:], dim)
            more = jnp.where(definite, 0, 0.5 * pack(bent @ here.cov @ bent))
            nat = jnp.concatenate([nat[:dim], nat[dim:] + more])
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
        # A step that halves the residual may lower the bound by rounding or quadrature error.
        halves = 2 * left < here.residual
        rounding = 8 * eps * (here.size + 1)
        slack = rounding + jnp.where(halves, jnp.minimum(here.residual, 0.1) ** 2, 0)
        climbs = elbo >= here.elbo - slack
        taken = climbs | (jnp.isfinite(elbo) & ~jnp.isfinite(here.elbo))
        decay = jnp.clip(left / here.residual, contraction, 1)
        next_residual = jnp.where((here.exact > 0) & (gain < SETTLED), left * decay, left)
        # In float32 rounding may keep the residual above the tolerance for ever.
        finished = (gain < rounding) & (left < 10 * math.sqrt(eps))
        there = CVIPoint(
            nat,
            gap,
            at.cov,
            elbo,
            size,
            gain,
            residual=left,
            next_residual=jnp.where(finished, 0, next_residual),
            exact=jnp.asarray(one),
            rate=jnp.minimum(1, 2 * rate),
            steps=jnp.concatenate([step[None], here.steps[:-1]]),
            changes=jnp.concatenate([change[None], here.changes[:-1]]),
        )
        back = here._replace(rate=0.3 * rate)
        both = (ravel_pytree((evaluations + 1, point))[0] for point in (there, back))
        return jnp.where(taken, *both)

    evaluations, end = unravel(lax.while_loop(keep_going, body, start))
    converged = end.next_residual <= tolerance
    spread = end.cov @ unpack(end.gap[dim:], dim)
    gain = end.gain + 0.25 * total(spread * spread.T)
    elbo = jnp.where(converged, end.elbo + gain, end.elbo)
    at = _moments(jnp.where(converged, end.nat + end.gap, end.nat), dim)
    return WhitenedSolution(at, elbo, evaluations.astype(int), end.next_residual, converged)


def _moments(nat: Packed, dim: int) -> Moments:
    """Return the moments of u from h and J; for one or two latents by cofactors (no Cholesky)."""
    precision = unpack(nat[dim:], dim)
    if dim <= 2:
        cov, log_det = inverse_positive(precision)
        return Moments(cov @ nat[:dim], cov, cholesky(cov), -log_det)
    root = inverse_lower(cholesky(precision)).T
    log_det = 2 * total(jnp.log(diagonal(root)))
    return Moments(root @ (nat[:dim] @ root), root @ root.T, root, log_det)


def _divergence(moments: Moments) -> Scalar:
    """Return the Kullback-Leibler divergence from the standard normal, in nats."""
    mean, cov, _, log_det = moments
    return 0.5 * (total(diagonal(cov) + mean**2 - 1) - log_det)


def _extrapolate(
    gap: Packed,
    steps: Float[Array, "M D"],
    changes: Float[Array, "M D"],
    weight: Packed,
    direct: Bool[Array, ""],
) -> Packed:
    """Return the step of Anderson's method.

    The method finds the combination of the last steps whose changes of the gap fit the gap best
    (least squares), and goes where the gap minus this combination would lead.

    Args:
        gap: The CVI step at rate 1 from here.
        steps: The last steps, newest first.
        changes: Change of the gap during each of these steps.
        weight: Weight of every entry in the least squares.
        direct: False to return `gap` itself.
    """
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
