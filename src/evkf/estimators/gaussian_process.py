r"""Inference and EM for Gaussian process factor analysis (Yu et al. 2009), as pure functions.

$$x_l \sim GP(0, k_l), \qquad y_t = Cx_t + d + \epsilon_t, \qquad \epsilon_t \sim N(0, R),$$

with latent states $x_t$ (component $l$: $x_l$), observations $y_t$, loadings $C$, offsets $d$,
diagonal private (noise) covariance $R$, and kernels
$k_l(s, t) = (1 - \nu)e^{-(s - t)^2 / 2\tau_l^2} + \nu\delta_{st}$ with timescales $\tau_l$.

The information of a bin about its latent state is $w_t = Q^\top R^{-1/2}(y_t - d) = Fx_t + N(0,
I)$, where $R^{-1/2}C = QF$ is a QR decomposition. Let $K$ be the prior covariance of the latent
states of a trial, in order of time, and $S = I + FKF^\top$ the covariance of all $w_t$. The matrix
$S$ of a short trial is the upper left corner of $S$ of a long trial, and the same is true of the
Cholesky factor $\Lambda$ of $S$. One factorisation for the longest trial is therefore exact for
trials of all lengths. With $A = \Lambda^{-1}FK$ and $z = \Lambda^{-1}w$, the latent states of a
trial have mean $A^\top z$ and covariance $K - A^\top A$, where products are summed over the rows of
the trial's own bins. No kernel is inverted.

Trials are padded to one length, with a mask of the bins that each trial has. Time grows with the
cube, and memory with the square, of latents times bins.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from evkf.numerics.linalg import cholesky, inverse_lower, solve_lower
from evkf.types import Scalar

NUGGET = 1e-3
r"""$\nu$, the fraction of a latent state's variance that is independent from bin to bin."""

STEPS, FRACTIONS = 2, (1.0, 0.25)
"""Number of Fisher scoring steps of the timescales in every M step, and fractions of each step that
are tried."""

NARROW, WIDE = 0.1, 1e4
"""Smallest and largest timescale in bins. With shorter timescales a latent state would be white
noise, with longer timescales constant."""

RATIO = 0.7
"""Smallest length of a trial in a group, as a fraction of the longest trial of the group."""


class GPFAParameters(NamedTuple):
    """Learned parameters of GPFA.

    Attributes:
        C: Loadings of the latent states, (N, L).
        d: Offsets, (N,).
        R: Private (noise) variances, (N,).
        log_tau: Logarithms of the timescales in bins, (L,).
    """

    C: Float[Array, "N L"]
    d: Float[Array, " N"]
    R: Float[Array, " N"]
    log_tau: Float[Array, " L"]


class TrialPosterior(NamedTuple):
    """Posterior of the latent states of every trial, given all bins of the trial.

    Attributes:
        means: Means of the latent states; beyond the end of a trial, extrapolated.
        gain: $A$, from which `covariances` computes the covariances.
        kernels: Prior covariance of every latent over time.
        log_lik: Marginal log-likelihood of all trials together, in nats.
    """

    means: Float[Array, "I T L"]
    gain: Float[Array, "T L T L"]
    kernels: Float[Array, "L T T"]
    log_lik: Scalar


class TrialGroup(NamedTuple):
    """The trials with indices from `first` to `last` - 1; the longest of them has `bins` bins."""

    first: int
    last: int
    bins: int


def group_lengths(lengths: Sequence[int]) -> tuple[TrialGroup, ...]:
    """Return groups of trials of similar lengths, for learning the timescales.

    Within a group, latent states are extrapolated to the end of the longest trial. This is still
    EM, with a few more latent states. It needs one matrix per group, instead of one per length.

    Args:
        lengths: Number of bins of every trial, in ascending order.

    Example:
        >>> group_lengths([5, 9, 10, 10])
        (TrialGroup(first=1, last=4, bins=10), TrialGroup(first=0, last=1, bins=5))
    """
    groups: list[TrialGroup] = []
    last = len(lengths)
    while last:
        bins = lengths[last - 1]
        first = next(i for i, length in enumerate(lengths) if length >= RATIO * bins)
        groups.append(TrialGroup(first, last, bins))
        last = first
    return tuple(groups)


def log_lik(params: GPFAParameters, ys: Float[Array, "I T N"], seen: Bool[Array, "I T"]) -> Scalar:
    """Return the marginal log-likelihood of all trials together, in nats.

    Args:
        params: Parameters of GPFA.
        ys: Padded observations.
        seen: True where a trial has a bin.

    Example:
        >>> params = GPFAParameters(jnp.ones((3, 1)), jnp.zeros(3), jnp.ones(3), jnp.zeros(1))
        >>> round(float(log_lik(params, jnp.ones((1, 2, 3)), jnp.ones((1, 2), bool))), 2)
        -7.3
    """
    return _whiten(params, ys, seen)[0]


def posterior(
    params: GPFAParameters, ys: Float[Array, "I T N"], seen: Bool[Array, "I T"]
) -> TrialPosterior:
    """Return the posterior of the latent states of every trial, given all bins of the trial.

    Args:
        params: Parameters of GPFA.
        ys: Padded observations.
        seen: True where a trial has a bin.

    Example:
        >>> params = GPFAParameters(jnp.ones((3, 1)), jnp.zeros(3), jnp.ones(3), jnp.zeros(1))
        >>> post = posterior(params, jnp.ones((1, 2, 3)), jnp.ones((1, 2), bool))
        >>> [round(mean, 2) for mean in post.means[0, :, 0].tolist()]
        [0.83, 0.83]
    """
    total, kernels, read, root, z = _whiten(params, ys, seen)
    size = root.shape[0]
    gain = solve_lower(root, read.reshape(size, size)).reshape(read.shape)
    return TrialPosterior(jnp.einsum("isa,satl->itl", z, gain), gain, kernels, total)


def covariances(post: TrialPosterior, seen: Bool[Array, " T"]) -> Float[Array, "T L L"]:
    """Return the posterior covariance of the latent state in every bin of one trial.

    Args:
        post: Result of `posterior`.
        seen: True where the trial has a bin.

    Example:
        >>> params = GPFAParameters(jnp.ones((3, 1)), jnp.zeros(3), jnp.ones(3), jnp.zeros(1))
        >>> post = posterior(params, jnp.ones((1, 2, 3)), jnp.ones((1, 2), bool))
        >>> covariances(post, jnp.ones(2, bool)).shape
        (2, 1, 1)
    """
    rows = jnp.where(seen[:, None, None, None], post.gain, 0)
    identity = jnp.eye(rows.shape[-1], dtype=rows.dtype)
    return identity - jnp.einsum("satl,satk->tlk", rows, post.gain)


@partial(jax.jit, static_argnames="groups")
def em_step(
    params: GPFAParameters,
    ys: Float[Array, "I T N"],
    seen: Bool[Array, "I T"],
    floor: Float[Array, " N"],
    groups: tuple[TrialGroup, ...],
) -> tuple[GPFAParameters, Scalar]:
    """Return the parameters after one iteration of EM, and the log-likelihood before the iteration.

    Args:
        params: Parameters before the iteration.
        ys: Padded observations; trials in ascending order of length.
        seen: True where a trial has a bin.
        floor: Smallest private (noise) variance of every unit.
        groups: Result of `group_lengths`.
    """
    post = posterior(params, ys, seen)
    C, d, R = _regress(post, ys, seen, floor)
    log_tau = _timescales(params.log_tau, post, seen, groups)
    return GPFAParameters(C, d, R, log_tau), post.log_lik


def _kernel(log_tau: Scalar, bins: int) -> Float[Array, "T T"]:
    lag = jnp.arange(bins, dtype=log_tau.dtype)
    lag = lag[:, None] - lag
    smooth = jnp.exp(-0.5 * (lag * jnp.exp(-log_tau)) ** 2)
    return (1 - NUGGET) * smooth + NUGGET * jnp.eye(bins, dtype=log_tau.dtype)


def _whiten(
    params: GPFAParameters, ys: Float[Array, "I T N"], seen: Bool[Array, "I T"]
) -> tuple[Scalar, Array, Array, Array, Array]:
    r"""Return the log-likelihood in nats, and $K$, $FK$, $\Lambda$, $z$ of the module docstring."""
    C, d, R, log_tau = params
    trials, bins, neurons = ys.shape
    size = bins * len(log_tau)
    scale = jnp.sqrt(R)
    basis, factor = jnp.linalg.qr(C / scale[:, None])
    rest = jnp.where(seen[..., None], (ys - d) / scale, 0)
    projected = rest @ basis
    kernels = jax.vmap(_kernel, in_axes=(0, None))(log_tau, bins)
    read = jnp.einsum("al,lst->satl", factor, kernels)
    cov = jnp.einsum("satl,bl->satb", read, factor).reshape(size, size)
    root = cholesky(cov + jnp.eye(size, dtype=cov.dtype))
    z = solve_lower(root, projected.reshape(trials, size).T).T.reshape(projected.shape)
    z = jnp.where(seen[..., None], z, 0)
    log_det = 2 * jnp.log(jnp.diagonal(root)).reshape(bins, -1).sum(axis=1)
    each = neurons * jnp.log(2 * jnp.pi) + jnp.sum(jnp.log(R)) + log_det
    square = jnp.sum(rest**2) - jnp.sum(projected**2) + jnp.sum(z**2)
    return -0.5 * (jnp.sum(seen @ each) + square), kernels, read, root, z


def _regress(
    post: TrialPosterior,
    ys: Float[Array, "I T N"],
    seen: Bool[Array, "I T"],
    floor: Float[Array, " N"],
) -> tuple[Array, Array, Array]:
    """Return loadings, offsets and private variances that the M step finds by regression."""
    latents = post.means.shape[-1]
    marks = seen.astype(ys.dtype)
    num = jnp.sum(marks)
    together = marks.T @ marks
    rows = (post.gain * together[:, None, :, None]).reshape(-1, latents)
    spread = num * jnp.eye(latents, dtype=ys.dtype) - rows.T @ post.gain.reshape(-1, latents)
    states = jnp.concatenate([post.means, jnp.ones_like(post.means[..., :1])], axis=-1)
    states = (states * marks[..., None]).reshape(-1, latents + 1)
    values = (ys * marks[..., None]).reshape(-1, len(floor))
    moments = (states.T @ states).at[:latents, :latents].add(spread)
    weights = jnp.linalg.solve(moments, states.T @ values).T
    C, d = weights[:, :-1], weights[:, -1]
    off = values - states @ weights.T
    R = (jnp.sum(off**2, axis=0) + jnp.sum((C @ spread) * C, axis=1)) / num
    return C, d, jnp.maximum(R, floor)


def _timescales(
    log_tau: Float[Array, " L"],
    post: TrialPosterior,
    seen: Bool[Array, "I T"],
    groups: tuple[TrialGroup, ...],
) -> Float[Array, " L"]:
    """Return log timescales after Fisher scoring steps of the M step.

    Each step increases the expected log density of a latent, or leaves its timescale unchanged.
    """
    bins, latents = seen.shape[1], len(log_tau)
    rows = jnp.moveaxis(post.gain, 3, 0).reshape(latents, -1, bins)
    moments = []
    for first, last, high in groups:
        means = post.means[first:last, :high]
        weight = jnp.repeat(jnp.sum(seen[first:last], axis=0), latents)
        cut = rows[:, :, :high]
        moments.append(
            (last - first) * post.kernels[:, :high, :high]
            + jnp.einsum("itl,isl->lts", means, means)
            - jnp.einsum("lrt,lrs->lts", cut * weight[:, None], cut)
        )

    def density(u: Scalar, moments: list[Array]) -> tuple[Scalar, Scalar, Scalar]:
        """Return the expected log prior density of one latent, its derivative and its information.

        The density is that of the latent's time course in all trials, without constants. The
        derivative and the Fisher information are with respect to the log timescale u.

        Args:
            u: Logarithm of the timescale in bins.
            moments: For each group of trials, the sum of the posterior second moments over time.
        """
        kernel, change = jax.jvp(partial(_kernel, bins=bins), (u,), (jnp.ones_like(u),))
        root = cholesky(kernel)
        inverse, log_diag = inverse_lower(root), jnp.log(jnp.diagonal(root))
        turned = inverse @ change @ inverse.T
        value = slope = fisher = jnp.zeros_like(u)
        for (first, last, high), moment in zip(groups, moments, strict=True):
            corner, part = inverse[:high, :high], turned[:high, :high]
            white = corner @ moment @ corner.T
            num = last - first
            value -= num * jnp.sum(log_diag[:high]) + 0.5 * jnp.trace(white)
            slope += 0.5 * (jnp.sum(part * white) - num * jnp.trace(part))
            fisher += 0.5 * num * jnp.sum(part**2)
        return value, slope, fisher

    def climb(u: Scalar, moments: list[Array]) -> Scalar:
        def step(_: int, u: Scalar) -> Scalar:
            value, slope, fisher = density(u, moments)
            move = jnp.clip(slope / jnp.maximum(fisher, 1e-9), -1, 1)
            tries = u + jnp.asarray(FRACTIONS, u.dtype) * move
            tries = jnp.clip(tries, jnp.log(NARROW), jnp.log(WIDE))
            values = jax.vmap(density, in_axes=(0, None))(tries, moments)[0]
            best = jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
            return jnp.where(values[best] > value, tries[best], u)

        return lax.fori_loop(0, STEPS, step, u)

    return jax.vmap(climb)(log_tau, moments)
