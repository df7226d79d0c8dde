"""The monitor: evidence that dynamics have been learned, and that they have changed.

Two more filters run on the bins that the learner observes. The first uses a random walk as
dynamics, the second a copy of the learned model from some time ago. The bound $L_t$ of the learner
minus that of the first filter shows, in nats per bin, how much better the learned dynamics predict
than a random walk. The bound of the learner minus that of the second filter shows how much has been
learned since the copy was made.

The second difference also shows a change of the dynamics. Once learning has settled, the copy
predicts as well as the model; after a change, only the model adapts. The sum of these differences
is a log-likelihood ratio of "changed" against "unchanged".
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
"""Number of bins over which running means are averaged."""

PERIOD = 500
"""Number of bins after which the copy of the model is renewed, if evidence of a change is weak."""

THRESHOLD = 6.0
"""Evidence in nats above which a change is flagged."""

ALLOWED = 0.02
"""Gain over the copy that does not count as evidence of a change, as a fraction of the gain over
the random walk (or of 0.25 nats per bin, if that is more)."""

SETTLED = 2
"""Number of successive periods with no more than the allowed gain, after which learning counts as
settled."""


class MonitorState(NamedTuple):
    """State of the monitor between bins."""

    walk: State
    """State of the filter with the random walk."""
    step_square: Vector
    """Noise variance of the random walk: running mean square of the change of the learner's
    estimate from bin to bin."""
    last: Vector
    """Mean of the learner's belief after the last bin."""
    copy: Model
    """Copy of the learned model."""
    copied: State
    """State of the filter with the copy."""
    bins: Count
    """Number of bins observed."""
    nats: Scalar
    """Running mean of the learner's bound, in nats per bin."""
    over_walk: Scalar
    """Running mean of the learner's bound minus that of the random walk, in nats per bin."""
    over_copy: Scalar
    """Running mean of the learner's bound minus that of the copy, in nats per bin."""
    gain: Scalar
    """Sum of the learner's bound minus that of the copy, since the copy was made."""
    age: Count
    """Number of bins since the copy was made."""
    quiet: Count
    """Number of successive periods in which learning gained no more than allowed."""
    evidence: Scalar
    """Evidence of a change, in nats."""
    since: Count
    """Number of bins since the evidence of a change was last zero."""
    changes: Count
    """Number of changes flagged."""
    last_change: Count
    """Index of the bin of the last change; -1 if there was none."""


class MonitorInfo(NamedTuple):
    """Evidence for the dynamics, and of a change of the dynamics, after a bin.

    Attributes:
        nats: Running mean of the learner's bound $L_t$, in nats per bin.
        over_walk: Running mean of this bound minus the bound under a random walk, in nats per bin.
            Above zero if the learned dynamics predict better than a random walk.
        over_copy: Running mean of this bound minus the bound of a copy of the model, in nats per
            bin. The copy is renewed about every 500 bins. Above zero while learning still improves
            predictions.
        evidence: Evidence of a change of the dynamics, in nats; a change is flagged above 6.
        changed: True if a change is flagged in this bin.
        since: Number of bins since the evidence began to grow, an estimate of the time since the
            change; 0 if there is no evidence.
        changes: Number of changes flagged so far.
        last_change: Index of the bin in which the evidence of the last change began to grow; -1 if
            there was none.
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
    """One bin as the learner observed the bin."""

    y: Observation
    """Observations, (N,)."""
    mask: Mask | None = None
    """True where observed, (N,); all observed when None."""
    u: Input | None = None
    """Input, (inputs,)."""
    fresh: Bool[Array, ""] | bool = False
    """True if the bin is the first of a trial."""


class Monitor(eqx.Module):
    """Computes the evidence for a learner's dynamics, and flags changes of the dynamics.

    Args:
        filter: The filter that the learner uses.

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
        """Return the monitor's state before the first bin.

        Raise `InputError` unless dynamics and beliefs of the model are Gaussian.

        Args:
            model: The learner's model before the first bin; the first copy.
        """
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
        """Update the evidence by one bin, and return the monitor's new state and the evidence.

        Args:
            state: The monitor's state before the bin.
            model: The learner's model, with which the bin was filtered.
            belief: Belief of the learner's filter after the bin.
            info: Diagnostics of the learner's filter step.
            bin: The bin that the learner observed.
            key: JAX random key, for filters and likelihoods that sample; best the key with which
                the learner filtered the bin.
        """
        y, mask, u, fresh = bin
        begins = jnp.asarray(fresh)
        # With its old box (range of visited states) the copy would predict worse than the model in
        # states that the model visited later.
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
        # While evidence grows, the copy is kept, because the evidence compares the model to it.
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
    """Return the copied dynamics with the box (range of visited latent states) of the present ones.

    If either dynamics has no such box, the copy is returned unchanged.

    Args:
        copy: Dynamics of the copy.
        dynamics: Present dynamics of the learner.
    """

    def box(of: Dynamics) -> tuple[Array, ...]:
        own = of.undriven if isinstance(of, Driven) else of
        return (own.low, own.high) if isinstance(own, ResidualMLP) else ()

    visited = box(dynamics)
    return eqx.tree_at(box, copy, visited) if visited and box(copy) else copy


class MonitoredState(NamedTuple):
    """State of a learner, and state of the monitor of this learner."""

    learner: LearnerState
    monitor: MonitorState


def learner_state(state: LearnerState | MonitoredState) -> LearnerState:
    """Return the `LearnerState` in a state of a learner with or without a monitor."""
    return state.learner if isinstance(state, MonitoredState) else state


def with_learner_state(
    state: LearnerState | MonitoredState, learner: LearnerState
) -> LearnerState | MonitoredState:
    """Return the state with another `LearnerState`; the state of a monitor is kept.

    Args:
        state: State of a learner with or without a monitor.
        learner: The new state of the learner.
    """
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
    """Observe a bin and update the evidence; return the new state, and both diagnostics.

    If a change is flagged, the bins before the change are forgotten. For the arguments see
    `Learner.observe`.
    """
    before = state.learner
    begins = jnp.asarray(fresh) | before.fresh
    after, info = learner.observe(before, y, mask, u, begins)
    observed = ObservedBin(y, mask, u, begins)
    monitored, evidence = monitor.step(
        state.monitor, before.model, after.filter.belief, info, observed, before.bin_key
    )
    # The evidence begins to grow some time after the change.
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
    """Call `observe_monitored`, then `Learner.learn`; return the new state and all diagnostics.

    For the arguments see `Learner.observe`.
    """
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
    """Call `step_monitored` for each bin of a recording.

    Args:
        learner: Settings of filter and learning.
        monitor: Computes the evidence.
        state: State before the first bin: `MonitoredState(learner.init(model),
            monitor.init(model))`, or the state that an earlier call returned.
        ys: Observations, (bins, channels).
        masks: True where observed, (bins, channels), or (bins,) for whole bins; all observed when
            left out.
        us: Inputs, (bins, inputs); required if the dynamics take inputs.
        fresh: True where a trial begins, (bins,).

    Returns:
        The state after the last bin, and the diagnostics of filter, learning and monitor, with time
        as the first axis.
    """
    bins = read_bins(state.learner.model, ys, masks, us, fresh)
    return _scan(learner, monitor, state, bins)


@jax.jit
def _scan(
    learner: Learner, monitor: Monitor, state: MonitoredState, bins: tuple
) -> tuple[MonitoredState, tuple[Info, LearnInfo, MonitorInfo]]:
    return lax.scan(lambda state, bin: step_monitored(learner, monitor, state, *bin), state, bins)
