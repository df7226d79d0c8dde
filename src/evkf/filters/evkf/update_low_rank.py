r"""The update of low-rank Gaussian beliefs, whose covariance is $P = D + UU^\top$.

Letters: N channels, L latents, R columns of U. The covariance P of the belief is the sum of a
diagonal matrix D and $UU^\top$; $\bar P$ is the covariance of the prediction, m the mean of the
belief. C holds the readout weights, (N, L). W is diagonal: for each channel, minus the expected
curvature of the log-likelihood in the readout, floored at zero. g is the gradient, named where it
is used. CVI is conjugate-computation variational inference, whose full step would give the
precision $J = \bar P^{-1} + C^\top W C$. One bin takes $O(NLR)$ operations.

Among covariances $D + UU^\top$, the bound is highest where $P^{-1}$ has the diagonal of J and
$P^{-1} U = J U$. In units of $\sqrt D$, the columns of this U are the eigenvectors of J that have
the smallest eigenvalues. One iteration of a block eigenvalue method (Rayleigh-Ritz on the columns
of U and of their residual) improves U, starting from the prediction. The family does not constrain
the mean, which takes Newton steps; each is computed by conjugate gradients.
Paper: eq:variational_update.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from evkf.errors import InputError
from evkf.expectations.readout import has_independent_channels, observe
from evkf.families.low_rank import Inverse, LowRankBelief, divergence, inverse, readout_var
from evkf.filters.evkf.results import AdditiveCross, Limits, Prediction, Updated
from evkf.likelihoods import Joint, Likelihood
from evkf.likelihoods.base import Channels
from evkf.model import Model
from evkf.types import Mask, Observation, Scalar, Vector

GRADIENTS = 20
"""Largest number of conjugate-gradient iterations in a Newton step."""
LEFT = 1e-3
"""Squared relative residual at which conjugate gradients stop, mostly after two or three
iterations.
"""
NEAR = 0.3
"""Nats: below this gain of a step, the gain of the step after it can be predicted."""
TINY = 1e-6
"""Smallest variance along a column of U in units of D, so that no column becomes zero."""

Columns = Float[Array, "L R"]
Loads = Float[Array, "N R"]
Readout = Float[Array, "N L"]


class LowRankPoint(NamedTuple):
    """One iterate, and the step to the next.

    Attributes:
        belief: The belief at this iterate.
        elbo: The bound at this belief, in nats.
        step: Newton step of the mean.
        gain: Gain of the bound by this step of the mean, to second order, in nats.
        next_gain: Predicted gain of the step after that; gains fall quadratically near the
            optimum.
        diagonal: D of the next covariance, as a vector.
        factor: U of the next covariance.
        readout: The product $Cm$.
        shift: Change of $Cm$ by the step of the mean.
        loads: The product $CU$ for U of the next covariance.
    """

    belief: LowRankBelief
    elbo: Scalar
    step: Vector
    gain: Scalar
    next_gain: Scalar
    diagonal: Vector
    factor: Columns
    readout: Channels
    shift: Channels
    loads: Loads


class LowRankOptimum(NamedTuple):
    """The updated belief, and how the iteration ended.

    Attributes:
        belief: The updated belief.
        elbo: The bound in nats. The gain by the last step of the covariance is not counted, so the
            bound is somewhat too low.
        evaluations: Number of evaluations of gradient and curvature.
        residual: Nats that another step of the mean would gain.
    """

    belief: LowRankBelief
    elbo: Scalar
    evaluations: Int[Array, ""]
    residual: Scalar


class Information(NamedTuple):
    r"""Sums over the channels of an observation at a belief.

    Attributes:
        value: Expected log-likelihood, in nats.
        grad: Gradient in the mean, $C^\top g$, with g the expected slopes of the channels.
        diagonal: Diagonal of the information matrix $C^\top W C$.
        along: The information matrix times U, $C^\top W C U$.
        weights: Diagonal of W, one number for each channel.
    """

    value: Scalar
    grad: Vector
    diagonal: Vector
    along: Columns
    weights: Channels


def update_low_rank(
    model: Model, prediction: Prediction, y: Observation, mask: Mask, limits: Limits
) -> Updated:
    """Update a low-rank Gaussian prediction by an observation, and return the result.

    Args:
        model: The state-space model.
        prediction: The prediction; its belief is a `LowRankBelief`.
        y: Observation, (channels,).
        mask: True where observed, (channels,).
        limits: Largest number of evaluations, and the nats left to gain at which to stop.
    """
    cross, before = prediction.cross, prediction.belief
    assert isinstance(cross, AdditiveCross)
    belief, elbo, evaluations, residual = maximise_bound(model.likelihood, before, y, mask, limits)
    entropy = inverse(*belief[1:]).log_det_root + 0.5 * len(belief.mean)
    predicted = divergence(belief, before.mean, inverse(*before[1:])) + entropy
    noise = model.dynamics.noise  # pyright: ignore[reportAttributeAccessIssue]
    shift = noise.whiten(belief.mean - cross.mean)
    square = jnp.sum(model.family.var(belief) / noise.var()) + shift @ shift + cross.spread
    return Updated(
        belief=belief,
        elbo=elbo,
        gap=noise.log_det_root() + 0.5 * square - predicted,
        evaluations=evaluations,
        residual=residual,
        converged=residual <= limits.tolerance,
        sound=model.family.valid(belief) & jnp.isfinite(residual),
    )


def maximise_bound(
    likelihood: Likelihood, prediction: LowRankBelief, y: Observation, mask: Mask, limits: Limits
) -> LowRankOptimum:
    """Maximise the bound over low-rank Gaussian beliefs, and return the maximum.

    Every iteration takes a full step of the covariance and a Newton step of the mean. Where the
    bound falls, the step of the mean is shortened and tried again. Raise InputError if the channels
    are not independent given a linear readout.

    Args:
        likelihood: The observation model.
        prediction: The predicted belief.
        y: Observation, (channels,).
        mask: True where observed, (channels,).
        limits: Largest number of evaluations, and the nats left to gain at which to stop.
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
    # Multiply mean and factor by C in one product.
    seen = C @ jnp.concatenate([prediction.mean[:, None], prediction.factor], axis=1)
    start, loads = seen[:, 0], seen[:, 1:]
    observed = observe(likelihood, y, mask, readout_var(C, prediction.diagonal, loads))
    tiny = float(jnp.finfo(prediction.mean.dtype).tiny)

    def evaluate(
        belief: LowRankBelief, readout: Channels, loads: Loads, first: bool = False
    ) -> tuple[Scalar, Information]:
        v = readout_var(C, belief.diagonal, loads)
        a = readout + b
        site = observed.start(a, v)[0] if first else observed.expect(a, v)
        weights = jnp.maximum(-site.curvature, 0)
        columns = jnp.concatenate([site.slope[:, None], weights[:, None] * loads], axis=1)
        back = columns.T @ C
        diagonal = jnp.sum(weights[:, None] * C * C, axis=0)
        data = Information(jnp.sum(site.value), back[0], diagonal, back[1:].T, weights)
        return data.value - divergence(belief, prediction.mean, before), data

    def point(
        belief: LowRankBelief,
        readout: Channels,
        elbo: Scalar,
        data: Information,
        last: Scalar | float,
    ) -> LowRankPoint:
        diagonal, factor, loads = _covariance(C, before, belief, data)
        grad = data.grad - before.times(belief.mean - prediction.mean)
        step, shift = _newton(C, before, data.weights, diagonal, factor, grad)
        gain = 0.5 * grad @ step
        ratio = jnp.clip(gain / jnp.maximum(last, tiny), 0, 1)
        next_gain = jnp.where(gain < NEAR, gain * ratio, gain)
        return LowRankPoint(
            belief, elbo, step, gain, next_gain, diagonal, factor, readout, shift, loads
        )

    def keep_going(carry: tuple[Any, ...]) -> Bool[Array, ""]:
        here, _, evaluations = carry
        return (here.next_gain > limits.tolerance) & (evaluations < limits.max_evaluations)

    def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        here, rate, evaluations = carry
        mean = here.belief.mean + rate * here.step
        readout = here.readout + rate * here.shift
        there = LowRankBelief(mean, here.diagonal, here.factor)
        elbo, data = evaluate(there, readout, here.loads)
        climbs = (elbo >= here.elbo - 1e-3 * (1 + here.gain)) | ~jnp.isfinite(here.elbo)
        here = lax.cond(climbs, lambda: point(there, readout, elbo, data, here.gain), lambda: here)
        rate = jnp.where(climbs, jnp.minimum(1, 2 * rate), 0.3 * rate)
        return here, rate, evaluations + 1

    first = point(prediction, start, *evaluate(prediction, start, loads, True), 0)
    one = jnp.ones((), first.elbo.dtype)
    # The first step, from the prediction, may be large: always evaluate the bound after it.
    end, _, evaluations = lax.while_loop(keep_going, body, body((first, one, jnp.asarray(1))))
    stepped = LowRankBelief(end.belief.mean + end.step, end.diagonal, end.factor)
    converged = end.next_gain <= limits.tolerance
    last = jax.tree.map(lambda new, old: jnp.where(converged, new, old), stepped, end.belief)
    elbo = end.elbo + jnp.where(converged, end.gain, 0)
    return LowRankOptimum(last, elbo, evaluations, end.next_gain)


def _covariance(
    C: Readout, before: Inverse, belief: LowRankBelief, data: Information
) -> tuple[Vector, Columns, Loads]:
    """Return D, U and $CU$ after one step of the covariance towards the optimum."""
    rank = belief.factor.shape[1]
    scale = jnp.sqrt(belief.diagonal)[:, None]
    white = belief.factor / scale
    pushed = scale * (before.times(belief.factor) + data.along)
    # Orthonormal basis (in units of D) of the columns of U and of JU.
    basis = scale * jnp.linalg.qr(jnp.concatenate([white, pushed], axis=1))[0]
    seen = C @ basis
    square = basis.T @ before.times(basis) + (seen * data.weights[:, None]).T @ seen
    values, vectors = jnp.linalg.eigh(0.5 * (square + square.T))
    spread = jnp.maximum(1 / jnp.maximum(values[:rank], TINY) - 1, TINY)
    mixed = vectors[:, :rank] * jnp.sqrt(spread)
    factor = basis @ mixed
    wanted = before.var() + data.diagonal
    # Two fixed-point iterations of D. The first is in closed form, as the columns of U are
    # orthogonal in units of D.
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
    r"""Return the Newton step $J^{-1} g$ of the mean, and the product of C and this step.

    The linear equations are solved by conjugate gradients, preconditioned by $D + UU^\top$.

    Args:
        C: Readout weights.
        before: Inverse of the predicted covariance, $\bar P^{-1}$.
        weights: Diagonal of W.
        diagonal: D of the next covariance.
        factor: U of the next covariance.
        grad: The gradient g of the bound in the mean.
    """

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
