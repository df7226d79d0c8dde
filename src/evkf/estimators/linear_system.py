r"""`LinearDynamicalSystem`, a baseline with linear dynamics: inference and EM.

$$x_1 \sim N(m, P), \quad x_{t+1} = Ax_t + N(0, Q), \quad y_t = Cx_t + d + N(0, R),$$

with latent states $x_t$, observations $y_t$, transition matrix $A$, loadings $C$, offsets $d$, mean
$m$ and covariance $P$ of the first state, and noise covariances $Q$ and $R$, where $R$ is diagonal.
The information of a bin about its latent state is $C^\top R^{-1}(y_t - d)$, so the size of all
matrices in the recursions is the number of latents, not of units. Trials are padded to one length,
with a mask of the bins that each trial has. Covariances given earlier bins are the same in all
trials. Covariances given all bins of a trial depend on the number of bins to the end of the trial.
"""

from functools import partial
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags

from evkf.errors import InputError
from evkf.estimators.factor_analysis import (
    FLOOR,
    UnfittedError,
    analyse_factors,
    pad_trials,
    read_sequences,
)
from evkf.numerics.checks import check_whole
from evkf.types import Scalar

DECAY = 0.9
"""Diagonal of the transition matrix before learning."""

Given = Literal["past", "now", "all"]
"""Bins from which the latent state of a bin is inferred: "past" for earlier bins of the trial,
"now" for earlier bins and the bin itself, "all" for all bins of the trial."""


class LDSParameters(NamedTuple):
    """Learned parameters of a linear dynamical system.

    Attributes:
        A: Transition matrix, (L, L).
        Q: Covariance of the noise of the dynamics, (L, L).
        C: Loadings of the latent state, (N, L).
        d: Offsets, (N,).
        R: Private (noise) variances of the units, (N,).
        m: Mean of the first latent state of a trial, (L,).
        P: Covariance of the first latent state of a trial, (L, L).
    """

    A: Float[Array, "L L"]
    Q: Float[Array, "L L"]
    C: Float[Array, "N L"]
    d: Float[Array, " N"]
    R: Float[Array, " N"]
    m: Float[Array, " L"]
    P: Float[Array, "L L"]


class LinearDynamicalSystem(TransformerMixin, BaseEstimator):
    """A linear dynamical system with Gaussian noise, for transformed counts, learned by EM.

    Observations are (bins, units), or a list of such trials of any lengths. Missing observations
    (NaN) are not supported. EM starts from factor analysis. Computation is always in float64.

    Args:
        latents: Number of latent dimensions.
        transformation: Transform of the counts, whose result is modelled as Gaussian: "sqrt", or
            "log" for the log of 1 + counts.
        iterations: Number of EM iterations.

    Attributes:
        params_: Learned parameters, `LDSParameters`.
        log_likelihoods_: Log-likelihood of the transformed counts in nats per bin, before the first
            iteration and after each iteration.
        n_features_in_: Number of units.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> wave = np.exp(np.sin(np.arange(60)[:, None] / 6 + np.arange(8)))
        >>> trials = [rng.poisson(wave[:bins]) for bins in (60, 40, 50)]
        >>> lds = LinearDynamicalSystem(2, iterations=5).fit(trials)
        >>> lds.transform(trials)[1].shape, lds.rates(trials, given="past")[2].shape
        ((40, 2), (50, 8))
        >>> bool(np.all(np.diff(lds.log_likelihoods_) > 0))
        True
    """

    def __init__(
        self,
        latents: int = 12,
        transformation: Literal["sqrt", "log"] = "sqrt",
        iterations: int = 50,
    ):
        self.latents, self.transformation, self.iterations = latents, transformation, iterations

    def fit(self, X: Any, y: None = None) -> Self:
        """Learn all parameters by EM, and return the estimator itself.

        Args:
            X: Observations, (bins, units), or a list of trials.
            y: Not used.
        """
        trials, _ = self._read(X)
        check_whole(self.iterations, 1, "iterations")
        if max(len(trial) for trial in trials) < 2:
            what = "trials of one bin (1 sample)"
            raise InputError(what, "X", "pass trials of two bins or more")
        ys = np.concatenate(trials)
        C, d, R = analyse_factors(ys, self.latents)
        eye, zero = np.eye(self.latents), np.zeros(self.latents)
        start = DECAY * eye, (1 - DECAY**2) * eye, C, d, R, zero, eye
        with jax.enable_x64(True):
            params = LDSParameters(*map(jnp.asarray, start))
            data, seen = _pad(trials)
            floor = jnp.asarray(FLOOR * ys.var(axis=0))
            log_likelihoods = []
            for _ in range(self.iterations):
                params, total = em_step(params, data, seen, floor)
                log_likelihoods.append(float(total))
            log_likelihoods.append(float(log_lik(params, data, seen)))
        self.params_: LDSParameters = jax.tree.map(np.asarray, params)
        self.log_likelihoods_ = np.array(log_likelihoods) / len(ys)
        self.n_features_in_ = ys.shape[1]
        return self

    def transform(self, X: Any, given: Given = "now") -> Any:
        """Return means of the latent states, (bins, latents).

        Args:
            X: Observations, (bins, units), or a list of trials, for which a list is returned.
            given: Bins from which a state is inferred: "now" for earlier bins and the bin itself
                (filter), "past" for earlier bins (prediction), "all" for all bins of the trial
                (smoother).
        """
        means, _, many = self._infer(X, given)
        return means if many else means[0]

    def rates(self, X: Any, given: Given = "now") -> Any:
        """Return expected counts per bin, (bins, units).

        The expectation is over the uncertain latent state and the noise of the transformed counts.

        Args:
            X: Observations, (bins, units), or a list of trials, for which a list is returned.
            given: Bins from which a state is inferred; see `transform`.
        """
        means, covs, many = self._infer(X, given)
        C, d, R = (np.asarray(leaf) for leaf in self.params_[2:5])
        rates = []
        for trial_means, trial_covs in zip(means, covs, strict=True):
            mean = trial_means @ C.T + d
            spread = np.einsum("nl,tnl->tn", C, C @ trial_covs) + R
            if self.transformation == "sqrt":
                rates.append(mean**2 + spread)
            else:
                rates.append(np.maximum(np.expm1(mean + spread / 2), 0))
        return rates if many else rates[0]

    def score(self, X: Any, y: None = None) -> float:
        """Return the log-likelihood of the transformed counts, in nats per bin.

        It is that of a density and cannot be compared with a log-probability of counts.
        """
        trials, _ = self._read(X, fitted=True)
        with jax.enable_x64(True):
            total = float(log_lik(self.params_, *_pad(trials)))
        return total / sum(len(trial) for trial in trials)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def _infer(self, X: Any, given: Given) -> tuple[list[np.ndarray], list[np.ndarray], bool]:
        """Return means and covariances of the states of every trial, and True if X was a list."""
        if given not in ("past", "now", "all"):
            raise InputError(f"given = {given!r}", "given", "choose among past, now and all")
        trials, many = self._read(X, fitted=True)
        with jax.enable_x64(True):
            states = infer(self.params_, *_pad(trials), given=given)
        means, covs = (
            [np.array(x[: len(trial), i]) for i, trial in enumerate(trials)]
            for x in jax.device_get(states)
        )
        return means, covs, many

    def _read(self, X: Any, fitted: bool = False) -> tuple[list[np.ndarray], bool]:
        """Check settings and observations; return transformed trials, and True if X was a list.

        With `fitted`, raise an error unless the estimator was fitted to the same number of units.
        """
        if fitted and not hasattr(self, "params_"):
            raise UnfittedError("not fitted yet", "LinearDynamicalSystem", "call fit first")
        if self.transformation not in ("sqrt", "log"):
            what = f"transformation = {self.transformation!r}"
            raise InputError(what, "transformation", "choose sqrt or log")
        return read_sequences(X, self.transformation, self if fitted else None)


class TrialStates(NamedTuple):
    """Means and covariances of the latent states of all trials.

    The first axis is time. Values beyond the end of a trial have no meaning.
    """

    means: Float[Array, "T I L"]
    covs: Float[Array, "T I L L"]


class ForwardPass(NamedTuple):
    """Latent states from the Kalman filter, and the log-likelihood. The first axis is time."""

    ahead: Float[Array, "T I L"]
    """Means given earlier bins."""
    ahead_covs: Float[Array, "T L L"]
    """Covariances given earlier bins, the same in all trials."""
    means: Float[Array, "T I L"]
    """Means given earlier bins and the bin itself."""
    covs: Float[Array, "T L L"]
    """Covariances given earlier bins and the bin itself, the same in all trials."""
    log_lik: Scalar
    """Marginal log-likelihood of all trials together, in nats."""


def forward(
    params: LDSParameters, ys: Float[Array, "T I N"], seen: Bool[Array, "T I"]
) -> ForwardPass:
    """Filter all trials by the Kalman filter, and return states and log-likelihood.

    Args:
        params: Parameters of the system.
        ys: Transformed counts, padded.
        seen: True where a trial has a bin.
    """
    A, Q, C, d, R, m, P = params
    info = (C.T / R) @ C
    rest = ys - d
    evidence = rest @ (C / R[:, None])
    eye = jnp.eye(len(A))

    def step(carry, evidence):
        mean, cov = carry
        gain = eye + cov @ info
        post = _symmetric(jnp.linalg.solve(gain, cov))
        innovation = evidence - mean @ info
        updated = mean + innovation @ post
        # Minus twice the log-likelihood of the bin, without terms that depend only on y and R,
        # which are added below for all bins.
        fit = jnp.sum(mean * (mean @ info - 2 * evidence), axis=-1)
        fit = fit - jnp.sum(innovation * (innovation @ post), axis=-1)
        fit = fit + jnp.linalg.slogdet(gain)[1]
        return (updated @ A.T, _symmetric(A @ post @ A.T + Q)), (mean, cov, updated, post, fit)

    start = jnp.broadcast_to(m, (ys.shape[1], len(m))), P
    _, (ahead, ahead_covs, means, covs, fit) = lax.scan(step, start, evidence)
    fit = fit + jnp.sum(rest**2 / R + jnp.log(2 * jnp.pi * R), axis=-1)
    return ForwardPass(ahead, ahead_covs, means, covs, -0.5 * jnp.sum(jnp.where(seen, fit, 0)))


def backward(
    params: LDSParameters, result: ForwardPass, seen: Bool[Array, "T I"]
) -> tuple[TrialStates, Float[Array, "T I L L"]]:
    """Smooth all trials by the smoother of Rauch, Tung and Striebel.

    Args:
        params: Parameters of the system.
        result: Result of `forward`.
        seen: True where a trial has a bin.

    Returns:
        The smoothed states; and for every bin, the covariance of the state of the next bin (rows)
        with the state of the bin (columns).
    """
    follows = jnp.concatenate([seen[1:], jnp.zeros_like(seen[:1])])

    def step(carry, at):
        mean, cov = carry
        here, here_cov, next_mean, next_cov, continues = at
        gain = jnp.linalg.solve(next_cov, params.A @ here_cov).T
        cross = cov @ gain.T
        smooth = here + (mean - next_mean) @ gain.T
        smooth_cov = _symmetric(here_cov + gain @ (cov - next_cov) @ gain.T)
        mean = jnp.where(continues[:, None], smooth, here)
        cov = jnp.where(continues[:, None, None], smooth_cov, here_cov)
        return (mean, cov), (mean, cov, cross)

    def shift(values):
        return jnp.concatenate([values[1:], values[-1:]])

    last = (
        result.means[-1],
        jnp.broadcast_to(result.covs[-1], (*result.means.shape[1:], result.means.shape[-1])),
    )
    steps = result.means, result.covs, shift(result.ahead), shift(result.ahead_covs), follows
    _, (means, covs, cross) = lax.scan(step, last, steps, reverse=True)
    return TrialStates(means, covs), cross


@jax.jit
def em_step(
    params: LDSParameters,
    ys: Float[Array, "T I N"],
    seen: Bool[Array, "T I"],
    floor: Float[Array, " N"],
) -> tuple[LDSParameters, Scalar]:
    """Return the parameters after one iteration of EM, and the log-likelihood before the iteration.

    Args:
        params: Parameters before the iteration.
        ys: Transformed counts, padded.
        seen: True where a trial has a bin.
        floor: Smallest private (noise) variance of every unit.
    """
    result = forward(params, ys, seen)
    states, cross = backward(params, result, seen)
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
    Q = _symmetric(square_after - A @ lagged.T) / follows.sum()

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
    new = LDSParameters(A, Q, loads[:-1].T, loads[-1], jnp.maximum(R, floor), m, _symmetric(P))
    return new, result.log_lik


@jax.jit
def log_lik(params: LDSParameters, ys: Float[Array, "T I N"], seen: Bool[Array, "T I"]) -> Scalar:
    """Return the marginal log-likelihood of all trials together, in nats."""
    return forward(params, ys, seen).log_lik


@partial(jax.jit, static_argnames="given")
def infer(
    params: LDSParameters,
    ys: Float[Array, "T I N"],
    seen: Bool[Array, "T I"],
    given: Given,
) -> TrialStates:
    """Return means and covariances of the latent states of all trials.

    Args:
        params: Parameters of the system.
        ys: Transformed counts, padded.
        seen: True where a trial has a bin.
        given: Bins from which a state is inferred: "past", "now" or "all", see `Given`.
    """
    result = forward(params, ys, seen)
    if given == "all":
        return backward(params, result, seen)[0]
    means, covs = (
        (result.ahead, result.ahead_covs) if given == "past" else (result.means, result.covs)
    )
    return TrialStates(means, jnp.broadcast_to(covs[:, None], (*means.shape, means.shape[-1])))


def _symmetric(matrix: Float[Array, "*b L L"]) -> Float[Array, "*b L L"]:
    return (matrix + jnp.swapaxes(matrix, -1, -2)) / 2


def _pad(trials: list[np.ndarray]) -> tuple[Float[Array, "T I N"], Bool[Array, "T I"]]:
    """Return trials padded to one length, (bins, trials, units), and a mask (bins, trials).

    The mask is True where a trial has a bin.
    """
    ys, seen = pad_trials(trials)
    return jnp.asarray(ys.swapaxes(0, 1)), jnp.asarray(seen.T)
