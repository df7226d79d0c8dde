"""Write an `EVKF`, with its parameters and all that it has learned, to a file; read such files."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from evkf.data.storage import load_tree, read_meta, save_tree
from evkf.dynamics import Dynamics
from evkf.errors import InputError
from evkf.estimators.assembly import FittedState, assemble
from evkf.estimators.settings import Learning
from evkf.estimators.trials import Trials, join
from evkf.likelihoods import Likelihood

KIND, FORMAT = "EVKF", 2
"""Name of the estimator, and version of the file format. In format 1, written by version 1 of this
package, the settings of learning are among the other parameters, "parts" is called "learn", and
there is a parameter "num_inputs".
"""


def save_fitted(path: str | os.PathLike, fitted: FittedState, note: dict[str, Any] | None) -> None:
    """Write the parameters of an `EVKF`, and everything that it has learned, to a file.

    Args:
        path: Path of the .safetensors file to write.
        fitted: Everything that the `EVKF` has learned.
        note: A dictionary that JSON can hold, which is stored in the file too; None for none.
    """
    assembly = fitted.assembly
    settings = assembly.settings
    given = {k: v for k, v in settings.items() if isinstance(v, Likelihood | Dynamics)}
    params = {k: v for k, v in settings.items() if k not in given}
    params["learning"] = asdict(settings["learning"])
    tree: dict[str, Any] = {"kept": join(fitted.kept)[:4]} if fitted.kept else {}
    if not fitted.warming:
        tree = {"state": fitted.current}
    meta = {
        "estimator": KIND,
        "format": FORMAT,
        # Convert tuples and NumPy's numbers to lists and numbers of JSON.
        "params": json.loads(json.dumps(params, default=np.generic.item)),
        "given": {name: _kind(value) for name, value in given.items()},
        "neurons": assembly.model.likelihood.num_channels,
        "inputs": assembly.model.dynamics.num_inputs,
        "warming": fitted.warming,
        "kept": sum(len(part.fresh) for part in fitted.kept),
        "trained": assembly.trained,
        "note": note or {},
    }
    save_tree(path, {"given": given, **tree}, meta)


def load_fitted(path: str | os.PathLike, given: Mapping[str, Any]) -> FittedState:
    """Read a file that `save_fitted`, or version 1 of this package, wrote.

    Raise `InputError` if the file holds no `EVKF`, has a newer format, or does not match `given`.

    Args:
        path: Path of the file.
        given: For "likelihood" and "dynamics", an object of the same kind and size if the saved
            `EVKF` was made with an object; else None. The object's numbers are not used, because
            the file has them.

    Returns:
        Everything that the saved `EVKF` had learned.
    """
    meta = read_meta(path)
    if meta.get("estimator") != KIND:
        raise InputError(f"no {KIND}", str(path), f"load what {KIND}.save wrote")
    written = meta.get("format", 1)
    if written not in (1, FORMAT):
        what = f"an {KIND} of format {written}; this version of evkf reads up to {FORMAT}"
        raise InputError(what, str(path), "load it with the version that wrote it, or a later one")
    like = {name: value for name, value in given.items() if value is not None}
    for name in ("likelihood", "dynamics"):
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

    params: dict[str, Any] = dict(meta["params"])
    if written == 1:
        inputs, warming = params.pop("num_inputs"), meta["kept"] > 0
        learning = {"parts": params.pop("learn")}
        learning |= {f.name: params.pop(f.name) for f in fields(Learning) if f.name in params}
    else:
        inputs, warming, learning = meta["inputs"], meta["warming"], params["learning"]
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in learning.items()}
    params["learning"] = Learning(**plain)

    assembly = assemble(params | like, meta["neurons"], inputs)
    blank: dict[str, Any] = {}
    if not warming:
        blank["state"] = assembly.init(assembly.model)
    elif meta["kept"]:
        widths = (meta["neurons"], float), (meta["neurons"], bool), (inputs, float)
        arrays = [np.zeros((meta["kept"], size), jnp.result_type(kind)) for size, kind in widths]
        blank["kept"] = (*arrays, np.zeros(meta["kept"], bool))
    tree, _ = load_tree(path, {"given": like, **blank})
    assembly = assemble(params | tree["given"], meta["neurons"], inputs)
    if meta["trained"]:
        assembly = assembly.after_training()
    if not warming:
        return FittedState(assembly, state=tree["state"])
    kept = []
    if meta["kept"]:
        ys, masks, us, fresh = tree["kept"]
        kept = [Trials(ys, masks, us, fresh, (meta["kept"],), False)]
    return FittedState(assembly, kept, warming=True)


def _kind(value: Likelihood | Dynamics) -> str:
    """Return a text that describes an object's class and array shapes, but not its numbers.

    Class names are those of version 1 of this package.
    """
    # Remove weak types (JAX's types of Python numbers), which would change the text.
    arrays, rest = eqx.partition(value, eqx.is_array)
    strong = jax.tree.map(lambda x: jnp.asarray(x, x.dtype), arrays)
    # GammaFamily was called Gamma.
    return re.sub(r"Family\b", "", repr(eqx.combine(strong, rest)))
