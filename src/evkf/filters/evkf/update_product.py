"""The variational update of a product of univariate families, by Newton's method or CVI.

The optimum solves $\\lambda = \\bar\\lambda + \\nabla_\\mu ELL(\\lambda)$, with $\\nabla_\\mu ELL$
the natural gradient $F^{-1} \\nabla_\\lambda ELL$. Newton's method on this equation takes a handful
of evaluations where CVI takes dozens; where its step does not climb, CVI's, which always does for a
small enough rate, is taken.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from evkf.families import ProductFamily, Univariate
from evkf.numerics.linalg import tree_where
from evkf.types import Nat, Scalar

Flat = Float[Array, " D"]

NEAR = 0.1
"""Residual below which Newton's step is tried again after one that failed."""


class Solution(NamedTuple):
    """Where an update ended and how it got there."""

    nat: Nat
    elbo: Scalar
    evaluations: Int[Array, ""]
    residual: Scalar
    converged: Bool[Array, ""]


class Point(NamedTuple):
    """Natural parameters, and what was found there."""

    nat: Flat
    ell: Scalar
    kl: Scalar
    newton: Flat
    """Newton's step."""
    cvi: Flat
    """CVI's step at rate 1: minus the residual of the fixed point."""


class Carry(NamedTuple):
    point: Point
    residual: Scalar
    newton: Bool[Array, ""]
    """Whether to try Newton's step next."""
    rate: Scalar
    """Rate of the next CVI step."""
    evaluations: Int[Array, ""]


def product_update(
    family: Univariate | ProductFamily,
    ell: Callable[[Nat], Scalar],
    prior: Nat,
    start: Nat,
    newton: bool,
    max_evaluations: int,
    tolerance: float,
) -> Solution:
    """Climb $ELL - KL(q \\| \\bar q)$ from a start where it is finite.

    Args:
        family: A product of univariate families.
        ell: Expected log-likelihood as a function of natural parameters.
        prior: $\\bar\\lambda$.
        start: Where to begin; $\\bar\\lambda$ unless it is infeasible.
        newton: Whether to use Newton's steps; otherwise CVI alone.
        max_evaluations: Bound on evaluations.
        tolerance: Relative residual of the fixed point at which to stop.
    """
    flat_prior, unravel = ravel_pytree(prior)
    dtype = flat_prior.dtype

    def step_of_cvi(nat: Flat) -> tuple[Flat, Scalar]:
        value, grad = jax.value_and_grad(ell)(unravel(nat))
        natural = ravel_pytree(family.natural_gradient(unravel(nat), grad))[0]
        return flat_prior + natural - nat, value

    def look(nat: Flat) -> Point:
        cvi, value = step_of_cvi(nat)
        newton_step = cvi
        if newton:
            slope = jax.jacfwd(lambda x: step_of_cvi(x)[0])(nat)
            newton_step = jnp.linalg.solve(-slope, cvi)
            climb = _slope(family, unravel, nat, cvi, newton_step)
            newton_step = jnp.where(climb > 0, newton_step, cvi)
        return Point(nat, value, family.kl(unravel(nat), prior), newton_step, cvi)

    def residual(point: Point) -> Scalar:
        # One-parameter families may have their optimum at zero.
        return jnp.linalg.norm(point.cvi) / jnp.maximum(jnp.linalg.norm(point.nat), 0.1)

    def keep_going(carry: Carry) -> Bool[Array, ""]:
        return ~(carry.residual <= tolerance) & (carry.evaluations < max_evaluations)

    def body(carry: Carry) -> Carry:
        here, rate = carry.point, carry.rate
        nat = here.nat + jnp.where(carry.newton, here.newton, rate * here.cvi)
        valid = family.valid(unravel(nat))
        # Where the step leaves the family, look again from here: the answer is not used.
        there = look(jnp.where(valid, nat, here.nat))
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

    first = look(ravel_pytree(start)[0])
    one = jnp.ones((), dtype)
    start_carry = Carry(first, residual(first), jnp.asarray(newton), one, jnp.asarray(1))
    end = lax.while_loop(keep_going, body, start_carry)
    point, converged = end.point, end.residual <= tolerance
    elbo = point.ell - point.kl
    return Solution(unravel(point.nat), elbo, end.evaluations, end.residual, converged)


def _slope(
    family: Univariate | ProductFamily,
    unravel: Callable[..., Any],
    nat: Flat,
    cvi: Flat,
    step: Flat,
) -> Scalar:
    """Derivative of the bound along a step: $(F d_{CVI})^\\top d$, with $F d$ the change of
    $\\mu$.
    """
    _, change = jax.jvp(lambda x: ravel_pytree(family.to_mean(unravel(x)))[0], (nat,), (step,))
    return change @ cvi
