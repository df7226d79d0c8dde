"""The filter over a window of past bins, written so that it can be differentiated cheaply.

The filter's own update iterates until it has converged, which cannot be reversed. A replayed update
starts from the belief that the ring holds for the bin, which is near the optimum, and takes one
step of the same iteration; the ring then holds the result, so that replays converge together.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from evkf import likelihoods as lik
from evkf.dynamics import GaussianDynamics
from evkf.expectations.dispatch import Moments, gaussian_ell
from evkf.expectations.products import product_ell
from evkf.expectations.readout import has_independent_channels, observe, project
from evkf.families import GaussianBelief, GaussianFamily, ProductFamily, Univariate
from evkf.filters import State, VariationalKalmanFilter
from evkf.filters.evkf.predict import push_forward
from evkf.learning.replay import Bins, Window
from evkf.model import Model
from evkf.numerics.linalg import cholesky, inverse_positive, tree_where, unpack
from evkf.types import Belief, Input, Key, Mask, Matrix, Observation, Scalar, Vector

Ell = tuple[Scalar, Vector, Matrix]
EllOf = Callable[[Vector, Matrix, Observation, Mask, Key], Ell]


def state_ell(likelihood: lik.Likelihood, num_samples: int) -> EllOf:
    """Value, gradient and expected Hessian of the expected log-likelihood in coordinates of z.

    What does not depend on the bin is computed here, once for all replayed bins.
    """
    if isinstance(likelihood, lik.Joint):
        parts = [state_ell(part, num_samples) for part in likelihood.parts]

        def total(mean: Vector, cov: Matrix, y: Observation, mask: Mask, key: Key) -> Ell:
            pieces = zip(parts, likelihood.split(y), likelihood.split(mask), strict=True)
            found = [part(mean, cov, ys, seen, key) for part, ys, seen in pieces]
            return jax.tree.map(lambda *terms: sum(terms), *found)

        return total
    if has_independent_channels(likelihood):
        return _through_readout(likelihood)

    def in_general(mean: Vector, cov: Matrix, y: Observation, mask: Mask, key: Key) -> Ell:
        origin, unit = jnp.zeros_like(mean), jnp.eye(len(mean), dtype=mean.dtype)
        ell = gaussian_ell(likelihood, origin, unit, y, mask, key, num_samples)
        value, grad, curv = ell.evaluate(Moments.from_root(mean, cholesky(cov)))
        return value, grad, unpack(curv, len(mean))

    return in_general


def _through_readout(likelihood: lik.Likelihood) -> EllOf:
    assert isinstance(likelihood, lik.ReadoutLikelihood | lik.Gaussian)
    C, b = likelihood.C, likelihood.b
    readout = project(C.T)

    def at(mean: Vector, cov: Matrix, y: Observation, mask: Mask, key: Key) -> Ell:
        site = observe(likelihood, y, mask, base=False).expect(C @ mean + b, readout.var(cov))
        curv = unpack(readout.hessian(site.curvature), len(mean))
        return jnp.sum(site.value), site.slope @ C, curv

    return at


_light = partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
"""Keep products of matrices for the way back and compute the rest again: storing costs more."""


class Anchor(NamedTuple):
    """What an update needs to know of a bin, found at the belief the ring holds for it."""

    point: Belief
    grad: Belief
    """Gradient of the expected log-likelihood; natural gradient for other families."""
    curv: Array
    """Its expected Hessian; for other families the slope of the fixed point."""


def replay(
    filter: VariationalKalmanFilter, model: Model, window: Window, key: Key
) -> tuple[Float[Array, " W"], Belief]:
    """Predict and update bin after bin, differentiably.

    Everything about the channels is done for all bins at once, before and after the recursion:
    before, the expansion of the expected log-likelihood around the belief that the ring holds;
    after, its value where the recursion has led.

    Returns:
        The bounds $L_t$ and the beliefs.
    """
    replay_one = _replay_gaussian if isinstance(model.family, GaussianFamily) else _replay_product
    return replay_one(filter, model, window, key)


def _replay_gaussian(
    filter: VariationalKalmanFilter, model: Model, window: Window, key: Key
) -> tuple[Float[Array, " W"], GaussianBelief]:
    ell = state_ell(model.likelihood, filter.num_samples)
    predict_key, update_key = jax.random.split(key)

    def anchor(bins: Bins) -> Anchor:
        point = lax.stop_gradient(bins.belief)
        _, grad, curv = ell(point.mean, point.cov, bins.y, bins.mask, update_key)
        return Anchor(point, grad, curv)

    def body(belief: GaussianBelief, bin: tuple[Anchor, Bins]) -> tuple:
        (point, grad, curv), bins = bin
        belief = tree_where(bins.fresh, model.prior, belief)
        prior = _predict(filter, model, belief, bins.u, predict_key)
        precision, log_det_prior = inverse_positive(prior.cov)
        if not model.likelihood.log_concave:
            curv = _keep_definite(precision, curv)
        cov, log_det = inverse_positive(precision - curv)
        mean = point.mean + cov @ (grad + precision @ (prior.mean - point.mean))
        shift = mean - prior.mean
        square = jnp.sum(precision * cov) + shift @ precision @ shift - len(mean)
        found = GaussianBelief(mean, cov)
        return found, (found, 0.5 * (square + log_det_prior + log_det))

    def value(belief: GaussianBelief, bins: Bins) -> Scalar:
        return ell(belief.mean, belief.cov, bins.y, bins.mask, update_key)[0]

    anchors = jax.vmap(anchor)(window.bins)
    _, (beliefs, divergence) = lax.scan(_light(body), window.start, (anchors, window.bins))
    return jax.vmap(value)(beliefs, window.bins) - divergence, beliefs


def _predict(
    filter: VariationalKalmanFilter, model: Model, belief: GaussianBelief, u: Input, key: Key
) -> GaussianBelief:
    if not isinstance(model.dynamics, GaussianDynamics):
        return filter.predict(model, State(belief), key, u).belief
    correct = filter.correct is not False
    settings = (filter.rule, filter.num_samples, correct)
    return push_forward(model.dynamics, belief, u, key, *settings)[0]


def _keep_definite(precision: Matrix, curv: Matrix) -> Matrix:
    """Leave out the curvature where it would make the precision indefinite."""
    root = cholesky(lax.stop_gradient(precision - curv))
    return jnp.where(jnp.all(jnp.isfinite(root)), curv, 0)


def _replay_product(
    filter: VariationalKalmanFilter, model: Model, window: Window, key: Key
) -> tuple[Float[Array, " W"], Belief]:
    """One step of Newton's method on the fixed point $\\lambda = \\bar\\lambda + \\nabla_\\mu ELL$
    with its slope held: at the optimum it has the derivative of the implicit function theorem.
    """
    family = model.family
    assert isinstance(family, Univariate | ProductFamily)
    unravel = ravel_pytree(model.prior)[1]
    predict_key, update_key = jax.random.split(key)

    def ell_of(bins: Bins) -> Callable[[Belief], Scalar]:
        held = lax.stop_gradient(bins.belief)
        settings = (bins.y, bins.mask, update_key, filter.num_samples, held)
        return product_ell(family, model.likelihood, *settings)

    def anchor(bins: Bins) -> Anchor:
        point = ravel_pytree(lax.stop_gradient(bins.belief))[0]

        def pull(flat: Float[Array, " D"]) -> Float[Array, " D"]:
            grad = jax.grad(ell_of(bins))(unravel(flat))
            return ravel_pytree(family.natural_gradient(unravel(flat), grad))[0] - flat

        return Anchor(point, pull(point), lax.stop_gradient(jax.jacfwd(pull)(point)))

    def body(belief: Belief, bin: tuple[Anchor, Bins]) -> tuple:
        (point, pull, slope), bins = bin
        belief = tree_where(bins.fresh, model.prior, belief)
        prior = filter.predict(model, State(belief), predict_key, bins.u).belief
        step = jnp.linalg.solve(-slope, ravel_pytree(prior)[0] + pull)
        valid = family.valid(unravel(lax.stop_gradient(point + step)))
        found = unravel(point + jnp.where(valid, step, 0))
        return found, (found, family.kl(found, prior))

    anchors = jax.vmap(anchor)(window.bins)
    _, (beliefs, divergence) = lax.scan(_light(body), window.start, (anchors, window.bins))
    values = jax.vmap(lambda belief, bins: ell_of(bins)(belief))(beliefs, window.bins)
    return values - divergence, beliefs
