"""One bin of the filter, written so that it can be differentiated and replayed cheaply.

The filter's own update iterates until it has converged, which cannot be reversed. A replayed update
starts from the belief that the filter found when the bin was new, and takes a fixed number of steps
of the same iteration.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from evkf import likelihoods as lik
from evkf.dynamics import GaussianDynamics
from evkf.expectations import PACK, whitened
from evkf.families import Gaussian, GaussianBelief, Product, Univariate
from evkf.filters import State, VariationalKalmanFilter
from evkf.filters.predict import push_forward
from evkf.likelihoods.base import Site, safe
from evkf.model import Model
from evkf.numerics import cholesky, inverse_lower, pack, unpack
from evkf.product_expectations import product_ell
from evkf.sites import site
from evkf.types import Belief, Input, Key, Mask, Matrix, Observation, Scalar, Vector

EVALUATIONS = 2
"""Evaluations of gradient and curvature per replayed bin: one to move from the stored belief to
that of the present parameters, one to read the bound there and move once more."""

Ell = tuple[Scalar, Vector, Matrix]
EllOf = Callable[[Vector, Matrix, Observation, Mask, Key], Ell]


def state_ell(likelihood: lik.Likelihood, num_samples: int) -> EllOf:
    """Value, gradient and expected Hessian of the expected log-likelihood in coordinates of z.

    What does not depend on the bin is computed here, once for all replayed bins.
    """
    if isinstance(likelihood, lik.Joint):
        parts = [state_ell(part, num_samples) for part in likelihood.parts]

        def total(mean: Vector, root: Matrix, y: Observation, mask: Mask, key: Key) -> Ell:
            pieces = zip(parts, likelihood.split(y), likelihood.split(mask), strict=True)
            found = [part(mean, root, ys, seen, key) for part, ys, seen in pieces]
            return jax.tree.map(lambda *terms: sum(terms), *found)

        return total
    if isinstance(likelihood, lik.ReadoutLikelihood):
        return _readout(likelihood.C, likelihood.b, _site_of(likelihood))
    if isinstance(likelihood, lik.Gaussian) and likelihood.independent:
        return _readout(likelihood.C, likelihood.b, _gaussian_site(likelihood))

    def in_general(mean: Vector, root: Matrix, y: Observation, mask: Mask, key: Key) -> Ell:
        origin, unit = jnp.zeros_like(mean), jnp.eye(len(mean), dtype=mean.dtype)
        ell = whitened(likelihood, origin, unit, y, mask, key, num_samples)
        value, grad, curv = ell.evaluate(mean, root)
        return value, grad, unpack(curv, len(mean))

    return in_general


SiteOf = Callable[[Array, Array, Array], Site]


def _site_of(likelihood: lik.ReadoutLikelihood) -> SiteOf:
    def at(a: Array, v: Array, y: Array) -> Site:
        found = site(likelihood, a, v, y, 0)
        return found._replace(value=found.value + likelihood.each_constant(y))

    return at


def _gaussian_site(likelihood: lik.Gaussian) -> SiteOf:
    precision = likelihood.bin_width / likelihood.noise.var()
    constant = 0.5 * jnp.log(precision / (2 * jnp.pi))

    def at(a: Array, v: Array, y: Array) -> Site:
        rest = y - a
        value = constant - 0.5 * precision * (rest**2 + v)
        return Site(value, precision * rest, -precision)

    return at


def _readout(C: Float[Array, "N L"], b: Float[Array, " N"], site_at: SiteOf) -> EllOf:
    dim = C.shape[1]
    squares = pack(C[:, :, None] * C[:, None, :]) if dim <= PACK else None
    twice = jnp.asarray(2 - np.eye(dim)[np.tril_indices(dim)], C.dtype)

    def at(mean: Vector, root: Matrix, y: Observation, mask: Mask, key: Key) -> Ell:
        if squares is None:
            v = jnp.sum((C @ root) ** 2, axis=-1)
        else:
            v = jnp.maximum(squares @ (twice * pack(root @ root.T)), 0)
        terms = site_at(C @ mean + b, v, safe(y, mask, b))
        value, slope, curvature = (jnp.where(mask, term, 0) for term in terms)
        if squares is None:
            curv = (C * curvature[:, None]).T @ C
        else:
            curv = unpack(curvature @ squares, dim)
        return jnp.sum(value), slope @ C, curv

    return at


def replay_bin(
    filter: VariationalKalmanFilter,
    model: Model,
    ell: EllOf | None,
    belief: Belief,
    y: Observation,
    mask: Mask,
    u: Input,
    warm: Belief,
    key: Key,
) -> tuple[Belief, Scalar]:
    """Predict and update, differentiably.

    Args:
        filter: The filter whose prediction is replayed.
        model: The model with the present parameters.
        ell: `state_ell(model.likelihood, ...)`, for Gaussian beliefs.
        belief: $q(z_{t-1})$.
        y: Observation.
        mask: Which channels were observed.
        u: Input.
        warm: $q(z_t)$ as the filter found it; not differentiated.
        key: Randomness, where something is sampled.

    Returns:
        The belief and the bound $L_t$.
    """
    warm = lax.stop_gradient(warm)
    predict_key, update_key = jax.random.split(key)
    if ell is None:
        prior = filter.predict(model, State(belief), predict_key, u).belief
        return _product(filter, model, prior, y, mask, warm, update_key)
    if isinstance(model.dynamics, GaussianDynamics):
        correct = filter.correct is not False
        prior, _ = push_forward(
            model.dynamics, belief, u, predict_key, filter.rule, filter.num_samples, correct
        )
    else:
        prior = filter.predict(model, State(belief), predict_key, u).belief
    return _gaussian(ell, model.likelihood.log_concave, prior, y, mask, warm, update_key)


def _gaussian(
    ell: EllOf,
    concave: bool,
    prior: GaussianBelief,
    y: Observation,
    mask: Mask,
    warm: GaussianBelief,
    key: Key,
) -> tuple[GaussianBelief, Scalar]:
    inverse = inverse_lower(cholesky(prior.cov))
    precision = inverse.T @ inverse
    mean, root = warm.mean, cholesky(warm.cov)
    elbo = jnp.zeros((), mean.dtype)
    for evaluation in range(EVALUATIONS):
        value, grad, curv = ell(mean, root, y, mask, key)
        if evaluation == EVALUATIONS - 1:
            elbo = value - _divergence(mean, root, prior.mean, inverse)
        if not concave:
            curv = _keep_definite(precision, curv)
        new = inverse_lower(cholesky(precision - curv))
        mean = mean + new.T @ (new @ (grad + precision @ (prior.mean - mean)))
        root = new.T
    return GaussianBelief(mean, root @ root.T), elbo


def _divergence(mean: Vector, root: Matrix, centre: Vector, inverse: Matrix) -> Scalar:
    """KL of two Gaussians, the first by a triangular root, the second by an inverse root."""
    spread, shift = inverse @ root, inverse @ (mean - centre)
    log_det = jnp.sum(jnp.log(jnp.diagonal(root))) + jnp.sum(jnp.log(jnp.diagonal(inverse)))
    return 0.5 * (jnp.sum(spread**2) + shift @ shift - len(mean)) - log_det


def _keep_definite(precision: Matrix, curv: Matrix) -> Matrix:
    """Leave out the curvature where it would make the precision indefinite."""
    root = cholesky(lax.stop_gradient(precision - curv))
    return jnp.where(jnp.all(jnp.isfinite(root)), curv, 0)


def _product(
    filter: VariationalKalmanFilter,
    model: Model,
    prior: Belief,
    y: Observation,
    mask: Mask,
    warm: Belief,
    key: Key,
) -> tuple[Belief, Scalar]:
    """Newton's method on the fixed point, each Jacobian held: at the optimum one step with it has
    the derivative that the implicit function theorem gives.
    """
    family = model.family
    assert isinstance(family, Univariate | Product)
    ell = product_ell(family, model.likelihood, y, mask, key, filter.num_samples, prior)
    flat_prior, unravel = ravel_pytree(prior)
    nat = ravel_pytree(warm)[0]

    def residual(flat: Float[Array, " D"]) -> Float[Array, " D"]:
        grad = jax.grad(ell)(unravel(flat))
        return flat_prior + ravel_pytree(family.natural_gradient(unravel(flat), grad))[0] - flat

    for _ in range(EVALUATIONS):
        slope = lax.stop_gradient(jax.jacfwd(residual)(nat))
        step = jnp.linalg.solve(-slope, residual(nat))
        valid = family.valid(unravel(lax.stop_gradient(nat + step)))
        nat = nat + jnp.where(valid, step, 0)
    found = unravel(nat)
    return found, ell(found) - family.kl(found, prior)


def state_ell_of(model: Model, num_samples: int) -> EllOf | None:
    """`state_ell` for Gaussian beliefs; other families need none."""
    return state_ell(model.likelihood, num_samples) if isinstance(model.family, Gaussian) else None
