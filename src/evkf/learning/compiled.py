"""A learner compiled ahead of time, for streams.

Handing a state of many small arrays to a compiled function costs more than filtering a bin. Here
they travel together, one vector for each type of number; only the ring's large arrays stand alone,
and are written in place.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.filters import Info
from evkf.filters.compiled import CPU_OPTIONS
from evkf.learning.learner import Learner, LearnerState, LearnInfo
from evkf.model import Model
from evkf.types import Key

LARGE = 2048
"""Arrays with more numbers than this travel alone."""

Packed = tuple[Array, ...]


def packing(like: PyTree) -> tuple[Callable[[PyTree], Packed], Callable[[Packed], PyTree]]:
    """Functions from a tree of this structure to few arrays, and back."""
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

    def unpack(packed: Packed) -> PyTree:
        parts: list = [None] * len(leaves)
        for group, vector in zip(groups, packed, strict=False):
            ends = np.cumsum([leaves[i].size for i in group])
            for i, piece in zip(group, jnp.split(vector, ends[:-1]), strict=True):
                parts[i] = piece.reshape(leaves[i].shape)
        for i, array in zip(large, packed[len(groups) :], strict=True):
            parts[i] = array
        return jax.tree.unflatten(structure, parts)

    return pack, unpack


class CompiledLearner:
    """A learner at work on a stream: `observe` a bin, then `learn` if there is time.

    Args:
        learner: The learner.
        start: The model to start from, or a state to go on from.
        key: Randomness, for filters and likelihoods that sample.

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
        (0, 2)
    """

    def __init__(self, learner: Learner, start: Model | LearnerState, key: Key | None = None):
        state = learner.init(start, key) if isinstance(start, Model) else start
        # Copies: the compiled functions write in place.
        state = jax.tree.map(jnp.copy, state)
        pack, self._unpack = packing(state)
        channels, inputs = state.ring.bins.y.shape[1], state.ring.bins.u.shape[1]
        dtype = self._dtype = state.ring.bins.y.dtype
        blank = jnp.zeros(channels, dtype), jnp.ones(channels, bool), jnp.zeros(inputs, dtype)
        said = jax.eval_shape(learner.observe, state, *blank)[1]
        pack_said, self._unpack_said = packing((state.filter.belief, said))

        def observe(packed: Packed, y: Array, mask: Array, u: Array, fresh: Array):
            state, info = learner.observe(self._unpack(packed), y, mask, u, fresh)
            return pack(state), pack_said((state.filter.belief, info))

        def learn(packed: Packed):
            state, learned = learner.learn(self._unpack(packed))
            return pack(state), tuple(learned)

        self._packed = jax.jit(pack)(state)
        self._seen = np.ones(channels, bool)
        self._no_input = np.zeros(inputs, dtype)
        shapes = (
            jax.ShapeDtypeStruct((channels,), dtype),
            jax.ShapeDtypeStruct((channels,), bool),
            jax.ShapeDtypeStruct((inputs,), dtype),
            jax.ShapeDtypeStruct((), bool),
        )
        options = CPU_OPTIONS if jax.default_backend() == "cpu" else None
        self._observe = (
            jax.jit(observe, donate_argnums=0, compiler_options=options)
            .lower(self._packed, *shapes)
            .compile()
        )
        self._learn = (
            jax.jit(learn, donate_argnums=0, compiler_options=options).lower(self._packed).compile()
        )

    def observe(
        self,
        y: ArrayLike,
        mask: ArrayLike | None = None,
        u: ArrayLike | None = None,
        fresh: bool = False,
    ) -> Packed:
        """Filter a bin; `belief` and `info` read what is returned."""
        if u is None and self._no_input.size:
            size = self._no_input.size
            raise InputError("no input", "u", f"pass shape ({size},): the dynamics take {size}")
        observed = np.asarray(y, self._dtype)
        seen = self._seen if mask is None else np.asarray(mask)
        given = self._no_input if u is None else np.asarray(u, self._dtype)
        self._packed, said = self._observe(self._packed, observed, seen, given, np.asarray(fresh))
        return said

    def learn(self) -> LearnInfo:
        """Take the gradient steps that are due."""
        self._packed, learned = self._learn(self._packed)
        return LearnInfo(*learned)

    def belief(self, said: Packed) -> PyTree:
        """The belief after a bin."""
        return self._unpack_said(said)[0]

    def info(self, said: Packed) -> Info:
        """What the filter said of a bin."""
        return self._unpack_said(said)[1]

    @property
    def state(self) -> LearnerState:
        """A copy of everything known now."""
        return jax.tree.map(jnp.copy, self._unpack(self._packed))
