"""The monitor: evidence that dynamics have been learned, and that they have changed.

Two more filters run on the bins of the learner: one with a random walk for dynamics, and one with a
copy of the learned model, taken some time ago. The differences of the bounds, in nats per bin, are
the worth of the dynamics and the gain of learning since the copy.

A change of the dynamics shows in the second: once learning has settled, the copy is as good as the
model; after a change only the model adapts. The sum of the differences is a log-likelihood ratio of
"changed" against "as before".
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int
from numpy.typing import ArrayLike

from evkf.dynamics import Driven, Dynamics, GaussianDynamics, Linear, ResidualMLP
from evkf.errors import InputError
from evkf.families import GaussianFamily
from evkf.filters import Info, State, VariationalKalmanFilter
from evkf.filters.evkf.filter import check_variational
from evkf.learning.learner import Learner, LearnerState, LearnInfo, read_bins
from evkf.model import Model
from evkf.numerics.linalg import tree_where
from evkf.types import Belief, Count, Input, Key, Mask, Observation, Scalar, Vector

MEMORY = 200
"""Bins over which the running figures are averaged."""

PERIOD = 500
"""Bins after which the copy is renewed."""

THRESHOLD = 6.0
"""Nats in favour of a change at which it is flagged."""

ALLOWED = 0.02
"""Gain over the copy, as a share of the gain over the random walk, that learning may make without
any change."""

SETTLED = 2
"""Periods in a row without more than the allowed gain, after which learning has settled."""


class MonitorState(NamedTuple):
    """State of the monitor between bins."""

    walk: State
    step_square: Vector
    """Running mean square of the steps of the estimate: noise variance of the random walk."""
    last: Vector
    copy: Model
    copied: State
    bins: Count
    nats: Scalar
    over_walk: Scalar
    over_copy: Scalar
    gain: Scalar
    """Sum of the gains over the copy since it was made."""
    age: Count
    """Bins since the copy was made."""
    quiet: Count
    """Periods in a row in which learning gained no more than allowed."""
    evidence: Scalar
    since: Count
    """Bins since the evidence for a change was last zero."""
    changes: Count
    """Changes flagged."""
    last_change: Count
    """Bin of the last change, or -1."""


class MonitorInfo(NamedTuple):
    """Evidence after a bin.

    Attributes:
        nats: Running mean of the bound, nats per bin.
        over_walk: Its gain over a random walk: the worth of the dynamics.
        over_copy: Its gain over a copy of the model, renewed every 500 bins: above zero while
            learning still gains.
        evidence: Nats in favour of a change of the dynamics.
        changed: True if a change is flagged in this bin.
        since: Bins since the change, by the evidence.
        changes: Number of changes flagged so far.
        last_change: Bin of the last change, by the evidence; -1 if none.
    """

    nats: Scalar
    over_walk: Scalar
    over_copy: Scalar
    evidence: Scalar
    changed: Bool[Array, ""]
    since: Int[Array, ""]
    changes: Int[Array, ""]
    last_change: Int[Array, ""]


class ObservedBin(NamedTuple):
    """One bin: observation, mask (all observed when None), input, and True if a trial begins."""

    y: Observation
    mask: Mask | None = None
    u: Input | None = None
    fresh: Bool[Array, ""] | bool = False


class Monitor(eqx.Module):
    """Computes the evidence for the dynamics of a learner, and flags their changes.

    Args:
        filter: The filter the learner uses.

    Example:
        >>> import jax
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0], [0.0, 1.0]]))
        >>> monitor, filter = Monitor(), VariationalKalmanFilter()
        >>> y = jax.numpy.ones(2)
        >>> state, info = jax.jit(filter.step)(model, filter.init(model), y)
        >>> step = jax.jit(monitor.step)
        >>> _, evidence = step(monitor.init(model), model, state.belief, info, ObservedBin(y))
        >>> bool(evidence.changed)
        False
    """

    filter: VariationalKalmanFilter = VariationalKalmanFilter()

    def __check_init__(self):
        check_variational(self.filter)

    def init(self, model: Model) -> MonitorState:
        """Return the state before the first bin."""
        gaussian = isinstance(model.family, GaussianFamily)
        if not (gaussian and isinstance(model.dynamics, GaussianDynamics)):
            raise InputError(
                f"a monitor for {type(model.dynamics).__name__}",
                "model",
                "use Gaussian dynamics and beliefs: the monitor compares with a random walk",
            )
        start = self.filter.init(model)
        zero = jnp.zeros((), model.prior.mean.dtype)
        none = jnp.asarray(0, jnp.int32)
        return MonitorState(
            walk=start,
            step_square=model.dynamics.noise.var(),
            last=model.prior.mean,
            copy=model,
            copied=start,
            bins=none,
            nats=zero,
            over_walk=zero,
            over_copy=zero,
            gain=zero,
            age=none,
            quiet=none,
            evidence=zero,
            since=none,
            changes=none,
            last_change=none - 1,
        )

    def step(
        self,
        state: MonitorState,
        model: Model,
        belief: Belief,
        info: Info,
        bin: ObservedBin,
        key: Key | None = None,
    ) -> tuple[MonitorState, MonitorInfo]:
        """Take in a bin.

        Args:
            state: State before the bin.
            model: The learner's model, with which the bin was filtered.
            belief: Belief of the learner's filter after the bin.
            info: Diagnostics of that filter step.
            bin: The bin.
            key: Randomness, for filters and likelihoods that sample; best the learner's own.
        """
        y, mask, u, fresh = bin
        begins = jnp.asarray(fresh)
        # With its old box the copy would lose where only the model has been.
        boxed = same_box(state.copy.dynamics, model.dynamics)
        copy = eqx.tree_at(lambda m: m.dynamics, state.copy, boxed)
        plain_walk = Linear(np.eye(model.family.dim), 1.0)
        log_std = 0.5 * jnp.log(state.step_square)
        noise = eqx.tree_at(lambda n: n.log_std, plain_walk.noise, log_std)
        random_walk = eqx.tree_at(lambda w: w.noise, plain_walk, noise)
        under_walk = eqx.tree_at(lambda m: m.dynamics, model, random_walk)
        before = tree_where(begins, self.filter.init(under_walk), state.walk)
        walk, walk_info = self.filter.step(under_walk, before, y, mask, key)
        before = tree_where(begins, self.filter.init(copy), state.copied)
        copied, copy_info = self.filter.step(copy, before, y, mask, key, u)

        def finite(value: Scalar) -> Scalar:
            return jnp.where(jnp.isfinite(value), value, 0)

        share = jnp.maximum(1 / MEMORY, 1 / (1 + state.bins)).astype(info.elbo.dtype)

        def follow(mean: Array, value: Array) -> Array:
            return mean + share * (value - mean)

        over_copy = finite(info.elbo - copy_info.elbo)
        over_walk = follow(state.over_walk, finite(info.elbo - walk_info.elbo))
        allowed = ALLOWED * jnp.maximum(over_walk, 0.25)
        evidence = jnp.where(state.quiet >= SETTLED, state.evidence + over_copy - allowed, 0)
        evidence = jnp.maximum(evidence, 0)
        since = jnp.where(evidence > 0, state.since + 1, 0)
        changed = evidence > THRESHOLD
        gain, age = state.gain + over_copy, state.age + 1
        # While evidence gathers the copy is kept: the model is compared with it.
        renew = changed | ((age >= PERIOD) & (evidence < 1))
        still = (gain < allowed * age) & ~changed
        quiet = jnp.where(renew, jnp.where(still, state.quiet + 1, 0), state.quiet)
        steps = jnp.where(begins, state.step_square, (belief.mean - state.last) ** 2)
        new = MonitorState(
            walk=walk,
            step_square=follow(state.step_square, steps),
            last=belief.mean,
            copy=tree_where(renew, model, state.copy),
            copied=tree_where(renew, State(belief), copied),
            bins=state.bins + 1,
            nats=follow(state.nats, finite(info.elbo)),
            over_walk=over_walk,
            over_copy=follow(state.over_copy, over_copy),
            gain=jnp.where(renew, 0, gain),
            age=jnp.where(renew, 0, age),
            quiet=quiet,
            evidence=jnp.where(renew, 0, evidence),
            since=jnp.where(renew, 0, since),
            changes=state.changes + changed,
            last_change=jnp.where(changed, state.bins - since, state.last_change),
        )
        change = (changed, since, new.changes, new.last_change)
        return new, MonitorInfo(new.nats, over_walk, new.over_copy, evidence, *change)


def same_box(copy: Dynamics, dynamics: Dynamics) -> Dynamics:
    """Return the copy with the box of visited states of other dynamics, if both have one."""

    def box(of: Dynamics) -> tuple[Array, ...]:
        own = of.undriven if isinstance(of, Driven) else of
        return (own.low, own.high) if isinstance(own, ResidualMLP) else ()

    visited = box(dynamics)
    return eqx.tree_at(box, copy, visited) if visited and box(copy) else copy


class MonitoredState(NamedTuple):
    """States of a learner and of its monitor."""

    learner: LearnerState
    monitor: MonitorState


def learner_state(state: LearnerState | MonitoredState) -> LearnerState:
    """Return the state of the learner, monitored or not."""
    return state.learner if isinstance(state, MonitoredState) else state


def with_learner_state(
    state: LearnerState | MonitoredState, learner: LearnerState
) -> LearnerState | MonitoredState:
    """Replace the state of the learner, monitored or not."""
    return state._replace(learner=learner) if isinstance(state, MonitoredState) else learner


def observe_monitored(
    learner: Learner,
    monitor: Monitor,
    state: MonitoredState,
    y: Observation,
    mask: Mask | None = None,
    u: Input | None = None,
    fresh: Bool[Array, ""] | bool = False,
) -> tuple[MonitoredState, tuple[Info, MonitorInfo]]:
    """Observe and update the evidence; after a change forget the bins before it."""
    before = state.learner
    begins = jnp.asarray(fresh) | before.fresh
    after, info = learner.observe(before, y, mask, u, begins)
    observed = ObservedBin(y, mask, u, begins)
    monitored, evidence = monitor.step(
        state.monitor, before.model, after.filter.belief, info, observed, before.bin_key
    )
    # The evidence begins to gather some time after the change.
    keep = evidence.since + evidence.since // 2
    after = learner.relearn(after, keep, evidence.changed)
    return MonitoredState(after, monitored), (info, evidence)


def step_monitored(
    learner: Learner,
    monitor: Monitor,
    state: MonitoredState,
    y: Observation,
    mask: Mask | None = None,
    u: Input | None = None,
    fresh: Bool[Array, ""] | bool = False,
) -> tuple[MonitoredState, tuple[Info, LearnInfo, MonitorInfo]]:
    """Call `observe_monitored`, then learn."""
    state, (info, evidence) = observe_monitored(learner, monitor, state, y, mask, u, fresh)
    after, learned = learner.learn(state.learner)
    return state._replace(learner=after), (info, learned, evidence)


def scan_monitored(
    learner: Learner,
    monitor: Monitor,
    state: MonitoredState,
    ys: ArrayLike,
    masks: ArrayLike | None = None,
    us: ArrayLike | None = None,
    fresh: ArrayLike | None = None,
) -> tuple[MonitoredState, tuple[Info, LearnInfo, MonitorInfo]]:
    """Call `step_monitored` bin after bin.

    Args:
        learner: The learner.
        monitor: The monitor.
        state: State before the first bin: at first `MonitoredState(learner.init(model),
            monitor.init(model))`.
        ys: Observations, (bins, channels).
        masks: True where observed.
        us: Inputs, (bins, inputs).
        fresh: True where a trial begins, (bins,).
    """
    bins = read_bins(state.learner.model, ys, masks, us, fresh)
    return _scan(learner, monitor, state, bins)


@jax.jit
def _scan(
    learner: Learner, monitor: Monitor, state: MonitoredState, bins: tuple
) -> tuple[MonitoredState, tuple[Info, LearnInfo, MonitorInfo]]:
    return lax.scan(lambda state, bin: step_monitored(learner, monitor, state, *bin), state, bins)
