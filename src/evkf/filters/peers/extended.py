"""The extended Kalman filter."""

import jax

from evkf.dynamics import GaussianDynamics
from evkf.filters.base import Info, PredictUpdate, State, read_bin, read_input
from evkf.filters.peers.gain import (
    GaussianPrediction,
    check_gaussian,
    linear_update,
    settle_prediction,
)
from evkf.model import Model
from evkf.numerics.linalg import cholesky
from evkf.types import Input, Key, Mask, Observation


class ExtendedKalman(PredictUpdate):
    """Dynamics and expected observation are replaced by their tangents at the mean.

    The observation counts as Gaussian, with the covariance that the likelihood states at the
    predicted mean (`likelihood.cov`). `Info.elbo` is the log density of the observation under that
    Gaussian, which is $\\log p(y_t | y_{<t})$ for linear Gaussian models.

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

    def predict(
        self, model: Model, state: State, key: Key | None = None, u: Input | None = None
    ) -> GaussianPrediction:
        """$f(m)$ and $F P F^\\top + Q$, with F the Jacobian of f at m."""
        del key
        u, dynamics = read_input(model, u), model.dynamics
        assert isinstance(dynamics, GaussianDynamics)
        mean, push = jax.linearize(lambda z: dynamics.mean(z, u), state.belief.mean)
        moved = jax.vmap(push)(cholesky(state.belief.cov).T)
        return settle_prediction(state.belief, mean, moved.T @ moved + dynamics.noise.matrix())

    def update(
        self,
        model: Model,
        prediction: GaussianPrediction,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
    ) -> tuple[State, Info]:
        """Take an observation into a prediction."""
        del key
        mean, cov = prediction.belief
        root = cholesky(cov)
        expected, push = jax.linearize(model.likelihood.mean, mean)
        moved = jax.vmap(push)(root.T).T
        noise = model.likelihood.cov(mean)
        return linear_update(prediction, root, moved, expected, noise, *read_bin(model, y, mask))
