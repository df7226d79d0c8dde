"""`LearningFilter`, the base of filters whose step also learns the model, and shared helpers.

The helpers are a network of one hidden layer, and functions that collect the learned numbers of a
model in a vector.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from evkf.errors import InputError
from evkf.filters.base import Filter, Info, read_step
from evkf.model import Model
from evkf.parameters import PARTS, Free, bound_noise, free, parts_mask, split, visit
from evkf.types import Input, Key, Mask, Observation

MIN_STD = 1e-3
"""Smallest standard deviation of any learned noise."""

LEARNABLE = PARTS[:-1]
"""Model parts that these filters can learn: all but the prior, seen in the first bin only."""


class BinData(NamedTuple):
    """The data of one bin: observation (zero where masked), mask and input."""

    y: Observation
    mask: Mask
    u: Input


class LearningFilter(Filter):
    """A filter that learns the model online; the filter state holds the learned model.

    If `learn` is True, a step uses the model in the filter state, and the argument `model` of
    `step` determines sizes only. If `learn` is False, a step uses the argument `model`. The filter
    state has the same structure in both cases.
    """

    learn: eqx.AbstractVar[bool]
    parts: eqx.AbstractVar[tuple[str, ...]]

    def __check_init__(self):
        if not self.parts or any(part not in LEARNABLE for part in self.parts):
            what = f"parts {self.parts}"
            raise InputError(what, "parts", f"choose one or more of {LEARNABLE}")

    @abstractmethod
    def _filter_bin(self, model: Model, state: Any, data: BinData, key: Key) -> tuple[Any, Info]:
        """Filter one bin under the model; return the next filter state and the diagnostics."""

    def step(
        self,
        model: Model,
        state: Any,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
        u: Input | None = None,
    ) -> tuple[Any, Info]:
        """Filter one bin and, if `learn` is True, learn from this bin.

        Return the next filter state and the diagnostics. A key is needed.
        """
        y, mask, key, u = read_step(model, y, mask, key, u)
        model = state.model if self.learn else model
        state, info = self._filter_bin(model, state, BinData(y, mask, u), key)
        if self.learn:
            usual = jnp.any(mask) & (info.status == 0)
            state = state._replace(model=visit(state.model, state.belief, usual))
        return state, info

    def _check_parts(self, model: Model) -> None:
        """Raise InputError if there is nothing to learn in the chosen parts of the model."""
        if self.learn and not flatten(model, self.parts)[0].size:
            what, remedy = f"a model without numbers in {self.parts}", f"choose more of {LEARNABLE}"
            raise InputError(what, "parts", remedy)


class ShallowNetwork(NamedTuple):
    """A network of one hidden layer.

    Attributes:
        hidden: Weights of the hidden layer.
        bias: Biases of the hidden layer.
        output: Weights of the output layer.
        offset: Biases of the output layer.
    """

    hidden: Float[Array, "H I"]
    bias: Float[Array, " H"]
    output: Float[Array, "O H"]
    offset: Float[Array, " O"]

    @staticmethod
    def begin(
        key: Key, inputs: int, hidden: int, outputs: int, dtype: jnp.dtype
    ) -> "ShallowNetwork":
        """Return a network whose hidden layer is random and whose output is zero for any input."""
        weight_key, bias_key = jax.random.split(key)
        limit = 1 / jnp.sqrt(jnp.asarray(inputs, dtype))
        return ShallowNetwork(
            limit * jax.random.uniform(weight_key, (hidden, inputs), dtype, -1, 1),
            limit * jax.random.uniform(bias_key, (hidden,), dtype, -1, 1),
            jnp.zeros((outputs, hidden), dtype),
            jnp.zeros(outputs, dtype),
        )

    def apply(
        self,
        x: Float[Array, "S K"],
        unit: Callable[[Array], Array],
        shared: Float[Array, " M"] | None = None,
    ) -> Float[Array, "S O"]:
        """Return the outputs of the network, one row for each row of inputs.

        Args:
            x: First inputs of the network, one row for each evaluation.
            unit: Nonlinearity of the hidden layer.
            shared: Last inputs of the network, the same for all rows; none when left out.
        """
        own = x.shape[1]
        bias = self.bias if shared is None else self.bias + self.hidden[:, own:] @ shared
        return unit(x @ self.hidden[:, :own].T + bias) @ self.output.T + self.offset


def flatten(
    model: Model, parts: tuple[str, ...]
) -> tuple[Float[Array, " D"], Callable[[Array], Model]]:
    """Return the learned numbers of a model as a vector, and a function from vector to model.

    The numbers are unconstrained: any vector gives a valid model.
    """
    dtype = jax.tree.leaves(model.prior)[0].dtype
    if not parts:
        return jnp.zeros(0, dtype), lambda _: model
    chosen, rest = split(free(model, parts), parts)
    vector, unravel = ravel_pytree(chosen)
    return vector.astype(dtype), lambda v: eqx.combine(unravel(v), rest).build()


def mark_learned(model: Model, parts: tuple[str, ...]) -> PyTree:
    """Return a tree like the model that is True for every array in the given parts."""
    return parts_mask(Free(model, None), parts).model


def floor_noise(model: Model, parts: tuple[str, ...]) -> Model:
    """Return the model after raising every noise in the given parts to at least `MIN_STD`."""
    chosen, rest = eqx.partition(model, mark_learned(model, parts))
    return eqx.combine(bound_noise(Free(chosen, None), MIN_STD).model, rest)
