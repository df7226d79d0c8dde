"""The exponential-family variational Kalman filter (eVKF) for a known model.

Learning of the model is in `evkf.learning`. The prediction is computed in `predict.py`; the update
is computed in one file for each kind of belief: `update_gaussian.py`, `update_low_rank.py` and
`update_product.py`.
Paper: alg:evkf.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from evkf.errors import InputError
from evkf.expectations.dispatch import expectation_method
from evkf.families import Family, GaussianFamily, LowRankGaussianFamily
from evkf.filters.base import Info, PredictUpdate, State, read_bin, read_input, read_key
from evkf.filters.evkf.predict import MAX_STD, RULES, predict
from evkf.filters.evkf.results import Limits, Prediction, Updated
from evkf.filters.evkf.update_gaussian import update_gaussian
from evkf.filters.evkf.update_low_rank import update_low_rank
from evkf.filters.evkf.update_product import update_product
from evkf.model import Model
from evkf.numerics.checks import check_choice, check_even, check_positive, check_whole
from evkf.numerics.linalg import total_of_many, tree_where
from evkf.types import Input, Key, Mask, Observation, Status

SOLVERS = ("auto", "cvi", "newton")

LOW_RANK_TOLERANCE = 1e-3
"""Default tolerance for `LowRankBelief`: an update stops when the next step would raise the bound
by at most this many nats.
"""


class VariationalKalmanFilter(PredictUpdate):
    """eVKF: the filter that predicts by averaging natural parameters and updates variationally.

    The update is conjugate-computation variational inference (CVI), iterative natural-gradient
    steps, or Newton's method. For linear dynamics, a Gaussian likelihood and the variance
    correction, this filter is the Kalman filter.

    Args:
        rule: How the prediction computes an expectation over the last belief: "cubature" (fixed
            points, the default), "monte_carlo" (random samples, as in the paper), or
            "moment_matching" (averages mean parameters instead of natural parameters, over the
            points of cubature).
        correct: True to add the variance that is lost by averaging natural parameters. None, the
            default, adds the variance for every family that has a free variance. Moment matching
            loses no variance and takes no correction.
        solver: "cvi", "newton" (products of univariate families only), or "auto": CVI for full
            Gaussian beliefs, Newton for products. Low-rank Gaussian beliefs have a solver of their
            own. For full Gaussian beliefs, a conjugate (Gaussian) likelihood is solved exactly.
        max_evaluations: Largest number of evaluations of gradient and curvature in an update.
        tolerance: Relative residual of the fixed-point equation at which an update stops. None
            means 5e-7 in float64 and 1e-3 in float32; the bound then differs from its optimum by
            no more than rounding. For low-rank Gaussian beliefs the tolerance is instead the nats
            left to gain; None then means 1e-3.
        num_samples: Number of random samples, where a prediction or an expectation is sampled.
        max_std: Largest mean (in absolute value) and standard deviation of a Gaussian prediction,
            1e4 by default, so that predictions of unstable dynamics stay finite while nothing is
            observed.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import Model
        >>> model = Model(Linear([[0.9]], noise=0.1), Poisson([[1.0], [-1.0]]))
        >>> filter = VariationalKalmanFilter()
        >>> state, info = jax.jit(filter.step)(model, filter.init(model), jnp.array([3.0, 0.0]))
        >>> bool(state.belief.mean[0] > 0), int(info.status)
        (True, 0)
    """

    rule: str = eqx.field(static=True)
    correct: bool | None = eqx.field(static=True)
    solver: str = eqx.field(static=True)
    max_evaluations: int = eqx.field(static=True)
    tolerance: float | None = eqx.field(static=True)
    num_samples: int = eqx.field(static=True)
    max_std: float = eqx.field(static=True)

    def __init__(
        self,
        rule: str = "cubature",
        correct: bool | None = None,
        solver: str = "auto",
        max_evaluations: int = 100,
        tolerance: float | None = None,
        num_samples: int = 64,
        max_std: float = MAX_STD,
    ):
        check_choice(rule, RULES, "rule")
        check_choice(solver, SOLVERS, "solver")
        if correct and rule == "moment_matching":
            raise InputError(
                "correct=True with rule='moment_matching'",
                "correct",
                "leave correct out: moment matching propagates the variance by itself",
            )
        check_even(num_samples, "num_samples")
        check_whole(max_evaluations, 2, "max_evaluations")
        check_positive(max_std=max_std)
        if tolerance is not None:
            check_positive(tolerance=tolerance)
        self.rule, self.correct, self.solver = rule, correct, solver
        self.max_evaluations, self.tolerance = max_evaluations, tolerance
        self.num_samples, self.max_std = num_samples, max_std

    def init(self, model: Model) -> State:
        return State(model.prior)

    def predict(
        self, model: Model, state: State, key: Key | None = None, u: Input | None = None
    ) -> Prediction:
        """Return the prediction: the belief about the next bin before that bin is observed.

        Args:
            model: The state-space model.
            state: The filter state after the previous bin, which is not changed.
            key: JAX random key; needed for the rule "monte_carlo" only.
            u: Input of the next bin, (inputs,), for dynamics that take inputs.
        """
        family = model.family
        if self.correct and not family.correctable:
            raise InputError(
                f"{type(family).__name__} fixes its variance by its mean",
                "correct",
                "pass correct=False, or rule='moment_matching'",
            )
        u = read_input(model, u)
        if key is not None or self.rule == "monte_carlo":
            key = read_key(key, "monte_carlo prediction samples")
        else:
            key = jax.random.key(0)
        correct = family.correctable if self.correct is None else self.correct
        return predict(
            model, state.belief, u, key, self.rule, self.num_samples, correct, self.max_std
        )

    def update(
        self,
        model: Model,
        prediction: Prediction,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
    ) -> tuple[State, Info]:
        """Update a prediction by an observation; return the next filter state and an `Info`.

        The belief is the prediction where nothing was observed or the update failed.

        Args:
            model: The state-space model.
            prediction: What `predict` returned for this bin.
            y: Observation, (channels,).
            mask: True where observed, (channels,); all True when left out.
            key: JAX random key; needed only where the expected log-likelihood is sampled.
        """
        y, mask = read_bin(model, y, mask)
        if key is not None or "sampling" in expectation_method(model.family, model.likelihood):
            key = read_key(key, "this likelihood is sampled")
        else:
            key = jax.random.key(0)
        updated = self._solve(model, prediction, y, mask, key)
        # Keep the update if it is sound and something was observed, else the prediction.
        seen = total_of_many(mask.astype(updated.elbo.dtype)) > 0
        sound = updated.sound & jnp.isfinite(updated.elbo)
        keep = sound & seen
        belief = tree_where(keep, updated.belief, prediction.belief)
        status = (
            jnp.where(updated.converged | ~sound | ~seen, 0, int(Status.NOT_CONVERGED))
            + jnp.where((sound | ~seen) & ~prediction.failed, 0, int(Status.FELL_BACK))
            + jnp.where(prediction.capped, int(Status.CAPPED), 0)
        )
        elbo = jnp.where(keep, updated.elbo, jnp.where(seen, jnp.nan, 0))
        gap = jnp.where(sound | ~seen, updated.gap, jnp.nan)
        info = Info(elbo, gap, updated.evaluations, updated.residual, status)
        return State(belief), info

    def limits(self, family: Family, dtype: jnp.dtype) -> Limits:
        """Return when an update stops, for a family of beliefs and a floating-point precision."""
        tolerance = self.tolerance
        if tolerance is None and isinstance(family, LowRankGaussianFamily):
            tolerance = LOW_RANK_TOLERANCE
        elif tolerance is None:
            tolerance = 5e-7 if dtype == jnp.float64 else 1e-3
        return Limits(self.max_evaluations, tolerance)

    def _solve(
        self, model: Model, prediction: Prediction, y: Observation, mask: Mask, key: Key
    ) -> Updated:
        """Update the prediction by the method for the family of the model; return the result."""
        low_rank = isinstance(model.family, LowRankGaussianFamily)
        limits = self.limits(model.family, jax.tree.leaves(prediction.belief)[0].dtype)
        if isinstance(model.family, GaussianFamily | LowRankGaussianFamily):
            if self.solver == "newton":
                what = f"solver='newton' for {type(model.family).__name__} states"
                raise InputError(what, "solver", "use 'auto' or 'cvi'")
            if low_rank:
                return update_low_rank(model, prediction, y, mask, limits)
            sampling = (key, self.num_samples)
            return update_gaussian(model, prediction, y, mask, sampling, limits)
        newton, sampling = self.solver != "cvi", (key, self.num_samples)
        return update_product(model, prediction, y, mask, sampling, limits, newton)


def check_variational(filter: VariationalKalmanFilter) -> VariationalKalmanFilter:
    """Return the filter; raise InputError if it is not a `VariationalKalmanFilter`."""
    if not isinstance(filter, VariationalKalmanFilter):
        name = filter.__name__ if isinstance(filter, type) else type(filter).__name__
        raise InputError(f"{name} as the filter", "filter", "pass VariationalKalmanFilter()")
    return filter
