from .arrays import read_arrays, stream_arrays, write_arrays
from .convert import from_neo, from_pynapple, to_neo, to_pynapple
from .estimates import write_estimates
from .kilosort import read_kilosort
from .nwb import list_nwb, read_nlb, read_nwb, stream_nwb
from .nwb_file import NwbWarning
from .nwb_write import (
    Annotations,
    Mark,
    read_annotations,
    read_estimates,
    recording_to_nwb,
    write_nwb,
)
from .open import describe, open_recording, stream_recording
from .recording import Reading, Recording, Series

__all__ = [
    "Annotations",
    "Mark",
    "NwbWarning",
    "Reading",
    "Recording",
    "Series",
    "describe",
    "from_neo",
    "from_pynapple",
    "list_nwb",
    "open_recording",
    "read_annotations",
    "read_arrays",
    "read_estimates",
    "read_kilosort",
    "read_nlb",
    "read_nwb",
    "recording_to_nwb",
    "stream_arrays",
    "stream_nwb",
    "stream_recording",
    "to_neo",
    "to_pynapple",
    "write_arrays",
    "write_estimates",
    "write_nwb",
]
