"""`GPFA`, Gaussian process factor analysis for people with arrays: NumPy in, NumPy out, offline.

The method of Yu et al. (2009), by the functions of `evkf.estimators.gaussian_process`:
trials may have any lengths, and none is cut or approximated. It starts from factor analysis, and
computes in float64 whatever JAX is set to, because EM ends in gains that float32 does not see.
"""

from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.estimators.gaussian_process import (
    Params,
    covariances,
    em_step,
    group_lengths,
    log_lik,
    posterior,
)
from evkf.estimators.params import WithParams
from evkf.numerics.checks import check_whole, read_positive, real_numbers

FLOOR = 0.01
"""Least private variance of a neuron, as a share of its variance."""

SPREAD = 0.1
"""Of the logarithms of the timescales to start from. Latents with the very same one could be turned
into one another, and would have no way to part."""

ROUNDS, FAINT = 50, 0.01
"""Of the factor analysis: iterations, and the least variance of a factor over that of its noise."""

GRAIN = 8
"""New trials are filled up to a multiple of so many bins: a new length seldom compiles anew."""


class GPFA(WithParams):
    """Smooth latent trajectories by Gaussian process factor analysis, learned by EM.

    Observations are (bins, neurons), or a list of such trials of any lengths; none is cut. It is a
    smoother: every bin is judged by all of its trial. There are no missing observations here.

    Args:
        latents: Latent dimensions.
        bin_width: Width of a bin.
        tau: Timescale to start from, in the unit of `bin_width`; five bins when left out.
        square_root: Whether to take square roots of the counts, which evens out their variance.
        max_iterations: Iterations of EM at most.
        tolerance: The gain of an iteration at which to stop, in nats per bin.
        seed: Of the timescales to start from, which are drawn near `tau`.

    Attributes:
        C_: Loadings of the latents that have a timescale each, (neurons, latents).
        d_: Offsets, (neurons,).
        R_: Private variances, (neurons,).
        tau_: Timescales, in the unit of `bin_width`.
        loadings_: Orthonormal loadings of the latents that `transform` gives.
        log_likelihoods_: Nats per bin, before the first iteration and after each.
        n_features_in_: Neurons.

    Example:
        >>> import numpy as np
        >>> wave = np.sin(np.arange(60)[:, None] / 6 + np.arange(10))
        >>> rng = np.random.default_rng(0)
        >>> trials = [rng.poisson(np.exp(1 + wave[:num])) for num in (40, 60, 45)]
        >>> gpfa = GPFA(latents=2, max_iterations=10).fit(trials)
        >>> [states.shape for states in gpfa.transform(trials)]
        [(40, 2), (60, 2), (45, 2)]
        >>> bool(gpfa.log_likelihoods_[-1] > gpfa.log_likelihoods_[0])
        True
    """

    def __init__(
        self,
        latents: int = 3,
        bin_width: float = 1.0,
        tau: ArrayLike | None = None,
        square_root: bool = True,
        max_iterations: int = 200,
        tolerance: float = 1e-5,
        seed: int = 0,
    ):
        self.latents, self.bin_width, self.tau = latents, bin_width, tau
        self.square_root, self.max_iterations = square_root, max_iterations
        self.tolerance, self.seed = tolerance, seed

    def fit(self, X: Any, y: None = None) -> Self:
        """Learn loadings, offsets, private variances and timescales, from the start.

        Args:
            X: Observations, (bins, neurons), or a list of trials.
            y: Not used.
        """
        trials, _ = _read(X, self.square_root)
        trials.sort(key=len)
        ys = np.concatenate(trials)
        with jax.enable_x64(True):
            params = self._start(ys)
            data, seen = _pad(trials)
            advance = partial(
                em_step,
                ys=data,
                seen=seen,
                floor=FLOOR * ys.var(axis=0),
                groups=group_lengths([len(trial) for trial in trials]),
            )
            following, total = advance(params)
            found = [float(total) / len(ys)]
            for _ in range(self.max_iterations):
                params = following
                following, total = advance(params)
                found.append(float(total) / len(ys))
                if found[-1] - found[-2] < self.tolerance:
                    break
        self.C_, self.d_, self.R_ = (np.array(leaf) for leaf in params[:3])
        self.tau_ = np.exp(params.log_tau) * self.bin_width
        self.log_likelihoods_ = np.asarray(found)
        self.loadings_, self._turn = _orthonormal(self.C_)
        self.n_features_in_ = len(self.d_)
        self._fitted = params, self.square_root
        return self

    def fit_transform(self, X: Any, y: None = None) -> Any:
        """Learn from observations, and return the states found in them, as `transform` does."""
        return self.fit(X).transform(X)

    def transform(self, X: Any, return_cov: bool = False) -> Any:
        """Means (bins, latents) of the orthonormalised latents, given all of their trial.

        They are read by `loadings_`, and come in the order of what they explain.

        Args:
            X: Observations, (bins, neurons), or a list of trials, which gives a list.
            return_cov: Whether to return covariances (bins, latents, latents) too.
        """
        means, covs, many = self._infer(X, return_cov)
        means = [mean @ self._turn.T for mean in means]
        covs = [self._turn @ cov @ self._turn.T for cov in covs]
        if return_cov:
            return (means, covs) if many else (means[0], covs[0])
        return means if many else means[0]

    def rates(self, X: Any) -> Any:
        r"""Expected observations (bins, neurons) at the states found; for counts, of a bin.

        Square roots are squared in expectation, $E[y^2] = E[y]^2 + \text{Var}(y)$, with the
        uncertainty of the state and the private variance. Raw counts are linear in the state, and
        so can come out negative.
        """
        _, square_root = self._known
        means, covs, many = self._infer(X, square_root)
        rates = [mean @ self.C_.T + self.d_ for mean in means]
        if square_root:
            spreads = [np.einsum("nl,tnl->tn", self.C_, self.C_ @ cov) for cov in covs]
            pairs = zip(rates, spreads, strict=True)
            rates = [rate**2 + spread + self.R_ for rate, spread in pairs]
        return rates if many else rates[0]

    def score(self, X: Any, y: None = None) -> float:
        """Marginal log-likelihood in nats per bin, more is better.

        It is a density: of square roots if they are taken, and so not to be compared with that of
        raw counts, nor with the probability of counts.
        """
        params, square_root = self._known
        trials, _ = _read(X, square_root, self.n_features_in_)
        with jax.enable_x64(True):
            total = _log_lik(params, *_pad(trials, GRAIN))
        return float(total) / sum(len(trial) for trial in trials)

    def __repr__(self) -> str:
        given = super().__repr__()
        if not hasattr(self, "_fitted"):
            return given
        timescales = np.array2string(self.tau_, precision=3)
        return f"{given}, fitted to {self.n_features_in_} neurons: timescales {timescales}"

    def _start(self, ys: np.ndarray) -> Params:
        neurons = ys.shape[1]
        check_whole(self.latents, 1, "latents")
        check_whole(self.max_iterations, 1, "max_iterations")
        if not self.tolerance >= 0:
            what = f"tolerance = {self.tolerance}"
            raise InputError(what, "tolerance", "pass a gain in nats per bin, zero or more")
        if self.latents > neurons:
            what = f"{self.latents} latents of {neurons} neurons"
            raise InputError(what, "latents", "pass no more than there are neurons")
        still = np.flatnonzero(np.ptp(ys, axis=0) == 0)
        if still.size:
            what = f"neurons {still.tolist()} never change"
            raise InputError(what, "X", "leave them out; they have no variance to explain")
        width = read_positive(self.bin_width, (), "bin_width")
        tau = 5 * width if self.tau is None else self.tau
        log_tau = jnp.log(read_positive(tau, (self.latents,), "tau") / width)
        draws = np.random.default_rng(self.seed).normal(size=self.latents)
        mean = ys.mean(axis=0)
        C, R = factor_analysis(ys - mean, self.latents)
        start = Params(C, mean, R, log_tau + SPREAD * draws)  # pyright: ignore[reportArgumentType]
        return jax.tree.map(jnp.asarray, start)

    @property
    def _known(self) -> tuple[Params, bool]:
        if not hasattr(self, "_fitted"):
            raise InputError("not fitted yet", "GPFA", "call fit first")
        return self._fitted

    def _infer(self, X: Any, spread: bool) -> tuple[list[np.ndarray], list[np.ndarray], bool]:
        """Means and, if they are asked for, covariances; and whether there was a list of trials."""
        params, square_root = self._known
        trials, many = _read(X, square_root, self.n_features_in_)
        with jax.enable_x64(True):
            means, covs = _states(params, *_pad(trials, GRAIN), spread)
        return _cut(means, trials), [] if covs is None else _cut(covs, trials), many


def _read(X: Any, square_root: bool, neurons: int | None = None) -> tuple[list[np.ndarray], bool]:
    """Trials as they are modelled, and whether there was a list of them."""
    many = isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) > 1
    trials = []
    for index, trial in enumerate(X if many else [X]):
        where = f"X[{index}]" if many else "X"
        array = real_numbers(trial, where).astype(float)
        neurons = array.shape[-1] if neurons is None and array.ndim == 2 else neurons
        if array.ndim != 2 or array.shape[1] != neurons or len(array) == 0:
            wanted = "neurons" if neurons is None else neurons
            remedy = f"pass (bins, {wanted}) with one bin or more, or a list of such trials"
            raise InputError(f"observations of shape {array.shape}", where, remedy)
        if not np.all(np.isfinite(array)):
            t, n = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
            remedy = "GPFA has no missing observations: leave out the neuron or the bins"
            raise InputError(f"observation {array[t, n]}", f"{where}[{t}, {n}]", remedy)
        if square_root and np.any(array < 0):
            t, n = (int(i) for i in np.argwhere(array < 0)[0])
            remedy = "pass counts, or square_root=False"
            raise InputError(f"square root of {array[t, n]}", f"{where}[{t}, {n}]", remedy)
        trials.append(np.sqrt(array) if square_root else array)
    return trials, many


def _pad(trials: list[np.ndarray], grain: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Trials side by side, and which bins they have; with a grain, in a size that others share."""
    bins = -(-max(len(trial) for trial in trials) // grain) * grain
    rows = len(trials) if grain == 1 else 1 << (len(trials) - 1).bit_length()
    ys, seen = np.zeros((rows, bins, trials[0].shape[1])), np.zeros((rows, bins), bool)
    for i, trial in enumerate(trials):
        ys[i, : len(trial)], seen[i, : len(trial)] = trial, True
    return ys, seen


def _cut(array: Array, trials: list[np.ndarray]) -> list[np.ndarray]:
    """What is said of the bins that trials have."""
    every = np.asarray(array)
    return [np.array(every[i, : len(trial)]) for i, trial in enumerate(trials)]


def factor_analysis(ys: np.ndarray, latents: int) -> tuple[np.ndarray, np.ndarray]:
    """Loadings and private variances of centred observations, as if bins had no order."""
    cov = ys.T @ ys / len(ys)
    variance = np.diagonal(cov)
    private = variance
    for _ in range(ROUNDS):
        scale = np.sqrt(private)
        values, vectors = np.linalg.eigh(cov / np.outer(scale, scale))
        strength = np.sqrt(np.maximum(values[::-1][:latents] - 1, FAINT))
        loadings = scale[:, None] * vectors[:, ::-1][:, :latents] * strength
        private = np.maximum(variance - np.sum(loadings**2, axis=1), FLOOR * variance)
    return loadings, private


def _orthonormal(C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal loadings, and the map from latents to those that they read.

    The strongest come first; the sign makes loadings sum up positive.
    """
    left, scale, right = np.linalg.svd(C, full_matrices=False)
    sign = np.where(left.sum(axis=0) < 0, -1.0, 1.0)
    return left * sign, (sign * scale)[:, None] * right


@partial(jax.jit, static_argnames="spread")
def _states(
    params: Params, ys: Float[Array, "I T N"], seen: Bool[Array, "I T"], spread: bool
) -> tuple[Float[Array, "I T L"], Float[Array, "I T L L"] | None]:
    found = posterior(params, ys, seen)
    return found.means, jax.lax.map(partial(covariances, found), seen) if spread else None


_log_lik = jax.jit(log_lik)
