r"""The variational update of a product of univariate families, by Newton's method or CVI.

The optimum solves $\lambda = \bar\lambda + \nabla_\mu ELL(\lambda)$, with $\nabla_\mu ELL$
the natural gradient $F^{-1} \nabla_\lambda ELL$. Newton's method on this equation takes a handful
of evaluations where CVI takes dozens. Where Newton's step does not raise the bound, a CVI step is
taken, which does for a small enough rate.
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
"""Residual below which Newton's step is tried again after one that failed."""


class NewtonPoint(NamedTuple):
    """One iterate.

    Attributes:
        nat: Natural parameters.
        ell: Expected log-likelihood.
        kl: Divergence from the prediction.
        newton: Newton's step from here.
        cvi: CVI step at rate 1: minus the residual of the fixed point.
    """

    nat: Flat
    ell: Scalar
    kl: Scalar
    newton: Flat
    cvi: Flat


class Carry(NamedTuple):
    """State of the iteration: the best point, its residual, and the kind and rate of next steps."""

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
    r"""Maximise $ELL - KL(q \| \bar q)$ over the natural parameters of a product.

    Args:
        model: The model.
        prediction: The prediction, with natural parameters as its belief.
        y: The observation.
        mask: True where observed.
        sampling: Key and number of samples, for expectations that are sampled.
        limits: Bound on evaluations, and the relative residual at which to stop.
        newton: True to try Newton's steps; otherwise CVI alone.
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
    """Iterate from a start where the bound is finite."""
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
            # Slope of the bound along the step: (F d_CVI)' d, where F d is the change of the mean.
            _, change = jax.jvp(to_mean, (nat,), (newton_step,))
            climb = change @ cvi
            newton_step = jnp.where(climb > 0, newton_step, cvi)
        return NewtonPoint(nat, value, family.kl(unravel(nat), prior), newton_step, cvi)

    def residual(point: NewtonPoint) -> Scalar:
        # One-parameter families may have their optimum at zero.
        return jnp.linalg.norm(point.cvi) / jnp.maximum(jnp.linalg.norm(point.nat), 0.1)

    def keep_going(carry: Carry) -> Bool[Array, ""]:
        going = carry.evaluations < limits.max_evaluations
        return going & ~(carry.residual <= limits.tolerance)

    def body(carry: Carry) -> Carry:
        here, rate = carry.point, carry.rate
        nat = here.nat + jnp.where(carry.newton, here.newton, rate * here.cvi)
        valid = family.valid(unravel(nat))
        # Where the step leaves the family, evaluate here again; the result is not used.
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
