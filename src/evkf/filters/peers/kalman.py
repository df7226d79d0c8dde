"""The Kalman filter.

Paper: eq:kalman_predict, eq:kalman_update.
"""

from evkf.dynamics import Linear
from evkf.errors import InputError
from evkf.filters.base import Info, PredictUpdate, State, read_bin, read_input
from evkf.filters.peers.gain import (
    GaussianPrediction,
    check_gaussian,
    linear_update,
    settle_prediction,
)
from evkf.likelihoods import Gaussian
from evkf.model import Model
from evkf.numerics.linalg import cholesky
from evkf.types import Input, Key, Mask, Observation


class Kalman(PredictUpdate):
    """The exact filter of linear dynamics behind a Gaussian likelihood; refuses all others.

    `Info.elbo` is $\\log p(y_t | y_{<t})$.

    Example:
        >>> import jax.numpy as jnp
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Gaussian
        >>> from evkf.model import Model
        >>> model = Model(Linear([[1.0]], noise=1.0), Gaussian([[1.0]], noise=2.0))
        >>> filter = Kalman()
        >>> state, _ = filter.step(model, filter.init(model), jnp.array([1.0]))
        >>> state.belief.mean.round(4), state.belief.cov.round(4)
        (Array([0.5], dtype=float32), Array([[1.]], dtype=float32))
    """

    def init(self, model: Model) -> State:
        _parts(model)
        return State(model.prior)

    def predict(
        self, model: Model, state: State, key: Key | None = None, u: Input | None = None
    ) -> GaussianPrediction:
        """$A m + B u + c$ and $A P A^\\top + Q$."""
        del key
        dynamics, _ = _parts(model)
        moved = dynamics.weight @ cholesky(state.belief.cov)
        mean = dynamics.mean(state.belief.mean, read_input(model, u))
        cov = moved @ moved.T + dynamics.noise.matrix()
        return settle_prediction(state.belief, mean, cov)

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
        _, likelihood = _parts(model)
        mean, cov = prediction.belief
        root = cholesky(cov)
        seen = (likelihood.C @ root, likelihood.mean(mean), likelihood.cov(mean))
        return linear_update(prediction, root, *seen, *read_bin(model, y, mask))


def _parts(model: Model) -> tuple[Linear, Gaussian]:
    dynamics, likelihood = model.dynamics, model.likelihood
    remedy = "use ExtendedKalman, which linearises, or VariationalKalmanFilter"
    if not isinstance(dynamics, Linear):
        raise InputError(f"Kalman for {type(dynamics).__name__}", "model.dynamics", remedy)
    if not isinstance(likelihood, Gaussian):
        raise InputError(f"Kalman for {type(likelihood).__name__}", "model.likelihood", remedy)
    check_gaussian(model, "Kalman")
    return dynamics, likelihood
