"""Intermediate results of a filter step: prediction, update, and the gap between the bounds."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int

from evkf.model import Model
from evkf.types import Belief, Nat, Scalar, Vector


class AdditiveCross(NamedTuple):
    r"""Terms of $E_q E_{q_{t-1}}[\log p(z_t|z_{t-1})]$ under additive Gaussian noise."""

    mean: Vector
    """$E[f]$ over the nodes."""
    spread: Scalar
    r"""$\text{tr}(Q^{-1} \text{Cov} f)$ over the nodes."""


class NaturalCross(NamedTuple):
    r"""Terms of $\langle E[\lambda_\theta], \mu \rangle - E[A(\lambda_\theta)]$, for any family."""

    nat: Nat
    log_partition: Scalar


class Prediction(NamedTuple):
    """The belief about a bin before its observation.

    Attributes:
        belief: The predicted belief.
        cross: Terms of the gap between the bounds.
        capped: True where mean or variance were cut to the filter's `max_std`.
        failed: True if the prediction was not finite and the last belief was kept.
    """

    belief: Belief
    cross: AdditiveCross | NaturalCross
    capped: Bool[Array, ""]
    failed: Bool[Array, ""]


class Limits(NamedTuple):
    """Stopping rule of an iterative update."""

    max_evaluations: int
    tolerance: float


class Updated(NamedTuple):
    """The belief after an observation.

    Attributes:
        belief: The updated belief.
        elbo: The bound $L_t$ there.
        gap: $L_t - M_t$, over the bound of methods without a prediction step.
        evaluations: Evaluations of gradient and curvature.
        residual: Relative residual of the fixed point; for beliefs of low rank, nats left to gain.
        converged: True if the residual is within the tolerance.
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
    """Return the gap $L_t - M_t$ at natural parameters, for any family."""
    family, cross = model.family, prediction.cross
    assert isinstance(cross, NaturalCross)
    prior = family.nat(prediction.belief)
    shift = ravel_pytree(prior)[0] - ravel_pytree(cross.nat)[0]
    product = jnp.dot(shift, ravel_pytree(family.to_mean(nat))[0])
    return product - family.log_partition(prior) + cross.log_partition
