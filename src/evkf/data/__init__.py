"""Recordings in: files of many kinds become a `Recording`."""

from evkf.data.arrays import read_arrays, stream_arrays, write_arrays
from evkf.data.convert import from_neo, from_pynapple, to_neo, to_pynapple
from evkf.data.kilosort import read_kilosort
from evkf.data.recording import Recording

__all__ = [
    "Recording",
    "from_neo",
    "from_pynapple",
    "read_arrays",
    "read_kilosort",
    "stream_arrays",
    "to_neo",
    "to_pynapple",
    "write_arrays",
]
