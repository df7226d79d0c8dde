"""What filters that learn inside their step share: small networks, and a model as a vector."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from evkf.errors import InputError
from evkf.model import Model
from evkf.parts import PARTS, Free, bound_noise, free, marks, split
from evkf.types import Key

MIN_STD = 1e-3
"""Floor of every learned noise, as a standard deviation."""


class Layers(NamedTuple):
    """A network with one hidden layer."""

    hidden: Float[Array, "H I"]
    bias: Float[Array, " H"]
    output: Float[Array, "O H"]
    offset: Float[Array, " O"]


def layers(key: Key, inputs: int, units: int, outputs: int, dtype: jnp.dtype) -> Layers:
    """A network that gives zero, whatever it is given."""
    weight_key, bias_key = jax.random.split(key)
    limit = 1 / jnp.sqrt(jnp.asarray(inputs, dtype))
    return Layers(
        limit * jax.random.uniform(weight_key, (units, inputs), dtype, -1, 1),
        limit * jax.random.uniform(bias_key, (units,), dtype, -1, 1),
        jnp.zeros((outputs, units), dtype),
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
    return marks(Free(model, None), parts).model


def bounded(model: Model) -> Model:
    """The model with no noise under the floor."""
    return bound_noise(free(model, ("noise",)), MIN_STD).build()


def check_parts(parts: tuple[str, ...]) -> tuple[str, ...]:
    """What such a filter can learn: all but the initial state, which one stream shows once."""
    known = PARTS[:-1]
    if not parts or any(part not in known for part in parts):
        raise InputError(f"parts {parts}", "parts", f"choose one or more of {known}")
    return tuple(parts)


def check_counts(**counts: int) -> None:
    """Numbers of particles, samples, units and iterations."""
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name} = {value}", name, "pass 1 or more")
