"""The unscented Kalman filter."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.filters.base import Info, PredictUpdate, State, read_bin, read_input
from evkf.filters.peers.gain import (
    GaussianPrediction,
    check_gaussian,
    linear_update,
    settle_prediction,
)
from evkf.model import Model
from evkf.numerics.linalg import cholesky
from evkf.types import Input, Key, Mask, Matrix, Observation, Vector


class UnscentedKalman(PredictUpdate):
    """Scaled sigma points carry mean and covariance through dynamics and expected observation.

    With $\\lambda = \\alpha^2(L + \\kappa) - L$ the points are m and $m \\pm \\sqrt{L + \\lambda}$
    times the columns of a root of P. The observation counts as Gaussian; its covariance given the
    state (`likelihood.cov`) is averaged over the points, over the outer ones alone where the
    weight of the centre is negative. `Info.elbo` is the log density of the observation under that
    Gaussian.

    Covariances are positive definite by construction, for which the weight of the centre in them,
    $\\lambda/(L + \\lambda) + 1 - \\alpha^2 + \\beta$, must not be negative: a very small alpha is
    refused.

    Args:
        alpha: Spread of the points.
        beta: Weight of the centre in covariances; 2 is right for quadratic maps of a Gaussian.
        kappa: Secondary spread.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import Model
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0], [0.0, 1.0]]))
        >>> filter = UnscentedKalman()
        >>> state, info = jax.jit(filter.step)(model, filter.init(model), jnp.array([3.0, 0.0]))
        >>> bool(state.belief.mean[0] > state.belief.mean[1]), int(info.status)
        (True, 0)
    """

    alpha: float = eqx.field(static=True)
    beta: float = eqx.field(static=True)
    kappa: float = eqx.field(static=True)

    def __init__(self, alpha: float = 1.0, beta: float = 2.0, kappa: float = 0.0):
        if not alpha > 0:
            raise InputError(f"alpha = {alpha}", "alpha", "pass a number above zero")
        for name, value in (("alpha", alpha), ("beta", beta), ("kappa", kappa)):
            if not np.isfinite(value):
                raise InputError(f"{name} = {value}", name, "pass a finite number")
        self.alpha, self.beta, self.kappa = alpha, beta, kappa

    def init(self, model: Model) -> State:
        check_gaussian(model, "UnscentedKalman")
        self._weights(model.family.dim)
        return State(model.prior)

    def predict(
        self, model: Model, state: State, key: Key | None = None, u: Input | None = None
    ) -> GaussianPrediction:
        """Mean and covariance of the images of the sigma points, plus Q."""
        del key
        u, dynamics = read_input(model, u), model.dynamics
        assert isinstance(dynamics, GaussianDynamics)
        mean, root = state.belief.mean, cholesky(state.belief.cov)
        points, averages, spreads = self._points(mean, root)
        images = jax.vmap(dynamics.mean, (0, None))(points, u)
        mean = averages @ images
        deviations = (images - mean) * spreads[:, None]
        cov = deviations.T @ deviations + dynamics.noise.matrix()
        return settle_prediction(state.belief, mean, cov)

    def update(
        self,
        model: Model,
        prediction: GaussianPrediction,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
    ) -> tuple[State, Info]:
        """Take an observation into a prediction, on new sigma points."""
        del key
        mean, likelihood = prediction.belief.mean, model.likelihood
        points, averages, spreads = self._points(mean, cholesky(prediction.belief.cov))
        images = jax.vmap(likelihood.mean)(points)
        expected = averages @ images
        moved = ((images - expected) * spreads[:, None]).T
        deviations = ((points - mean) * spreads[:, None]).T
        shares = self._shares(len(mean), mean.dtype)
        noise = jnp.tensordot(shares, jax.vmap(likelihood.cov)(points), 1)
        bin = read_bin(model, y, mask)
        return linear_update(prediction, deviations, moved, expected, noise, *bin)

    def _weights(self, dim: int) -> tuple[float, float, float]:
        """$L + \\lambda$, and the weights of the centre in means and in covariances."""
        total = self.alpha**2 * (dim + self.kappa)
        if total <= 0:
            what = f"kappa = {self.kappa} for {dim} latents"
            raise InputError(what, "kappa", f"pass more than -{dim}")
        average = 1 - dim / total
        spread = average + 1 - self.alpha**2 + self.beta
        if spread < 0:
            raise InputError(
                f"alpha = {self.alpha}: a negative weight ({spread:.3g}) of the centre",
                "alpha",
                "raise alpha (to 1, say), beta or kappa",
            )
        return total, average, spread

    def _shares(self, dim: int, dtype: jnp.dtype) -> Float[Array, " S"]:
        """Weights of the points in the mean of what may not become negative."""
        total, average, _ = self._weights(dim)
        others = 0.5 / total if average >= 0 else 0.5 / dim
        return jnp.asarray(np.append(max(average, 0.0), np.full(2 * dim, others)), dtype)

    def _points(
        self, mean: Vector, root: Matrix
    ) -> tuple[Float[Array, "S L"], Float[Array, " S"], Float[Array, " S"]]:
        """Sigma points, their weights in means, and roots of their weights in covariances."""
        dim = len(mean)
        total, average, spread = self._weights(dim)
        offsets = math.sqrt(total) * root.T
        points = jnp.concatenate([mean[None], mean + offsets, mean - offsets])
        others = np.full(2 * dim, 0.5 / total)
        averages = jnp.asarray(np.append(average, others), mean.dtype)
        spreads = jnp.asarray(np.sqrt(np.append(spread, others)), mean.dtype)
        return points, averages, spreads
