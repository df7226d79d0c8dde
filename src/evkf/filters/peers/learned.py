"""What filters that learn inside their step share: small networks, and a model as a vector."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.model import Model
from evkf.numerics.linalg import tree_where
from evkf.parameters import PARTS, Free, bound_noise, free, parts_mask, split
from evkf.types import Belief, Key

MIN_STD = 1e-3
"""Floor of every learned noise, as a standard deviation."""


class Layers(NamedTuple):
    """A network with one hidden layer."""

    hidden: Float[Array, "H I"]
    bias: Float[Array, " H"]
    output: Float[Array, "O H"]
    offset: Float[Array, " O"]


def layers(key: Key, inputs: int, hidden: int, outputs: int, dtype: jnp.dtype) -> Layers:
    """A network that gives zero, whatever it is given."""
    weight_key, bias_key = jax.random.split(key)
    limit = 1 / jnp.sqrt(jnp.asarray(inputs, dtype))
    return Layers(
        limit * jax.random.uniform(weight_key, (hidden, inputs), dtype, -1, 1),
        limit * jax.random.uniform(bias_key, (hidden,), dtype, -1, 1),
        jnp.zeros((outputs, hidden), dtype),
        jnp.zeros(outputs, dtype),
    )


def through(
    net: Layers,
    x: Float[Array, "S K"],
    unit: Callable[[Array], Array],
    shared: Float[Array, " M"] | None = None,
) -> Float[Array, "S O"]:
    """What the network gives for every row; its last inputs may be shared by all of them."""
    own = x.shape[1]
    bias = net.bias if shared is None else net.bias + net.hidden[:, own:] @ shared
    return unit(x @ net.hidden[:, :own].T + bias) @ net.output.T + net.offset


def learned_vector(
    model: Model, parts: tuple[str, ...]
) -> tuple[Float[Array, " D"], Callable[[Array], Model]]:
    """The learned numbers of a model, and the way back from any such vector."""
    dtype = jax.tree.leaves(model.prior)[0].dtype
    if not parts:
        return jnp.zeros(0, dtype), lambda _: model
    chosen, rest = split(free(model, parts), parts)
    vector, unravel = ravel_pytree(chosen)
    return vector.astype(dtype), lambda v: eqx.combine(unravel(v), rest).build()


def learned(model: Model, parts: tuple[str, ...]) -> PyTree:
    """True for every number of the model that gradients move."""
    return parts_mask(Free(model, None), parts).model


def bounded(model: Model, parts: tuple[str, ...]) -> Model:
    """The model with none of the noises among these parts under the floor."""
    chosen, rest = eqx.partition(model, learned(model, parts))
    return eqx.combine(bound_noise(Free(chosen, None), MIN_STD).model, rest)


def visit(model: Model, belief: Belief, usual: Bool[Array, ""]) -> Model:
    """The model after a state was there, if its bin was observed and nothing went wrong."""
    dynamics, family = model.dynamics, model.family
    if not isinstance(dynamics, GaussianDynamics):
        return model
    there = dynamics.visited(family.mean(belief), jnp.sqrt(family.var(belief)))
    return eqx.tree_at(lambda m: m.dynamics, model, tree_where(usual, there, dynamics))


KNOWN = PARTS[:-1]
"""What such a filter can learn: all but the initial state, which one stream shows once."""


def check_parts(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what is no part, or none that can be learned."""
    if not parts or any(part not in KNOWN for part in parts):
        raise InputError(f"parts {parts}", "parts", f"choose one or more of {KNOWN}")
    return tuple(parts)


def check_learned(model: Model, parts: tuple[str, ...]) -> None:
    """Refuse a model that has nothing to be learned in these parts."""
    if not learned_vector(model, parts)[0].size:
        raise InputError(f"a model without numbers in {parts}", "parts", f"choose more of {KNOWN}")
