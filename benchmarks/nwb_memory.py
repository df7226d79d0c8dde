"""Memory that it takes to filter a long NWB file.

A file with 2 GB of spike times, of 256 units at 20 Hz for some 14 hours, is streamed and filtered
into an HDF5 file in a process of its own. Its peak must stay below 1.5 GB, and no spike or bin may
be missing. With --quick it is 100 MB, and the peak may be above what the process takes after two
chunks by that share of 1.5 GB.

    python benchmarks/nwb_memory.py [--quick] [--json FILE]
"""

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from closing import close

UNITS, RATE, BIN_WIDTH, LATENTS = 256, 20.0, 0.05, 4
FULL, QUICK, BAR = 2e9, 1e8, 1.5e9
CHUNK, SETTLED = 5000, 2
"""Bins of a chunk, and chunks after which everything is compiled."""
ROOM = 2.6
"""Disk that source and estimates take, as a multiple of the source."""


def make(path: Path, num_bytes: float) -> int:
    """Write the file; how many spikes it has."""
    import h5py
    from pynwb import NWBHDF5IO, NWBFile

    num = int(num_bytes / 8 / UNITS)
    ends = num * np.arange(1, UNITS + 1)
    file = NWBFile(
        session_description="made up",
        identifier="memory",
        session_start_time=datetime(2020, 1, 1, tzinfo=UTC),
    )
    for unit in range(UNITS):
        file.add_unit(id=unit, spike_times=[0.0])
    with NWBHDF5IO(path, "w") as io:
        io.write(file)
    rng = np.random.default_rng(0)
    with h5py.File(path, "a") as raw:
        units: Any = raw["units"]
        spikes = units.create_dataset("all", (ends[-1],), float, chunks=(1 << 17,))
        for end in ends:
            spikes[end - num : end] = np.cumsum(rng.exponential(1 / RATE, num))
        units["ends"] = ends.astype(np.uint64)
        for name, new in (("spike_times", "all"), ("spike_times_index", "ends")):
            units[new].attrs.update(units[name].attrs)
            del units[name]
            units.move(new, name)
        units["spike_times_index"].attrs["target"] = units["spike_times"].ref
    return int(ends[-1])


def stream(path: Path) -> dict[str, Any]:
    """Filter the file; figures of this process."""
    import h5py
    import jax

    from evkf.data import Recording
    from evkf.data.open import stream_recording
    from evkf.dynamics import ResidualMLP
    from evkf.filters import VariationalKalmanFilter
    from evkf.likelihoods import Poisson
    from evkf.model import Model
    from evkf.recordings.units import UnitModel, filter_to_hdf5

    C = np.random.default_rng(0).normal(size=(UNITS, LATENTS)) / 10
    likelihood = Poisson(C, np.full(UNITS, np.log(RATE)), bin_width=BIN_WIDTH)
    parts = Model(ResidualMLP(LATENTS, 0.01, jax.random.key(0)), likelihood)
    names = tuple(str(unit) for unit in range(UNITS))
    model = UnitModel(parts, VariationalKalmanFilter(), names, BIN_WIDTH)
    out, settled, spikes, chunks = path.with_suffix(".h5"), 0, 0, 0

    def use(chunk: Recording) -> None:
        """Told of every chunk whose estimates were written."""
        nonlocal settled, spikes, chunks
        spikes, chunks = spikes + int(chunk.counts.sum()), chunks + 1
        if chunks <= SETTLED:
            settled = peak()

    begin = time.perf_counter()
    stream = stream_recording(path, bin_width=BIN_WIDTH, chunk_bins=CHUNK)
    bins, _ = filter_to_hdf5(out, model, stream, progress=use)
    seconds = time.perf_counter() - begin
    with h5py.File(out) as file:
        stored: Any = file["rates"]
        complete = stored.shape == (bins, UNITS)
    return {
        "settled_mb": settled / 1e6,
        "peak_mb": peak() / 1e6,
        "seconds": seconds,
        "bins": bins,
        "spikes": spikes,
        "complete": complete,
    }


def peak() -> int:
    """The most memory this process has taken so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def apart(function: Callable, *arguments: Any) -> Any:
    """What a function gives in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 MB")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        free = shutil.disk_usage(folder).free
        if free < ROOM * size:
            print(f"{folder} has {free / 1e9:.1f} GB free, needed are {ROOM * size / 1e9:.1f}")
            return 2
        path = Path(folder) / "long.nwb"
        spikes = apart(make, path, size)
        result = {"file_mb": path.stat().st_size / 1e6, **apart(stream, path)}
    share = result["settled_mb"] + BAR / 1e6 * size / FULL
    result["bar_mb"] = share if options.quick else BAR / 1e6
    print(" ".join(f"{name} {value:.1f}" for name, value in result.items()))
    missed = []
    if result["peak_mb"] > result["bar_mb"]:
        missed.append(f"peak of {result['peak_mb']:.0f} MB is above {result['bar_mb']:.0f} MB")
    if result["spikes"] != spikes:
        missed.append(f"{result['spikes']} of {spikes} spikes were counted")
    if not result["complete"]:
        missed.append("bins are missing in what was written")
    return close(result, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())
