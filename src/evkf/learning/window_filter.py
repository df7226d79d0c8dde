"""Filter a window (consecutive past bins) in a form whose gradient is cheap to compute.

The update of `VariationalKalmanFilter` iterates until it has converged; the gradient of such an
iteration is expensive. Here an update starts from the belief that the ring (buffer of past bins)
holds for the bin, which is near the optimum, and takes one step of the same iteration. The ring
then stores the result, so the updates converge over repeated replays. The loss "elbo" of
`evkf.learning.losses` differentiates through `filter_window`.
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
from evkf.learning.ring import Bins, Window
from evkf.model import Model
from evkf.numerics.linalg import cholesky, inverse_positive, tree_where, unpack
from evkf.types import Belief, Key, Mask, Matrix, Observation, Scalar, Vector

Ell = tuple[Scalar, Vector, Matrix]
EllOf = Callable[[Vector, Matrix, Observation, Mask, Key], Ell]


def state_ell(likelihood: lik.Likelihood, num_samples: int) -> EllOf:
    """Return a function that computes a bin's expected log-likelihood and its derivatives.

    The function takes mean, covariance, observation, mask and key. It returns the expected
    log-likelihood in nats, its gradient (L,) with respect to the mean, and the expected Hessian
    (L, L) with respect to the latent state. Terms that are the same for all bins are computed once.

    Args:
        likelihood: The likelihood of the observations.
        num_samples: Number of random samples, for likelihoods whose expectation is sampled.
    """
    if isinstance(likelihood, lik.Joint):
        parts = [state_ell(part, num_samples) for part in likelihood.parts]

        def total(mean: Vector, cov: Matrix, y: Observation, mask: Mask, key: Key) -> Ell:
            pieces = zip(parts, likelihood.split(y), likelihood.split(mask), strict=True)
            terms = [part(mean, cov, ys, seen, key) for part, ys, seen in pieces]
            return jax.tree.map(lambda *each: sum(each), *terms)

        return total
    if has_independent_channels(likelihood):
        assert isinstance(likelihood, lik.ReadoutLikelihood | lik.Gaussian)
        C, b = likelihood.C, likelihood.b
        readout = project(C.T)

        def through_readout(mean: Vector, cov: Matrix, y: Observation, mask: Mask, key: Key) -> Ell:
            site = observe(likelihood, y, mask, base=False).expect(C @ mean + b, readout.var(cov))
            curv = unpack(readout.hessian(site.curvature), len(mean))
            return jnp.sum(site.value), site.slope @ C, curv

        return through_readout

    def in_general(mean: Vector, cov: Matrix, y: Observation, mask: Mask, key: Key) -> Ell:
        origin, unit = jnp.zeros_like(mean), jnp.eye(len(mean), dtype=mean.dtype)
        ell = gaussian_ell(likelihood, origin, unit, y, mask, key, num_samples)
        value, grad, curv = ell.evaluate(Moments.from_root(mean, cholesky(cov)))
        return value, grad, unpack(curv, len(mean))

    return in_general


_light = partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
"""For the gradient, store only the results of matrix products, and compute the other results again,
which is faster than storing all results."""


class Anchor(NamedTuple):
    """Expansion of a bin's expected log-likelihood at the belief that the ring stores for the bin.

    For Gaussian beliefs the expansion is to second order. For other families, it is the first-order
    expansion of the difference d: natural gradient of the expected log-likelihood minus the natural
    parameters of the belief.
    """

    point: Belief
    """The stored belief; for families other than the Gaussian, its natural parameters."""
    grad: Belief
    """Gradient of the expected log-likelihood with respect to the mean; for other families, d."""
    curv: Array
    """Expected Hessian of the log-likelihood; for other families, the Jacobian of d."""


def filter_window(
    filter: VariationalKalmanFilter, model: Model, window: Window, key: Key
) -> tuple[Float[Array, " W"], Belief]:
    """Filter a window of past bins, and return bounds and beliefs that can be differentiated.

    Computations over channels are done for all bins in parallel (vmap). Before the recursion over
    bins, the expected log-likelihood is expanded at the beliefs that the ring holds. After the
    recursion, the expected log-likelihood is computed at the new beliefs.

    Args:
        filter: The filter, whose settings are used.
        model: The model with the present parameters.
        window: W consecutive bins, without a leading axis for several windows.
        key: JAX random key, for filters and likelihoods that sample.

    Returns:
        The bound $L_t$ of each bin in nats, (W,), and the beliefs after each bin. Terms of the
        bound that depend only on the observations may be left out.
    """
    gaussian = isinstance(model.family, GaussianFamily)
    filter_family = _filter_gaussian if gaussian else _filter_product
    return filter_family(filter, model, window, key)


def _filter_gaussian(
    filter: VariationalKalmanFilter, model: Model, window: Window, key: Key
) -> tuple[Float[Array, " W"], GaussianBelief]:
    ell = state_ell(model.likelihood, filter.num_samples)
    settings = (filter.rule, filter.num_samples, filter.correct is not False)
    predict_key, update_key = jax.random.split(key)

    def anchor(bins: Bins) -> Anchor:
        point = lax.stop_gradient(bins.belief)
        _, grad, curv = ell(point.mean, point.cov, bins.y, bins.mask, update_key)
        return Anchor(point, grad, curv)

    def body(belief: GaussianBelief, bin: tuple[Anchor, Bins]) -> tuple:
        (point, grad, curv), bins = bin
        belief = tree_where(bins.fresh, model.prior, belief)
        if isinstance(model.dynamics, GaussianDynamics):
            prior = push_forward(model.dynamics, belief, bins.u, predict_key, *settings)[0]
        else:
            prior = filter.predict(model, State(belief), predict_key, bins.u).belief
        precision, log_det_prior = inverse_positive(prior.cov)
        if not model.likelihood.log_concave:
            # Leave out the curvature where the precision would become indefinite.
            root = cholesky(lax.stop_gradient(precision - curv))
            curv = jnp.where(jnp.all(jnp.isfinite(root)), curv, 0)
        cov, log_det = inverse_positive(precision - curv)
        mean = point.mean + cov @ (grad + precision @ (prior.mean - point.mean))
        shift = mean - prior.mean
        square = jnp.sum(precision * cov) + shift @ precision @ shift - len(mean)
        belief = GaussianBelief(mean, cov)
        return belief, (belief, 0.5 * (square + log_det_prior + log_det))

    def value(belief: GaussianBelief, bins: Bins) -> Scalar:
        return ell(belief.mean, belief.cov, bins.y, bins.mask, update_key)[0]

    anchors = jax.vmap(anchor)(window.bins)
    _, (beliefs, divergence) = lax.scan(_light(body), window.start, (anchors, window.bins))
    return jax.vmap(value)(beliefs, window.bins) - divergence, beliefs


def _filter_product(
    filter: VariationalKalmanFilter, model: Model, window: Window, key: Key
) -> tuple[Float[Array, " W"], Belief]:
    r"""Filter a window for families other than the Gaussian; return bounds and beliefs.

    Each update takes one Newton step towards the solution of
    $\lambda = \bar\lambda + \nabla_\mu ELL$, where $\lambda$ and $\bar\lambda$ are the natural
    parameters of belief and prediction, $\mu$ are the mean parameters, and ELL is the expected
    log-likelihood. The Jacobian of the step is a constant for the gradient. At the optimum, the
    derivative of the step is then that of the implicit function theorem.
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
        belief = unravel(point + jnp.where(valid, step, 0))
        return belief, (belief, family.kl(belief, prior))

    anchors = jax.vmap(anchor)(window.bins)
    _, (beliefs, divergence) = lax.scan(_light(body), window.start, (anchors, window.bins))
    values = jax.vmap(lambda belief, bins: ell_of(bins)(belief))(beliefs, window.bins)
    return values - divergence, beliefs
