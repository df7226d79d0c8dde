"""A learner compiled ahead of time, for streams.

Handing a state of many small arrays to a compiled function costs more than filtering a bin. Here
they travel together, one vector for each type of number; only the ring's large arrays stand alone,
and are written in place. What observing leaves as it is, parameters above all, is handed in and not
back.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from evkf.analysis.forecasting import expected_observation, forecast
from evkf.errors import InputError
from evkf.filters import Info
from evkf.filters.compiled import CPU_OPTIONS, Packed, packing
from evkf.learning.learner import Learner, no_step
from evkf.learning.monitor import Monitor, MonitorInfo, Watched, observe_watched
from evkf.learning.state import LearnerState, LearnInfo
from evkf.model import Model
from evkf.numerics.checks import real_numbers
from evkf.numerics.linalg import shapes
from evkf.types import Input, Key


class Outlook(NamedTuple):
    """Where the state is, and what is coming.

    Attributes:
        mean: Of the state now.
        cov: Its covariance.
        rate: The expected observation of the next bin.
    """

    mean: Float[Array, " L"]
    cov: Float[Array, "L L"]
    rate: Float[Array, " N"]


class Said(NamedTuple):
    """What is known after a bin, in NumPy's arrays.

    Attributes:
        belief: Of the state.
        info: What the filter said of itself.
        evidence: What the monitor said, if there is one.
        outlook: Where the state is and what is coming, if it was asked for.
    """

    belief: PyTree
    info: Info
    evidence: MonitorInfo | None
    outlook: Outlook | None


class CompiledLearner:
    """A learner at work on a stream: `observe` a bin, then `learn` if there is time.

    Args:
        learner: The learner.
        start: The model to start from, or what `state` gave, to go on from.
        key: Randomness, for filters and likelihoods that sample.
        monitor: Watches the evidence while bins are observed, which takes two more filter steps
            each; after a change of the dynamics, they are learned anew.
        outlook: Whether observing a bin also tells the outlook, as if the next had its input.
        horizon: How many bins `forecast` looks ahead.

    Example:
        >>> import jax, numpy as np
        >>> from evkf.dynamics import ResidualMLP
        >>> from evkf.likelihoods import Poisson
        >>> likelihood = Poisson([[1.0, 0.0], [0.0, 1.0]])
        >>> model = Model(ResidualMLP(2, 0.04, jax.random.key(1)), likelihood)
        >>> live = CompiledLearner(Learner(ring=64), model)
        >>> for _ in range(12):
        ...     estimate = live.observe(np.array([1.0, 0.0]))
        ...     learned = live.learn()
        >>> int(live.info(estimate).status), int(live.state.steps)
        (0, 3)
        >>> live.state = live.learner.freeze(live.state, "noise")
        >>> live.outlook().rate.shape
        (2,)
    """

    def __init__(
        self,
        learner: Learner,
        start: Model | LearnerState | Watched,
        key: Key | None = None,
        monitor: Monitor | None = None,
        outlook: bool = False,
        horizon: int = 0,
    ):
        self.learner, self.monitor = learner, monitor
        state = _begin(learner, monitor, start, key)
        known = _known(state)
        bins = known.ring.bins
        self._channels, self._inputs = bins.y.shape[1], bins.u.shape[1]
        self._dtype = bins.y.dtype
        shapes = (
            jax.ShapeDtypeStruct((self._channels,), self._dtype),
            jax.ShapeDtypeStruct((self._channels,), bool),
            jax.ShapeDtypeStruct((self._inputs,), self._dtype),
            jax.ShapeDtypeStruct((), bool),
        )

        def take(state: LearnerState | Watched, *bin: Array) -> tuple:
            evidence = None
            if monitor is None:
                assert isinstance(state, LearnerState)
                state, info = learner.observe(state, *bin)
            else:
                assert isinstance(state, Watched)
                state, (info, evidence) = observe_watched(learner, monitor, state, *bin)
            known = _known(state)
            ahead = look_out(learner, known, bin[2]) if outlook else None
            return state, Said(known.filter.belief, info, evidence, ahead)

        pack_said, self._unpack_said = packing(jax.eval_shape(take, state, *shapes)[1])
        pack, unpack = _packing_apart(state, lambda state, *bin: take(state, *bin)[0], shapes)

        def observe(moving: Packed, still: Packed, *bin: Array) -> tuple[Packed, Packed]:
            state, said = take(unpack(moving, still), *bin)
            return pack(state)[0], pack_said(said)

        def learn(moving: Packed, still: Packed) -> tuple[Packed, Packed, LearnInfo]:
            state = unpack(moving, still)
            new, learned = learner.learn(_known(state))
            state = new if isinstance(state, LearnerState) else state._replace(learner=new)
            return *pack(state), learned

        def seen_ahead(moving: Packed, still: Packed, u: Array) -> Outlook:
            return look_out(learner, _known(unpack(moving, still)), u)

        def foretell(moving: Packed, still: Packed, u: Array) -> tuple[Array, Array]:
            known = _known(unpack(moving, still))
            us = jnp.broadcast_to(u, (horizon, *u.shape))
            ahead = forecast(learner.filter, known.model, known.filter.belief, horizon, us)
            return ahead.mean, jnp.diagonal(ahead.cov, axis1=1, axis2=2)

        # Copies: the compiled functions write in place.
        self._pack = jax.jit(lambda state: pack(jax.tree.map(jnp.copy, state)))
        (self._moving, self._still), self._unpack = self._pack(state), unpack
        self._like = jax.eval_shape(lambda: state)
        self._bins, self._rest = int(known.ring.count), no_step(known, learner.num_windows)
        # What is the same in most bins waits on the device: handing it over takes time.
        self._all_seen = jnp.ones(self._channels, bool)
        self._no_input = jnp.zeros(self._inputs, self._dtype)
        self._flags = jnp.asarray(False), jnp.asarray(True)
        options = CPU_OPTIONS if jax.default_backend() == "cpu" else None

        def copied(moving: Packed, still: Packed) -> tuple[Packed, Packed]:
            return jax.tree.map(jnp.copy, (moving, still))

        # XLA compiles without Python's lock: all at once, the longest first.
        with ThreadPoolExecutor() as pool:

            def compiled(function: Callable, in_place: tuple[int, ...], *given: Any) -> Future:
                jitted = jax.jit(function, donate_argnums=in_place, compiler_options=options)
                return pool.submit(jitted.lower(self._moving, self._still, *given).compile)

            programs = [compiled(learn, (0, 1)), compiled(observe, (0,), *shapes)]
            programs += [compiled(copied, ())]
            programs += [compiled(foretell, (), shapes[2])] if horizon else []
            self._learn, self._observe, self._copy, *others = (each.result() for each in programs)
        self._outlook = jax.jit(seen_ahead, compiler_options=options)
        empty = np.zeros((0, known.model.family.dim), self._dtype)
        self._no_forecast = empty, empty
        self._forecast = others[0] if others else None

    def observe(
        self,
        y: ArrayLike,
        mask: ArrayLike | None = None,
        u: ArrayLike | None = None,
        fresh: bool = False,
    ) -> Packed:
        """Filter a bin; `read`, `belief`, `info` and `evidence` read what is returned."""
        observed, given = self._read(y, (self._channels,), "y"), self._read_input(u)
        seen = self._all_seen if mask is None else self._read_mask(mask)
        bin = (observed, seen, given, self._flags[bool(fresh)])
        self._moving, said = self._observe(self._moving, self._still, *bin)
        self._bins += 1
        return said

    def learn(self) -> LearnInfo:
        """Take the gradient steps that are due; where none is, nothing is called."""
        if not self.due:
            return self._rest
        self._moving, self._still, learned = self._learn(self._moving, self._still)
        return learned

    def outlook(self, u: ArrayLike | None = None) -> Outlook:
        """The state now, and the next bin under its input u."""
        return self._outlook(self._moving, self._still, self._read_input(u))

    def forecast(self, u: ArrayLike | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the state in the next bins, (horizon, L), if all had input u."""
        if self._forecast is None:
            return self._no_forecast
        mean, var = self._forecast(self._moving, self._still, self._read_input(u))
        return np.asarray(mean), np.asarray(var)

    def read(self, said: Packed) -> Said:
        """All that was said of a bin, in NumPy's arrays; the quickest way to it."""
        return self._unpack_said([np.asarray(part) for part in said])

    def belief(self, said: Packed) -> PyTree:
        """The belief after a bin."""
        return self._unpack_said(said).belief

    def info(self, said: Packed) -> Info:
        """What the filter said of a bin."""
        return self._unpack_said(said).info

    def evidence(self, said: Packed) -> MonitorInfo | None:
        """What the monitor said of a bin, if there is one."""
        return self._unpack_said(said).evidence

    @property
    def dtype(self) -> np.dtype:
        """Of the numbers that `observe` takes without casting."""
        return self._dtype

    @property
    def due(self) -> bool:
        """Whether `learn` would take a gradient step, once the ring holds a window."""
        return not self.learner.ring or self._bins % self.learner.every == 0

    @property
    def state(self) -> Any:
        """Everything known now: a `LearnerState`, or with a monitor `Watched`.

        What is read is a copy. It can be set, to go on from another: with parts frozen or thawed,
        after `Learner.relearn`, or from a file.
        """
        return jax.tree.map(jnp.copy, self._unpack(self._moving, self._still))

    @state.setter
    def state(self, state: LearnerState | Watched) -> None:
        if shapes(state) != shapes(self._like):
            what = f"a {type(state).__name__} of another structure"
            raise InputError(what, "state", "set what `state` gave, with other numbers")
        self._moving, self._still = self._pack(state)
        self._bins = int(_known(state).ring.count)

    def snapshot(self) -> Callable[[], Any]:
        """Take a copy of everything known now; what is returned gives it as NumPy's arrays, like
        `state`, whenever it is called and in whichever thread.
        """
        packed = self._copy(self._moving, self._still)
        return lambda: self._unpack(*jax.tree.map(np.asarray, packed))

    def _read_input(self, u: ArrayLike | None) -> np.ndarray | Array:
        if u is None and self._inputs:
            size = self._inputs
            raise InputError("no input", "u", f"pass shape ({size},): the dynamics take {size}")
        return self._no_input if u is None else self._read(u, (self._inputs,), "u")

    def _read_mask(self, mask: ArrayLike) -> np.ndarray:
        seen = np.asarray(mask)
        if seen.shape != (self._channels,) or seen.dtype != bool:
            what = f"mask of type {seen.dtype} and shape {seen.shape}"
            raise InputError(what, "mask", f"pass {self._channels} booleans, True = observed")
        return seen

    def _read(self, value: ArrayLike, shape: tuple[int, ...], where: str) -> np.ndarray:
        if type(value) is np.ndarray and value.dtype == self._dtype and value.shape == shape:
            return value
        array = real_numbers(value, where)
        if array.shape != shape:
            raise InputError(f"{where} of shape {array.shape}", where, f"pass shape {shape}")
        return array.astype(self._dtype, copy=False)


def look_out(learner: Learner, state: LearnerState, u: Input) -> Outlook:
    """The state now, and the next bin under its input u."""
    model, belief = state.model, state.filter.belief
    predict_key = jax.random.split(state.bin_key)[0]
    ahead = learner.filter.predict(model, state.filter, predict_key, u).belief
    mean, cov = model.family.mean(belief), model.family.cov(belief)
    return Outlook(mean, cov, expected_observation(model, ahead))


def _packing_apart(
    like: PyTree, move: Callable[..., PyTree], given: tuple
) -> tuple[Callable[[PyTree], tuple[Packed, Packed]], Callable[[Packed, Packed], PyTree]]:
    """Functions from a tree to what a function changes and what it does not, and back."""
    structure, jaxpr = jax.tree.structure(like), jax.make_jaxpr(move)(like, *given).jaxpr
    moves = [new is not old for new, old in zip(jaxpr.outvars, jaxpr.invars, strict=False)]

    def apart(tree: PyTree) -> tuple[list, list]:
        each = list(zip(moves, jax.tree.leaves(tree), strict=True))
        return [leaf for moved, leaf in each if moved], [leaf for moved, leaf in each if not moved]

    (pack_moving, unpack_moving), (pack_still, unpack_still) = map(packing, apart(like))

    def pack(tree: PyTree) -> tuple[Packed, Packed]:
        moving, still = apart(tree)
        return pack_moving(moving), pack_still(still)

    def unpack(moving: Packed, still: Packed) -> PyTree:
        parts = iter(unpack_moving(moving)), iter(unpack_still(still))
        return structure.unflatten([next(parts[0] if moved else parts[1]) for moved in moves])

    return pack, unpack


def _begin(
    learner: Learner,
    monitor: Monitor | None,
    start: Model | LearnerState | Watched,
    key: Key | None,
) -> LearnerState | Watched:
    if isinstance(start, Model):
        start = learner.init(start, key)
    if monitor is None and isinstance(start, Watched):
        return start.learner
    if monitor is not None and isinstance(start, LearnerState):
        return Watched(start, monitor.init(start.model))
    return start


def _known(state: LearnerState | Watched) -> LearnerState:
    return state if isinstance(state, LearnerState) else state.learner
