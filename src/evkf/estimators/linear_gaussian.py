r"""Inference and EM for a linear dynamical system with Gaussian noise, as pure functions.

$$x_1 \sim N(m, P), \quad x_{t+1} = Ax_t + N(0, Q), \quad y_t = Cx_t + d + N(0, R),$$

with $R$ diagonal. All that a bin says about its state is $C^\top R^{-1}(y_t - d)$, so recursions
run over latents only. Trials come filled up to one length, with a mask of the bins that they have.
Covariances given the past are the same in all trials; those given all of a trial depend on how
much of it is left.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from evkf.types import Scalar

Given = Literal["past", "now", "all"]
"""What a state is judged by: the bins before it, it as well, or all of its trial."""


class Params(NamedTuple):
    """All that is learned.

    Attributes:
        A: Transition.
        Q: Its noise.
        C: Loadings.
        d: Offsets.
        R: Private variances.
        m: Mean of the first state.
        P: Covariance of it.
    """

    A: Float[Array, "L L"]
    Q: Float[Array, "L L"]
    C: Float[Array, "N L"]
    d: Float[Array, " N"]
    R: Float[Array, " N"]
    m: Float[Array, " L"]
    P: Float[Array, "L L"]


class States(NamedTuple):
    """Means and covariances of the states of all trials; beyond the end of a trial, of no use."""

    means: Float[Array, "T I L"]
    covs: Float[Array, "T I L L"]


class Forward(NamedTuple):
    """States given the past and given the present bin as well, and the log-likelihood."""

    ahead: Float[Array, "T I L"]
    ahead_covs: Float[Array, "T L L"]
    means: Float[Array, "T I L"]
    covs: Float[Array, "T L L"]
    log_lik: Scalar


def forward(params: Params, ys: Float[Array, "T I N"], seen: Bool[Array, "T I"]) -> Forward:
    """The Kalman filter."""
    A, Q, C, d, R, m, P = params
    info = (C.T / R) @ C
    rest = ys - d
    says = rest @ (C / R[:, None])
    eye = jnp.eye(len(A))

    def step(carry, bin_says):
        mean, cov = carry
        gain = eye + cov @ info
        post = _even(jnp.linalg.solve(gain, cov))
        surprise = bin_says - mean @ info
        found = mean + surprise @ post
        # squared residuals, less those of y itself, which are added for all bins at once
        fit = jnp.sum(mean * (mean @ info - 2 * bin_says), axis=-1)
        fit = fit - jnp.sum(surprise * (surprise @ post), axis=-1)
        fit = fit + jnp.linalg.slogdet(gain)[1]
        return (found @ A.T, _even(A @ post @ A.T + Q)), (mean, cov, found, post, fit)

    start = jnp.broadcast_to(m, (ys.shape[1], len(m))), P
    _, (ahead, ahead_covs, means, covs, fit) = lax.scan(step, start, says)
    fit = fit + jnp.sum(rest**2 / R + jnp.log(2 * jnp.pi * R), axis=-1)
    return Forward(ahead, ahead_covs, means, covs, -0.5 * jnp.sum(jnp.where(seen, fit, 0)))


def backward(
    params: Params, found: Forward, seen: Bool[Array, "T I"]
) -> tuple[States, Float[Array, "T I L L"]]:
    """The Rauch–Tung–Striebel smoother, and covariances of a state with the one before it."""
    follows = jnp.concatenate([seen[1:], jnp.zeros_like(seen[:1])])

    def step(carry, at):
        mean, cov = carry
        here, here_cov, next_mean, next_cov, goes_on = at
        gain = jnp.linalg.solve(next_cov, params.A @ here_cov).T
        cross = cov @ gain.T
        smooth = here + (mean - next_mean) @ gain.T
        smooth_cov = _even(here_cov + gain @ (cov - next_cov) @ gain.T)
        mean = jnp.where(goes_on[:, None], smooth, here)
        cov = jnp.where(goes_on[:, None, None], smooth_cov, here_cov)
        return (mean, cov), (mean, cov, cross)

    def shift(values):
        return jnp.concatenate([values[1:], values[-1:]])

    last = (
        found.means[-1],
        jnp.broadcast_to(found.covs[-1], (*found.means.shape[1:], found.means.shape[-1])),
    )
    steps = found.means, found.covs, shift(found.ahead), shift(found.ahead_covs), follows
    _, (means, covs, cross) = lax.scan(step, last, steps, reverse=True)
    return States(means, covs), cross


@jax.jit
def em_step(
    params: Params,
    ys: Float[Array, "T I N"],
    seen: Bool[Array, "T I"],
    floor: Float[Array, " N"],
) -> tuple[Params, Scalar]:
    """The parameters after one iteration of EM, and the log-likelihood before it."""
    found = forward(params, ys, seen)
    states, cross = backward(params, found, seen)
    here = seen[..., None]
    x = jnp.where(here, states.means, 0)
    covs = jnp.where(here[..., None], states.covs, 0)
    follows = seen[1:, :, None]
    before, after = jnp.where(follows, x[:-1], 0), x[1:]

    lagged = jnp.einsum("tik,til->kl", after, before)
    lagged += jnp.sum(jnp.where(follows[..., None], cross[:-1], 0), axis=(0, 1))
    square_before = jnp.einsum("tik,til->kl", before, before)
    square_before += jnp.sum(jnp.where(follows[..., None], covs[:-1], 0), axis=(0, 1))
    square_after = jnp.einsum("tik,til->kl", after, after) + covs[1:].sum(axis=(0, 1))
    A = jnp.linalg.solve(square_before, lagged.T).T
    Q = _even(square_after - A @ lagged.T) / follows.sum()

    bins = seen.sum()
    total = jnp.sum(x, axis=(0, 1))
    square = jnp.einsum("tik,til->kl", x, x) + covs.sum(axis=(0, 1))
    joint = jnp.block([[square, total[:, None]], [total[None], bins * jnp.ones((1, 1))]])
    y = jnp.where(here, ys, 0)
    with_y = jnp.concatenate([jnp.einsum("tik,tin->kn", x, y), y.sum(axis=(0, 1))[None]])
    loads = jnp.linalg.solve(joint, with_y)
    R = (jnp.sum(y**2, axis=(0, 1)) - jnp.sum(loads * with_y, axis=0)) / bins

    m = x[0].mean(axis=0)
    P = (x[0] - m).T @ (x[0] - m) / len(x[0]) + covs[0].mean(axis=0)
    new = Params(A, Q, loads[:-1].T, loads[-1], jnp.maximum(R, floor), m, _even(P))
    return new, found.log_lik


@jax.jit
def log_lik(params: Params, ys: Float[Array, "T I N"], seen: Bool[Array, "T I"]) -> Scalar:
    """Marginal log-likelihood of all trials."""
    return forward(params, ys, seen).log_lik


def infer(
    params: Params, ys: Float[Array, "T I N"], seen: Bool[Array, "T I"], given: Given
) -> States:
    """States given the past, the present or everything."""
    found = forward(params, ys, seen)
    if given == "all":
        return backward(params, found, seen)[0]
    means, covs = (found.ahead, found.ahead_covs) if given == "past" else (found.means, found.covs)
    return States(means, jnp.broadcast_to(covs[:, None], (*means.shape, means.shape[-1])))


def _even(matrix: Float[Array, "*b L L"]) -> Float[Array, "*b L L"]:
    return (matrix + jnp.swapaxes(matrix, -1, -2)) / 2
