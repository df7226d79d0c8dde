"""The online learner: a filter, a ring of past bins, and gradient steps on a loss.

`observe` takes in a bin and gives the estimate; `learn` takes gradient steps on windows of the
ring. They are separate so that an estimate never waits for learning: a live session calls `learn`
in the time that is left of a bin. Paper: alg:evkf.
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
"""Steps in which the learning rate of a stream rises: the first have few bins to learn from."""


@cache
def adam(
    rate: float = 1e-2,
    decay: int = 3500,
    floor: float = 0.3,
    clip: float = 1.0,
    warm_up: int = 0,
) -> optax.GradientTransformation:
    """Return Adam with clipped gradients and a rate that may rise, falls as a cosine, then stays.

    Args:
        rate: The largest learning rate.
        decay: Steps until the last one is reached.
        floor: The last rate as a share of the largest.
        clip: Largest norm of a gradient.
        warm_up: Steps in which the rate rises first.

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
"""Bounds on the share of the noise that is put down to fitting: early in a stream, when a network
follows the few bins there are; and later, for one with more numbers than it uses.
"""


class LearnerState(NamedTuple):
    """The state of a learner, a tree of arrays that can be stored and restored as it is."""

    free: Free
    """The learned model: the running average over the gradient steps."""
    raw: Float[Array, " D"]
    """The learned numbers after the last gradient step."""
    filter: State
    ring: Ring
    optimiser: PyTree
    gradient: Float[Array, " D"]
    """Sum of the gradients since the last step, without replay."""
    thawed: Thawed
    gauge: Float[Array, "L N"]
    """Basis in which the coordinates are held; empty if they are not."""
    doubt: Scalar
    """Log of the factor by which learned dynamics widen the noise's standard deviation."""
    steps: Count
    """Gradient steps tried."""
    fresh: Bool[Array, ""]
    """True if the next bin begins a trial, whatever `observe` is given."""
    key: Array

    @property
    def model(self) -> Model:
        """The model in use: the learned one, with noise widened by the doubt about it."""
        model = self.free.build()
        if not isinstance(model.dynamics, GaussianDynamics):
            return model
        noise = model.dynamics.noise.widened(self.doubt)
        return eqx.tree_at(lambda m: m.dynamics.noise, model, noise)

    @property
    def bin_key(self) -> Key:
        """Randomness for filtering the next bin."""
        return jax.random.fold_in(jax.random.wrap_key_data(self.key), self.ring.count)


class LearnInfo(NamedTuple):
    """Diagnostics of a learning step.

    Attributes:
        loss: The loss before the step, without terms of the data alone; NaN where none was taken.
        grad_norm: Norm of its gradient before clipping.
        skipped: True if loss or gradient were not finite, so that nothing was changed.
        windows: Positions in the ring where the replayed windows begin; -1 where none was taken.
    """

    loss: Scalar
    grad_norm: Scalar
    skipped: Bool[Array, ""]
    windows: Int[Array, " num"]


class LearnTrace(NamedTuple):
    """Beliefs and diagnostics of filtering and learning, time first."""

    belief: Belief
    info: Info
    learned: LearnInfo


class Learner(eqx.Module):
    """An online learner of any part of a model.

    Args:
        filter: The filter that infers the states.
        loss: "elbo", "kl", "natural" or "natural_literal" (see `evkf.learning.losses`).
        parts: What is learned: "dynamics", "noise", "readout", "observation", "prior".
        optimiser: Any optax optimiser; it sees the learned numbers as one vector.
        ring: Bins kept for replay; 0 means no replay: every bin is used once, gradients are
            gathered, and a step is taken with their mean every `every` bins (Algorithm 1).
        num_windows: Windows replayed per gradient step.
        window: Bins in a window.
        every: Bins between learning.
        steps: Gradient steps each time.
        average: Share of a gradient step in the running average that is used for filtering; 1
            means none. The average is steadier than the steps, so that their rate need not fall
            and a change of the dynamics is followed.
        min_std: Floor of every learned noise, as a standard deviation.

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
        """The state before the first bin.

        Args:
            model: Where learning starts.
            key: Randomness, for filters and likelihoods that sample.
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
        """Filter one bin and push it to the ring; `fresh` is True for the first bin of a trial."""
        model = state.model
        begins = jnp.asarray(fresh) | state.fresh
        before = tree_where(begins, self.filter.init(model), state.filter)
        after, info = self.filter.step(model, before, y, mask, state.bin_key, u)
        dtype = state.ring.bins.y.dtype
        mask = jnp.ones(y.shape, bool) if mask is None else mask
        u = jnp.zeros(model.dynamics.num_inputs, dtype) if u is None else u
        # The filter cannot use an observation without a finite bound; learning leaves it out too.
        used = mask & jnp.isfinite(info.elbo)
        stored = Bins(jnp.where(used, y, 0).astype(dtype), used, u, begins, after.belief)
        usual = jnp.any(used) & (info.status == 0)
        seen = visit(state.free.model, after.belief, usual)
        tree = eqx.tree_at(lambda free: free.model, state.free, seen)
        ring, fresh = push(state.ring, stored), jnp.asarray(False)
        return state._replace(free=tree, filter=after, ring=ring, fresh=fresh), info

    def learn(self, state: LearnerState) -> tuple[LearnerState, LearnInfo]:
        """Take the gradient steps that are due."""
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
        """Return the diagnostics of a bin in which no gradient step was due."""
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
        """Observe, then learn."""
        state, info = self.observe(state, y, mask, u, fresh)
        state, learned = self.learn(state)
        return state, (info, learned)

    def relearn(
        self, state: LearnerState, keep: Count | int, when: Bool[Array, ""] | bool = True
    ) -> LearnerState:
        """Forget all but the last `keep` bins and restart the optimiser, after a change.

        The parameters stay where they are. Nothing is done if `when` is False.
        """
        when = jnp.asarray(when)
        ring, start = forget(state.ring, keep), self.optimiser.init(state.raw)
        return state._replace(
            ring=state.ring._replace(oldest=jnp.where(when, ring.oldest, state.ring.oldest)),
            optimiser=tree_where(when, start, state.optimiser),
        )

    def freeze(self, state: LearnerState, *parts: str) -> LearnerState:
        """Stop learning the named parts; all, if none is named."""
        return self._set_thawed(state, parts, False)

    def thaw(self, state: LearnerState, *parts: str) -> LearnerState:
        """Learn the named parts again; all, if none is named."""
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
        """Observe and learn from a recording bin by bin, and return the state to go on from.

        Args:
            state: State before the first bin: `init(model)`, or what an earlier call returned.
            ys: Observations, (bins, channels). NaN is refused unless its entry is masked.
            masks: True where observed, (bins, channels), or (bins,) for whole bins.
            us: Inputs, (bins, inputs).
            fresh: True where a trial begins, (bins,). The first bin ever is one.
            learns: True for bins after which `learn` is called, (bins,), as the journal of a live
                session records them; all when left out.
        """
        bins = read_bins(state.model, ys, masks, us, fresh)
        num = len(bins[0])
        turns = None if learns is None else np.asarray(learns)
        if turns is not None and (turns.dtype != bool or turns.shape != (num,)):
            what = f"turns of type {turns.dtype} and shape {turns.shape}"
            raise InputError(what, "learns", f"pass {num} booleans, True where it learns")
        return _scan(self, state, bins, turns)

    def replay_step(self, state: LearnerState, window: Window) -> tuple[LearnerState, LearnInfo]:
        """Take a gradient step on replayed windows, and refresh their beliefs in the ring."""
        (value, beliefs), grad = self._gradient(state, window)
        sound = jnp.isfinite(value) & jnp.all(jnp.isfinite(grad))
        beliefs = tree_where(sound, beliefs, window.bins.belief)
        state, sound = self._apply(state, grad, sound)
        state = state._replace(ring=refresh(state.ring, window, beliefs), steps=state.steps + 1)
        return state, LearnInfo(value, jnp.linalg.norm(grad), ~sound, window.slots[:, 0])

    def _gather(self, state: LearnerState) -> tuple[LearnerState, LearnInfo]:
        """Add the gradient of the last bin; step along their mean when one is due (Algorithm 1)."""
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
        """Take a step if all of it is finite; return the state, and True if the step was taken."""
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
        # The first steps go far: their average must not hold on to the start.
        share = jnp.maximum(self.average, 10 / (10 + state.steps)).astype(flat.dtype)
        average = eqx.combine(unravel(flat + share * moves * (raw - flat)), rest)
        tree, raw, optimiser = tree_where(
            sound, (average, raw, optimiser), (state.free, state.raw, state.optimiser)
        )
        doubt = self._doubt(learned, state)
        return state._replace(free=tree, raw=raw, optimiser=optimiser, doubt=doubt), sound

    def _doubt(self, learned: Free, state: LearnerState) -> Scalar:
        """Return the log factor by which the noise is widened.

        p numbers fitted to n bins take a share p/n of the variance from the residuals, as in a
        regression, and add as much to the variance of a prediction. There is no doubt where noise
        is not learned, where bins are used once, or where a loss holds the beliefs, in which it
        would find the wider noise.
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
    """Check a recording; return observations, masks, inputs and trial starts."""
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
    """Numbers from which the next step starts; frozen ones have no value but the one in use."""
    return jnp.where(thawed_vector(learned, state.thawed) > 0, state.raw, ravel_pytree(learned)[0])
