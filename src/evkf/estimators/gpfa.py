"""`GPFA`, Gaussian process factor analysis: NumPy in, NumPy out, offline.

The method of Yu et al. (2009), by the functions of `evkf.estimators.gaussian_process`. Trials may
have any lengths, and none is cut or approximated. Computation is in float64 whatever JAX is set to,
because EM ends in gains below the precision of float32.
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
"""Standard deviation of the logarithms of the first timescales. Latents with equal timescales could
be rotated into one another, and EM would not separate them."""

GRAIN = 8
"""New trials are padded to a multiple of so many bins: few new lengths need another compilation."""


class GPFA(TransformerMixin, BaseEstimator):
    """Smooth latent trajectories by Gaussian process factor analysis, learned by EM.

    Observations are (bins, neurons), or a list of such trials of any lengths. The states of a bin
    are inferred from all bins of its trial. Observations may not be missing.

    Args:
        latents: Latent dimensions.
        bin_width: Width of a bin.
        tau: First timescale, in the unit of `bin_width`; five bins when left out.
        square_root: True to take square roots of the counts, which equalises their variance.
        max_iterations: Largest number of iterations of EM.
        tolerance: Gain of an iteration below which EM stops, in nats per bin.
        seed: Seed of the first timescales, which are drawn near `tau`.

    Attributes:
        C_: Loadings of the latents with these timescales, (neurons, latents).
        d_: Offsets, (neurons,).
        R_: Private variances, (neurons,).
        tau_: Timescales, in the unit of `bin_width`.
        loadings_: Orthonormal loadings of the latents that `transform` gives.
        log_likelihoods_: Nats per bin, before the first iteration and after each.
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
        """Fit loadings, offsets, private variances and timescales.

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
        """Return means (bins, latents) of the orthonormalised latents, given all of their trial.

        Their loadings are `loadings_`; latents that explain more come first.

        Args:
            X: Observations, (bins, neurons), or a list of trials, which gives a list.
            return_cov: True to return covariances (bins, latents, latents) too.
        """
        means, covs, many = self._infer(X, return_cov)
        means = [mean @ self._turn.T for mean in means]
        covs = [self._turn @ cov @ self._turn.T for cov in covs]
        if return_cov:
            return (means, covs) if many else (means[0], covs[0])
        return means if many else means[0]

    def rates(self, X: Any) -> Any:
        r"""Return expected observations (bins, neurons), for counts those of a bin.

        Square roots are squared in expectation, $E[y^2] = E[y]^2 + \text{Var}(y)$, with the
        uncertainty of the state and the private variance. Raw counts are linear in the state, and
        so their expectation can be negative.
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

        It is a density, of square roots if they are taken, and so not comparable with that of raw
        counts or with the probability of counts.
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
        """Return the parameters of factor analysis, and timescales near `tau`."""
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
        """Parameters and transform of the last fit."""
        if not hasattr(self, "_fitted"):
            raise UnfittedError("not fitted yet", "GPFA", "call fit first")
        return self._fitted

    def _infer(self, X: Any, spread: bool) -> tuple[list[np.ndarray], list[np.ndarray], bool]:
        """Return means, covariances if wanted (spread), and True if X is a list of trials."""
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
