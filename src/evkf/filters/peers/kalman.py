"""The Kalman filter.

Paper: eq:kalman_predict, eq:kalman_update.
"""

from evkf.dynamics import Linear
from evkf.errors import InputError
from evkf.families import GaussianBelief
from evkf.filters.base import State
from evkf.filters.peers.gain import GaussianFilter, LinearObservation, check_gaussian
from evkf.likelihoods import Gaussian
from evkf.model import Model
from evkf.numerics.linalg import cholesky
from evkf.types import Input, Matrix, Vector


class Kalman(GaussianFilter):
    r"""The Kalman filter: exact for linear dynamics and a Gaussian likelihood.

    Raise InputError for any other model. `Info.elbo` is exactly $\log p(y_t | y_{<t})$, in nats.

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
        _linear_parts(model)
        return State(model.prior)

    def _predict_moments(
        self, model: Model, belief: GaussianBelief, u: Input
    ) -> tuple[Vector, Matrix]:
        r"""Return the predicted mean $A m + B u + c$ and covariance $A P A^\top + Q$.

        m and P are the moments of the belief; A, B, c and Q belong to the dynamics.
        """
        dynamics, _ = _linear_parts(model)
        moved = dynamics.weight @ cholesky(belief.cov)
        return dynamics.mean(belief.mean, u), moved @ moved.T + dynamics.noise.matrix()

    def _linearise(self, model: Model, belief: GaussianBelief) -> LinearObservation:
        _, likelihood = _linear_parts(model)
        mean, root = belief.mean, cholesky(belief.cov)
        return LinearObservation(
            root, likelihood.C @ root, likelihood.mean(mean), likelihood.cov(mean)
        )


def _linear_parts(model: Model) -> tuple[Linear, Gaussian]:
    """Return dynamics and likelihood; raise InputError if the model is not linear Gaussian."""
    dynamics, likelihood = model.dynamics, model.likelihood
    remedy = "use ExtendedKalman, which linearises, or VariationalKalmanFilter"
    if not isinstance(dynamics, Linear):
        raise InputError(f"Kalman for {type(dynamics).__name__}", "model.dynamics", remedy)
    if not isinstance(likelihood, Gaussian):
        raise InputError(f"Kalman for {type(likelihood).__name__}", "model.likelihood", remedy)
    check_gaussian(model, "Kalman")
    return dynamics, likelihood
