"""Messages of numbers to the page: a header in JSON, then arrays, aligned so that a browser can
look at them where they are.
"""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from evkf.data.files import finite

ALIGN = 8
"""Bytes that arrays begin at a multiple of."""

_TYPES = {"f4", "f8", "u1", "i4"}
_LENGTH = struct.Struct("<I")


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """A message: length of the header (u32), the header, and arrays one after the other.

    Args:
        header: What the message says of itself.
        arrays: By name; float32, float64, uint8 or int32.

    Example:
        >>> given = {"mean": np.array([[1.0, 2.0]]), "flags": np.zeros(3, np.uint8)}
        >>> data = pack({"kind": "bins"}, given)
        >>> header, arrays = unpack(data)
        >>> header["kind"], arrays["mean"].tolist(), arrays["flags"].tolist(), len(data) % 8
        ('bins', [[1.0, 2.0]], [0, 0, 0], 0)
    """
    outline, content = [], []
    for name, array in arrays.items():
        kind = np.asarray(array).dtype.str[1:]
        assert kind in _TYPES, f"{name} is of type {kind}"
        raw = np.ascontiguousarray(array, f"<{kind}").tobytes()
        outline.append({"name": name, "dtype": kind, "shape": list(np.shape(array))})
        content += [raw, bytes(-len(raw) % ALIGN)]
    head = json.dumps(finite({**header, "arrays": outline}), separators=(",", ":")).encode()
    head += b" " * (-(len(head) + _LENGTH.size) % ALIGN)
    return b"".join((_LENGTH.pack(len(head)), head, *content))


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a message."""
    (length,) = _LENGTH.unpack_from(data)
    at = _LENGTH.size + length
    header, arrays = json.loads(data[_LENGTH.size : at]), {}
    for entry in header["arrays"]:
        dtype, num = np.dtype(f"<{entry['dtype']}"), math.prod(entry["shape"])
        arrays[entry["name"]] = np.frombuffer(data, dtype, num, at).reshape(entry["shape"])
        at += num * dtype.itemsize
        at += -at % ALIGN
    return header, arrays
