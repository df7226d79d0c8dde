r"""Results inside a step of `VariationalKalmanFilter`: prediction, update, gap of two bounds.

Letters: $q_{t-1}$ is the belief about the last bin, q the updated belief, $\lambda_\theta(z)$ the
natural parameters of $p(z_t|z_{t-1} = z)$, A the log-partition function of the family, $\mu$ the
mean parameters of q. $L_t$ is the bound of this filter, $M_t$ that of methods without a prediction
step.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int

from evkf.model import Model
from evkf.types import Belief, Nat, Scalar, Vector


class AdditiveCross(NamedTuple):
    r"""Terms of the expected log transition $E_q E_{q_{t-1}}[\log p(z_t|z_{t-1})]$.

    For dynamics $z_t = f(z_{t-1}) + \text{noise}$ with Gaussian noise of covariance Q. Expectations
    over $q_{t-1}$ are weighted sums over nodes (points that represent $q_{t-1}$).
    """

    mean: Vector
    """Expected image $E[f]$."""
    spread: Scalar
    r"""Spread of the images, $\text{tr}(Q^{-1} \text{Cov} f)$."""


class NaturalCross(NamedTuple):
    r"""Terms of the expected log transition for any family.

    It is $\langle E[\lambda_\theta], \mu \rangle - E[A(\lambda_\theta)]$ plus a constant.
    Expectations over $q_{t-1}$ are weighted sums over nodes (points that represent $q_{t-1}$).
    """

    nat: Nat
    r"""Expected natural parameters $E[\lambda_\theta]$."""
    log_partition: Scalar
    r"""Expected log-partition function $E[A(\lambda_\theta)]$."""


class Prediction(NamedTuple):
    """The belief about a bin before the bin is observed.

    Attributes:
        belief: The predicted belief.
        cross: What the gap $L_t - M_t$ needs of the dynamics.
        capped: True if a mean or standard deviation was cut to the filter's `max_std`.
        failed: True if the prediction contained NaN; `belief` is then that about the last bin.
    """

    belief: Belief
    cross: AdditiveCross | NaturalCross
    capped: Bool[Array, ""]
    failed: Bool[Array, ""]


class Limits(NamedTuple):
    """Stopping rule of an iterative update.

    Attributes:
        max_evaluations: Largest number of evaluations of gradient and curvature.
        tolerance: Relative residual of the fixed-point equation at which the update has converged;
            for `LowRankBelief`, the nats left to gain.
    """

    max_evaluations: int
    tolerance: float


class Updated(NamedTuple):
    """The belief after an observation.

    Attributes:
        belief: The updated belief.
        elbo: The bound $L_t$ at the updated belief, in nats.
        gap: $L_t - M_t$, in nats.
        evaluations: Number of evaluations of gradient and curvature.
        residual: Relative residual of the fixed-point equation; for `LowRankBelief`, the nats left
            to gain.
        converged: True if the residual is at most the tolerance.
        sound: True if the belief is valid and finite.
    """

    belief: Belief
    elbo: Scalar
    gap: Scalar
    evaluations: Int[Array, ""]
    residual: Scalar
    converged: Bool[Array, ""]
    sound: Bool[Array, ""]


def natural_gap(model: Model, prediction: Prediction, nat: Belief) -> Scalar:
    """Return the gap $L_t - M_t$ in nats, for any family.

    Args:
        model: The state-space model.
        prediction: The prediction, whose `cross` is a `NaturalCross`.
        nat: Natural parameters of the updated belief.
    """
    family, cross = model.family, prediction.cross
    assert isinstance(cross, NaturalCross)
    prior = family.nat(prediction.belief)
    shift = ravel_pytree(prior)[0] - ravel_pytree(cross.nat)[0]
    product = jnp.dot(shift, ravel_pytree(family.to_mean(nat))[0])
    return product - family.log_partition(prior) + cross.log_partition
