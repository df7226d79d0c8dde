r"""The four losses of the learner, each a mean over replayed bins.

| name | loss |
|---|---|
| `elbo` | minus the bound $L_t$, differentiated through the filter over whole windows; the default
| | `kl` | $KL(q_t \| \bar q_\theta) - E_{q_t}[\log p(y_t|z)]$: minus $L_t$ at stored beliefs |
| `natural` | squared distance of $\bar\lambda_\theta$ from an unbiased natural target |
| `natural_literal` | squared distance of $\bar\lambda_\theta$ from $\lambda_t$, as in the paper |

For bin t, $y_t$ is the observation, $z$ the latent state, $q_t$ the belief about $z$ after the bin,
with natural parameters $\lambda_t$, and $\bar q_\theta$ the prediction under dynamics parameters
$\theta$, with natural parameters $\bar\lambda_\theta$. The losses `kl`, `natural` and
`natural_literal` take $q_t$ from the ring (buffer of past bins) as constants, without a gradient.
Both natural losses also subtract $E_{q_t}[\log p(y_t|z)]$, from which the readout is learned.
Paper: eq:hyperparameter_objective. `docs/learning.md` compares the losses.
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
"""A function of the filter, the model, windows (with a leading axis) and a JAX random key. It
returns the loss, a mean over bins, and the beliefs of the bins under the present parameters. Losses
other than `elbo` return the stored beliefs.
"""


def elbo(filter: VariationalKalmanFilter, model: Model, windows: Window, key: Key) -> Replayed:
    """Return minus the mean bound $L_t$ in nats per bin, and the new beliefs.

    The gradient passes through every filter update of a window. The beliefs returned have none.
    """
    bounds, beliefs = jax.vmap(lambda window: filter_window(filter, model, window, key))(windows)
    return -jnp.mean(bounds), lax.stop_gradient(beliefs)


def kl(filter: VariationalKalmanFilter, model: Model, windows: Window, key: Key) -> Replayed:
    """Return the divergence of the belief from the prediction, minus the expected log-likelihood.

    The result is a mean in nats per bin. Beliefs before and after a bin are constants from the
    ring, which are also returned.
    """

    def each(belief: Belief, predicted: Belief) -> Scalar:
        return model.family.kl(belief, predicted)

    return _one_step(filter, model, windows, key, each), windows.bins.belief


def natural(filter: VariationalKalmanFilter, model: Model, windows: Window, key: Key) -> Replayed:
    r"""Return the squared distance of natural parameters to an unbiased target, and the beliefs.

    Mean parameters obey $E_y[\mu_t] = \bar\mu$, but natural parameters do not. Here $\mu_t$ and
    $\bar\mu$ are the mean parameters of belief and prediction, $m_t$ is the mean of the belief,
    $\bar J$ the precision of the prediction, and $F$ the Fisher information. For Gaussian beliefs
    the target is $(\bar J m_t, \bar J)$ with $\bar J$ constant, and the noise is learned from the
    divergence. For other families the target is $\bar\lambda + F^{-1}(\mu_t - \bar\mu)$, a
    constant. With the true parameters, the expectation of either target is $\bar\lambda$.
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
    r"""Return the paper's loss $\tfrac12 \|\lambda_t - \bar\lambda_\theta\|^2$, and the beliefs.

    The expected log-likelihood is subtracted. Learning with this loss diverges, because the belief
    $q_t$ always has more information than its prediction.
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
    """Return the mean of `each(belief, prediction)` minus the expected log-likelihood.

    The beliefs before and after each bin are constants from the ring.
    """
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
