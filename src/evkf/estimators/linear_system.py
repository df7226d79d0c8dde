"""`LinearDynamicalSystem`: the linear baseline with dynamics, for people with arrays."""

from functools import partial
from typing import Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.estimators.gpfa import FLOOR, factor_analysis
from evkf.estimators.linear_gaussian import Given, Params, em_step, infer, log_lik
from evkf.numerics.checks import check_whole
from evkf.numerics.trials import Lengths, bins_of, read_counts, slices

DECAY = 0.9
"""Diagonal of the transition to start from."""

_infer = jax.jit(infer, static_argnames="given")


class LinearDynamicalSystem:
    """A linear dynamical system with Gaussian noise on square roots or logarithms, learned by EM.

    Starts from factor analysis, and computes in float64 whatever JAX is set to.

    Args:
        latents: Latent dimensions.
        transform: What is taken to be Gaussian: square roots of counts, or log(1 + counts).
        iterations: Of EM.

    Attributes:
        params_: All that was learned, `evkf.estimators.linear_gaussian.Params`.
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


def _pad(y: np.ndarray, lengths: Lengths) -> tuple[jax.Array, jax.Array]:
    """Trials side by side, filled up to one length, time first; and which bins they have."""
    trials = slices(lengths, len(y))
    seen = np.arange(max(lengths))[:, None] < np.asarray(lengths)
    ys = np.zeros((*seen.shape, y.shape[1]))
    ys[bins_of(lengths), np.repeat(np.arange(len(trials)), lengths)] = y
    return jnp.asarray(ys), jnp.asarray(seen)
