"""The exponential family variational Kalman filter, without learning; see `evkf.learning`.

`VariationalKalmanFilter.predict` is in `predict.py`; its updates are in one file for each kind of
belief: `update_gaussian.py`, `update_low_rank.py` and `update_product.py`.
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
"""Default tolerance of beliefs of low rank: nats left to gain before the last step."""


class VariationalKalmanFilter(PredictUpdate):
    """eVKF: predict by averaging natural parameters, update by conjugate-computation VI.

    With linear dynamics, a Gaussian likelihood and the variance correction it is the Kalman filter.

    Args:
        rule: How the prediction's expectation is taken: "cubature" (deterministic, the default),
            "monte_carlo" as in the paper, or "moment_matching" (averages mean parameters instead
            of natural ones, on the cubature's nodes).
        correct: Whether to add the variance that averaging natural parameters loses; None means
            wherever the family can hold it. Moment matching needs none.
        solver: "cvi", "newton" (products of univariate families only), or "auto": CVI for the
            Gaussian, Newton for the others. Conjugate models are always solved exactly.
        max_evaluations: Bound on evaluations of gradient and curvature in an update.
        tolerance: Relative residual at which an update stops; None means 5e-7 in float64 and
            1e-3 in float32, where the bound is within rounding of its optimum. For beliefs of
            low rank the nats left to gain, instead; None means 1e-3.
        num_samples: Samples, where a prediction or an expectation is sampled.
        max_std: Bound on mean and standard deviation of a Gaussian prediction, so that unstable
            dynamics stay finite while nothing is observed.

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
        """The belief about the next bin before it is observed. The state is not changed."""
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
        """Take an observation into a prediction."""
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
        """Return the stopping rule of updates in a family of states."""
        tolerance = self.tolerance
        if tolerance is None and isinstance(family, LowRankGaussianFamily):
            tolerance = LOW_RANK_TOLERANCE
        elif tolerance is None:
            tolerance = 5e-7 if dtype == jnp.float64 else 1e-3
        return Limits(self.max_evaluations, tolerance)

    def _solve(
        self, model: Model, prediction: Prediction, y: Observation, mask: Mask, key: Key
    ) -> Updated:
        """Update by the method for the model's family of states."""
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
    """Return the filter if it is a `VariationalKalmanFilter`; refuse others."""
    if not isinstance(filter, VariationalKalmanFilter):
        name = filter.__name__ if isinstance(filter, type) else type(filter).__name__
        raise InputError(f"{name} as the filter", "filter", "pass VariationalKalmanFilter()")
    return filter
