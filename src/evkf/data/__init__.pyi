from .arrays import read_arrays, stream_arrays, write_arrays
from .convert import from_neo, from_pynapple, to_neo, to_pynapple
from .describe import describe
from .kilosort import read_kilosort
from .nwb import NwbWarning, list_nwb, read_nlb, read_nwb
from .nwb_stream import stream_nwb
from .nwb_write import Results, read_results, recording_to_nwb, write_nwb
from .open import open_recording, stream_recording
from .recording import Recording, Series

__all__ = [
    "NwbWarning",
    "Recording",
    "Results",
    "Series",
    "describe",
    "from_neo",
    "from_pynapple",
    "list_nwb",
    "open_recording",
    "read_arrays",
    "read_kilosort",
    "read_nlb",
    "read_nwb",
    "read_results",
    "recording_to_nwb",
    "stream_arrays",
    "stream_nwb",
    "stream_recording",
    "to_neo",
    "to_pynapple",
    "write_arrays",
    "write_nwb",
]
