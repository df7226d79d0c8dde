r"""Helpers of the filters that maximise the single-step bound $M_t$, without a prediction step.

$M_t = E_q[\log p(y_t|z_t)] + E_q E_{q_{t-1}}[\log p(z_t|z_{t-1})] + H(q)$, with
$z_{t-1} \sim q_{t-1}$ independent of $z_t \sim q$. Paper: section:cvkf:single_step.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.families import ContinuousBernoulliFamily, DiagonalGaussianFamily, Family
from evkf.families.base import MAX_TENSOR_DIM
from evkf.filters.base import Info
from evkf.filters.evkf.predict import MAX_STD, predict
from evkf.filters.evkf.results import Prediction
from evkf.model import Model
from evkf.numerics.covariance import DiagonalCovariance
from evkf.numerics.linalg import tree_where
from evkf.types import Belief, Count, Input, Key, Mask, Scalar, Status

NUM_SAMPLES = 1024
"""Number of samples of $q_{t-1}$ in a prediction, where a grid of nodes would be too large."""


def check_model(model: Model, where: str) -> None:
    """Raise InputError unless beliefs are diagonal Gaussian or continuous Bernoulli.

    Gaussian noise of the dynamics must be diagonal too.

    Args:
        model: The state-space model.
        where: Name of the filter, for the error message.
    """
    family, dynamics = model.family, model.dynamics
    diagonal = f"Model(..., family=DiagonalGaussianFamily({family.dim}))"
    if isinstance(dynamics, GaussianDynamics):
        if not isinstance(dynamics.noise, DiagonalCovariance):
            raise InputError(
                f"{type(dynamics).__name__} with a full noise matrix",
                where,
                f"pass one variance per latent, and {diagonal}: beliefs are diagonal",
            )
        if not isinstance(family, DiagonalGaussianFamily):
            raise InputError(f"{type(family).__name__} beliefs", where, f"pass {diagonal}")
    elif not isinstance(family, ContinuousBernoulliFamily):
        raise InputError(
            f"{type(family).__name__} states",
            where,
            "use VariationalKalmanFilter or ParticleFilter",
        )


def to_free(family: Family, belief: Belief) -> Float[Array, "R L"]:
    r"""Return a belief as unconstrained numbers, which gradient steps can change freely.

    For a diagonal Gaussian these are mean and log standard deviation, $(m, \log s)$. For a
    continuous Bernoulli of natural parameter $\lambda$ it is $\text{arsinh} \lambda$, which grows
    like a logarithm: near 0 and 1 the natural parameters are large.
    """
    if isinstance(family, ContinuousBernoulliFamily):
        return jnp.arcsinh(belief.T)
    return jnp.stack([family.mean(belief), 0.5 * jnp.log(family.var(belief))])


def from_free(family: Family, free: Float[Array, "R L"]) -> Belief:
    """Return the belief that has the given unconstrained numbers: the inverse of `to_free`."""
    if isinstance(family, ContinuousBernoulliFamily):
        return jnp.sinh(free.T)
    assert isinstance(family, DiagonalGaussianFamily)
    return family.each_from_moments(free[0], jnp.exp(2 * free[1]))


def predict_mean_nat(model: Model, belief: Belief, u: Input, key: Key) -> Prediction:
    """Return the prediction whose natural parameters are the average over $q_{t-1}$.

    If nothing is observed, this prediction maximises $M_t$. The average is over a grid of nodes, or
    over samples if there are too many continuous Bernoulli latents for a grid.
    """
    can_tensor = (
        isinstance(model.family, DiagonalGaussianFamily) or model.family.dim <= MAX_TENSOR_DIM
    )
    rule = "cubature" if can_tensor else "monte_carlo"
    return predict(model, belief, u, key, rule, NUM_SAMPLES, False, MAX_STD)


def settle_update(
    prediction: Prediction,
    belief: Belief,
    bound: Scalar,
    sound: Bool[Array, ""],
    mask: Mask,
    evaluations: Count | int,
) -> tuple[Belief, Info]:
    """Return the updated belief or, if the update failed, the prediction; and the `Info`.

    The prediction is returned too if nothing was observed.

    Args:
        prediction: The prediction for this bin.
        belief: The updated belief.
        bound: The bound $M_t$ at the updated belief, in nats.
        sound: True if the updated belief is finite and valid.
        mask: True where observed, (channels,).
        evaluations: Number of gradient evaluations.
    """
    seen = jnp.any(mask)
    keep = sound & seen
    elbo = jnp.where(keep, bound, jnp.where(seen, jnp.nan, 0)).astype(bound.dtype)
    fell = (seen & ~sound) | prediction.failed
    status = jnp.where(fell, int(Status.FELL_BACK), 0)
    status = status + jnp.where(prediction.capped & ~keep, int(Status.CAPPED), 0)
    unknown = jnp.full((), jnp.nan, elbo.dtype)
    info = Info(elbo, unknown, jnp.asarray(evaluations, jnp.int32), unknown, status)
    return tree_where(keep, belief, prediction.belief), info
