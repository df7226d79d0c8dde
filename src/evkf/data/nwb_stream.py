"""NWB files longer than memory: a session in chunks."""

import os
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from evkf.data._nwb_file import Query, masked, open_nwb, select
from evkf.data._nwb_units import Units
from evkf.data.binning import bin_index, check_bin_width
from evkf.data.recording import Recording
from evkf.errors import InputError

BUFFER, LEAST = 1 << 24, 4096
"""Bytes of spikes that `stream_nwb` holds of all units, and spikes of each at the least."""


def stream_nwb(
    path: str | os.PathLike,
    bin_width: float,
    chunk_bins: int = 10_000,
    units: Query = None,
    blank: Float[np.ndarray, "W 2"] | None = None,
) -> Iterator[Recording]:
    """Read a session in chunks that follow one another, in memory its length does not matter for.

    Put end to end the chunks are what `read_nwb` gives without `align`, less the rates.

    Args:
        path: As for `read_nwb`.
        bin_width: In seconds.
        chunk_bins: Bins of a chunk; the last may have fewer.
        units: As for `read_nwb`.
        blank: As for `read_nwb`.

    Yields:
        Recordings of one trial each.

    Example:
        >>> next(stream_nwb("nowhere.nwb", 0.02))
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no such file (in nowhere.nwb): check the name
    """
    source = str(path)
    check_bin_width(bin_width)
    if chunk_bins < 1:
        raise InputError(f"chunk_bins = {chunk_bins}", "chunk_bins", "pass 1 or more")
    with open_nwb(path) as file:
        table = Units(file, source)
        columns = table.columns(file)
        chosen = select(columns, units, f"{source}: units")
        columns = {name: values[chosen] for name, values in columns.items()}
        start, num = table.session(bin_width)
        block = max(LEAST, BUFFER // (4 * len(chosen)))
        readers = [_Reader(table, unit, start, bin_width, num, block) for unit in chosen]
        for first in range(0, num, chunk_bins):
            length = min(chunk_bins, num - first)
            begins = start + bin_width * np.arange(first, first + length)
            counts = np.empty((length, len(chosen)), np.int32)
            for column, reader in enumerate(readers):
                counts[:, column] = reader.count(first, length)
            chunk = Recording(
                counts,
                bin_width,
                start_times=begins[:1],
                masks=table.masks(chosen, begins, bin_width),
                units=columns,
                source=source,
            )
            yield masked(chunk, file, blank)
        for reader in readers:
            reader.finish()


class _Reader:
    """Counts of one unit, bin after bin; holds a block of its spikes."""

    def __init__(
        self, table: Units, unit: int, start: float, bin_width: float, num: int, block: int
    ):
        self.table, self.unit, self.start, self.bin_width = table, unit, start, bin_width
        self.num, self.dtype = num, np.int32 if num < 2**31 else np.int64
        self.at, self.end = table.bounds(unit)
        self.block, self.after = block, -np.inf
        self.held = np.zeros(0, self.dtype)

    def _load(self) -> None:
        end = min(self.at + self.block, self.end)
        times = self.table.read(self.unit, self.at, end, self.after)
        self.at, self.after = end, times[-1]
        index = bin_index(times, self.start, self.bin_width)
        self.held = np.clip(index, -1, self.num).astype(self.dtype)

    def count(self, first: int, length: int) -> Int[np.ndarray, " T"]:
        """Spikes of the next bins; those before the first are passed over."""
        counts = np.zeros(length, np.int64)
        while True:
            low, high = np.searchsorted(self.held, [first, first + length])
            counts += np.bincount(self.held[low:high] - first, minlength=length)
            self.held = self.held[high:]
            if len(self.held) or self.at == self.end:
                return counts
            self._load()

    def finish(self) -> None:
        """Check the order of what comes after the last bin."""
        while self.at < self.end:
            self._load()
