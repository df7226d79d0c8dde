"""The extended Kalman filter."""

import jax

from evkf.dynamics import GaussianDynamics
from evkf.families import GaussianBelief
from evkf.filters.base import State
from evkf.filters.peers.gain import GaussianFilter, LinearObservation, check_gaussian
from evkf.model import Model
from evkf.numerics.linalg import cholesky
from evkf.types import Input, Matrix, Vector


class ExtendedKalman(GaussianFilter):
    r"""The extended Kalman filter: dynamics and expected observation are linearised at the mean.

    The observation noise is taken as Gaussian; its covariance is `likelihood.cov` at the predicted
    mean. `Info.elbo` is the log density of the observation under this Gaussian approximation, which
    is exactly $\log p(y_t | y_{<t})$ for linear Gaussian models.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import Model
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0], [0.0, 1.0]]))
        >>> filter = ExtendedKalman()
        >>> state, info = jax.jit(filter.step)(model, filter.init(model), jnp.array([3.0, 0.0]))
        >>> bool(state.belief.mean[0] > state.belief.mean[1]), int(info.status)
        (True, 0)
    """

    def init(self, model: Model) -> State:
        check_gaussian(model, "ExtendedKalman")
        return State(model.prior)

    def _predict_moments(
        self, model: Model, belief: GaussianBelief, u: Input
    ) -> tuple[Vector, Matrix]:
        r"""Return the predicted mean $f(m)$ and covariance $F P F^\top + Q$.

        m and P are the moments of the belief, f the mean of the dynamics, F the Jacobian of f at m,
        and Q the covariance of the process noise.
        """
        dynamics = model.dynamics
        assert isinstance(dynamics, GaussianDynamics)
        mean, push = jax.linearize(lambda z: dynamics.mean(z, u), belief.mean)
        moved = jax.vmap(push)(cholesky(belief.cov).T)
        return mean, moved.T @ moved + dynamics.noise.matrix()

    def _linearise(self, model: Model, belief: GaussianBelief) -> LinearObservation:
        root = cholesky(belief.cov)
        expected, push = jax.linearize(model.likelihood.mean, belief.mean)
        moved = jax.vmap(push)(root.T).T
        return LinearObservation(root, moved, expected, model.likelihood.cov(belief.mean))
