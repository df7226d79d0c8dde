"""Learning while streaming: the filter, a ring of past bins, and gradient steps on a loss.

`observe` takes in a bin and gives the estimate; `learn` takes gradient steps on what the ring
holds. Nothing waits for learning: a live session calls `learn` in the time a bin leaves.
Paper: alg:evkf.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.families import LowRankGaussianFamily
from evkf.filters import Info, VariationalKalmanFilter
from evkf.filters.base import read_fresh, read_observations
from evkf.filters.evkf.filter import check_variational
from evkf.learning.gauge import can_move, gauge, hold_gauge
from evkf.learning.losses import LOSSES, Replayed
from evkf.learning.optimiser import RISE, adam
from evkf.learning.replay import Bins, Window, empty, forget, newest, push, refresh, windows
from evkf.learning.state import LearnerState, LearnInfo, LearnTrace
from evkf.model import Model, read_inputs
from evkf.numerics.checks import check_choice, check_positive, check_positive_whole, check_whole
from evkf.numerics.linalg import tree_where
from evkf.parameters import PARTS, Free, Thawed, bound_noise, free, split, thawed_vector, visit
from evkf.types import Count, Input, Key, Mask, Observation, Scalar

DEFAULT_OPTIMISER = adam(warm_up=RISE)

EARLY_DOUBT, MOST_DOUBT = 0.8, 0.1
"""Bounds on the share of the noise that is put down to fitting: early in a stream, when a network
follows the few bins there are; and later, for one with more numbers than it uses.
"""


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

    filter: VariationalKalmanFilter
    optimiser: optax.GradientTransformation = eqx.field(static=True)
    loss: str = eqx.field(static=True)
    parts: tuple[str, ...] = eqx.field(static=True)
    ring: int = eqx.field(static=True)
    num_windows: int = eqx.field(static=True)
    window: int = eqx.field(static=True)
    every: int = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    average: float = eqx.field(static=True)
    min_std: float = eqx.field(static=True)

    def __init__(
        self,
        filter: VariationalKalmanFilter | None = None,
        loss: str = "elbo",
        parts: tuple[str, ...] = ("dynamics", "noise"),
        optimiser: optax.GradientTransformation = DEFAULT_OPTIMISER,
        ring: int = 4096,
        num_windows: int = 8,
        window: int = 10,
        every: int = 1,
        steps: int = 1,
        average: float = 0.005,
        min_std: float = 1e-3,
    ):
        check_choice(loss, LOSSES, "loss")
        check_positive_whole(num_windows=num_windows, window=window, every=every, steps=steps)
        check_whole(ring, 0, "ring")
        if ring and ring <= window:
            raise InputError(f"ring of {ring} bins", "ring", f"pass 0, or more than {window}")
        if steps > 1 and not ring:
            raise InputError(f"steps = {steps} without a ring", "steps", "pass 1, or a ring")
        if not 0 < average <= 1:
            raise InputError(f"average = {average}", "average", "pass a share above 0, at most 1")
        check_positive(min_std=min_std)
        self.filter = VariationalKalmanFilter() if filter is None else check_variational(filter)
        self.loss, self.parts, self.optimiser = loss, tuple(parts), optimiser
        self.ring, self.num_windows, self.window = ring, num_windows, window
        self.every, self.steps = every, steps
        self.average, self.min_std = average, min_std

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
        return LearnerState(
            free=tree,
            raw=flat,
            filter=self.filter.init(model),
            ring=empty(model, self.ring or 2),
            optimiser=self.optimiser.init(flat),
            gradient=jnp.zeros_like(flat),
            gauge=self._gauge(model, tree),
            thawed=Thawed(*(jnp.asarray(part in self.parts) for part in PARTS)),
            doubt=jnp.zeros((), flat.dtype),
            steps=jnp.asarray(0, jnp.int32),
            fresh=jnp.asarray(True),
            key=jax.random.key_data(jax.random.key(0) if key is None else key),
        )

    def _gauge(self, model: Model, tree: Free) -> Float[Array, "L N"]:
        if {"readout", "dynamics"} <= set(self.parts) and can_move(model):
            return gauge(split(tree, self.parts)[0])
        return jnp.zeros((0, 0))

    def observe(
        self,
        state: LearnerState,
        y: Observation,
        mask: Mask | None = None,
        u: Input | None = None,
        fresh: Bool[Array, ""] | bool = False,
    ) -> tuple[LearnerState, Info]:
        """Filter one bin and remember it; `fresh` marks the first bin of a trial."""
        model = state.model
        begins = jnp.asarray(fresh) | state.fresh
        before = tree_where(begins, self.filter.init(model), state.filter)
        found, info = self.filter.step(model, before, y, mask, state.bin_key, u)
        dtype = state.ring.bins.y.dtype
        mask = jnp.ones(y.shape, bool) if mask is None else mask
        u = jnp.zeros(model.dynamics.num_inputs, dtype) if u is None else u
        # What the filter could not use is not learned from either.
        used = mask & jnp.isfinite(info.elbo)
        kept = Bins(jnp.where(used, y, 0).astype(dtype), used, u, begins, found.belief)
        usual = jnp.any(used) & (info.status == 0)
        seen = visit(state.free.model, found.belief, usual)
        tree = eqx.tree_at(lambda free: free.model, state.free, seen)
        ring, going_on = push(state.ring, kept), jnp.asarray(False)
        return state._replace(free=tree, filter=found, ring=ring, fresh=going_on), info

    def learn(self, state: LearnerState) -> tuple[LearnerState, LearnInfo]:
        """Take the gradient steps that are due."""
        if not self.ring:
            return self._gather(state)
        due = state.ring.count % self.every == 0
        for _ in range(self.steps):
            drawn, enough = windows(state.ring, state.steps, self.num_windows, self.window)
            state, info = lax.cond(due & enough, self._descend, _rest, state, drawn)
        return state, info

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
        """Learn anew from the last `keep` bins on: after a change of the dynamics.

        The parameters stay where they are; older bins are forgotten and the optimiser starts again.
        """
        when = jnp.asarray(when)
        ring, start = forget(state.ring, keep), self.optimiser.init(state.raw)
        return state._replace(
            ring=state.ring._replace(oldest=jnp.where(when, ring.oldest, state.ring.oldest)),
            optimiser=tree_where(when, start, state.optimiser),
        )

    def freeze(self, state: LearnerState, *parts: str) -> LearnerState:
        """Keep parts as they are from now on; all, if none is named."""
        return self._set_thawed(state, parts, False)

    def thaw(self, state: LearnerState, *parts: str) -> LearnerState:
        """Let parts move again; all, if none is named."""
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
        """Take in a recording bin by bin, and return the state to go on from.

        Args:
            state: Where to begin: `init(model)`, or what an earlier call returned.
            ys: Observations, (bins, channels). NaN is refused unless its entry is masked.
            masks: True where observed, (bins, channels), or (bins,) for whole bins.
            us: Inputs, (bins, inputs).
            fresh: True where a trial begins, (bins,). The first bin ever is one.
            learns: True where `learn` has its turn, (bins,), as journals of live sessions tell;
                without, in every bin.
        """
        model = state.model
        observed, seen = read_observations(model, ys, masks)
        num = len(observed)
        bins = observed, seen, read_inputs(model, us, num), read_fresh(fresh, num)
        if learns is None:
            return _scan(self, state, bins)
        turns = np.asarray(learns)
        if turns.dtype != bool or turns.shape != (num,):
            what = f"turns of type {turns.dtype} and shape {turns.shape}"
            raise InputError(what, "learns", f"pass {num} booleans, True where it learns")
        return _scan_decided(self, state, bins, jnp.asarray(turns))

    def _gradient(self, state: LearnerState, drawn: Window) -> tuple[Replayed, Array]:
        learned, rest = split(state.free, self.parts)
        raw = ravel_pytree(learned)[1](_raw(learned, state))
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), -1 - state.steps)

        def loss(learned: Free) -> Replayed:
            model = eqx.combine(learned, rest).build()
            return LOSSES[self.loss](self.filter, model, drawn, key)

        replayed, grad = jax.value_and_grad(loss, has_aux=True)(raw)
        return replayed, ravel_pytree(grad)[0]

    def _apply(
        self, state: LearnerState, grad: Array, sound: Bool[Array, ""]
    ) -> tuple[LearnerState, Bool[Array, ""]]:
        """Take a step, unless something about it is not finite; says whether it was taken."""
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
        # The first steps go far, and an average of few should not hold on to the start.
        share = jnp.maximum(self.average, 10 / (10 + state.steps)).astype(flat.dtype)
        average = eqx.combine(unravel(flat + share * moves * (raw - flat)), rest)
        known = (state.free, state.raw, state.optimiser)
        tree, raw, optimiser = tree_where(sound, (average, raw, optimiser), known)
        known = state._replace(free=tree, raw=raw, optimiser=optimiser)
        return known._replace(doubt=self._doubt(learned, state)), sound

    def _doubt(self, learned: Free, state: LearnerState) -> Scalar:
        """As in a regression: p numbers fitted to n bins take from the residuals a share p/n of
        their variance, and add as much to that of a prediction. Noise that is not learned stays,
        bins that are used once are not fitted, and a loss that holds the beliefs would find the
        wider noise in them.
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

    def _descend(self, state: LearnerState, drawn: Window) -> tuple[LearnerState, LearnInfo]:
        (value, beliefs), grad = self._gradient(state, drawn)
        sound = jnp.isfinite(value) & jnp.all(jnp.isfinite(grad))
        beliefs = tree_where(sound, beliefs, drawn.bins.belief)
        state, sound = self._apply(state, grad, sound)
        state = state._replace(ring=refresh(state.ring, drawn, beliefs), steps=state.steps + 1)
        return state, LearnInfo(value, jnp.linalg.norm(grad), ~sound, drawn.slots[:, 0])

    def _gather(self, state: LearnerState) -> tuple[LearnerState, LearnInfo]:
        """Algorithm 1: the bin just seen, and a step with the mean gradient when one is due."""
        drawn = newest(state.ring)
        (value, _), grad = self._gradient(state, drawn)
        sound = jnp.isfinite(value) & jnp.all(jnp.isfinite(grad))
        total = state.gradient + jnp.where(sound, grad, 0)
        state = state._replace(gradient=total)

        def descend(state: LearnerState) -> LearnerState:
            moved, _ = self._apply(state, state.gradient / self.every, jnp.asarray(True))
            return moved._replace(gradient=jnp.zeros_like(total), steps=state.steps + 1)

        due = state.ring.count % self.every == 0
        state = lax.cond(due, descend, lambda state: state, state)
        return state, LearnInfo(value, jnp.linalg.norm(grad), ~sound, drawn.slots[:, 0])


@jax.jit
def _scan(learner: Learner, state: LearnerState, bins: tuple) -> tuple[LearnerState, LearnTrace]:
    def body(state: LearnerState, bin: tuple) -> tuple[LearnerState, LearnTrace]:
        state, (info, learned) = learner.step(state, *bin)
        return state, LearnTrace(state.filter.belief, info, learned)

    return lax.scan(body, state, bins)


@jax.jit
def _scan_decided(
    learner: Learner, state: LearnerState, bins: tuple, learns: Bool[Array, " T"]
) -> tuple[LearnerState, LearnTrace]:
    def rest(state: LearnerState) -> tuple[LearnerState, LearnInfo]:
        return state, no_step(state, learner.num_windows if learner.ring else 1)

    def body(state: LearnerState, given: tuple) -> tuple[LearnerState, LearnTrace]:
        bin, learn = given
        state, info = learner.observe(state, *bin)
        state, learned = lax.cond(learn, learner.learn, rest, state)
        return state, LearnTrace(state.filter.belief, info, learned)

    return lax.scan(body, state, (bins, learns))


def _raw(learned: Free, state: LearnerState) -> Float[Array, " D"]:
    """Where the next step starts from: what is frozen has no value but the one in use."""
    return jnp.where(thawed_vector(learned, state.thawed) > 0, state.raw, ravel_pytree(learned)[0])


def _rest(state: LearnerState, drawn: Window) -> tuple[LearnerState, LearnInfo]:
    return state, no_step(state, len(drawn.slots))


def no_step(state: LearnerState, num_windows: int) -> LearnInfo:
    """What is said of a bin in which no gradient step was due."""
    nan = jnp.asarray(jnp.nan, state.gradient.dtype)
    nowhere = jnp.full(num_windows, -1, jnp.int32)
    return LearnInfo(nan, jnp.zeros_like(nan), jnp.asarray(False), nowhere)
