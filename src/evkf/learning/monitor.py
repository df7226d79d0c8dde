"""Evidence that dynamics have been learned, and that they have changed.

Beside the learner two filters see the same bins: one under a random walk, whose dynamics say
nothing, and one under a copy of the learned model as it was some time ago. The difference of the
bounds, in nats per bin, says what the dynamics are worth and whether learning still gains.

A change of the dynamics shows in the second: once learning has settled, the copy is as good as the
model; after a change the model, which goes on learning, leaves it behind. The sum of the
differences is a log-likelihood ratio of "changed" against "as before".
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
from evkf.filters.base import read_fresh, read_observations
from evkf.filters.evkf.filter import check_variational
from evkf.learning.learner import Learner
from evkf.learning.state import LearnerState, LearnInfo
from evkf.model import Model, read_inputs
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
    """All that the next bin needs."""

    walk: State
    step_square: Vector
    """Running mean square of the steps of the estimate: the noise of the random walk."""
    last: Vector
    copy: Model
    copied: State
    bins: Count
    nats: Scalar
    over_walk: Scalar
    over_copy: Scalar
    gain: Scalar
    """Over the copy, since it was made."""
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
    """The bin of the last one, or -1."""


class MonitorInfo(NamedTuple):
    """What is known after a bin.

    Attributes:
        nats: Running mean of the bound, nats per bin.
        over_walk: The same minus that of a random walk: what the dynamics are worth.
        over_copy: The same minus that of a copy of the model, renewed every 500 bins: whether
            learning still gains.
        evidence: Nats in favour of a change of the dynamics.
        changed: Whether one is flagged in this bin.
        since: How many bins ago it happened, by the evidence.
        changes: How many were flagged so far.
        last_change: The bin in which the last of them happened, by the evidence; -1 if none.
    """

    nats: Scalar
    over_walk: Scalar
    over_copy: Scalar
    evidence: Scalar
    changed: Bool[Array, ""]
    since: Int[Array, ""]
    changes: Int[Array, ""]
    last_change: Int[Array, ""]


class Monitor(eqx.Module):
    """Watches a learner at work.

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
        >>> watch = jax.jit(monitor.step)
        >>> _, known = watch(monitor.init(model), model, state.belief, info, y)
        >>> bool(known.changed)
        False
    """

    filter: VariationalKalmanFilter = VariationalKalmanFilter()

    def __check_init__(self):
        check_variational(self.filter)

    def init(self, model: Model) -> MonitorState:
        """The state before the first bin."""
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
        y: Observation,
        mask: Mask | None = None,
        u: Input | None = None,
        fresh: Bool[Array, ""] | bool = False,
        key: Key | None = None,
    ) -> tuple[MonitorState, MonitorInfo]:
        """Take in a bin.

        Args:
            state: Before the bin.
            model: The learner's model, with which it was filtered.
            belief: What the learner's filter found.
            info: What it said.
            y: Observation.
            mask: Which channels were observed.
            u: Input.
            fresh: Whether a trial begins.
            key: Randomness, for filters and likelihoods that sample; best the learner's own.
        """
        begins = jnp.asarray(fresh)
        # A copy that has not been where the model has would lose there for that alone.
        boxed = same_box(state.copy.dynamics, model.dynamics)
        copy = eqx.tree_at(lambda m: m.dynamics, state.copy, boxed)
        walk, nats_walk = self._walk(state, model, y, mask, begins, key)
        before = tree_where(begins, self.filter.init(copy), state.copied)
        copied, said = self.filter.step(copy, before, y, mask, key, u)

        def known(value: Scalar) -> Scalar:
            return jnp.where(jnp.isfinite(value), value, 0)

        share = jnp.maximum(1 / MEMORY, 1 / (1 + state.bins)).astype(info.elbo.dtype)

        def follow(mean: Array, value: Array) -> Array:
            return mean + share * (value - mean)

        over_copy = known(info.elbo - said.elbo)
        over_walk = follow(state.over_walk, known(info.elbo - nats_walk))
        allowed = ALLOWED * jnp.maximum(over_walk, 0.25)
        evidence = jnp.where(state.quiet >= SETTLED, state.evidence + over_copy - allowed, 0)
        evidence = jnp.maximum(evidence, 0)
        since = jnp.where(evidence > 0, state.since + 1, 0)
        changed = evidence > THRESHOLD
        gain, age = state.gain + over_copy, state.age + 1
        # While evidence gathers the copy is kept: it is what is compared with.
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
            nats=follow(state.nats, known(info.elbo)),
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
        told = (changed, since, new.changes, new.last_change)
        return new, MonitorInfo(new.nats, over_walk, new.over_copy, evidence, *told)

    def _walk(
        self,
        state: MonitorState,
        model: Model,
        y: Observation,
        mask: Mask | None,
        begins: Bool[Array, ""],
        key: Key | None,
    ) -> tuple[State, Scalar]:
        dim = model.family.dim
        walk = Linear(np.eye(dim), 1.0)
        noise = eqx.tree_at(lambda n: n.log_std, walk.noise, 0.5 * jnp.log(state.step_square))
        walk = eqx.tree_at(lambda w: w.noise, walk, noise)
        under = eqx.tree_at(lambda m: m.dynamics, model, walk)
        before = tree_where(begins, self.filter.init(under), state.walk)
        found, said = self.filter.step(under, before, y, mask, key)
        return found, said.elbo


def same_box(copy: Dynamics, dynamics: Dynamics) -> Dynamics:
    """A copy of dynamics, with their knowledge of where states have been, if they have any."""

    def box(of: Dynamics) -> tuple[Array, ...]:
        own = of.undriven if isinstance(of, Driven) else of
        return (own.low, own.high) if isinstance(own, ResidualMLP) else ()

    known = box(dynamics)
    return eqx.tree_at(box, copy, known) if known and box(copy) else copy


class Watched(NamedTuple):
    """A learner and what watches it."""

    learner: LearnerState
    monitor: MonitorState


def watch(
    learner: Learner,
    monitor: Monitor,
    state: Watched,
    y: Observation,
    mask: Mask | None = None,
    u: Input | None = None,
    fresh: Bool[Array, ""] | bool = False,
) -> tuple[Watched, tuple[Info, LearnInfo, MonitorInfo]]:
    """`observe_watched`, then learn."""
    state, (info, told) = observe_watched(learner, monitor, state, y, mask, u, fresh)
    known, learned = learner.learn(state.learner)
    return state._replace(learner=known), (info, learned, told)


def observe_watched(
    learner: Learner,
    monitor: Monitor,
    state: Watched,
    y: Observation,
    mask: Mask | None = None,
    u: Input | None = None,
    fresh: Bool[Array, ""] | bool = False,
) -> tuple[Watched, tuple[Info, MonitorInfo]]:
    """Observe and look at the evidence; after a change forget what was before it."""
    before = state.learner
    begins = jnp.asarray(fresh) | before.fresh
    known, info = learner.observe(before, y, mask, u, begins)
    bin = (info, y, mask, u, begins, before.bin_key)
    seen, told = monitor.step(state.monitor, before.model, known.filter.belief, *bin)
    # The evidence begins to gather some time after the change.
    known = learner.relearn(known, told.since + told.since // 2, told.changed)
    return Watched(known, seen), (info, told)


def scan_watched(
    learner: Learner,
    monitor: Monitor,
    state: Watched,
    ys: ArrayLike,
    masks: ArrayLike | None = None,
    us: ArrayLike | None = None,
    fresh: ArrayLike | None = None,
) -> tuple[Watched, tuple[Info, LearnInfo, MonitorInfo]]:
    """`watch` bin after bin.

    Args:
        learner: The learner.
        monitor: The monitor.
        state: Where to go on from: `Watched(learner.init(model), monitor.init(model))` at first.
        ys: Observations, (bins, channels).
        masks: True where observed.
        us: Inputs, (bins, inputs).
        fresh: True where a trial begins, (bins,).
    """
    model = state.learner.model
    observed, seen = read_observations(model, ys, masks)
    inputs = read_inputs(model, us, len(observed))
    marks = read_fresh(fresh, len(observed))
    return _scan(learner, monitor, state, (observed, seen, inputs, marks))


@jax.jit
def _scan(
    learner: Learner, monitor: Monitor, state: Watched, bins: tuple
) -> tuple[Watched, tuple[Info, LearnInfo, MonitorInfo]]:
    return lax.scan(lambda state, bin: watch(learner, monitor, state, *bin), state, bins)
