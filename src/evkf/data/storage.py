"""Save and load trees of arrays, such as models, in .safetensors files, without pickle.

A tree is a nested structure of arrays (a pytree of JAX); its arrays are the leaves. A
`.safetensors` file holds each leaf under its path in the tree. The metadata of the file hold, under
the key "evkf", a header in JSON: format, schema, version of evkf, type of the tree, shapes and
types of the leaves by path, the `meta` of the caller, and a SHA-256 digest of header and leaves.
"""

import hashlib
import json
import os
import secrets
import struct
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from evkf.data.files import need, version
from evkf.errors import InputError

FORMAT, SCHEMA = "evkf-tree", 1

DTYPES = {"float64": "F64", "float32": "F32", "int32": "I32", "uint32": "U32", "bool": "BOOL"}
"""NumPy types that leaves may have, and the names of these types in safetensors."""

Header = dict[str, Any]
Arrays = dict[str, np.ndarray]


def save_tree(path: str | os.PathLike, tree: PyTree, meta: dict) -> None:
    """Write a tree of arrays to a file; an existing file is replaced.

    The file appears under its name only when it is complete.

    Args:
        path: File to write, a name that ends in .safetensors.
        tree: Arrays of float32, float64, int32, uint32 or bool, in any pytree of JAX.
        meta: Dictionary of other values to save, which JSON must return unchanged.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_tree(f"{folder}/tree.safetensors", {"a": jnp.ones(2)}, {"animal": "m1"})
        ...     tree, meta = load_tree(f"{folder}/tree.safetensors", {"a": jnp.zeros(2)})
        >>> tree["a"], meta
        (Array([1., 1.], dtype=float32), {'animal': 'm1'})
    """
    place = Path(path)
    if place.suffix != ".safetensors":
        raise InputError(f"a file named {place.name!r}", str(path), "end it in .safetensors")
    arrays: Arrays = {}
    for name, leaf in _leaves_by_path(tree).items():
        fits = isinstance(leaf, np.ndarray | jax.Array) and leaf.dtype in map(np.dtype, DTYPES)
        if not fits:
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            remedy = f"save arrays of {', '.join(DTYPES)}; of a random key its jax.random.key_data"
            raise InputError(f"leaf {name!r} of type {kind}", "tree", remedy)
        arrays[name] = np.asarray(leaf, order="C")
    try:
        same = json.loads(json.dumps(meta, allow_nan=False)) == meta
    except (TypeError, ValueError):
        same = False
    if not same or not isinstance(meta, dict):
        remedy = "keep to dictionaries with text as keys, lists, text, finite numbers, booleans"
        raise InputError("a value that JSON does not return unchanged", "meta", remedy)
    header = {
        "format": FORMAT,
        "schema": SCHEMA,
        "version": version(),
        "kind": type(tree).__name__,
        "leaves": _leaves(arrays),
        "meta": meta,
    }
    if not place.parent.is_dir():
        raise InputError(f"no folder {place.parent}", str(path), "make it first")
    _replace(place, _serialise(header, arrays))


def load_tree(
    path: str | os.PathLike, like: PyTree, *, partial: bool = False
) -> tuple[PyTree, dict]:
    """Return the tree of arrays in a file, and the `meta` that was saved with the tree.

    Raise InputError if the file is damaged, or if its leaves differ from those of `like` in path,
    shape or type.

    Args:
        path: A file that `save_tree` wrote.
        like: A tree that has the structure of the saved tree. The leaves may be shapes, from
            `jax.eval_shape`. Where this tree has a NumPy array, a NumPy array is returned, else an
            array of JAX.
        partial: True to ignore leaves of the file that `like` does not have.

    Returns:
        The tree, and the `meta`.

    Example:
        >>> load_tree("nowhere.safetensors", {})
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.safetensors): check the name
    """
    header, arrays = _read(path)
    wanted = _leaves_by_path(like)

    def describe(leaf: Any) -> str:
        if leaf is None:
            return "missing"
        if not hasattr(leaf, "dtype"):
            return type(leaf).__name__
        return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"

    for name in wanted if partial else [*wanted, *arrays]:
        have, want = (describe(leaves.get(name)) for leaves in (arrays, wanted))
        if have != want:
            raise InputError(
                f"leaf {name!r} is {have} in this file (of kind {header['kind']}), "
                f"but {want} in what is to be filled",
                str(path),
                "load it into a tree made with the settings and the precision it was saved with",
            )
    filled = [
        arrays[name] if isinstance(leaf, np.ndarray) else jnp.asarray(arrays[name])
        for name, leaf in wanted.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(like), filled), header["meta"]


def read_meta(path: str | os.PathLike) -> dict:
    """Return the `meta` that was saved with the tree in a file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_tree(f"{folder}/tree.safetensors", (), {"animal": "m1"})
        ...     read_meta(f"{folder}/tree.safetensors")
        {'animal': 'm1'}
    """
    return _read(path)[0]["meta"]


def _leaves_by_path(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a tree by path, in the order of the tree."""
    return {jax.tree_util.keystr(at): x for at, x in jax.tree_util.tree_leaves_with_path(tree)}


def _leaves(arrays: Arrays) -> dict[str, dict]:
    return {
        name: {"shape": list(array.shape), "dtype": str(array.dtype)}
        for name, array in arrays.items()
    }


def _digest(header: Header, arrays: Arrays) -> str:
    kept = {key: value for key, value in header.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(_bytes(arrays[name]))
    return digest.hexdigest()


def _serialise(header: Header, arrays: Arrays) -> list[bytes | memoryview]:
    """Return the contents of a .safetensors file, as consecutive pieces of bytes.

    The package safetensors would hold the interpreter lock while it copies the arrays, and delay
    the bins of a live session.
    """
    need("storage", "storage", "safetensors")
    text = json.dumps({**header, "sha256": _digest(header, arrays)})
    outline: dict[str, Any] = {"__metadata__": {"evkf": text}}
    ordered, end = list(DTYPES), 0
    names = sorted(arrays, key=lambda name: ordered.index(str(arrays[name].dtype)))
    for name in names:
        array, begin, end = arrays[name], end, end + arrays[name].nbytes
        kind = DTYPES[str(array.dtype)]
        outline[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [begin, end]}
    head = json.dumps(outline).encode()
    head += b" " * (-len(head) % 8)
    return [struct.pack("<Q", len(head)), head, *(_bytes(arrays[name]) for name in names)]


def _bytes(array: np.ndarray) -> memoryview:
    """Return the bytes of an array in little-endian order; copy only if the order differs."""
    low = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return low.reshape(-1).view(np.uint8).data


def _replace(place: Path, parts: list[bytes | memoryview]) -> None:
    part = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)
    if os.name == "posix":
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read(path: str | os.PathLike) -> tuple[Header, Arrays]:
    """Return the header and the leaves in a file; raise InputError if the file is damaged."""
    where = str(path)
    if not Path(path).is_file():
        raise InputError("no such file", where, "check the name")
    need("storage", "storage", "safetensors")
    from safetensors import SafetensorError, safe_open

    damaged = "no .safetensors file, or a damaged one"
    remedy = "pass a file that `evkf fit` or `save` wrote; if it is one, copy it again"
    try:
        with safe_open(path, "np") as file:
            text = (file.metadata() or {}).get("evkf", "null")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(text)
    except (SafetensorError, ValueError) as error:
        raise InputError(f"{damaged}: {error}", where, remedy) from error
    if not (isinstance(header, dict) and header.get("format") == FORMAT):
        raise InputError(f"no file of format {FORMAT!r}", where, "load what evkf has saved")
    schema, writer = header.get("schema"), header.get("version")
    if schema != SCHEMA:
        raise InputError(
            f"schema {schema!r}, written by evkf {writer}; this is evkf {version()}, which reads "
            f"schema {SCHEMA}",
            where,
            "load it with that version",
        )
    whole = header.get("leaves") == _leaves(arrays)
    if not whole or header.get("sha256") != _digest(header, arrays):
        raise InputError(f"{damaged}: its contents are not what was written", where, remedy)
    return header, arrays
