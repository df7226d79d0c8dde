r"""The variational update of a product of univariate families, by Newton's method or CVI.

Letters: $\lambda$ are the natural parameters of the belief, $\bar\lambda$ those of the prediction,
$\mu$ the mean parameters, F the Fisher information, ELL the expected log-likelihood, KL the
Kullback-Leibler divergence from the prediction. The bound $ELL - KL$ is highest where
$\lambda = \bar\lambda + \nabla_\mu ELL(\lambda)$ (the fixed-point equation); the natural gradient
is $\nabla_\mu ELL = F^{-1} \nabla_\lambda ELL$. CVI, conjugate-computation variational inference,
steps along the natural gradient of the bound. Newton's method on the fixed-point equation takes a
few evaluations, where CVI takes dozens. Where a Newton step does not raise the bound, a CVI step is
taken, which raises the bound if the rate is small enough.
Paper: eq:variational_update.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from evkf.expectations.products import feasible_start, product_ell
from evkf.families import ProductFamily, Univariate
from evkf.filters.evkf.results import Limits, Prediction, Updated, natural_gap
from evkf.model import Model
from evkf.numerics.linalg import tree_where
from evkf.types import Key, Mask, Nat, Observation, Scalar

Flat = Float[Array, " D"]

NEAR = 0.1
"""After a Newton step has failed, Newton steps are tried again below this relative residual."""


class NewtonPoint(NamedTuple):
    """One iterate of the natural parameters.

    Attributes:
        nat: Natural parameters, as one vector.
        ell: Expected log-likelihood, in nats.
        kl: Kullback-Leibler divergence from the prediction, in nats.
        newton: Newton step from this iterate.
        cvi: CVI step at rate 1 from this iterate, which is zero at the optimum.
    """

    nat: Flat
    ell: Scalar
    kl: Scalar
    newton: Flat
    cvi: Flat


class Carry(NamedTuple):
    """Values that one iteration passes to the next.

    Attributes:
        point: The best iterate so far.
        residual: Norm of the CVI step divided by the norm of the natural parameters (at least 0.1).
        newton: True if the next step is a Newton step; otherwise a CVI step.
        rate: Fraction of the next CVI step to take.
        evaluations: Number of evaluations so far.
    """

    point: NewtonPoint
    residual: Scalar
    newton: Bool[Array, ""]
    rate: Scalar
    evaluations: Int[Array, ""]


def update_product(
    model: Model,
    prediction: Prediction,
    y: Observation,
    mask: Mask,
    sampling: tuple[Key, int],
    limits: Limits,
    newton: bool,
) -> Updated:
    r"""Update the prediction of a product of univariate families, and return the result.

    Args:
        model: The state-space model.
        prediction: The prediction; its belief is the natural parameters.
        y: Observation, (channels,).
        mask: True where observed, (channels,).
        sampling: JAX random key and number of samples, for expectations that are sampled.
        limits: Largest number of evaluations, and the relative residual at which to stop.
        newton: True to try Newton steps; otherwise CVI only.
    """
    family, prior = model.family, prediction.belief
    assert isinstance(family, Univariate | ProductFamily)
    ell = product_ell(family, model.likelihood, y, mask, *sampling, prior)
    start = feasible_start(family, model.likelihood, prior, mask)
    end = _climb(family, ell, prior, start, newton, limits)
    nat = ravel_pytree(prior)[1](end.point.nat)
    return Updated(
        belief=nat,
        elbo=end.point.ell - end.point.kl,
        gap=natural_gap(model, prediction, nat),
        evaluations=end.evaluations,
        residual=end.residual,
        converged=end.residual <= limits.tolerance,
        sound=family.valid(nat) & jnp.isfinite(end.residual),
    )


def _climb(
    family: Univariate | ProductFamily,
    ell: Callable[[Nat], Scalar],
    prior: Nat,
    start: Nat,
    newton: bool,
    limits: Limits,
) -> Carry:
    """Maximise the bound from a given start, and return the last iteration's `Carry`.

    Args:
        family: The family of the belief.
        ell: The expected log-likelihood as a function of natural parameters.
        prior: Natural parameters of the prediction.
        start: Natural parameters to start from, where the bound should be finite.
        newton: True to try Newton steps; otherwise CVI only.
        limits: Largest number of evaluations, and the relative residual at which to stop.
    """
    flat_prior, unravel = ravel_pytree(prior)
    dtype = flat_prior.dtype

    def step_of_cvi(nat: Flat) -> tuple[Flat, Scalar]:
        value, grad = jax.value_and_grad(ell)(unravel(nat))
        natural = ravel_pytree(family.natural_gradient(unravel(nat), grad))[0]
        return flat_prior + natural - nat, value

    def to_mean(nat: Flat) -> Flat:
        return ravel_pytree(family.to_mean(unravel(nat)))[0]

    def evaluate(nat: Flat) -> NewtonPoint:
        cvi, value = step_of_cvi(nat)
        newton_step = cvi
        if newton:
            slope = jax.jacfwd(lambda x: step_of_cvi(x)[0])(nat)
            newton_step = jnp.linalg.solve(-slope, cvi)
            # Slope of the bound along Newton's step d: d' F d_CVI. F d is the change of the mean
            # parameters.
            _, change = jax.jvp(to_mean, (nat,), (newton_step,))
            climb = change @ cvi
            newton_step = jnp.where(climb > 0, newton_step, cvi)
        return NewtonPoint(nat, value, family.kl(unravel(nat), prior), newton_step, cvi)

    def residual(point: NewtonPoint) -> Scalar:
        # The optimum of a one-parameter family may be zero: floor the norm.
        return jnp.linalg.norm(point.cvi) / jnp.maximum(jnp.linalg.norm(point.nat), 0.1)

    def keep_going(carry: Carry) -> Bool[Array, ""]:
        going = carry.evaluations < limits.max_evaluations
        return going & ~(carry.residual <= limits.tolerance)

    def body(carry: Carry) -> Carry:
        here, rate = carry.point, carry.rate
        nat = here.nat + jnp.where(carry.newton, here.newton, rate * here.cvi)
        valid = family.valid(unravel(nat))
        # Where the step gives invalid parameters, evaluate the old ones; the result is not used.
        there = evaluate(jnp.where(valid, nat, here.nat))
        left = residual(there)
        old, new = here.ell - here.kl, there.ell - there.kl
        slack = 8 * jnp.finfo(dtype).eps * (jnp.abs(here.ell) + jnp.abs(here.kl) + 1)
        climbs = (new >= old - slack) | (jnp.isfinite(new) & ~jnp.isfinite(old))
        taken = climbs & valid & jnp.all(jnp.isfinite(there.cvi))
        slower = jnp.where(carry.newton, rate, 0.3 * rate)
        return Carry(
            tree_where(taken, there, here),
            jnp.where(taken, left, carry.residual),
            taken & (carry.newton | (rate == 1) | (left < NEAR)),
            jnp.where(taken, jnp.minimum(1, 2 * rate), slower),
            carry.evaluations + 1,
        )

    first = evaluate(ravel_pytree(start)[0])
    one = jnp.ones((), dtype)
    start_carry = Carry(first, residual(first), jnp.asarray(newton), one, jnp.asarray(1))
    return lax.while_loop(keep_going, body, start_carry)
