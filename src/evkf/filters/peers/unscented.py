"""The unscented Kalman filter."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.families import GaussianBelief
from evkf.filters.base import State
from evkf.filters.peers.gain import GaussianFilter, LinearObservation, check_gaussian
from evkf.model import Model
from evkf.numerics.linalg import cholesky
from evkf.types import Input, Matrix, Vector


class UnscentedKalman(GaussianFilter):
    r"""The unscented Kalman filter: moments are computed from the images of sigma points.

    For a belief of mean m and covariance P over L latents, with
    $\lambda = \alpha^2(L + \kappa) - L$, the sigma points are m (the centre) and
    $m \pm \sqrt{L + \lambda}$ times the columns of the Cholesky factor of P. The observation noise
    is taken as Gaussian; its covariance is `likelihood.cov`, averaged over the sigma points (over
    all but the centre if the weight of the centre is negative). `Info.elbo` is the log density of
    the observation under this Gaussian approximation.

    The weight of the centre in covariances is $\lambda/(L + \lambda) + 1 - \alpha^2 + \beta$. It
    must not be negative, so that covariances are positive definite: `init` raises InputError for a
    very small alpha.

    Args:
        alpha: Spread of the sigma points around the mean.
        beta: Extra weight of the centre in covariances; 2 is best for quadratic functions of a
            Gaussian.
        kappa: Added to L in the spread; 0 by default.

    Example:
        >>> import jax
        >>> from evkf import Model, dynamics, likelihoods, scan_filter, simulate
        >>> model = Model(dynamics.Linear([[0.9]], 0.1), likelihoods.Poisson([[1.0], [-1.0]]))
        >>> _, ys = simulate(model, jax.random.key(0), 20)
        >>> state, trace = scan_filter(UnscentedKalman(), model, ys)
        >>> trace.belief.cov.shape, int(trace.info.status.max())
        ((20, 1, 1), 0)
    """

    alpha: float = eqx.field(default=1.0, static=True)
    beta: float = eqx.field(default=2.0, static=True)
    kappa: float = eqx.field(default=0.0, static=True)

    def __check_init__(self):
        if not self.alpha > 0:
            raise InputError(f"alpha = {self.alpha}", "alpha", "pass a number above zero")
        for name in ("alpha", "beta", "kappa"):
            value = getattr(self, name)
            if not np.isfinite(value):
                raise InputError(f"{name} = {value}", name, "pass a finite number")

    def init(self, model: Model) -> State:
        check_gaussian(model, "UnscentedKalman")
        self._weights(model.family.dim)
        return State(model.prior)

    def _predict_moments(
        self, model: Model, belief: GaussianBelief, u: Input
    ) -> tuple[Vector, Matrix]:
        """Return the predicted mean and covariance, from the images of the sigma points.

        The covariance of the process noise is added to that of the images.
        """
        dynamics = model.dynamics
        assert isinstance(dynamics, GaussianDynamics)
        points, averages, spreads = self._points(belief)
        images = jax.vmap(dynamics.mean, (0, None))(points, u)
        mean = averages @ images
        deviations = (images - mean) * spreads[:, None]
        return mean, deviations.T @ deviations + dynamics.noise.matrix()

    def _linearise(self, model: Model, belief: GaussianBelief) -> LinearObservation:
        """Return the linear observation computed from sigma points of the prediction."""
        mean, likelihood = belief.mean, model.likelihood
        points, averages, spreads = self._points(belief)
        images = jax.vmap(likelihood.mean)(points)
        expected = averages @ images
        moved = ((images - expected) * spreads[:, None]).T
        deviations = ((points - mean) * spreads[:, None]).T
        # Weights of an average that must not become negative.
        total, average, _ = self._weights(len(mean))
        others = 0.5 / total if average >= 0 else 0.5 / len(mean)
        shares = np.append(max(average, 0.0), np.full(2 * len(mean), others))
        covs = jax.vmap(likelihood.cov)(points)
        noise = jnp.tensordot(jnp.asarray(shares, mean.dtype), covs, 1)
        return LinearObservation(deviations, moved, expected, noise)

    def _weights(self, dim: int) -> tuple[float, float, float]:
        r"""Return $L + \lambda$, and the weights of the centre in means and in covariances."""
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

    def _points(
        self, belief: GaussianBelief
    ) -> tuple[Float[Array, "S L"], Float[Array, " S"], Float[Array, " S"]]:
        """Return sigma points, weights in means, and square roots of weights in covariances."""
        mean, root = belief.mean, cholesky(belief.cov)
        dim = len(mean)
        total, average, spread = self._weights(dim)
        offsets = math.sqrt(total) * root.T
        points = jnp.concatenate([mean[None], mean + offsets, mean - offsets])
        others = np.full(2 * dim, 0.5 / total)
        averages = jnp.asarray(np.append(average, others), mean.dtype)
        spreads = jnp.asarray(np.sqrt(np.append(spread, others)), mean.dtype)
        return points, averages, spreads
