"""The online learner: a filter, a ring (buffer of past bins), and gradient steps on a loss.

`observe` filters a bin and returns the estimate. `learn` takes gradient steps on windows
(consecutive bins) of the ring. The two are separate so that an estimate never waits for learning: a
live session calls `learn` in the time that remains until the next bin. Paper: alg:evkf.
"""

from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import ArrayLike

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.families import LowRankGaussianFamily
from evkf.filters import Info, State, VariationalKalmanFilter
from evkf.filters.base import read_fresh, read_observations
from evkf.filters.evkf.filter import check_variational
from evkf.learning.gauge import can_move, gauge, hold_gauge
from evkf.learning.losses import LOSSES, Replayed
from evkf.learning.ring import (
    Bins,
    Ring,
    Window,
    draw_windows,
    forget,
    make_ring,
    newest_window,
    push,
    refresh,
)
from evkf.model import Model, read_inputs
from evkf.numerics.checks import check_choice, check_positive, check_whole
from evkf.numerics.linalg import tree_where
from evkf.parameters import PARTS, Free, Thawed, bound_noise, free, split, thawed_vector, visit
from evkf.types import Belief, Count, Input, Key, Mask, Observation, Scalar

RISE = 30
"""Gradient steps over which the learning rate of a stream rises to its largest value. The first
steps have few bins to learn from.
"""


@cache
def adam(
    rate: float = 1e-2,
    decay: int = 3500,
    floor: float = 0.3,
    clip: float = 1.0,
    warm_up: int = 0,
) -> optax.GradientTransformation:
    """Return Adam with clipped gradients and a learning rate that falls as a half cosine.

    Args:
        rate: The largest learning rate.
        decay: Number of steps until the learning rate has fallen to its last value, where it stays.
        floor: The last learning rate as a fraction of `rate`.
        clip: Largest norm of a gradient; longer gradients are scaled down to this norm.
        warm_up: Number of steps over which the learning rate first rises linearly; 0 for none.

    Example:
        >>> from evkf.learning import Learner
        >>> learner = Learner(optimiser=adam(rate=3e-3, decay=10_000))
    """
    check_positive(rate=rate, decay=decay, clip=clip)
    fall = optax.cosine_decay_schedule(rate, decay, floor)

    def schedule(step: Any) -> Array:
        return jnp.asarray(fall(step)) * jnp.minimum(1, (jnp.asarray(step) + 1) / max(warm_up, 1))

    return optax.chain(optax.clip_by_global_norm(clip), optax.adam(schedule))


EARLY_DOUBT, MOST_DOUBT = 0.8, 0.1
"""Largest fractions of the noise variance that are attributed to overfitting. The first limits the
number of dynamics parameters per latent divided by the bins ever observed, which is large early in
a stream. The second limits the same number divided by the bins in use in the ring. The larger of
the two fractions is used.
"""


class LearnerState(NamedTuple):
    """Everything a learner keeps between bins: a tree of arrays, which can be stored in a file."""

    free: Free
    """Parameters of the model in use: the running average over the gradient steps."""
    raw: Float[Array, " D"]
    """Learned parameters after the last gradient step, not averaged, as one vector."""
    filter: State
    """State of the filter after the last bin."""
    ring: Ring
    """Buffer of the last bins."""
    optimiser: PyTree
    """Internal state of the optimiser."""
    gradient: Float[Array, " D"]
    """Sum of the gradients since the last step; used only without replay (`ring=0`)."""
    thawed: Thawed
    """For each part of the model, True if the part is learned now."""
    gauge: Float[Array, "L N"]
    """Basis of the gauge (fixed latent coordinates, `evkf.learning.gauge`); empty if not held."""
    doubt: Scalar
    """Log of the factor that multiplies the learned standard deviation of the dynamics' noise."""
    steps: Count
    """Number of gradient steps so far, including those skipped because of non-finite numbers."""
    fresh: Bool[Array, ""]
    """True if the next bin begins a trial, even if `observe` is called with `fresh=False`."""
    key: Array
    """Data of the JAX random key."""

    @property
    def model(self) -> Model:
        """The model used for filtering: the averaged parameters, with the noise times e^doubt."""
        model = self.free.build()
        if not isinstance(model.dynamics, GaussianDynamics):
            return model
        noise = model.dynamics.noise.widened(self.doubt)
        return eqx.tree_at(lambda m: m.dynamics.noise, model, noise)

    @property
    def bin_key(self) -> Key:
        """JAX random key for filtering the next bin."""
        return jax.random.fold_in(jax.random.wrap_key_data(self.key), self.ring.count)


class LearnInfo(NamedTuple):
    """Diagnostics of a learning step.

    Attributes:
        loss: The loss before the step in nats per bin, without terms that depend only on the
            observations; NaN if no step was taken.
        grad_norm: Norm of the gradient before clipping; 0 if no step was taken.
        skipped: True if loss or gradient was not finite, so that no parameter was changed.
        windows: Positions in the ring of the first bins of the replayed windows; -1 if no step was
            taken.
    """

    loss: Scalar
    grad_norm: Scalar
    skipped: Bool[Array, ""]
    windows: Int[Array, " num"]


class LearnTrace(NamedTuple):
    """Beliefs and diagnostics of filtering and learning; the first axis of every array is time."""

    belief: Belief
    """Belief about the latent state after each bin."""
    info: Info
    """Diagnostics of each filter step."""
    learned: LearnInfo
    """Diagnostics of the learning after each bin."""


class Learner(eqx.Module):
    """An online learner of any part of a model.

    Args:
        filter: The filter that infers the latent states.
        loss: "elbo", "kl", "natural" or "natural_literal" (see `evkf.learning.losses`).
        parts: Parts of the model to learn: "dynamics", "noise", "readout", "observation", "prior".
        optimiser: Any optax optimiser. It receives all learned parameters as one vector.
        ring: Number of past bins kept for replay. 0 means no replay: every bin is used once,
            gradients are summed, and every `every` bins one step is taken with the mean gradient
            (Algorithm 1 of the paper).
        num_windows: Number of windows (consecutive past bins) replayed in a gradient step.
        window: Number of bins in a window.
        every: Number of bins from one call of `learn` that takes steps to the next.
        steps: Number of gradient steps in such a call; without a ring, 1.
        average: Weight of the newest parameters in the running average that is used for filtering;
            1 means no averaging. Early in learning the weight is larger. The average varies less
            than the parameters after each step, so the learning rate need not fall to zero, and
            learning can follow a change of the dynamics.
        min_std: Smallest standard deviation of every learned noise.

    Example:
        >>> import jax
        >>> from evkf.dynamics import ResidualMLP, VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import Model, simulate
        >>> likelihood = Poisson([[1.0, 0.0], [0.0, 1.0]])
        >>> _, ys = simulate(Model(VanDerPol(), likelihood), jax.random.key(0), 30)
        >>> start = Model(ResidualMLP(2, 0.04, jax.random.key(1)), likelihood)
        >>> learner = Learner(ring=64)
        >>> state, trace = learner.scan(learner.init(start), ys)
        >>> int(state.steps), trace.info.elbo.shape
        (21, (30,))
    """

    filter: VariationalKalmanFilter = VariationalKalmanFilter()
    loss: str = eqx.field(static=True, default="elbo")
    parts: tuple[str, ...] = eqx.field(static=True, default=("dynamics", "noise"), converter=tuple)
    optimiser: optax.GradientTransformation = eqx.field(static=True, default=adam(warm_up=RISE))
    ring: int = eqx.field(static=True, default=4096)
    num_windows: int = eqx.field(static=True, default=8)
    window: int = eqx.field(static=True, default=10)
    every: int = eqx.field(static=True, default=1)
    steps: int = eqx.field(static=True, default=1)
    average: float = eqx.field(static=True, default=0.005)
    min_std: float = eqx.field(static=True, default=1e-3)

    def __check_init__(self) -> None:
        check_variational(self.filter)
        check_choice(self.loss, LOSSES, "loss")
        for name in ("num_windows", "window", "every", "steps"):
            check_whole(getattr(self, name), 1, name)
        check_whole(self.ring, 0, "ring")
        if self.ring and self.ring <= self.window:
            remedy = f"pass 0, or more than {self.window}"
            raise InputError(f"ring of {self.ring} bins", "ring", remedy)
        if self.steps > 1 and not self.ring:
            raise InputError(f"steps = {self.steps} without a ring", "steps", "pass 1, or a ring")
        if not 0 < self.average <= 1:
            remedy = "pass a share above 0, at most 1"
            raise InputError(f"average = {self.average}", "average", remedy)
        check_positive(min_std=self.min_std)

    def init(self, model: Model, key: Key | None = None) -> LearnerState:
        """Return the learner's state before the first bin.

        Raise `InputError` if the model's beliefs have low rank, or if it has nothing to learn.

        Args:
            model: The model to start from.
            key: JAX random key, for filters and likelihoods that sample; seed 0 when left out.
        """
        if isinstance(model.family, LowRankGaussianFamily):
            raise InputError(
                "LowRankGaussianFamily states",
                "Learner",
                "learn with Gaussian or DiagonalGaussianFamily states, then filter with low rank",
            )
        tree = free(model, self.parts)
        flat = ravel_pytree(split(tree, self.parts)[0])[0]
        if not flat.size:
            raise InputError(
                f"a model without numbers in {self.parts}", "parts", f"choose more of {PARTS}"
            )
        basis = jnp.zeros((0, 0))
        if {"readout", "dynamics"} <= set(self.parts) and can_move(model):
            basis = gauge(split(tree, self.parts)[0])
        return LearnerState(
            free=tree,
            raw=flat,
            filter=self.filter.init(model),
            ring=make_ring(model, self.ring or 2),
            optimiser=self.optimiser.init(flat),
            gradient=jnp.zeros_like(flat),
            gauge=basis,
            thawed=Thawed(*(jnp.asarray(part in self.parts) for part in PARTS)),
            doubt=jnp.zeros((), flat.dtype),
            steps=jnp.asarray(0, jnp.int32),
            fresh=jnp.asarray(True),
            key=jax.random.key_data(jax.random.key(0) if key is None else key),
        )

    def observe(
        self,
        state: LearnerState,
        y: Observation,
        mask: Mask | None = None,
        u: Input | None = None,
        fresh: Bool[Array, ""] | bool = False,
    ) -> tuple[LearnerState, Info]:
        """Filter one bin, store the bin in the ring, and return the new state and diagnostics.

        No parameter is learned.

        Args:
            state: The learner's state before the bin.
            y: Observations, (N,).
            mask: True where observed, (N,); all observed when left out.
            u: Input, (inputs,); zeros when left out.
            fresh: True if the bin is the first of a trial.
        """
        model = state.model
        begins = jnp.asarray(fresh) | state.fresh
        before = tree_where(begins, self.filter.init(model), state.filter)
        after, info = self.filter.step(model, before, y, mask, state.bin_key, u)
        dtype = state.ring.bins.y.dtype
        mask = jnp.ones(y.shape, bool) if mask is None else mask
        u = jnp.zeros(model.dynamics.num_inputs, dtype) if u is None else u
        # Where the bound is not finite, the filter did not use the observation. Mask the bin for
        # learning too.
        used = mask & jnp.isfinite(info.elbo)
        stored = Bins(jnp.where(used, y, 0).astype(dtype), used, u, begins, after.belief)
        usual = jnp.any(used) & (info.status == 0)
        seen = visit(state.free.model, after.belief, usual)
        tree = eqx.tree_at(lambda free: free.model, state.free, seen)
        ring, fresh = push(state.ring, stored), jnp.asarray(False)
        return state._replace(free=tree, filter=after, ring=ring, fresh=fresh), info

    def learn(self, state: LearnerState) -> tuple[LearnerState, LearnInfo]:
        """Take the gradient steps that are due; return the new state and diagnostics.

        With a ring, the diagnostics are those of the last step. If no step is due, or the ring does
        not hold enough bins for a window, the state is returned unchanged. Without a ring, the
        gradient of the last bin is also added to the sum for the next step.

        Args:
            state: The learner's state after `observe`.
        """
        if not self.ring:
            return self._gather(state)

        def skip(state: LearnerState, _: Window) -> tuple[LearnerState, LearnInfo]:
            return state, self.no_step(state)

        due = state.ring.count % self.every == 0
        for _ in range(self.steps):
            window, enough = draw_windows(state.ring, state.steps, self.num_windows, self.window)
            state, info = lax.cond(due & enough, self.replay_step, skip, state, window)
        return state, info

    def no_step(self, state: LearnerState) -> LearnInfo:
        """Return the diagnostics of a bin without a gradient step: loss NaN, gradient norm 0.

        Args:
            state: The learner's state, which gives the number type.
        """
        nan = jnp.asarray(jnp.nan, state.gradient.dtype)
        nowhere = jnp.full(self.num_windows if self.ring else 1, -1, jnp.int32)
        return LearnInfo(nan, jnp.zeros_like(nan), jnp.asarray(False), nowhere)

    def step(
        self,
        state: LearnerState,
        y: Observation,
        mask: Mask | None = None,
        u: Input | None = None,
        fresh: Bool[Array, ""] | bool = False,
    ) -> tuple[LearnerState, tuple[Info, LearnInfo]]:
        """Call `observe`, then `learn`; return the new state, and the diagnostics of each."""
        state, info = self.observe(state, y, mask, u, fresh)
        state, learned = self.learn(state)
        return state, (info, learned)

    def relearn(
        self, state: LearnerState, keep: Count | int, when: Bool[Array, ""] | bool = True
    ) -> LearnerState:
        """Return a state for learning anew after a change of the dynamics.

        All but the last `keep` bins of the ring are forgotten, and the optimiser restarts. The
        parameters are kept.

        Args:
            state: The learner's state.
            keep: Number of bins to keep.
            when: If False, the state is returned unchanged.
        """
        when = jnp.asarray(when)
        ring, start = forget(state.ring, keep), self.optimiser.init(state.raw)
        return state._replace(
            ring=state.ring._replace(oldest=jnp.where(when, ring.oldest, state.ring.oldest)),
            optimiser=tree_where(when, start, state.optimiser),
        )

    def freeze(self, state: LearnerState, *parts: str) -> LearnerState:
        """Return a state in which the named parts are not learned; all parts if no name is given.

        Raise `InputError` if a name is not among the `parts` of this learner.
        """
        return self._set_thawed(state, parts, False)

    def thaw(self, state: LearnerState, *parts: str) -> LearnerState:
        """Return a state in which the named parts are learned again; all if no name is given.

        Raise `InputError` if a name is not among the `parts` of this learner.
        """
        return self._set_thawed(state, parts, True)

    def _set_thawed(self, state: LearnerState, parts: tuple[str, ...], value: bool) -> LearnerState:
        unknown = [part for part in parts if part not in self.parts]
        if unknown:
            raise InputError(
                f"{unknown[0]!r} is not learned", "parts", f"choose among {self.parts}"
            )
        changed = {part: jnp.asarray(value) for part in parts or self.parts}
        return state._replace(thawed=state.thawed._replace(**changed))

    def scan(
        self,
        state: LearnerState,
        ys: ArrayLike,
        masks: ArrayLike | None = None,
        us: ArrayLike | None = None,
        fresh: ArrayLike | None = None,
        learns: ArrayLike | None = None,
    ) -> tuple[LearnerState, LearnTrace]:
        """Observe and learn from a recording, bin by bin.

        Args:
            state: The learner's state before the first bin: `init(model)`, or the state that an
                earlier call returned.
            ys: Observations, (bins, channels). Raise `InputError` for NaN that is not masked.
            masks: True where observed, (bins, channels), or (bins,) for whole bins; all observed
                when left out.
            us: Inputs, (bins, inputs); required if the dynamics take inputs.
            fresh: True where a trial begins, (bins,). The first bin of a new state always begins a
                trial.
            learns: True for bins after which `learn` is called, (bins,), as the journal (log) of a
                live session records them; all bins when left out.

        Returns:
            The state after the last bin, and a `LearnTrace` of all bins.
        """
        bins = read_bins(state.model, ys, masks, us, fresh)
        num = len(bins[0])
        turns = None if learns is None else np.asarray(learns)
        if turns is not None and (turns.dtype != bool or turns.shape != (num,)):
            what = f"turns of type {turns.dtype} and shape {turns.shape}"
            raise InputError(what, "learns", f"pass {num} booleans, True where it learns")
        return _scan(self, state, bins, turns)

    def replay_step(self, state: LearnerState, window: Window) -> tuple[LearnerState, LearnInfo]:
        """Take a gradient step on windows; return the new state and diagnostics.

        The beliefs of the replayed bins are replaced in the ring by those that the loss computed.

        Args:
            state: The learner's state.
            window: Windows to replay, with a leading axis.
        """
        (value, beliefs), grad = self._gradient(state, window)
        sound = jnp.isfinite(value) & jnp.all(jnp.isfinite(grad))
        beliefs = tree_where(sound, beliefs, window.bins.belief)
        state, sound = self._apply(state, grad, sound)
        state = state._replace(ring=refresh(state.ring, window, beliefs), steps=state.steps + 1)
        return state, LearnInfo(value, jnp.linalg.norm(grad), ~sound, window.slots[:, 0])

    def _gather(self, state: LearnerState) -> tuple[LearnerState, LearnInfo]:
        """Learn without replay (Algorithm 1 of the paper); return the new state and diagnostics.

        The gradient of the last bin is added to a sum. Every `every` bins, a step is taken with the
        mean gradient.
        """
        window = newest_window(state.ring)
        (value, _), grad = self._gradient(state, window)
        sound = jnp.isfinite(value) & jnp.all(jnp.isfinite(grad))
        total = state.gradient + jnp.where(sound, grad, 0)
        state = state._replace(gradient=total)

        def descend(state: LearnerState) -> LearnerState:
            moved, _ = self._apply(state, state.gradient / self.every, jnp.asarray(True))
            return moved._replace(gradient=jnp.zeros_like(total), steps=state.steps + 1)

        due = state.ring.count % self.every == 0
        state = lax.cond(due, descend, lambda state: state, state)
        return state, LearnInfo(value, jnp.linalg.norm(grad), ~sound, window.slots[:, 0])

    def _gradient(self, state: LearnerState, window: Window) -> tuple[Replayed, Array]:
        learned, rest = split(state.free, self.parts)
        raw = ravel_pytree(learned)[1](_raw(learned, state))
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), -1 - state.steps)

        def loss(learned: Free) -> Replayed:
            model = eqx.combine(learned, rest).build()
            return LOSSES[self.loss](self.filter, model, window, key)

        replayed, grad = jax.value_and_grad(loss, has_aux=True)(raw)
        return replayed, ravel_pytree(grad)[0]

    def _apply(
        self, state: LearnerState, grad: Array, sound: Bool[Array, ""]
    ) -> tuple[LearnerState, Bool[Array, ""]]:
        """Return the state after a gradient step, and True if the step was taken.

        The step is not taken if `sound` is False or a parameter would become non-finite.
        """
        learned, rest = split(state.free, self.parts)
        flat, unravel = ravel_pytree(learned)
        moves, before = thawed_vector(learned, state.thawed), _raw(learned, state)
        step, optimiser = self.optimiser.update(moves * grad, state.optimiser, before)
        change = unravel(moves * jnp.asarray(step))
        if state.gauge.size:
            held = hold_gauge(state.gauge, change)
            change = tree_where(state.thawed.dynamics, held, change)
        moved = eqx.apply_updates(unravel(before), change)
        raw = ravel_pytree(bound_noise(moved, self.min_std))[0]
        sound = sound & jnp.all(jnp.isfinite(raw))
        # The first steps are large, so a larger weight lets the average leave the start sooner.
        share = jnp.maximum(self.average, 10 / (10 + state.steps)).astype(flat.dtype)
        average = eqx.combine(unravel(flat + share * moves * (raw - flat)), rest)
        tree, raw, optimiser = tree_where(
            sound, (average, raw, optimiser), (state.free, state.raw, state.optimiser)
        )
        doubt = self._doubt(learned, state)
        return state._replace(free=tree, raw=raw, optimiser=optimiser, doubt=doubt), sound

    def _doubt(self, learned: Free, state: LearnerState) -> Scalar:
        """Return the log of the factor that multiplies the learned noise's standard deviation.

        As in a regression, p parameters fitted to n bins reduce the variance of the residuals by a
        fraction s = p / n, and increase the variance of predictions by the same fraction. The log
        factor is artanh(s). It stays as it was (initially zero) unless dynamics and noise are both
        learned, bins are replayed, and the loss is "elbo". The other losses use the stored beliefs,
        which would already contain the wider noise.
        """
        fitted = self.ring and self.loss == "elbo" and {"dynamics", "noise"} <= set(self.parts)
        if not fitted:
            return state.doubt
        numbers = jax.tree.leaves(split(learned, ("dynamics",))[0])
        per_latent = sum(leaf.size for leaf in numbers) / learned.model.family.dim
        bins = state.ring.count - state.ring.oldest
        early = jnp.minimum(per_latent / state.ring.count, EARLY_DOUBT)
        share = jnp.maximum(early, jnp.minimum(per_latent / bins, MOST_DOUBT))
        share = share.astype(state.doubt.dtype)
        moves = state.thawed.dynamics & state.thawed.noise
        return jnp.where(moves, jnp.arctanh(share), state.doubt)


def read_bins(
    model: Model,
    ys: ArrayLike,
    masks: ArrayLike | None,
    us: ArrayLike | None,
    fresh: ArrayLike | None,
) -> tuple[Array, Array, Array, Array]:
    """Check a recording and return observations, masks, inputs and trial starts as JAX arrays.

    Args:
        model: The model, which gives the numbers of channels and inputs.
        ys: Observations, (bins, channels).
        masks: True where observed, (bins, channels) or (bins,); all observed when None.
        us: Inputs, (bins, inputs); None if the dynamics take no inputs.
        fresh: True where a trial begins, (bins,).
    """
    observed, seen = read_observations(model, ys, masks)
    num = len(observed)
    return observed, seen, read_inputs(model, us, num), read_fresh(fresh, num)


@jax.jit
def _scan(
    learner: Learner, state: LearnerState, bins: tuple, learns: Bool[Array, " T"] | None
) -> tuple[LearnerState, LearnTrace]:
    def body(state: LearnerState, each: tuple) -> tuple[LearnerState, LearnTrace]:
        bin, learn = each
        state, info = learner.observe(state, *bin)
        if learn is None:
            state, learned = learner.learn(state)
        else:
            skip = lambda state: (state, learner.no_step(state))  # noqa: E731
            state, learned = lax.cond(learn, learner.learn, skip, state)
        return state, LearnTrace(state.filter.belief, info, learned)

    return lax.scan(body, state, (bins, learns))


def _raw(learned: Free, state: LearnerState) -> Float[Array, " D"]:
    """Return the parameters from which the next gradient step starts, as one vector.

    These are the parameters after the last step; for frozen parameters, the averages in use.
    """
    return jnp.where(thawed_vector(learned, state.thawed) > 0, state.raw, ravel_pytree(learned)[0])
