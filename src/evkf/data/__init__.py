"""Recordings in: files of many kinds become a `Recording`."""

from evkf.data.arrays import read_arrays, stream_arrays, write_arrays
from evkf.data.recording import Recording

__all__ = ["Recording", "read_arrays", "stream_arrays", "write_arrays"]
