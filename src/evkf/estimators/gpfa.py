"""`GPFA`, Gaussian process factor analysis with NumPy arrays in and out, offline.

The method is that of Yu et al. (2009). `evkf.estimators.gaussian_process` has the computations.
Trials may have any lengths, and no trial is cut or approximated. Computation is always in float64,
because the last gains of EM are smaller than the precision of float32.
"""

from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike
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
from evkf.estimators.gaussian_process import (
    GPFAParameters,
    covariances,
    em_step,
    group_lengths,
    log_lik,
    posterior,
)
from evkf.numerics.checks import check_whole, read_positive

SPREAD = 0.1
"""Standard deviation of the logarithms of the timescales before learning. If all timescales were
equal, any rotation of the latents would fit as well, and EM would not separate the latents."""

GRAIN = 8
"""Trials given to a fitted estimator are padded to a multiple of this number of bins, so that few
new lengths need another compilation."""


class GPFA(TransformerMixin, BaseEstimator):
    """Gaussian process factor analysis, learned by EM: infers smooth latent trajectories.

    Observations are (bins, neurons), or a list of such trials of any lengths. The latent state of a
    bin is inferred from all bins of the trial. Missing observations (NaN) are not supported.

    Args:
        latents: Number of latent dimensions.
        bin_width: Width of a bin.
        tau: Timescale before learning, in the unit of `bin_width`, one for all latents or one for
            each; five bins when left out.
        square_root: True to model square roots of the counts, whose variance depends less on the
            rate than that of counts.
        max_iterations: Largest number of EM iterations.
        tolerance: EM stops when an iteration gains less than this, in nats per bin.
        seed: Seed of the timescales before learning, which are drawn near `tau`.

    Attributes:
        C_: Loadings of the latents that have the timescales `tau_`, (neurons, latents).
        d_: Offsets, (neurons,).
        R_: Private (noise) variances, (neurons,).
        tau_: Timescales in the unit of `bin_width`, (latents,).
        loadings_: Orthonormal loadings of the latents that `transform` returns, (neurons, latents).
        log_likelihoods_: Log-likelihood in nats per bin, before the first iteration and after each
            iteration.
        n_features_in_: Number of neurons.

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
        """Fit loadings, offsets, private variances and timescales; return the estimator itself.

        Args:
            X: Observations, (bins, neurons), or a list of trials.
            y: Not used.
        """
        trials, _ = read_sequences(X, self._transform)
        trials.sort(key=len)
        ys = np.concatenate(trials)
        with jax.enable_x64(True):
            params = self._start(ys)
            data, seen = pad_trials(trials)
            advance = partial(
                em_step,
                ys=data,
                seen=seen,
                floor=FLOOR * ys.var(axis=0),
                groups=group_lengths([len(trial) for trial in trials]),
            )
            following, total = advance(params)
            log_likelihoods = [float(total) / len(ys)]
            for _ in range(self.max_iterations):
                params = following
                following, total = advance(params)
                log_likelihoods.append(float(total) / len(ys))
                if log_likelihoods[-1] - log_likelihoods[-2] < self.tolerance:
                    break
        self.C_, self.d_, self.R_ = (np.array(leaf) for leaf in params[:3])
        self.tau_ = np.exp(params.log_tau) * self.bin_width
        self.log_likelihoods_ = np.asarray(log_likelihoods)
        # Orthonormal loadings, the strongest first, each with a positive sum.
        left, scale, right = np.linalg.svd(self.C_, full_matrices=False)
        sign = np.where(left.sum(axis=0) < 0, -1.0, 1.0)
        self.loadings_, self._turn = left * sign, (sign * scale)[:, None] * right
        self.n_features_in_ = len(self.d_)
        # NumPy arrays stay float64 when they are unpickled.
        self._fitted = jax.tree.map(np.asarray, params), self._transform
        return self

    def transform(self, X: Any, return_cov: bool = False) -> Any:
        """Return posterior means of the orthonormalised latents in every bin, (bins, latents).

        Each bin is estimated from all bins of its trial. Orthonormalised latents are linear
        combinations of the latents of `C_` whose loadings, `loadings_`, have orthonormal columns.
        They are ordered by the singular values of `C_`, the largest first.

        Args:
            X: Observations, (bins, neurons), or a list of trials, for which a list is returned.
            return_cov: True to return a pair: the means, and the posterior covariances (bins,
                latents, latents).
        """
        means, covs, many = self._infer(X, return_cov)
        means = [mean @ self._turn.T for mean in means]
        covs = [self._turn @ cov @ self._turn.T for cov in covs]
        if return_cov:
            return (means, covs) if many else (means[0], covs[0])
        return means if many else means[0]

    def rates(self, X: Any) -> Any:
        r"""Return expected observations (bins, neurons), for spikes the expected counts per bin.

        Each bin is estimated from all bins of its trial. With square roots $y$, the expected count
        is $E[y^2] = E[y]^2 + \text{Var}(y)$, where the variance is that from the uncertain latent
        state plus the private variance. Without square roots, the expected count is linear in the
        latent state and can be negative.

        Args:
            X: Observations, (bins, neurons), or a list of trials, for which a list is returned.
        """
        square_root = self._parameters[1] == "sqrt"
        means, covs, many = self._infer(X, square_root)
        rates = [mean @ self.C_.T + self.d_ for mean in means]
        if square_root:
            spreads = [np.einsum("nl,tnl->tn", self.C_, self.C_ @ cov) for cov in covs]
            pairs = zip(rates, spreads, strict=True)
            rates = [rate**2 + spread + self.R_ for rate, spread in pairs]
        return rates if many else rates[0]

    def score(self, X: Any, y: None = None) -> float:
        """Return the marginal log-likelihood in nats per bin.

        The log-likelihood is that of a density: of square roots of the counts if `square_root` is
        True, else of the counts. The two cannot be compared with each other, nor with a
        log-probability of counts.
        """
        params, transform = self._parameters
        trials, _ = read_sequences(X, transform, self)
        with jax.enable_x64(True):
            total = _log_lik(params, *pad_trials(trials, GRAIN))
        return float(total) / sum(len(trial) for trial in trials)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        given = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "_fitted"):
            return given
        timescales = np.array2string(self.tau_, precision=3)
        return f"{given}, fitted to {self.n_features_in_} neurons: timescales {timescales}"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = bool(self.square_root)
        return tags

    def _start(self, ys: np.ndarray) -> GPFAParameters:
        """Check settings, and return the parameters before EM.

        Loadings, offsets and private variances come from factor analysis. Timescales are drawn near
        `tau`.
        """
        C, mean, R = analyse_factors(ys, self.latents)
        check_whole(self.max_iterations, 1, "max_iterations")
        if not self.tolerance >= 0:
            what = f"tolerance = {self.tolerance}"
            raise InputError(what, "tolerance", "pass a gain in nats per bin, zero or more")
        width = read_positive(self.bin_width, (), "bin_width")
        tau = 5 * width if self.tau is None else self.tau
        log_tau = jnp.log(read_positive(tau, (self.latents,), "tau") / width)
        draws = np.random.default_rng(self.seed).normal(size=self.latents)
        leaves = (C, mean, R, log_tau + SPREAD * draws)
        return GPFAParameters(*map(jnp.asarray, leaves))

    @property
    def _transform(self) -> str | None:
        return "sqrt" if self.square_root else None

    @property
    def _parameters(self) -> tuple[GPFAParameters, str | None]:
        """Parameters of the last fit, and name of the transform of its counts ("sqrt" or None)."""
        if not hasattr(self, "_fitted"):
            raise UnfittedError("not fitted yet", "GPFA", "call fit first")
        return self._fitted

    def _infer(self, X: Any, spread: bool) -> tuple[list[np.ndarray], list[np.ndarray], bool]:
        """Return posterior means and covariances of every trial, and True if X was a list.

        The list of covariances is empty if `spread` is False.
        """
        params, transform = self._parameters
        trials, many = read_sequences(X, transform, self)
        with jax.enable_x64(True):
            states = _states(params, *pad_trials(trials, GRAIN), spread)
        means, covs = (
            [] if x is None else [np.array(x[i, : len(t)]) for i, t in enumerate(trials)]
            for x in jax.device_get(states)
        )
        return means, covs, many


@partial(jax.jit, static_argnames="spread")
def _states(
    params: GPFAParameters,
    ys: Float[Array, "I T N"],
    seen: Bool[Array, "I T"],
    spread: bool,
) -> tuple[Float[Array, "I T L"], Float[Array, "I T L L"] | None]:
    states = posterior(params, ys, seen)
    return states.means, jax.lax.map(partial(covariances, states), seen) if spread else None


_log_lik = jax.jit(log_lik)
