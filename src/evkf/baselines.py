"""What people use today: features and expected counts of bins, from counts of ragged trials.

Everything takes counts (bins, units) of trials laid end to end, with the bins of every trial, and
gives back one row a bin. Expected counts are of a bin, not per second. All but `TrialGPFA` and
`given="all"` are causal: a bin knows only itself and the bins of its trial before it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter1d
from scipy.signal import oaconvolve

from evkf.checks import check_whole
from evkf.decoding import lagged
from evkf.errors import InputError
from evkf.gpfa import FLOOR, GPFA, factor_analysis
from evkf.linear_gaussian import Given, Params, em_step, infer, log_lik
from evkf.ragged import bins_of, read_counts, slices

Lengths = Sequence[int] | np.ndarray

REACH = 5
"""Standard deviations after which a kernel ends."""

DECAY = 0.9
"""Diagonal of the transition to start from."""

_infer = jax.jit(infer, static_argnames="given")


def causal_smoothing(
    counts: ArrayLike, lengths: Lengths, sd_bins: float, rescaled: bool = False
) -> Float[np.ndarray, "T N"]:
    """Counts smoothed by the past half of a Gaussian kernel.

    Before a trial begins there are no spikes, so its first bins come out low, and tell a decoder
    when it began; see `lagged`.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        lengths: Bins of every trial.
        sd_bins: Standard deviation of the kernel, in bins.
        rescaled: Whether to divide by the part of the kernel that lies within the trial, which
            makes first bins expected counts like all others.

    Example:
        >>> causal_smoothing([[0], [1], [0], [0]], (2, 2), 1.0)[:, 0].round(2)
        array([0.  , 0.57, 0.  , 0.  ])
    """
    y = read_counts(counts)
    if not (np.isfinite(sd_bins) and sd_bins > 0):
        raise InputError(f"sd_bins = {sd_bins}", "sd_bins", "pass a number above zero")
    kernel = np.exp(-0.5 * (np.arange(int(REACH * sd_bins) + 1) / sd_bins) ** 2)[:, None]
    kernel /= kernel.sum()
    smooth = np.empty_like(y)
    for trial in slices(lengths, len(y)):
        num = trial.stop - trial.start
        # transforms leave traces of rounding, which would make silence a negative count
        smooth[trial] = np.maximum(oaconvolve(y[trial], kernel, axes=0)[:num], 0)
        if rescaled:
            part = np.cumsum(kernel[:num])
            smooth[trial] /= part[np.minimum(np.arange(num), len(part) - 1), None]
    return smooth


def wiener_features(counts: ArrayLike, lengths: Lengths, bins: int = 7) -> np.ndarray:
    """Counts of the last bins side by side: with `evkf.decoding.Ridge`, a Wiener filter.

    Example:
        >>> wiener_features([[1], [2], [3]], (3,), bins=2).tolist()
        [[1.0, 0.0], [2.0, 1.0], [3.0, 2.0]]
    """
    return lagged(read_counts(counts), bins, lengths)


def condition_psth(
    counts: ArrayLike,
    lengths: Lengths,
    conditions: Shaped[np.ndarray, " K"] | Sequence,
    test_lengths: Lengths,
    test_conditions: Shaped[np.ndarray, " I"] | Sequence,
    sd_bins: float = 0.0,
) -> Float[np.ndarray, "T N"]:
    """Expected counts of other trials: the average over trials of their condition.

    Trials are aligned at their first bins. A bin later than any of the condition gets what the
    last one had.

    Args:
        counts: Spikes of every bin and unit, (bins, units).
        lengths: Bins of every trial.
        conditions: Of every trial.
        test_lengths: Bins of the trials to predict.
        test_conditions: Their conditions.
        sd_bins: Of a Gaussian kernel that smooths trials first, in bins; none for zero.

    Example:
        >>> counts = [[1], [3], [3], [5], [0]]
        >>> condition_psth(counts, (2, 2, 1), ["up", "up", "down"], (3,), ["up"])[:, 0]
        array([2., 4., 4.])
    """
    y = read_counts(counts)
    trials, labels = slices(lengths, len(y)), np.asarray(conditions)
    wanted = np.asarray(test_conditions)
    given = {"conditions": (labels, trials), "test_conditions": (wanted, test_lengths)}
    for name, (found, own) in given.items():
        if found.shape != (len(own),):
            what = f"{name} of shape {found.shape}"
            raise InputError(what, name, f"pass one for every of {len(own)} trials")
    averages, longest = {}, max(test_lengths)
    for label in np.unique(labels):
        own = [y[trials[k]] for k in np.flatnonzero(labels == label)]
        if sd_bins > 0:
            own = [gaussian_filter1d(trial, sd_bins, axis=0) for trial in own]
        total = np.zeros((max(map(len, own)), y.shape[1]))
        num = np.zeros((len(total), 1))
        for trial in own:
            total[: len(trial)] += trial
            num[: len(trial)] += 1
        averages[label] = np.pad(total / num, ((0, max(longest - len(num), 0)), (0, 0)), "edge")
    unknown = sorted(set(wanted.tolist()) - {label.item() for label in averages})
    if unknown:
        what = f"conditions {unknown}"
        raise InputError(what, "test_conditions", "predict only conditions that have trials")
    pairs = zip(wanted, test_lengths, strict=True)
    return np.concatenate([averages[label][:num] for label, num in pairs])


class LinearDynamicalSystem:
    """A linear dynamical system with Gaussian noise on square roots or logarithms, learned by EM.

    Starts from factor analysis, and computes in float64 whatever JAX is set to.

    Args:
        latents: Latent dimensions.
        transform: What is taken to be Gaussian: square roots of counts, or log(1 + counts).
        iterations: Of EM.

    Attributes:
        params_: All that was learned, `evkf.linear_gaussian.Params`.
        log_likelihoods_: Nats per bin of the transformed counts, before the first iteration and
            after each.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> wave = np.exp(np.sin(np.arange(60)[:, None] / 6 + np.arange(8)))
        >>> counts, lengths = np.vstack([rng.poisson(wave) for _ in range(3)]), (60, 60, 60)
        >>> lds = LinearDynamicalSystem(2, iterations=5).fit(counts, lengths)
        >>> lds.states(counts, lengths).shape, lds.rates(counts, lengths, given="past").shape
        ((180, 2), (180, 8))
        >>> bool(np.all(np.diff(lds.log_likelihoods_) > 0))
        True
    """

    def __init__(
        self, latents: int = 12, transform: Literal["sqrt", "log"] = "sqrt", iterations: int = 50
    ):
        self.latents, self.transform, self.iterations = latents, transform, iterations

    def fit(self, counts: ArrayLike, lengths: Lengths) -> Self:
        """Learn from the start."""
        y = self._read(counts)
        check_whole(self.latents, 1, "latents")
        check_whole(self.iterations, 1, "iterations")
        slices(lengths, len(y))
        if max(lengths) < 2:
            raise InputError("trials of one bin", "lengths", "pass trials of two bins or more")
        if self.latents > y.shape[1]:
            what = f"{self.latents} latents of {y.shape[1]} units"
            raise InputError(what, "latents", "pass no more than there are units")
        still = np.flatnonzero(np.ptp(y, axis=0) == 0)
        if still.size:
            what = f"units {still.tolist()} never change"
            raise InputError(what, "counts", "leave them out; they have no variance to explain")
        C, R = factor_analysis(y - y.mean(axis=0), self.latents)
        eye, zero = np.eye(self.latents), np.zeros(self.latents)
        start = DECAY * eye, (1 - DECAY**2) * eye, C, y.mean(axis=0), R, zero, eye
        with jax.enable_x64(True):
            params = Params(*map(jnp.asarray, start))
            ys, seen = _pad(y, lengths)
            advance = partial(em_step, ys=ys, seen=seen, floor=jnp.asarray(FLOOR * y.var(axis=0)))
            found = []
            for _ in range(self.iterations):
                params, total = advance(params)
                found.append(float(total))
            found.append(float(log_lik(params, ys, seen)))
        self.params_: Params = jax.tree.map(np.asarray, params)
        self.log_likelihoods_ = np.array(found) / len(y)
        return self

    def states(
        self, counts: ArrayLike, lengths: Lengths, given: Given = "now"
    ) -> Float[np.ndarray, "T L"]:
        """Means of the states.

        Args:
            counts: Spikes of every bin and unit, (bins, units).
            lengths: Bins of every trial.
            given: "now" filters, "past" predicts one bin ahead, "all" smooths.
        """
        return self._states(counts, lengths, given)[0]

    def rates(
        self, counts: ArrayLike, lengths: Lengths, given: Given = "now"
    ) -> Float[np.ndarray, "T N"]:
        """Expected counts, with the uncertainty of states and the private variance."""
        means, covs = self._states(counts, lengths, given)
        C, d, R = (np.asarray(leaf) for leaf in self.params_[2:5])
        mean = means @ C.T + d
        spread = np.einsum("nl,tnl->tn", C, C @ covs) + R
        if self.transform == "sqrt":
            return mean**2 + spread
        return np.maximum(np.expm1(mean + spread / 2), 0)

    def score(self, counts: ArrayLike, lengths: Lengths) -> float:
        """Log-likelihood of the transformed counts in nats per bin; a density."""
        y = self._check(counts)
        with jax.enable_x64(True):
            return float(log_lik(self.params_, *_pad(y, lengths))) / len(y)

    def _states(self, counts: ArrayLike, lengths: Lengths, given: Given) -> list[np.ndarray]:
        if given not in ("past", "now", "all"):
            raise InputError(f"given = {given!r}", "given", "choose among past, now and all")
        with jax.enable_x64(True):
            ys, seen = _pad(self._check(counts), lengths)
            found = _infer(self.params_, ys, seen, given=given)
        mine = np.asarray(seen).T
        return [np.asarray(leaf).swapaxes(0, 1)[mine] for leaf in found]

    def _read(self, counts: ArrayLike) -> np.ndarray:
        if self.transform not in ("sqrt", "log"):
            raise InputError(f"transform = {self.transform!r}", "transform", "choose sqrt or log")
        y = read_counts(counts)
        return np.sqrt(y) if self.transform == "sqrt" else np.log1p(y)

    def _check(self, counts: ArrayLike) -> np.ndarray:
        if not hasattr(self, "params_"):
            raise InputError("not fitted yet", "LinearDynamicalSystem", "call fit first")
        y = self._read(counts)
        if y.shape[1] != len(self.params_.d):
            what = f"{y.shape[1]} units"
            raise InputError(what, "counts", f"pass the {len(self.params_.d)} of fit")
        return y


class TrialGPFA:
    """`GPFA` in the manner of this module; not causal.

    Args:
        latents: Latent dimensions.
        bin_width: In seconds.
        max_iterations: Of EM, at most.

    Attributes:
        gpfa_: The `GPFA` behind it.

    Example:
        >>> counts = np.random.default_rng(0).poisson(2.0, (40, 6))
        >>> gpfa = TrialGPFA(2, max_iterations=3).fit(counts, (20, 20))
        >>> gpfa.states(counts, (20, 20)).shape, gpfa.rates(counts, (20, 20)).shape
        ((40, 2), (40, 6))
    """

    def __init__(self, latents: int = 12, bin_width: float = 0.02, max_iterations: int = 100):
        self.latents, self.bin_width, self.max_iterations = latents, bin_width, max_iterations

    def fit(self, counts: ArrayLike, lengths: Lengths) -> Self:
        """Learn from the start."""
        gpfa = GPFA(self.latents, self.bin_width, max_iterations=self.max_iterations)
        self.gpfa_ = gpfa.fit(_cut(counts, lengths))
        return self

    def states(self, counts: ArrayLike, lengths: Lengths) -> Float[np.ndarray, "T L"]:
        """Means of the orthonormalised latents, given all of their trial."""
        return np.concatenate(self.gpfa_.transform(_cut(counts, lengths)))

    def rates(self, counts: ArrayLike, lengths: Lengths) -> Float[np.ndarray, "T N"]:
        """Expected counts, given all of their trial."""
        return np.concatenate(self.gpfa_.rates(_cut(counts, lengths)))


def _cut(counts: ArrayLike, lengths: Lengths) -> list[np.ndarray]:
    y = read_counts(counts)
    return [y[trial] for trial in slices(lengths, len(y))]


def _pad(y: np.ndarray, lengths: Lengths) -> tuple[jax.Array, jax.Array]:
    """Trials side by side, filled up to one length, time first; and which bins they have."""
    trials = slices(lengths, len(y))
    seen = np.arange(max(lengths))[:, None] < np.asarray(lengths)
    ys = np.zeros((*seen.shape, y.shape[1]))
    ys[bins_of(lengths), np.repeat(np.arange(len(trials)), lengths)] = y
    return jnp.asarray(ys), jnp.asarray(seen)
