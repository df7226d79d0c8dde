"""The exponential family variational Kalman filter.

Paper: alg:evkf, but for the learning of dynamics.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from evkf.errors import InputError
from evkf.expectations.dispatch import Moments, is_conjugate, way, whitened
from evkf.expectations.products import feasible_start, product_ell
from evkf.families import (
    GaussianBelief,
    GaussianFamily,
    LowRankBelief,
    LowRankGaussianFamily,
    ProductFamily,
    Univariate,
)
from evkf.families.low_rank import divergence, inverse
from evkf.filters.base import Info, PredictUpdate, State, read_bin, read_input, read_key
from evkf.filters.evkf.predict import (
    MAX_STD,
    RULES,
    AdditiveCross,
    NaturalCross,
    Prediction,
    predict,
)
from evkf.filters.evkf.update_gaussian import conjugate_update, cvi_update
from evkf.filters.evkf.update_low_rank import update_low_rank
from evkf.filters.evkf.update_product import product_update
from evkf.model import Model
from evkf.numerics.checks import check_choice, check_even, check_positive, check_whole
from evkf.numerics.linalg import (
    all_finite,
    cholesky,
    diagonal,
    factorisable,
    total,
    total_of_many,
    tree_where,
)
from evkf.types import Belief, Input, Key, Mask, Observation, Scalar, Status

SOLVERS = ("auto", "cvi", "newton")

LOW_RANK_TOLERANCE = 1e-3
"""Nats that an update of low rank may leave to be gained, before its last step."""


class Updated(NamedTuple):
    belief: Belief
    elbo: Scalar
    gap: Scalar
    evaluations: Array
    residual: Scalar
    converged: Bool[Array, ""]
    sound: Bool[Array, ""]


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
        if key is not None or "sampling" in way(model.family, model.likelihood):
            key = read_key(key, "this likelihood is sampled")
        else:
            key = jax.random.key(0)
        solve = self._product
        if isinstance(model.family, GaussianFamily):
            solve = self._gaussian
        elif isinstance(model.family, LowRankGaussianFamily):
            solve = self._low_rank
        updated = solve(model, prediction, y, mask, key)
        return _settle(prediction, updated, mask)

    def _tolerance(self, dtype: jnp.dtype) -> float:
        if self.tolerance is not None:
            return self.tolerance
        return 5e-7 if dtype == jnp.float64 else 1e-3

    def _gaussian(
        self, model: Model, prediction: Prediction, y: Observation, mask: Mask, key: Key
    ) -> Updated:
        if self.solver == "newton":
            raise InputError("solver='newton' for a Gaussian", "solver", "use 'auto' or 'cvi'")
        mean, cov = prediction.belief
        dtype, dim = mean.dtype, mean.shape[0]
        root = cholesky(cov)
        ell = whitened(model.likelihood, mean, root, y, mask, key, self.num_samples)
        if is_conjugate(model.likelihood):
            found = conjugate_update(ell, dim, dtype)
        else:
            concave = model.likelihood.log_concave
            limits = (self.max_evaluations, self._tolerance(dtype))
            found = cvi_update(ell, dim, dtype, concave, *limits)
        spread = root @ found.moments.root
        belief = GaussianBelief(mean + root @ found.moments.mean, factorisable(spread @ spread.T))
        sound = all_finite(belief, found.residual)
        gap = _gaussian_gap(model, prediction, root, found.moments, belief)
        return Updated(
            belief,
            found.elbo,
            gap,
            found.evaluations,
            found.residual,
            found.converged,
            sound,
        )

    def _low_rank(
        self, model: Model, prediction: Prediction, y: Observation, mask: Mask, key: Key
    ) -> Updated:
        del key
        if self.solver == "newton":
            raise InputError(
                "solver='newton' for LowRankGaussianFamily states", "solver", "leave solver out"
            )
        limits = (self.max_evaluations, self.tolerance or LOW_RANK_TOLERANCE)
        found = update_low_rank(model.likelihood, prediction.belief, y, mask, *limits)
        gap = _low_rank_gap(model, prediction, found.belief)
        return Updated(
            found.belief,
            found.elbo,
            gap,
            found.evaluations,
            found.residual,
            found.converged,
            model.family.valid(found.belief) & jnp.isfinite(found.residual),
        )

    def _product(
        self, model: Model, prediction: Prediction, y: Observation, mask: Mask, key: Key
    ) -> Updated:
        family, prior = model.family, prediction.belief
        assert isinstance(family, Univariate | ProductFamily)
        ell = product_ell(family, model.likelihood, y, mask, key, self.num_samples, prior)
        start = feasible_start(family, model.likelihood, prior, mask)
        dtype = jax.tree.leaves(prior)[0].dtype
        newton = self.solver != "cvi"
        limits = (self.max_evaluations, self._tolerance(dtype))
        found = product_update(family, ell, prior, start, newton, *limits)
        gap = _natural_gap(model, prediction, found.nat)
        return Updated(
            found.nat,
            found.elbo,
            gap,
            found.evaluations,
            found.residual,
            found.converged,
            family.valid(found.nat) & jnp.isfinite(found.residual),
        )


def _gaussian_gap(
    model: Model,
    prediction: Prediction,
    root: Array,
    found: Moments,
    belief: GaussianBelief,
) -> Scalar:
    """$L_t - M_t = E_q[\\log \\bar q] - E_q E_{q_{t-1}}[\\log p(z_t|z_{t-1})]$."""
    cross = prediction.cross
    if not isinstance(cross, AdditiveCross):
        return _natural_gap(model, prediction, model.family.nat(belief))
    noise = model.dynamics.noise  # pyright: ignore[reportAttributeAccessIssue]
    second = diagonal(found.cov) + found.mean**2
    predicted = total(jnp.log(diagonal(root)) + 0.5 * second)
    shift = belief.mean - cross.mean
    square = noise.relative_trace(belief.cov + shift[:, None] * shift) + cross.spread
    return noise.log_det_root() + 0.5 * square - predicted


def _low_rank_gap(model: Model, prediction: Prediction, belief: LowRankBelief) -> Scalar:
    """The same for beliefs of low rank."""
    cross, before = prediction.cross, prediction.belief
    assert isinstance(cross, AdditiveCross)
    known = inverse(*before[1:])
    entropy = inverse(*belief[1:]).log_det_root + 0.5 * len(belief.mean)
    predicted = divergence(belief, before.mean, known) + entropy
    noise = model.dynamics.noise  # pyright: ignore[reportAttributeAccessIssue]
    shift = noise.whiten(belief.mean - cross.mean)
    square = jnp.sum(model.family.var(belief) / noise.var()) + shift @ shift + cross.spread
    return noise.log_det_root() + 0.5 * square - predicted


def _natural_gap(model: Model, prediction: Prediction, nat: Belief) -> Scalar:
    family, cross = model.family, prediction.cross
    assert isinstance(cross, NaturalCross)
    prior = family.nat(prediction.belief)
    shift = ravel_pytree(prior)[0] - ravel_pytree(cross.nat)[0]
    product = shift @ ravel_pytree(family.to_mean(nat))[0]
    return product - family.log_partition(prior) + cross.log_partition


def _settle(prediction: Prediction, updated: Updated, mask: Mask) -> tuple[State, Info]:
    """Keep the update if it is sound, else the prediction; say what happened."""
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


def check_variational(filter: VariationalKalmanFilter) -> VariationalKalmanFilter:
    """Refuse another filter, for what differentiates or reverses the steps of this one."""
    if not isinstance(filter, VariationalKalmanFilter):
        name = filter.__name__ if isinstance(filter, type) else type(filter).__name__
        raise InputError(f"{name} as the filter", "filter", "pass VariationalKalmanFilter()")
    return filter
