"""The update of Gaussian beliefs with covariance $D + UU^\\top$, in $O(NLR)$ a bin.

With $J = \\bar P^{-1} + C^\\top W C$ the precision that CVI goes to, the bound is highest
over covariances $D + UU^\\top$ where $(D + UU^\\top)^{-1}$ has the diagonal of $J$ and agrees with
it on the columns of U. In units of $\\sqrt D$ these are the eigenvectors of $J$ with the smallest
eigenvalues, found by a step of a block method (Rayleigh–Ritz on U and its residual) from where the
last bin left them. The mean, on which the family puts no constraint, goes all the way: Newton's
step by conjugate gradients.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from evkf.errors import InputError
from evkf.expectations.readout import has_independent_channels, observe
from evkf.families.low_rank import Inverse, LowRankBelief, divergence, inverse, readout_var
from evkf.likelihoods import Joint, Likelihood
from evkf.likelihoods.base import Channels, Site
from evkf.types import Mask, Observation, Scalar, Vector

GRADIENTS = 20
"""Most iterations of conjugate gradients in a Newton step."""
LEFT = 1e-3
"""Share of the gradient's squared length left at which they stop: mostly after two or three."""
NEAR = 0.3
"""Nats left to gain below which the gain of the next step can be foretold."""
TINY = 1e-6
"""Least variance along a column of U, in units of D, so that the directions are remembered."""

Columns = Float[Array, "L R"]
Loads = Float[Array, "N R"]
Readout = Float[Array, "N L"]


class LowRankSolution(NamedTuple):
    """Where an update ended, and how it got there."""

    belief: LowRankBelief
    elbo: Scalar
    """Without the gain of the last step of the covariance, and so somewhat low."""
    evaluations: Int[Array, ""]
    residual: Scalar
    """Nats left to gain from moving the mean once more."""
    converged: Bool[Array, ""]


class Point(NamedTuple):
    """A belief, what was found there, and where to go."""

    belief: LowRankBelief
    elbo: Scalar
    step: Vector
    """Of the mean, by Newton."""
    gain: Scalar
    """What the bound will gain from it, to second order."""
    foretold: Scalar
    """What the step after it will gain, as gains fall by their squares near the optimum."""
    diagonal: Vector
    """Of the covariance to go to, as `factor`."""
    factor: Columns
    readout: Channels
    """$Cm$ at the mean here, and what it changes by with the step."""
    shift: Channels
    loads: Loads
    """$CU$ at the covariance to go to."""


class Data(NamedTuple):
    """What the channels say at a belief."""

    value: Scalar
    grad: Vector
    """$C^\\top g$"""
    own: Vector
    """Diagonal of $C^\\top W C$."""
    along: Columns
    """$C^\\top W C U$."""
    weights: Channels


def update_low_rank(
    likelihood: Likelihood,
    prediction: LowRankBelief,
    y: Observation,
    mask: Mask,
    max_evaluations: int,
    tolerance: float,
) -> LowRankSolution:
    """Climb the bound: a full step of the covariance, and of the mean one that climbs.

    Args:
        likelihood: The observation model.
        prediction: The belief before the observation.
        y: Observation.
        mask: Which channels were observed.
        max_evaluations: Bound on the times that the likelihood is looked at.
        tolerance: Nats to gain at which to stop.
    """
    parts = likelihood.parts if isinstance(likelihood, Joint) else (likelihood,)
    for part in parts:
        if not has_independent_channels(part):
            raise InputError(
                f"{type(part).__name__} observations of LowRankGaussianFamily states",
                "LowRankGaussianFamily",
                "use a linear readout with independent noise, or Gaussian states",
            )
    C, b = (jnp.concatenate([getattr(part, name) for part in parts]) for name in ("C", "b"))
    before = inverse(*prediction[1:])
    # one way through C
    seen = C @ jnp.concatenate([prediction.mean[:, None], prediction.factor], axis=1)
    start, loads = seen[:, 0], seen[:, 1:]
    observed = observe(likelihood, y, mask, readout_var(C, prediction.diagonal, loads))
    tiny = float(jnp.finfo(prediction.mean.dtype).tiny)

    def look(
        belief: LowRankBelief, readout: Channels, loads: Loads, first: bool = False
    ) -> tuple[Scalar, Data]:
        v = readout_var(C, belief.diagonal, loads)
        a = readout + b
        data = _read(C, observed.start(a, v)[0] if first else observed.expect(a, v), loads)
        return data.value - divergence(belief, prediction.mean, before), data

    def point(
        belief: LowRankBelief, readout: Channels, elbo: Scalar, data: Data, last: Scalar | float
    ) -> Point:
        diagonal, factor, loads = _covariance(C, before, belief, data)
        grad = data.grad - before.times(belief.mean - prediction.mean)
        step, shift = _newton(C, before, data.weights, diagonal, factor, grad)
        gain = 0.5 * grad @ step
        ratio = jnp.clip(gain / jnp.maximum(last, tiny), 0, 1)
        foretold = jnp.where(gain < NEAR, gain * ratio, gain)
        return Point(belief, elbo, step, gain, foretold, diagonal, factor, readout, shift, loads)

    def keep_going(carry: tuple[Any, ...]) -> Bool[Array, ""]:
        here, _, evaluations = carry
        return (here.foretold > tolerance) & (evaluations < max_evaluations)

    def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        here, rate, evaluations = carry
        mean = here.belief.mean + rate * here.step
        readout = here.readout + rate * here.shift
        there = LowRankBelief(mean, here.diagonal, here.factor)
        elbo, data = look(there, readout, here.loads)
        climbs = (elbo >= here.elbo - 1e-3 * (1 + here.gain)) | ~jnp.isfinite(here.elbo)
        here = lax.cond(climbs, lambda: point(there, readout, elbo, data, here.gain), lambda: here)
        rate = jnp.where(climbs, jnp.minimum(1, 2 * rate), 0.3 * rate)
        return here, rate, evaluations + 1

    first = point(prediction, start, *look(prediction, start, loads, True), 0)
    one = jnp.ones((), first.elbo.dtype)
    # The first step is always looked at: it starts from the prediction, and may be far.
    end, _, evaluations = lax.while_loop(keep_going, body, body((first, one, jnp.asarray(1))))
    found = LowRankBelief(end.belief.mean + end.step, end.diagonal, end.factor)
    converged = end.foretold <= tolerance
    last = jax.tree.map(lambda new, old: jnp.where(converged, new, old), found, end.belief)
    elbo = end.elbo + jnp.where(converged, end.gain, 0)
    return LowRankSolution(last, elbo, evaluations, end.foretold, converged)


def _covariance(
    C: Readout, before: Inverse, belief: LowRankBelief, data: Data
) -> tuple[Vector, Columns, Loads]:
    """One step towards the diagonal and the factor U that the bound wants, and $CU$."""
    rank = belief.factor.shape[1]
    scale = jnp.sqrt(belief.diagonal)[:, None]
    white = belief.factor / scale
    pushed = scale * (before.times(belief.factor) + data.along)
    # The space of U and of its residual as eigenvectors, JU less its part along U.
    basis = scale * jnp.linalg.qr(jnp.concatenate([white, pushed], axis=1))[0]
    seen = C @ basis
    square = basis.T @ before.times(basis) + (seen * data.weights[:, None]).T @ seen
    values, vectors = jnp.linalg.eigh(0.5 * (square + square.T))
    spread = jnp.maximum(1 / jnp.maximum(values[:rank], TINY) - 1, TINY)
    mixed = vectors[:, :rank] * jnp.sqrt(spread)
    factor = basis @ mixed
    wanted = before.var() + data.own
    # Twice, of which the first is known: the columns of U are orthogonal in units of D.
    shared = (factor / belief.diagonal[:, None]) ** 2 @ (1 / (1 + spread))
    shared = jnp.sum(inverse(1 / (wanted + shared), factor).factor ** 2, axis=1)
    diagonal = 1 / (wanted + shared)
    return diagonal, factor, seen @ mixed


def _newton(
    C: Readout,
    before: Inverse,
    weights: Channels,
    diagonal: Vector,
    factor: Columns,
    grad: Vector,
) -> tuple[Vector, Channels]:
    """$J^{-1} g$ by conjugate gradients, preconditioned by the covariance, and C times it."""

    def near(x: Vector) -> Vector:
        return diagonal * x + factor @ (factor.T @ x)

    def keep_going(carry: tuple[Any, ...]) -> Bool[Array, ""]:
        *_, size, num = carry
        return (size > LEFT * whole) & (num < GRADIENTS)

    def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        x, readout, rest, along, size, num = carry
        seen = C @ along
        pushed = before.times(along) + (weights * seen) @ C
        share = size / jnp.maximum(along @ pushed, tiny)
        x, readout, rest = x + share * along, readout + share * seen, rest - share * pushed
        toward = near(rest)
        new = rest @ toward
        return x, readout, rest, toward + new / jnp.maximum(size, tiny) * along, new, num + 1

    tiny = float(jnp.finfo(grad.dtype).tiny)
    along = near(grad)
    whole = grad @ along
    start = (jnp.zeros_like(grad), jnp.zeros_like(weights), grad, along, whole, 0)
    return lax.while_loop(keep_going, body, start)[:2]


def _read(C: Readout, site: Site, loads: Loads) -> Data:
    """Sums over the channels that were observed."""
    weights = jnp.maximum(-site.curvature, 0)
    columns = jnp.concatenate([site.slope[:, None], weights[:, None] * loads], axis=1)
    back = columns.T @ C  # one way through C
    own = jnp.sum(weights[:, None] * C * C, axis=0)
    return Data(jnp.sum(site.value), back[0], own, back[1:].T, weights)
