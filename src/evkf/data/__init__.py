"""Recordings in: files of many kinds become a `Recording`."""

from evkf.data.nwb import NwbWarning, list_nwb, read_nlb, read_nwb
from evkf.data.nwb_stream import stream_nwb
from evkf.data.nwb_write import Results, read_results, recording_to_nwb, write_nwb
from evkf.data.recording import Recording

__all__ = [
    "NwbWarning",
    "Recording",
    "Results",
    "list_nwb",
    "read_nlb",
    "read_nwb",
    "read_results",
    "recording_to_nwb",
    "stream_nwb",
    "write_nwb",
]
