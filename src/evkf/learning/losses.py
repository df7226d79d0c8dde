r"""The losses of the learner: four with one interface, each a mean over replayed bins.

| name | loss |
|---|---|
| `elbo` | minus $L_t$, differentiated through the filter over whole windows; the default |
| `kl` | $KL(q_t \| \bar q_\theta) - E_{q_t}[\log p(y_t|z)]$: minus $L_t$, beliefs held |
| `natural` | squared distance of $\bar\lambda_\theta$ from an unbiased natural target |
| `natural_literal` | squared distance of $\bar\lambda_\theta$ from $\lambda_t$, as printed |

The natural losses hold the beliefs too, and learn the readout from the same expectation as `kl`.
Paper: eq:hyperparameter_objective; `docs/learning.md` compares them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from evkf.expectations.products import product_ell
from evkf.families import GaussianFamily, ProductFamily, Univariate
from evkf.filters import State, VariationalKalmanFilter
from evkf.learning.ring import Bins, Window
from evkf.learning.window_filter import filter_window, state_ell
from evkf.model import Model
from evkf.numerics.linalg import inverse_positive, tree_where
from evkf.types import Belief, Key, Scalar

Replayed = tuple[Scalar, Belief]

Loss = Callable[[VariationalKalmanFilter, Model, Window, Key], Replayed]
"""A function of the filter, the model, windows (with a leading axis) and a key, which returns the
loss in nats per bin, and the beliefs of the bins under the present parameters (the stored ones if a
loss computes none).
"""


def elbo(filter: VariationalKalmanFilter, model: Model, windows: Window, key: Key) -> Replayed:
    """Return minus the mean bound, differentiable through every update of a window."""
    bounds, beliefs = jax.vmap(lambda window: filter_window(filter, model, window, key))(windows)
    return -jnp.mean(bounds), lax.stop_gradient(beliefs)


def kl(filter: VariationalKalmanFilter, model: Model, windows: Window, key: Key) -> Replayed:
    """Return the divergence of the belief from its prediction, minus the log-likelihood expected.

    Both beliefs are held.
    """

    def each(belief: Belief, predicted: Belief) -> Scalar:
        return model.family.kl(belief, predicted)

    return _one_step(filter, model, windows, key, each), windows.bins.belief


def natural(filter: VariationalKalmanFilter, model: Model, windows: Window, key: Key) -> Replayed:
    r"""Return the paper's squared distance, with a target whose expectation is right.

    Mean parameters obey $E_y[\mu_t] = \bar\mu$, natural ones do not. For the Gaussian the target
    is $(\bar J m_t, \bar J)$ with the predicted precision held, and the noise is learned by the
    divergence; for other families $\bar\lambda + F^{-1}(\mu_t - \bar\mu)$, held. At the truth
    both have the expectation $\bar\lambda$.
    """
    family = model.family

    def each(belief: Belief, predicted: Belief) -> Scalar:
        held = lax.stop_gradient(predicted)
        if isinstance(family, GaussianFamily):
            precision, _ = inverse_positive(held.cov)
            pull = precision @ (belief.mean - predicted.mean)
            return 0.5 * pull @ pull + family.kl(belief, predicted._replace(mean=held.mean))
        assert isinstance(family, Univariate | ProductFamily)
        change = jax.tree.map(jnp.subtract, family.to_mean(belief), family.to_mean(held))
        target = jax.tree.map(jnp.add, held, family.natural_gradient(held, change))
        difference = ravel_pytree(target)[0] - ravel_pytree(predicted)[0]
        return 0.5 * difference @ difference

    return _one_step(filter, model, windows, key, each), windows.bins.belief


def natural_literal(
    filter: VariationalKalmanFilter, model: Model, windows: Window, key: Key
) -> Replayed:
    r"""Return $\tfrac12 \|\lambda_t - \bar\lambda_\theta\|^2$, as printed in the paper.

    It diverges, since $\lambda_t$ always holds more information than any prediction.
    """

    def each(belief: Belief, predicted: Belief) -> Scalar:
        family = model.family
        target, nat = lax.stop_gradient(family.nat(belief)), family.nat(predicted)
        difference = ravel_pytree(target)[0] - ravel_pytree(nat)[0]
        return 0.5 * difference @ difference

    return _one_step(filter, model, windows, key, each), windows.bins.belief


LOSSES: dict[str, Loss] = {
    "elbo": elbo,
    "kl": kl,
    "natural": natural,
    "natural_literal": natural_literal,
}


def _one_step(
    filter: VariationalKalmanFilter,
    model: Model,
    windows: Window,
    key: Key,
    each: Callable[[Belief, Belief], Scalar],
) -> Scalar:
    """Return the mean of `each(belief, prediction)` minus the expected log-likelihood, held."""
    gaussian = isinstance(model.family, GaussianFamily)
    ell = state_ell(model.likelihood, filter.num_samples) if gaussian else None

    def one(before: Belief, bins: Bins) -> Scalar:
        before = tree_where(bins.fresh, model.prior, lax.stop_gradient(before))
        belief = lax.stop_gradient(bins.belief)
        predicted = filter.predict(model, State(before), key, bins.u).belief
        if ell is None:
            expected = product_ell(
                model.family, model.likelihood, bins.y, bins.mask, key, filter.num_samples, belief
            )(belief)
        else:
            expected, _, _ = ell(belief.mean, belief.cov, bins.y, bins.mask, key)
        return each(belief, predicted) - expected

    def shifted(start: Array, beliefs: Array) -> Array:
        return jnp.concatenate([start[:, None], beliefs[:, :-1]], axis=1)

    before = jax.tree.map(shifted, windows.start, windows.bins.belief)
    return jnp.mean(jax.vmap(jax.vmap(one))(before, windows.bins))
