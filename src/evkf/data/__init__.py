"""Recordings in: files of many kinds become a `Recording`."""

from evkf.data.nwb import NwbWarning, list_nwb, read_nlb, read_nwb
from evkf.data.nwb_stream import stream_nwb
from evkf.data.recording import Recording

__all__ = ["NwbWarning", "Recording", "list_nwb", "read_nlb", "read_nwb", "stream_nwb"]
