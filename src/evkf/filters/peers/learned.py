"""Base of the filters that learn their model inside their step, with what they share.

Also a network with one hidden layer, and the learned numbers of a model as a vector.
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
"""Floor of every learned noise, as a standard deviation."""

LEARNABLE = PARTS[:-1]
"""Parts that such a filter can learn: all but the initial state, which one stream shows once."""


class BinData(NamedTuple):
    """Observation, zero where masked, mask and input of one bin."""

    y: Observation
    mask: Mask
    u: Input


class LearningFilter(Filter):
    """A filter whose state holds the model that it learns.

    While learning, the model in the state is the one in use, and the `model` of `step` determines
    sizes only. Otherwise the `model` of `step` is used. States of both kinds are alike.
    """

    learn: eqx.AbstractVar[bool]
    parts: eqx.AbstractVar[tuple[str, ...]]

    def __check_init__(self):
        if not self.parts or any(part not in LEARNABLE for part in self.parts):
            what = f"parts {self.parts}"
            raise InputError(what, "parts", f"choose one or more of {LEARNABLE}")

    @abstractmethod
    def _filter_bin(self, model: Model, state: Any, data: BinData, key: Key) -> tuple[Any, Info]:
        """Filter one bin with the model, and return the state with what was learned."""

    def step(
        self,
        model: Model,
        state: Any,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
        u: Input | None = None,
    ) -> tuple[Any, Info]:
        """Filter one bin, and learn from it."""
        y, mask, key, u = read_step(model, y, mask, key, u)
        model = state.model if self.learn else model
        state, info = self._filter_bin(model, state, BinData(y, mask, u), key)
        if self.learn:
            usual = jnp.any(mask) & (info.status == 0)
            state = state._replace(model=visit(state.model, state.belief, usual))
        return state, info

    def _check_parts(self, model: Model) -> None:
        """Refuse a model without numbers in the parts to be learned."""
        if self.learn and not flatten(model, self.parts)[0].size:
            what, remedy = f"a model without numbers in {self.parts}", f"choose more of {LEARNABLE}"
            raise InputError(what, "parts", remedy)


class ShallowNetwork(NamedTuple):
    """A network with one hidden layer."""

    hidden: Float[Array, "H I"]
    bias: Float[Array, " H"]
    output: Float[Array, "O H"]
    offset: Float[Array, " O"]

    @staticmethod
    def begin(
        key: Key, inputs: int, hidden: int, outputs: int, dtype: jnp.dtype
    ) -> "ShallowNetwork":
        """Draw a hidden layer; the outputs are zero for any input."""
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
        """Return the outputs for every row.

        Args:
            x: First inputs, one row each.
            unit: Nonlinearity of the hidden layer.
            shared: Last inputs, the same in all rows.
        """
        own = x.shape[1]
        bias = self.bias if shared is None else self.bias + self.hidden[:, own:] @ shared
        return unit(x @ self.hidden[:, :own].T + bias) @ self.output.T + self.offset


def flatten(
    model: Model, parts: tuple[str, ...]
) -> tuple[Float[Array, " D"], Callable[[Array], Model]]:
    """Return the learned numbers of a model, and the function that builds a model from them."""
    dtype = jax.tree.leaves(model.prior)[0].dtype
    if not parts:
        return jnp.zeros(0, dtype), lambda _: model
    chosen, rest = split(free(model, parts), parts)
    vector, unravel = ravel_pytree(chosen)
    return vector.astype(dtype), lambda v: eqx.combine(unravel(v), rest).build()


def mark_learned(model: Model, parts: tuple[str, ...]) -> PyTree:
    """True for every number of the model that gradients move."""
    return parts_mask(Free(model, None), parts).model


def floor_noise(model: Model, parts: tuple[str, ...]) -> Model:
    """Return the model with the noises among these parts raised to `MIN_STD`."""
    chosen, rest = eqx.partition(model, mark_learned(model, parts))
    return eqx.combine(bound_noise(Free(chosen, None), MIN_STD).model, rest)
