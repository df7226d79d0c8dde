"""An estimator in a file: its parameters, and all that it has learned."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from evkf.data.storage import load_tree, read_meta, save_tree
from evkf.dynamics import Dynamics
from evkf.errors import InputError
from evkf.estimators.stream import Stream
from evkf.likelihoods import Likelihood

KIND = "EVKF"


def save_stream(
    path: str | os.PathLike, params: Mapping[str, Any], stream: Stream, note: dict[str, Any] | None
) -> None:
    """Write a stream, and the parameters that it was made with.

    Args:
        path: The file.
        params: Of the estimator.
        stream: What it learned.
        note: Anything that JSON can hold, to be kept with it.
    """
    given = {k: v for k, v in params.items() if isinstance(v, Likelihood | Dynamics)}
    tree = stream.tree()
    meta = {
        "estimator": KIND,
        "params": {k: _plain(v) for k, v in params.items() if k not in given},
        "given": {name: _kind(value) for name, value in given.items()},
        "neurons": stream.model.likelihood.num_channels,
        "kept": len(tree["kept"][0]) if "kept" in tree else 0,
        "trained": stream.trained,
        "note": note or {},
    }
    save_tree(path, {"given": given, **tree}, meta)


def load_stream(
    path: str | os.PathLike,
    given: Mapping[str, Any],
    make: Callable[[dict[str, Any], int], Stream],
) -> tuple[dict[str, Any], Stream]:
    """Read what `save_stream` wrote: the parameters, and the stream where it was.

    Args:
        path: The file.
        given: Parameters that were objects, by name; of the kind and size that they had. Those that
            are None were none.
        make: Makes a stream that knows nothing, of parameters and so many neurons.
    """
    meta = read_meta(path)
    if meta.get("estimator") != KIND:
        raise InputError(f"no {KIND}", str(path), f"load what {KIND}.save wrote")
    like = {name: value for name, value in given.items() if value is not None}
    for name in {**meta["given"], **like}:
        saved, passed = meta["given"].get(name), like.get(name)
        kind = None if passed is None else _kind(passed)
        if saved != kind:
            what = f"saved with {saved} as {name}, loaded with {kind}"
            remedy = f"pass {name}={saved}; its numbers come from the file"
            if saved is None:
                remedy = f"leave {name} out"
            elif passed is None:
                remedy += f". Commands cannot: they load models whose {name} was chosen by name"
            raise InputError(what, str(path), remedy)
    params = {k: tuple(v) if isinstance(v, list) else v for k, v in meta["params"].items()}
    blank = make(params | like, meta["neurons"]).blank(meta["kept"])
    tree, _ = load_tree(path, {"given": like, **blank})
    params |= tree["given"]
    stream = make(params, meta["neurons"])
    if meta["trained"]:
        stream.go_on_trained()
    stream.restore(tree)
    return params, stream


def _kind(value: Likelihood | Dynamics) -> str:
    """What an object is, but for its numbers; weak types are those of Python's, and no kind."""
    arrays, rest = eqx.partition(value, eqx.is_array)
    strong = jax.tree.map(lambda x: jnp.asarray(x, x.dtype), arrays)
    return repr(eqx.combine(strong, rest))


def _plain(value: Any) -> Any:
    """A parameter as JSON has it."""
    if isinstance(value, np.generic):
        return value.item()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
