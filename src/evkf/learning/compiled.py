"""A learner compiled ahead of time, for streams.

Passing many small arrays to a compiled function takes longer than filtering a bin. Here the small
arrays of the learner's state are packed into one vector for each number type. Only the large arrays
of the ring (the buffer of past bins) are passed one by one, and they are written in place. Arrays
that `observe` does not change, such as the parameters, are arguments of the compiled `observe`, but
are not returned. `evkf.EVKF` and live sessions use `CompiledLearner`.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from evkf.analysis.forecasting import forecast
from evkf.errors import InputError
from evkf.expectations.readout import expected_observation
from evkf.filters import Info
from evkf.filters.compiled import CPU_OPTIONS, Packed, packing
from evkf.learning.learner import Learner, LearnerState, LearnInfo
from evkf.learning.monitor import (
    Monitor,
    MonitoredState,
    MonitorInfo,
    learner_state,
    observe_monitored,
    with_learner_state,
)
from evkf.model import Model
from evkf.numerics.checks import real_numbers
from evkf.numerics.linalg import shapes
from evkf.types import Input, Key


class Nowcast(NamedTuple):
    """The latent state at the last observed bin, and the expected observation of the next bin.

    Attributes:
        mean: Mean of the latent state, (L,).
        cov: Covariance of the latent state, (L, L).
        rate: Expected observation of the next bin, (N,); for spike counts, expected counts per bin.
    """

    mean: Float[Array, " L"]
    cov: Float[Array, "L L"]
    rate: Float[Array, " N"]


class ObserveResult(NamedTuple):
    """Results of observing a bin, as NumPy arrays.

    Attributes:
        belief: Belief about the latent state after the bin.
        info: Diagnostics of the filter step.
        evidence: Evidence for the dynamics; None without a monitor.
        nowcast: Latent state and expected observation of the next bin; None unless asked for.
    """

    belief: PyTree
    info: Info
    evidence: MonitorInfo | None
    nowcast: Nowcast | None


class CompiledLearner:
    """A compiled learner of a stream: `observe` a bin, then `learn` if there is time.

    Args:
        learner: Settings of filter and learning.
        start: The model to start from, or a `state` of an earlier `CompiledLearner` to go on from.
        key: JAX random key, for filters and likelihoods that sample. Not used if `start` is a
            state, which has a key of its own.
        monitor: Computes evidence for the dynamics, which takes two more filter steps per bin.
            When the monitor flags a change of the dynamics, older bins are forgotten.
        nowcast: True to compute a `Nowcast` at every bin. The next bin is assumed to have the same
            input as the bin observed.
        horizon: Number of bins that `forecast` predicts; 0 for no forecasts.

    Example:
        >>> import jax, numpy as np
        >>> from evkf.dynamics import ResidualMLP
        >>> from evkf.likelihoods import Poisson
        >>> likelihood = Poisson([[1.0, 0.0], [0.0, 1.0]])
        >>> model = Model(ResidualMLP(2, 0.04, jax.random.key(1)), likelihood)
        >>> live = CompiledLearner(Learner(ring=64), model)
        >>> for _ in range(12):
        ...     result = live.observe(np.array([1.0, 0.0]))
        ...     learned = live.learn()
        >>> int(live.read(result).info.status), int(live.state.steps)
        (0, 3)
        >>> live.state = live.learner.freeze(live.state, "noise")
        >>> live.nowcast().rate.shape
        (2,)
    """

    def __init__(
        self,
        learner: Learner,
        start: Model | LearnerState | MonitoredState,
        key: Key | None = None,
        monitor: Monitor | None = None,
        nowcast: bool = False,
        horizon: int = 0,
    ):
        self.learner, self.monitor = learner, monitor
        state: LearnerState | MonitoredState
        state = learner.init(start, key) if isinstance(start, Model) else start
        if monitor is None:
            state = learner_state(state)
        elif isinstance(state, LearnerState):
            state = MonitoredState(state, monitor.init(state.model))
        bins = learner_state(state).ring.bins
        self._channels, self._inputs = bins.y.shape[1], bins.u.shape[1]
        self._dtype = bins.y.dtype
        shapes = (
            jax.ShapeDtypeStruct((self._channels,), self._dtype),
            jax.ShapeDtypeStruct((self._channels,), bool),
            jax.ShapeDtypeStruct((self._inputs,), self._dtype),
            jax.ShapeDtypeStruct((), bool),
        )

        def observe(state: LearnerState | MonitoredState, *bin: Array) -> tuple:
            evidence = None
            if monitor is None:
                state, info = learner.observe(learner_state(state), *bin)
            else:
                assert isinstance(state, MonitoredState)
                state, (info, evidence) = observe_monitored(learner, monitor, state, *bin)
            after = learner_state(state)
            now = compute_nowcast(learner, after, bin[2]) if nowcast else None
            return state, ObserveResult(after.filter.belief, info, evidence, now)

        result = jax.eval_shape(observe, state, *shapes)[1]
        pack_result, self._unpack_result = packing(result)
        pack, unpack = _packing_apart(state, lambda state, *bin: observe(state, *bin)[0], shapes)

        def observe_packed(moving: Packed, still: Packed, *bin: Array) -> tuple[Packed, Packed]:
            state, result = observe(unpack(moving, still), *bin)
            return pack(state)[0], pack_result(result)

        def learn_packed(moving: Packed, still: Packed) -> tuple[Packed, Packed, LearnInfo]:
            state = unpack(moving, still)
            after, learned = learner.learn(learner_state(state))
            return *pack(with_learner_state(state, after)), learned

        def nowcast_packed(moving: Packed, still: Packed, u: Array) -> Nowcast:
            return compute_nowcast(learner, learner_state(unpack(moving, still)), u)

        def forecast_packed(moving: Packed, still: Packed, u: Array) -> tuple[Array, Array]:
            now = learner_state(unpack(moving, still))
            us = jnp.broadcast_to(u, (horizon, *u.shape))
            ahead = forecast(learner.filter, now.model, now.filter.belief, horizon, us)
            return ahead.mean, jnp.diagonal(ahead.cov, axis1=1, axis2=2)

        def copy_packed(moving: Packed, still: Packed) -> tuple[Packed, Packed]:
            return jax.tree.map(jnp.copy, (moving, still))

        # Copy first, because the compiled functions overwrite their arguments.
        self._pack = jax.jit(lambda state: pack(jax.tree.map(jnp.copy, state)))
        (self._moving, self._still), self._unpack = self._pack(state), unpack
        self._like = jax.eval_shape(lambda: state)
        first = learner_state(state)
        self._bins, self._no_step = int(first.ring.count), learner.no_step(first)
        # Arguments that are the same in most bins are kept on the device to avoid transfers.
        self._all_seen = jnp.ones(self._channels, bool)
        self._no_input = jnp.zeros(self._inputs, self._dtype)
        self._flags = jnp.asarray(False), jnp.asarray(True)
        options = CPU_OPTIONS if jax.default_backend() == "cpu" else None

        # XLA compiles without Python's global lock, so all programs compile in parallel threads.
        # The program that takes longest is submitted first.
        with ThreadPoolExecutor() as pool:

            def compiled(function: Callable, in_place: tuple[int, ...], *given: Any) -> Future:
                jitted = jax.jit(function, donate_argnums=in_place, compiler_options=options)
                return pool.submit(jitted.lower(self._moving, self._still, *given).compile)

            programs = [compiled(learn_packed, (0, 1)), compiled(observe_packed, (0,), *shapes)]
            programs += [compiled(copy_packed, ())]
            programs += [compiled(forecast_packed, (), shapes[2])] if horizon else []
            self._learn, self._observe, self._copy, *others = (each.result() for each in programs)
        self._nowcast = jax.jit(nowcast_packed, compiler_options=options)
        empty = np.zeros((0, first.model.family.dim), self._dtype)
        self._no_forecast = empty, empty
        self._forecast = others[0] if others else None

    def observe(
        self,
        y: ArrayLike,
        mask: ArrayLike | None = None,
        u: ArrayLike | None = None,
        fresh: bool = False,
    ) -> Packed:
        """Filter one bin, store the bin in the ring, and return packed results for `read`.

        Args:
            y: Observations, (N,). Masked entries are ignored.
            mask: True where observed, (N,); all observed when left out.
            u: Input, (inputs,); required if the dynamics take inputs.
            fresh: True if the bin is the first of a trial.

        Returns:
            Packed arrays, which `read` converts to an `ObserveResult`.
        """
        observed, given = self._read(y, (self._channels,), "y"), self._read_input(u)
        seen = self._all_seen
        if mask is not None:
            seen = np.asarray(mask)
            if seen.shape != (self._channels,) or seen.dtype != bool:
                what = f"mask of type {seen.dtype} and shape {seen.shape}"
                raise InputError(what, "mask", f"pass {self._channels} booleans, True = observed")
        bin = (observed, seen, given, self._flags[bool(fresh)])
        self._moving, result = self._observe(self._moving, self._still, *bin)
        self._bins += 1
        return result

    def learn(self) -> LearnInfo:
        """Take the gradient steps that are due, and return diagnostics of the last step.

        If `due` is False, the parameters stay as they are, and the loss returned is NaN.
        """
        if not self.due:
            return self._no_step
        self._moving, self._still, learned = self._learn(self._moving, self._still)
        return learned

    def nowcast(self, u: ArrayLike | None = None) -> Nowcast:
        """Return the present latent state, and the expected observation of the next bin.

        Args:
            u: Input of the next bin, (inputs,); required if the dynamics take inputs.
        """
        return self._nowcast(self._moving, self._still, self._read_input(u))

    def forecast(self, u: ArrayLike | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of the latent state in the next bins, each (horizon, L).

        Without a horizon, both arrays are empty.

        Args:
            u: Input of all these bins, (inputs,); required if the dynamics take inputs.
        """
        if self._forecast is None:
            return self._no_forecast
        mean, var = self._forecast(self._moving, self._still, self._read_input(u))
        return np.asarray(mean), np.asarray(var)

    def read(self, result: Packed) -> ObserveResult:
        """Convert the packed arrays that `observe` returned to an `ObserveResult` of NumPy arrays.

        Args:
            result: Return value of `observe`.
        """
        return self._unpack_result([np.asarray(part) for part in result])

    @property
    def dtype(self) -> np.dtype:
        """NumPy type of the learner's numbers; `observe` casts observations of other types."""
        return self._dtype

    @property
    def due(self) -> bool:
        """True if `learn` has something to compute after this bin.

        With a ring, `due` is True every `every` bins; steps are taken only once the ring holds
        enough bins for a window. Without a ring, `due` is always True, because `learn` adds the
        gradient of every bin to a sum, and takes a step every `every` bins.
        """
        return not self.learner.ring or self._bins % self.learner.every == 0

    @property
    def state(self) -> Any:
        """A copy of the learner's state: a `LearnerState`, or with a monitor a `MonitoredState`.

        Assign a state to go on from that state: one returned by `Learner.freeze`, `Learner.thaw` or
        `Learner.relearn`, or one read from a file. Raise `InputError` if its arrays have other
        shapes or types than those of the present state.
        """
        return jax.tree.map(jnp.copy, self._unpack(self._moving, self._still))

    @state.setter
    def state(self, state: LearnerState | MonitoredState) -> None:
        if shapes(state) != shapes(self._like):
            what = f"a {type(state).__name__} of another structure"
            raise InputError(what, "state", "set a `state` of this learner, with other numbers")
        self._moving, self._still = self._pack(state)
        self._bins = int(learner_state(state).ring.count)

    def snapshot(self) -> Callable[[], Any]:
        """Copy the learner's state, and return a function that returns the copy as NumPy arrays.

        The function can be called later and in any thread.
        """
        packed = self._copy(self._moving, self._still)
        return lambda: self._unpack(*jax.tree.map(np.asarray, packed))

    def _read_input(self, u: ArrayLike | None) -> np.ndarray | Array:
        if u is None and self._inputs:
            size = self._inputs
            raise InputError("no input", "u", f"pass shape ({size},): the dynamics take {size}")
        return self._no_input if u is None else self._read(u, (self._inputs,), "u")

    def _read(self, value: ArrayLike, shape: tuple[int, ...], where: str) -> np.ndarray:
        if type(value) is np.ndarray and value.dtype == self._dtype and value.shape == shape:
            return value
        array = real_numbers(value, where)
        if array.shape != shape:
            raise InputError(f"{where} of shape {array.shape}", where, f"pass shape {shape}")
        return array.astype(self._dtype, copy=False)


def compute_nowcast(learner: Learner, state: LearnerState, u: Input) -> Nowcast:
    """Return the present latent state, and the expected observation of the next bin.

    Args:
        learner: Its filter predicts the next bin.
        state: State of the learner after the last bin.
        u: Input of the next bin, (inputs,).
    """
    model, belief = state.model, state.filter.belief
    predict_key = jax.random.split(state.bin_key)[0]
    ahead = learner.filter.predict(model, state.filter, predict_key, u).belief
    mean, cov = model.family.mean(belief), model.family.cov(belief)
    return Nowcast(mean, cov, expected_observation(model, ahead))


def _packing_apart(
    like: PyTree, move: Callable[..., PyTree], given: tuple
) -> tuple[Callable[[PyTree], tuple[Packed, Packed]], Callable[[Packed, Packed], PyTree]]:
    """Return two functions: `pack` a tree into changing and unchanging leaves, and `unpack` again.

    Args:
        like: A tree of the structure to pack.
        move: Function of a tree and other arguments that returns the changed tree. Leaves that it
            returns as they are count as unchanging.
        given: Shapes and types of the other arguments of `move`.
    """
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
