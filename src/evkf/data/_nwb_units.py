"""The units table of an NWB file, spike times read in parts."""

from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool, Float

from evkf.data._nwb_file import read_table, read_values
from evkf.data.binning import check_spike_times, inside, merged, whole_bins
from evkf.data.recording import Columns
from evkf.errors import InputError


class Units:
    """The units table of an open file; spike times stay in it until asked for.

    Args:
        file: As `open_nwb` gives it.
        source: Its name, for messages.
    """

    def __init__(self, file: Any, source: str):
        self.source = source
        if "units" not in file:
            self.refuse("no units table", "units", "pass a file with sorted or thresholded spikes")
        self.table = file["units"]
        if "spike_times" not in self.table or "spike_times_index" not in self.table:
            self.refuse("no spike times", "units", "pass a file whose units have spike_times")
        self.spikes = self.table["spike_times"]
        self.ends = self.table["spike_times_index"][...].astype(np.int64)
        self.num = len(self.ends)
        if not self.num:
            self.refuse("no units", "units", "pass a file with one or more")
        whole = np.all(np.diff(self.ends, prepend=0) >= 0) and self.ends[-1] <= len(self.spikes)
        if not whole or len(self.table["id"]) != self.num:
            what = "an index that does not fit the spike times"
            self.refuse(what, "units/spike_times_index", "mend the file")
        self._observed = self._read_observed()

    def _read_observed(self) -> list[np.ndarray] | None:
        if "obs_intervals" not in self.table or not len(self.table["obs_intervals"]):
            return None
        pairs = self.table["obs_intervals"][...].astype(float)
        ends = self.table["obs_intervals_index"][...].astype(np.int64)
        if not np.all(pairs[:, 1] >= pairs[:, 0]):
            what = "intervals that end before they begin, or NaN"
            self.refuse(what, "units/obs_intervals", "mend the file")
        return [merged(part) for part in np.split(pairs, ends[:-1])]

    def columns(self, file: Any) -> Columns:
        """One value a unit: what the table has, and the name of the electrode group.

        A column "unit_name", where `recording_to_nwb` puts names, gives the ids, if none is twice.
        """
        table = read_table(self.table, ("spike_times", "obs_intervals", "waveforms"), ragged=False)
        names = table.get("unit_name", np.zeros(0))
        if names.dtype.kind == "U" and len(np.unique(names)) == self.num:
            table["id"] = names
        electrodes = file.get("general/extracellular_ephys/electrodes")
        if "electrode_group" in table or electrodes is None or "group_name" not in electrodes:
            return table
        if "electrodes" not in self.table or "electrodes_index" not in self.table:
            return table
        names, first = read_values(electrodes["group_name"]), self.table["electrodes"][...]
        begin = np.concatenate([[0], self.table["electrodes_index"][...].astype(np.int64)])
        if names is not None and np.all(np.diff(begin) > 0):
            table["electrode_group"] = names[first[begin[:-1]]]
        return table

    def bounds(self, unit: int) -> tuple[int, int]:
        """Where its spike times begin and end in the file."""
        return int(self.ends[unit - 1]) if unit else 0, int(self.ends[unit])

    def read(self, unit: int, begin: int, end: int, after: float = -np.inf) -> np.ndarray:
        """Spike times from `begin` to `end` in the file, in order and not before `after`."""
        times = self.spikes[begin:end].astype(float)
        where = f"{self.source}: units/spike_times of unit {self.table['id'][unit]}"
        check_spike_times(times, where, (0.0, np.inf), begin - self.bounds(unit)[0], after)
        return times

    def masks(
        self, units: np.ndarray, begins: Float[np.ndarray, " T"], bin_width: float
    ) -> Bool[np.ndarray, "T N"]:
        """True where observed: within `obs_intervals`, or from 0 on where the file has none."""
        session, masks = np.array([[0.0, np.inf]]), np.empty((len(begins), len(units)), bool)
        pairs = [session if self._observed is None else self._observed[unit] for unit in units]
        # most units of a file were observed together
        alike: dict[bytes, list[int]] = {}
        for column, intervals in enumerate(pairs):
            alike.setdefault(intervals.tobytes(), []).append(column)
        for columns in alike.values():
            masks[:, columns] = inside(begins, bin_width, pairs[columns[0]])[:, None]
        return masks

    def span(self) -> tuple[float, float, bool]:
        """When the session begins and ends, and whether the last spike is all that tells."""
        if self._observed is not None:
            pairs = np.concatenate(self._observed)
            return float(pairs[:, 0].min()), float(pairs[:, 1].max()), False
        last = [float(self.spikes[end - 1]) for end in np.unique(self.ends) if end]
        if not last:
            self.refuse("no spikes", "units/spike_times", "pass a file with some")
        if not np.isfinite(last).all():
            self.refuse("spike times that are not finite", "units/spike_times", "leave them out")
        return 0.0, max(last), True

    def seconds(self) -> Float[np.ndarray, " N"]:
        """How long every unit was observed: as `obs_intervals` say, or else the whole session."""
        if self._observed is None:
            start, stop, _ = self.span()
            return np.full(self.num, stop - start)
        return np.array([np.diff(pairs, axis=1).sum() for pairs in self._observed])

    def session(self, bin_width: float) -> tuple[float, int]:
        """When the session begins, and its bins: one more for the spike that ends it."""
        start, stop, open_end = self.span()
        num = int(whole_bins(start, stop, bin_width)) + open_end
        if num < 1:
            what = f"no bin of {bin_width} s in a session of {stop - start:g} s"
            self.refuse(what, "units", "pass a smaller bin width")
        return start, num

    def refuse(self, what: str, where: str, remedy: str) -> NoReturn:
        """Raise, naming the file."""
        raise InputError(what, f"{self.source}: {where}", remedy)
