"""`CompiledStep`: a filter step compiled ahead of time, for streams with a deadline.

For small models, passing a model to a compiled function takes longer than the step itself, because
JAX checks every input array and wraps every output array. Therefore the small arrays of the model
are concatenated into one vector, and filter state and diagnostics into another (the carry). A bin
is then one call of a compiled function that has a few arguments and one result.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.filters.base import Filter, Info, State
from evkf.model import Model
from evkf.numerics.linalg import shapes
from evkf.types import Input, Key, Mask, Observation

Carry = Float[Array, " D"]


CPU_OPTIONS = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
"""Compiler options: run the kernels of a step one after another, in one thread. Starting other
threads takes longer than a kernel.
"""


LARGE = 2048
"""Arrays that have more numbers than this stay separate arguments of the compiled step."""

Packed = tuple[Array, ...]


def packing(
    like: PyTree,
) -> tuple[Callable[[PyTree], Packed], Callable[[Sequence[Array | np.ndarray]], PyTree]]:
    """Return two functions: one packs a tree into few arrays, the other unpacks these arrays.

    Small arrays of the same type are concatenated into one vector; arrays larger than `LARGE` stay
    as they are.

    Args:
        like: A tree of arrays (a model, say) that has the structure, shapes and types of the trees
            to pack.
    """
    leaves, structure = jax.tree.flatten(like)
    large = [i for i, leaf in enumerate(leaves) if leaf.size > LARGE]
    kinds = sorted({leaf.dtype for leaf in leaves}, key=str)
    groups = [
        [i for i, leaf in enumerate(leaves) if leaf.dtype == kind and i not in large]
        for kind in kinds
    ]
    groups = [group for group in groups if group]

    def pack(tree: PyTree) -> Packed:
        parts = jax.tree.leaves(tree)
        small = [jnp.concatenate([jnp.ravel(parts[i]) for i in group]) for group in groups]
        return (*small, *(parts[i] for i in large))

    def unpack(packed: Sequence[Array | np.ndarray]) -> PyTree:
        parts: list[Any] = [None] * len(leaves)
        for group, vector in zip(groups, packed, strict=False):
            end = 0
            for i in group:
                begin, end = end, end + leaves[i].size
                parts[i] = vector[begin:end].reshape(leaves[i].shape)
        for i, array in zip(large, packed[len(groups) :], strict=True):
            parts[i] = array
        return jax.tree.unflatten(structure, parts)

    return pack, unpack


class CompiledStep:
    """The step of a filter under a model, compiled for one bin at a time.

    The carry is a vector that holds the filter state and the diagnostics after the last step. The
    methods `state` and `info` extract them. Nothing is compiled after construction.

    Args:
        filter: Any filter.
        model: The state-space model; `load` replaces the parameters without compiling again.
        keyed: True if every step will be given a random key (for filters and expectations that
            sample). False by default.

    Example:
        >>> import jax.numpy as jnp
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.filters import VariationalKalmanFilter
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import Model
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0], [0.0, 1.0]]))
        >>> step = CompiledStep(VariationalKalmanFilter(), model)
        >>> carry = step.init()
        >>> for y in jnp.array([[1.0, 0.0], [2.0, 0.0]]):
        ...     carry = step(carry, y, jnp.array([True, True]))
        >>> step.state(carry).belief.mean.shape, int(step.info(carry).status)
        ((2,), 0)
    """

    def __init__(self, filter: Filter, model: Model, keyed: bool = False):
        self._pack, unravel = packing(model)
        self._parameters = self._copied(model)
        self._signature = shapes(model)
        self._state, self._unravel_state = ravel_pytree(filter.init(model))
        self._size = len(self._state)
        channels, inputs = model.likelihood.num_channels, model.dynamics.num_inputs
        self._channels = channels
        dtype = self._dtype = self._state.dtype

        def step(
            parameters: tuple[Any, ...],
            carry: Carry,
            y: Observation,
            mask: Mask,
            u: Input | None,
            key: Key | None,
        ):
            state = self._unravel_state(carry[: self._size])
            state, info = filter.step(unravel(parameters), state, y, mask, key, u)
            said = [jnp.asarray(field, dtype) for field in info]
            return jnp.concatenate([ravel_pytree(state)[0], jnp.stack(said)])

        self._inputs = inputs
        self._carry = jnp.concatenate([self._state, jnp.zeros(len(Info._fields), dtype)])
        options = CPU_OPTIONS if jax.default_backend() == "cpu" else None
        self._keyed = keyed
        try:
            lowered = jax.jit(step, compiler_options=options).lower(
                self._parameters,
                self._carry,
                jax.ShapeDtypeStruct((channels,), dtype),
                jax.ShapeDtypeStruct((channels,), bool),
                jax.ShapeDtypeStruct((inputs,), dtype) if inputs else None,
                jax.random.key(0) if keyed else None,
            )
        except InputError as error:
            if keyed or error.where != "key":
                raise
            remedy = "build CompiledStep(..., keyed=True), and pass a key with every bin"
            raise InputError(f"no key for {type(filter).__name__}", "key", remedy) from error
        self._call = lowered.compile()
        # The first calls of `state` and `info` compile small functions too: call both now.
        self.state(self._carry)
        self.info(self._carry)

    def init(self) -> Carry:
        """Return the carry before the first bin: `filter.init(model)`, and diagnostics of zero."""
        return self._carry

    def load(self, model: Model) -> None:
        """Use the parameters of another model from the next bin on, without compiling.

        Raise InputError if the model has other array shapes or types than the compiled model.
        """
        if shapes(model) != self._signature:
            raise InputError(
                "a model of another kind or size",
                "model",
                "load only other values of the same parameters, or build another CompiledStep",
            )
        self._parameters = self._copied(model)

    def __call__(
        self,
        carry: ArrayLike,
        y: ArrayLike,
        mask: ArrayLike,
        u: ArrayLike | None = None,
        key: Key | None = None,
    ) -> Carry:
        """Filter one bin; return the carry after this bin.

        Args:
            carry: The carry after the previous bin.
            y: Observation, (channels,), in the precision of the model.
            mask: True where observed, (channels,).
            u: Input, (inputs,), for dynamics that take inputs.
            key: JAX random key of this bin, if built with `keyed=True`.
        """
        if u is None:
            if self._inputs:
                remedy = f"pass shape ({self._inputs},): the dynamics take inputs"
                raise InputError("no input", "u", remedy)
        elif not self._inputs:
            if getattr(u, "shape", None) != (0,):
                remedy = "leave it out"
                raise InputError("an input for dynamics without inputs", "u", remedy)
            u = None
        try:
            return self._call(self._parameters, carry, y, mask, u, key)
        except TypeError as error:
            if self._keyed and key is None:
                remedy = "pass key=jax.random.fold_in(jax.random.key(0), t), say, with bin t"
                raise InputError("no key, but built with keyed=True", "key", remedy) from error
            if key is not None and not self._keyed:
                remedy = "leave it out, or build CompiledStep(..., keyed=True)"
                raise InputError("a key, but built without", "key", remedy) from error
            wrong = self._mismatch(carry, y, mask, u)
            if wrong is None and key is not None and jnp.shape(key) != ():
                remedy = "pass a typed key, of jax.random.key"
                wrong = InputError(f"a key of shape {jnp.shape(key)}", "key", remedy)
            if wrong is None:
                raise
            raise wrong from error

    def _mismatch(
        self, carry: ArrayLike, y: ArrayLike, mask: ArrayLike, u: ArrayLike | None
    ) -> InputError | None:
        """Return an InputError for the first argument of wrong type or shape; None if all fit.

        Arguments are not converted, because a conversion would take time in every bin.
        """
        channels = (self._channels,)
        wanted: dict[str, tuple[ArrayLike | None, tuple[int, ...], Any]] = {
            "carry": (carry, self._carry.shape, self._carry.dtype),
            "y": (y, channels, self._dtype),
            "mask": (mask, channels, np.dtype(bool)),
        }
        if self._inputs:
            wanted["u"] = (u, (self._inputs,), self._dtype)
        for name, (given, shape, dtype) in wanted.items():
            if not isinstance(given, np.ndarray | jax.Array):
                what, remedy = f"{name} of type {type(given).__name__}", f"a {dtype} array"
            elif given.shape != shape:
                what, remedy = f"{name} of shape {given.shape}", f"shape {shape}"
            elif jnp.result_type(given) != dtype:
                what, remedy = f"{name} of {given.dtype}", f"{dtype}: {name}.astype('{dtype}')"
            else:
                continue
            return InputError(what, name, f"pass {remedy}")
        return None

    def _copied(self, model: Model) -> Packed:
        return jax.tree.map(jnp.array, self._pack(model))

    def state(self, carry: Carry) -> State:
        """Return the filter state that a carry holds."""
        return self._unravel_state(carry[: self._size])

    def info(self, carry: Carry) -> Info:
        """Return the diagnostics of the last step, from the carry after this step."""
        said = Info(*carry[self._size :])
        whole = {name: getattr(said, name).astype(int) for name in ("evaluations", "status")}
        return said._replace(**whole)
