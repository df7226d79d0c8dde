"""One filter step for thousands of sessions under one model, for GPUs; used by `batched.py`.

With `jax.vmap` of a step, a GPU computes thousands of tiny factorisations and products, and every
session waits for the slowest session. Here the last axis is sessions, and a matrix is stored as a
list of entries, one row (of numbers for all sessions) for each entry. A factorisation is arithmetic
on these rows, the readouts $Cz + b$ of all sessions are one product with the shared matrix C, and
all updates take the same few Newton steps. A session that has not converged by then, or whose
prediction must be capped (cut to the filter's `max_std`), is filtered again by `filter.step`, a few
sessions at a time.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from evkf.dynamics import GaussianDynamics
from evkf.families import GaussianBelief, GaussianFamily
from evkf.filters.base import Filter, Info, State
from evkf.filters.evkf.filter import VariationalKalmanFilter
from evkf.likelihoods import ReadoutLikelihood
from evkf.likelihoods.base import Site
from evkf.model import Model
from evkf.numerics.covariance import DiagonalCovariance
from evkf.types import Status

MOST = 16
"""Largest number of latents for which this step is used: factorisations are written out entry by
entry.
"""
FEWEST, MOST_EVALUATIONS = 3, 8
"""Smallest and largest number of evaluations of gradient and curvature, the same for all sessions.
Evaluations go on after the smallest number while many sessions have not converged.
"""
MOST_INFLATED = 1e3
"""Largest ratio of the variance of a latent to its conditional variance given the other latents. A
session whose prediction exceeds this ratio is filtered by `filter.step`, which whitens (see
`update_gaussian.py`) and therefore loses fewer digits in float32.
"""
AGAIN = 64
"""At most one in this many sessions is filtered again at a time. While more sessions than that have
not converged, all sessions take another Newton step.
"""
LANES = 128
"""Number of sessions in one block of a GPU kernel."""

Rows = Float[Array, "D B"]
"""A symmetric matrix for each of B sessions: D entries of the lower triangle, row by row."""
Many = Float[Array, "L B"]
Each = Float[Array, " B"]


class LeanPoint(NamedTuple):
    """The current Newton iterates of all sessions; the last axis is sessions.

    Attributes:
        mean: Means of the beliefs.
        cov: Covariances of the beliefs.
        log_det: Log-determinants of the covariances.
        elbo: The bound $L_t$ at the previous iterate, in nats.
        gain: Gain of the bound by the step from the previous iterate to this one, to second order.
        climbs: True where the prediction lies within the limits of this step, and no step so far
            lowered the bound noticeably.
        residual: Predicted size of the next step, in standard deviations per latent.
    """

    mean: Many
    cov: Rows
    log_det: Each
    elbo: Each
    gain: Each
    climbs: Bool[Array, " B"]
    residual: Each


def applies(filter: Filter, model: Model, sessions: int) -> bool:
    """Return True if `step_many` can replace `filter.step` and is faster.

    Needed are: a `VariationalKalmanFilter` that uses cubature and the variance correction; full
    Gaussian beliefs in float32 of at most `MOST` latents; dynamics without inputs that have
    Gaussian noise independent between latents; a log-concave likelihood of a linear readout whose
    expectation has a closed form; and at least 1,024 sessions.
    """
    likelihood, dynamics = model.likelihood, model.dynamics
    if type(filter) is not VariationalKalmanFilter or sessions < 8 * LANES:
        return False
    if filter.max_evaluations <= FEWEST or jax.tree.leaves(model.prior)[0].dtype != jnp.float32:
        return False
    if not isinstance(model.family, GaussianFamily) or model.family.dim > MOST:
        return False
    if not isinstance(dynamics, GaussianDynamics) or dynamics.num_inputs:
        return False
    if not isinstance(dynamics.noise, DiagonalCovariance) or filter.rule != "cubature":
        return False
    if not isinstance(likelihood, ReadoutLikelihood) or not likelihood.log_concave:
        return False
    one = jnp.ones_like(likelihood.b)
    closed = jax.eval_shape(likelihood.each_site, one, one, one) is not None
    return closed and filter.correct is not False


def step_many(
    filter: Filter,
    model: Model,
    states: State,
    ys: Float[Array, "B N"],
    masks: Bool[Array, "B N"],
) -> tuple[State, Info]:
    """Filter one bin of all sessions; return the next filter states and the diagnostics.

    The result is that of `jax.vmap(filter.step)`, up to the tolerance of an update.

    Args:
        filter: The filter, for which `applies` is True.
        model: The state-space model of all sessions.
        states: Filter states; the first axis is sessions.
        ys: Observations, (sessions, channels), zero where masked.
        masks: True where observed, (sessions, channels).
    """
    assert isinstance(filter, VariationalKalmanFilter)
    mean, cov = states.belief
    num, dim = mean.shape
    lower = np.ravel_multi_index(np.tril_indices(dim), (dim, dim))
    rows = cov.reshape(num, -1).T[lower]
    belief, info, converged = _step(model, filter, mean.T, rows, ys.T, masks.T)
    new = State(GaussianBelief(belief[0].T, _square(belief[1], dim).transpose(2, 0, 1)))
    some = max(num // AGAIN, 1)

    def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        new, info, left = carry
        which = jnp.nonzero(left, size=some, fill_value=num)[0]

        def pick(tree):
            return jax.tree.map(lambda leaf: leaf.at[which].get(mode="clip"), tree)

        again = jax.vmap(partial(filter.step, model))(pick(states), pick(ys), pick(masks))
        new, info = jax.tree.map(
            lambda all, part: all.at[which].set(part.astype(all.dtype), mode="drop"),
            (new, info),
            again,
        )
        return new, info, left.at[which].set(False, mode="drop")

    new, info, _ = lax.while_loop(lambda c: jnp.any(c[2]), body, (new, info, ~converged))
    return new, info


def _step(
    model: Model, filter: VariationalKalmanFilter, mean: Many, rows: Rows, y: Array, mask: Array
) -> tuple[tuple[Many, Rows], Info, Bool[Array, " B"]]:
    dynamics, likelihood = model.dynamics, model.likelihood
    assert isinstance(dynamics, GaussianDynamics)
    assert isinstance(likelihood, ReadoutLikelihood)
    dim, noise = len(mean), dynamics.noise
    assert isinstance(noise, DiagonalCovariance)
    i, j = np.tril_indices(dim)
    twice = jnp.asarray(2 - (i == j), mean.dtype)[:, None]

    # Prediction: the mean by cubature, the covariance by the Jacobian of the dynamics at the mean.
    root, _ = _by_rows(_cholesky, rows, dim)
    columns = _square(root, dim) * np.tril(np.ones((dim, dim), root.dtype))[:, :, None]
    u = jnp.zeros(0, mean.dtype)
    move = jax.vmap(lambda z: dynamics.mean(z, u), 1, 1)
    reach = math.sqrt(dim) * columns
    points = jnp.concatenate([mean[:, None] + reach, mean[:, None] - reach], axis=1)
    images = jax.vmap(move, 1, 1)(points)
    middle = jnp.mean(images, axis=1)
    precise = jnp.exp(-2 * noise.log_std)[:, None]
    spread = jnp.sum((images - middle[:, None]) ** 2 * precise[:, None], (0, 1)) / (2 * dim)
    moved = jax.vmap(jax.linearize(move, mean)[1], 1, 1)(columns)
    before = jnp.sum(moved[i] * moved[j], axis=1)
    before = before + jnp.where(i == j, noise.var()[i], 0)[:, None]
    var = before[i == j]
    most = filter.max_std
    inside = jnp.all((jnp.abs(middle) <= most) & (var <= most**2), axis=0)

    # Update: Newton steps on the natural parameters.
    prior, log_det = _by_rows(_inverse, before, dim)
    inside = inside & jnp.all(var * prior[i == j] < MOST_INFLATED, axis=0)
    pairs = likelihood.C[:, i] * likelihood.C[:, j]
    observed = jnp.where(mask, y, 1)
    rest = jax.vmap(likelihood.each_rest, 1, 1)(observed)
    expect: Callable[..., Site] = jax.vmap(likelihood.each_site, 1, 1)  # pyright: ignore
    begin = jax.vmap(likelihood.each_start, 1, 1)
    tolerance = filter.limits(model.family, mean.dtype).tolerance

    def iterate(here: LeanPoint, start: bool = False) -> LeanPoint:
        a = likelihood.C @ here.mean + likelihood.b[:, None]
        v = jnp.maximum(pairs @ (twice * here.cov), 0)
        site = expect(a, v, observed)
        if start:
            site = begin(site, a, v, observed)
        value, slope, curvature = (
            jnp.where(mask, term, 0) for term in site._replace(value=site.value + rest)
        )
        shift = here.mean - middle
        pulled = _times(prior, shift, dim)
        square = jnp.sum(twice * prior * here.cov, axis=0) + jnp.sum(pulled * shift, axis=0)
        elbo = jnp.sum(value, axis=0) - 0.5 * (square - dim + log_det - here.log_det)
        climbs = elbo >= here.elbo - 1e-3 * (1 + here.gain)
        force = likelihood.C.T @ slope - pulled
        precision = prior - pairs.T @ curvature
        cov, entropy = _by_rows(_inverse, precision, dim)
        step = _times(cov, force, dim)
        # Gain of the bound by the next step, to second order. With P the covariance here and J the
        # precision after the step, the step of the covariance contributes tr((PJ - I)^2) / 4.
        product = jnp.sum(
            _square(here.cov, dim)[:, :, None] * _square(precision, dim)[None], axis=1
        )
        product = product - jnp.eye(dim, dtype=product.dtype)[:, :, None]
        mismatch = jnp.sum(product * product.transpose(1, 0, 2), axis=(0, 1))
        gain = 0.5 * jnp.sum(force * step, axis=0) + 0.25 * mismatch
        decay = jnp.clip(gain / jnp.maximum(here.gain, 1e-30), 0, 1)
        residual = jnp.sqrt(2 * gain * decay / dim)
        return LeanPoint(
            here.mean + step, cov, -entropy, elbo, gain, here.climbs & climbs, residual
        )

    def unsettled(here: LeanPoint) -> Bool[Array, " B"]:
        return ~(here.climbs & (here.residual <= tolerance))

    none = jnp.full_like(log_det, -jnp.inf)
    first = iterate(LeanPoint(middle, before, log_det, none, -none, inside, none), start=True)
    # The first bound may be that of a damped step (`each_start`): do not compare later bounds.
    here = iterate(first._replace(elbo=none))

    def go_on(carry: tuple[Any, ...]) -> Bool[Array, ""]:
        here, evaluations = carry
        many = jnp.sum(unsettled(here) & inside) > len(inside) // AGAIN
        return (evaluations < FEWEST) | (many & (evaluations < MOST_EVALUATIONS))

    def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        here, evaluations = carry
        return iterate(here), evaluations + 1

    here, evaluations = lax.while_loop(go_on, body, (here, jnp.asarray(2)))
    at, cov, residual = here.mean, here.cov, here.residual
    sound = jnp.isfinite(here.elbo) & jnp.isfinite(_by_rows(_cholesky, cov, dim)[1])
    settled = sound & jnp.all(jnp.isfinite(at), axis=0) & ~unsettled(here)

    seen = jnp.any(mask, axis=0)
    shift = at - middle
    pulled = _times(prior, shift, dim)
    square = jnp.sum(twice * prior * cov, axis=0) + jnp.sum(pulled * shift, axis=0)
    predicted = 0.5 * (log_det + square)
    moments = (cov[i == j] + shift**2) * precise
    gap = noise.log_det_root() + 0.5 * (jnp.sum(moments, axis=0) + spread) - predicted
    bound = jnp.where(seen, here.elbo + here.gain, 0)
    evaluations = jnp.broadcast_to(evaluations, bound.shape)
    status = jnp.full(len(bound), int(Status.OK))
    info = Info(bound, gap, evaluations, residual, status)
    belief = jnp.where(seen, at, middle), jnp.where(seen, cov, before)
    return belief, info, settled


def _square(rows: Rows, dim: int) -> Float[Array, "L L B"]:
    i, j = np.tril_indices(dim)
    index = np.zeros((dim, dim), int)
    index[i, j] = index[j, i] = np.arange(len(i))
    return rows[index.ravel()].reshape(dim, dim, -1)


def _times(rows: Rows, vectors: Many, dim: int) -> Many:
    return jnp.sum(_square(rows, dim) * vectors, axis=1)


def _by_rows(kernel: Callable[..., Any], rows: Rows, dim: int) -> tuple[Rows, Each]:
    """Apply a factorisation to the matrices of all sessions; on a GPU, as one Pallas kernel.

    Args:
        kernel: `_cholesky` or `_inverse`.
        rows: The matrices, one row for each entry.
        dim: Number of latents.

    Returns:
        What the kernel returns: the factor or inverse as rows, and its log-determinant term.
    """
    num = rows.shape[1]

    def written_out(rows: Rows) -> tuple[Rows, Each]:
        out, log_det = kernel(list(rows), dim)
        return jnp.stack(out), log_det

    if num % LANES:
        return written_out(rows)

    def body(source, target, log_det):
        results, half = kernel([source[k, :] for k in range(len(rows))], dim)
        for k, row in enumerate(results):
            target[k, :] = row
        log_det[0, :] = half

    def as_kernel(rows: Rows) -> tuple[Rows, Each]:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton

        like = jax.ShapeDtypeStruct
        block = pl.BlockSpec((len(rows), LANES), lambda b: (0, b))
        single = pl.BlockSpec((1, LANES), lambda b: (0, b))
        out, log_det = pl.pallas_call(
            body,
            out_shape=(like(rows.shape, rows.dtype), like((1, num), rows.dtype)),
            grid=(num // LANES,),
            in_specs=[block],
            out_specs=(block, single),
            compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        )(rows)
        return out, log_det[0]

    return lax.platform_dependent(rows, cuda=as_kernel, default=written_out)


def _cholesky(rows: list[Array], dim: int) -> tuple[list[Array], Array]:
    """Return the lower Cholesky factor as rows, and half the log-determinant of the matrix."""
    places = [(i, j) for i in range(dim) for j in range(i + 1)]
    at = dict(zip(places, rows, strict=True))
    log_det = jnp.zeros_like(rows[0])
    for k in range(dim):
        log_det = log_det + 0.5 * jnp.log(at[k, k])
        scale = lax.rsqrt(at[k, k])
        for i in range(k, dim):
            at[i, k] = at[i, k] * scale
        for i in range(k + 1, dim):
            for j in range(k + 1, i + 1):
                at[i, j] = at[i, j] - at[i, k] * at[j, k]
    return [at[place] for place in places], log_det


def _inverse(rows: list[Array], dim: int) -> tuple[list[Array], Array]:
    """Return the inverse as rows, and the log-determinant of the matrix, by the sweep operator.

    The matrix must be positive definite.
    """
    places = [(i, j) for i in range(dim) for j in range(i + 1)]
    at = dict(zip(places, rows, strict=True))
    log_det = jnp.zeros_like(rows[0])
    for k in range(dim):
        pivot = at[k, k]
        log_det, scale = log_det + jnp.log(pivot), 1 / pivot
        column = {i: at[max(i, k), min(i, k)] for i in range(dim) if i != k}
        for i in column:
            for j in column:
                if j <= i:
                    at[i, j] = at[i, j] - column[i] * column[j] * scale
        for i in column:
            at[max(i, k), min(i, k)] = column[i] * scale
        at[k, k] = -scale
    return [-at[place] for place in places], log_det
