"""`Recording`, the binned data of an experiment, and `Reading`, the settings to read it."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from evkf.errors import InputError
from evkf.numerics.trials import bins_of

Columns = dict[str, Shaped[np.ndarray, "..."]]
SPEED = re.compile(r"\s*(/\s*s(ec)?|per\s+s(ec|econd)?|\s+s\^?-1)\s*$", re.IGNORECASE)
"""Ending of a unit of speed, such as "/s" in "cm/s"."""
NO_UNIT = ("", "unknown", "n/a", "a.u.")
BIN_WIDTH = 0.02
"""Default bin width of spike times, in seconds."""

Query = Mapping[str, Any] | Sequence[Any] | np.ndarray | None
"""Choice of rows of a table: columns with the wanted value or values, or ids; None for all rows."""


@dataclass(frozen=True)
class Reading:
    """Settings to read a recording, in Python and on the command line.

    Attributes:
        bin_width: In seconds. None takes the bin width of an npz or HDF5 file, and 0.02 for spike
            times. A CSV file needs a value.
        align: Column of the NWB trials table with the times that trials are aligned to. None reads
            an NWB session as a single trial.
        window: Begin and end of a trial in seconds from `align`. By default a trial begins at
            `align` and ends at its `stop_time`.
        behaviour: Names of behavioural series. Only these are read from an NWB file. Other files
            are read with all their series, but those named here must exist and be finite.
        min_rate: Units that have fewer observed spikes per second than this are left out.
        groups: Labels of the clusters to take from a Kilosort folder; None for "good".
        units: Units of an NWB file to take: columns with the wanted value or values, or ids.
        trials: Trials of an NWB file to take: columns with the wanted value or values, or ids.
        blank: Time windows (start, stop) of an NWB file in seconds whose bins are masked.
        signals: True if npz, HDF5 and CSV files hold continuous signals in place of counts.
        leave_out: Names of arrays (npz, HDF5) or columns (CSV) that are not read.

    Example:
        >>> Reading(align="go_cue", window=(-0.2, 0.6)).width
        0.02
    """

    bin_width: float | None = None
    align: str | None = None
    window: tuple[float, float] | None = None
    behaviour: Sequence[str] = ()
    min_rate: float = 0.0
    groups: Collection[str] | None = None
    units: Query = None
    trials: Query = None
    blank: Float[np.ndarray, "W 2"] | None = None
    signals: bool = False
    leave_out: Collection[str] = ()

    def __post_init__(self) -> None:
        for name in ("behaviour", "leave_out"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else value)

    @property
    def width(self) -> float:
        """Bin width for spike times in seconds: `bin_width`, or 0.02 if that is None."""
        return BIN_WIDTH if self.bin_width is None else self.bin_width


class Series(NamedTuple):
    """Physical unit of a behavioural series, and whether it is a position, as given in the file.

    Attributes:
        unit: Physical unit; empty if not given.
        position: True for a position in space.

    Example:
        >>> Series("cm/s").velocity, Series("cm", position=True).velocity
        (True, False)
        >>> Series("mm/s").of_path, Series("cm", position=True).of_path, Series().of_path
        ('mm', 'cm', 'a.u.')
    """

    unit: str = ""
    position: bool = False

    @property
    def velocity(self) -> bool:
        """True if the series must be integrated to give a path.

        That is a series that is not a position, or whose unit is a unit of speed.
        """
        return not self.position or SPEED.search(self.unit) is not None

    @property
    def of_path(self) -> str:
        """Unit of the path: that of a position, or of a velocity times seconds.

        "a.u." if the unit is not known.
        """
        if self.unit in NO_UNIT or (self.velocity and not SPEED.search(self.unit)):
            return "a.u."
        return SPEED.sub("", self.unit)


@dataclass(frozen=True, eq=False)
class Recording:
    """Binned counts of concatenated trials, with tables of values for bins, trials and units.

    A recording without trials is a single trial. Raise InputError if sizes or values do not fit.
    The arrays passed in are not changed.

    Attributes:
        counts: Number of spikes for each bin and unit, (bins, units); real numbers for continuous
            signals.
        bin_width: In seconds.
        lengths: Number of bins of every trial; by default one trial of all bins.
        start_times: Begin of the first bin of every trial, in seconds of the session. By default
            the first trial begins at 0, and each other trial where the trial before ends.
        masks: True where observed, (bins, units); all True by default.
        behaviour: Columns by name with one row for each bin, (bins,) or (bins, coordinates).
        trials: Columns by name with one row for each trial, such as condition or target.
        units: Columns by name with one row for each unit. "id" is numbered from 0 if not given.
        source: Name of the file, for messages.
        series: Physical units of the columns of `behaviour` by name, where the file gives them.

    Example:
        >>> counts = np.array([[1, 0], [0, 2], [3, 1]])
        >>> recording = Recording(counts, bin_width=0.02, lengths=(1, 2))
        >>> [trial.tolist() for trial in recording.split(recording.counts)]
        [[[1, 0]], [[0, 2], [3, 1]]]
        >>> recording.rates()
        array([66.66666667, 50.        ])
        >>> recording.take([1]).counts.tolist()
        [[0, 2], [3, 1]]
        >>> recording.trial_of_bin.tolist()
        [0, 1, 1]
    """

    counts: Shaped[np.ndarray, "T N"]
    bin_width: float
    lengths: tuple[int, ...] = ()
    start_times: Float[np.ndarray, " K"] = field(default_factory=lambda: np.zeros(0))
    masks: Bool[np.ndarray, "T N"] = field(default_factory=lambda: np.zeros((0, 0), bool))
    behaviour: Columns = field(default_factory=dict)
    trials: Columns = field(default_factory=dict)
    units: Columns = field(default_factory=dict)
    source: str = "recording"
    series: Mapping[str, Series] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts)
        if counts.ndim != 2 or 0 in counts.shape:
            self._refuse(f"counts of shape {counts.shape}", "counts", "pass (bins, units)")
        if counts.dtype.kind not in "iuf":
            self._refuse(f"counts of {counts.dtype}", "counts", "pass numbers")
        if not (np.isfinite(self.bin_width) and self.bin_width > 0):
            self._refuse(f"bin_width = {self.bin_width}", "bin_width", "pass seconds above zero")
        num, units = counts.shape
        lengths = tuple(int(n) for n in self.lengths) or (num,)
        if min(lengths) < 1 or sum(lengths) != num:
            what = f"trials of {sum(lengths)} bins, the shortest {min(lengths)}, for {num} bins"
            self._refuse(what, "lengths", "pass the bins of every trial, one or more")
        starts = np.asarray(self.start_times, float)
        if not len(starts):
            starts = self.bin_width * np.cumsum((0, *lengths[:-1]))
        masks = np.asarray(self.masks)
        if not masks.size:
            masks = np.ones(counts.shape, bool)
        checked = {"start_times": (starts, (len(lengths),)), "masks": (masks, counts.shape)}
        for name, (array, shape) in checked.items():
            if array.shape != shape:
                self._refuse(f"{name} of shape {array.shape}", name, f"pass shape {shape}")
        if masks.dtype != bool:
            self._refuse(f"masks of {masks.dtype}", "masks", "pass True where observed")
        if not np.isfinite(starts).all():
            self._refuse("start times that are not finite", "start_times", "pass seconds")
        seen = counts[masks] if counts.dtype.kind == "f" else np.zeros(0)
        if not np.isfinite(seen).all():
            what = "observed counts that are not finite"
            self._refuse(what, "counts", "mask what was not observed")
        table = {"id": np.arange(units), **_columns(self.units)}
        behaviour, trials = _columns(self.behaviour), _columns(self.trials)
        for name, columns, rows in (
            ("behaviour", behaviour, num),
            ("trials", trials, len(lengths)),
            ("units", table, units),
        ):
            for column, values in columns.items():
                if values.ndim < 1 or len(values) != rows:
                    what = f"{column} of shape {values.shape}"
                    self._refuse(what, f"{name}[{column!r}]", f"pass {rows} rows")
        if len(np.unique(table["id"])) != units:
            self._refuse("ids that are not unique", "units['id']", "name every unit once")
        values = (counts, float(self.bin_width), lengths, starts, masks, behaviour, trials, table)
        names = ("counts", "bin_width", "lengths", "start_times", "masks", "behaviour")
        for name, value in zip((*names, "trials", "units"), values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def num_bins(self) -> int:
        """Number of bins of all trials."""
        return len(self.counts)

    @property
    def num_units(self) -> int:
        """Number of units."""
        return self.counts.shape[1]

    @property
    def num_trials(self) -> int:
        """Number of trials; one for a recording without trials."""
        return len(self.lengths)

    @property
    def fresh(self) -> Bool[np.ndarray, " T"]:
        """True where a trial begins."""
        marks = np.zeros(self.num_bins, bool)
        marks[np.cumsum((0, *self.lengths[:-1]))] = True
        return marks

    @property
    def trial_of_bin(self) -> Int[np.ndarray, " T"]:
        """Number of the trial that each bin belongs to, counted from 0."""
        return np.repeat(np.arange(self.num_trials), self.lengths)

    @property
    def observed(self) -> Shaped[np.ndarray, "T N"]:
        """The counts, with 0 where the mask is False."""
        return np.where(self.masks, self.counts, 0)

    @property
    def times(self) -> Float[np.ndarray, " T"]:
        """Begin of every bin, in seconds of the session."""
        return np.repeat(self.start_times, self.lengths) + self.bin_width * bins_of(self.lengths)

    @property
    def gap_free(self) -> bool:
        """True if every trial begins where the trial before ended."""
        ends = self.start_times + self.bin_width * np.asarray(self.lengths)
        return bool(np.all(np.abs(self.start_times[1:] - ends[:-1]) < 1e-6 * self.bin_width))

    def bin_labels(
        self, fresh: Bool[np.ndarray, " T"] | None = None, numbers: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Return times, begins of trials, trials and unit ids as fields of `Estimates`.

        The field "trial" has the id of the trial of each bin. If trials have no whole numbers as
        ids, it has the number of the trial, or is None if the recording is from an NWB file.

        Args:
            fresh: True where a trial begins, (bins,); by default `fresh` of this recording.
            numbers: Number of each trial, for a chunk of a recording; by default from 0.
        """
        ids = self.trials.get("id", np.zeros(0, str))
        if ids.dtype.kind not in "iu":
            ids = np.arange(self.num_trials) if numbers is None else numbers
            ids = None if self.source.endswith(".nwb") else ids
        return {
            "times": self.times,
            "fresh": self.fresh if fresh is None else fresh,
            "trial": None if ids is None else ids[self.trial_of_bin],
            "units": self.units["id"],
        }

    def split(self, array: Shaped[np.ndarray, "T ..."]) -> list[np.ndarray]:
        """Return an array that has one row for each bin as a list of arrays, one for each trial."""
        if len(array) != self.num_bins:
            self._refuse(f"{len(array)} rows", "array", f"pass one per bin, {self.num_bins}")
        return np.split(array, np.cumsum(self.lengths)[:-1])

    def rates(self) -> Float[np.ndarray, " N"]:
        """Return the observed spikes per second of each unit; NaN for a unit that is all masked."""
        seen = self.masks.sum(axis=0)
        total = self.observed.sum(axis=0)
        with np.errstate(invalid="ignore"):
            return total / (seen * self.bin_width)

    def take(self, trials: Sequence[int] | np.ndarray) -> Self:
        """Return a recording of the given trials, numbered from 0, in the given order."""
        index = np.asarray(trials, int)
        if index.ndim != 1 or not len(index):
            self._refuse(f"trials {trials}", "trials", "name one or more trials")
        if index.min() < 0 or index.max() >= self.num_trials:
            what = f"trial {index.max() if index.min() >= 0 else index.min()}"
            self._refuse(what, "trials", f"there are {self.num_trials}, counted from 0")
        ends = np.cumsum(self.lengths).tolist()
        bins = np.concatenate([np.arange(ends[k] - self.lengths[k], ends[k]) for k in index])
        return replace(
            self,
            counts=self.counts[bins],
            masks=self.masks[bins],
            lengths=tuple(self.lengths[k] for k in index),
            start_times=self.start_times[index],
            behaviour={name: values[bins] for name, values in self.behaviour.items()},
            trials={name: values[index] for name, values in self.trials.items()},
        )

    def pick(self, units: Sequence[int] | np.ndarray) -> Self:
        """Return a recording of the given units, by index from 0 or as a boolean array."""
        index = np.arange(self.num_units)[np.asarray(units)]
        if not len(index):
            self._refuse("no units left", "units", "keep one or more; lower the least rate")
        return replace(
            self,
            counts=self.counts[:, index],
            masks=self.masks[:, index],
            units={name: values[index] for name, values in self.units.items()},
        )

    def rebinned(self, factor: int, signals: bool = False) -> Self:
        """Return the recording in bins that are `factor` times as wide.

        Counts are summed. Behaviour is averaged, and so are counts if `signals` is True. A wide bin
        is masked if one of its parts was masked. Bins at the end of a trial that do not fill a wide
        bin are left out.
        """
        if factor < 1:
            self._refuse(f"factor = {factor}", "factor", "pass 1 or more")
        if min(self.lengths) < factor:
            what = f"a trial of {min(self.lengths)} bins"
            self._refuse(what, "lengths", f"leave out trials of fewer than {factor} bins")
        for name, values in self.behaviour.items():
            if values.dtype.kind not in "biuf":
                what = f"{name} of {values.dtype}, which has no mean"
                remedy = "keep the bins, or leave the array out: --leave-out, leave_out in Python"
                self._refuse(what, "behaviour", remedy)
        keep = np.concatenate([np.arange(n) < n - n % factor for n in self.lengths])

        def wide(array: np.ndarray) -> np.ndarray:
            return array[keep].reshape(-1, factor, *array.shape[1:])

        counts = wide(self.counts)
        return replace(
            self,
            counts=counts.mean(axis=1) if signals else counts.sum(axis=1),
            masks=wide(self.masks).all(axis=1),
            bin_width=self.bin_width * factor,
            lengths=tuple(n // factor for n in self.lengths),
            behaviour={
                name: wide(np.asarray(values, float)).mean(axis=1)
                for name, values in self.behaviour.items()
            },
        )

    def blanked(self, windows: Float[np.ndarray, "W 2"]) -> Self:
        """Return the recording with bins masked that touch a window (start, stop) in seconds."""
        windows = np.asarray(windows, float)
        if windows.ndim != 2 or windows.shape[1] != 2 or np.any(windows[:, 1] < windows[:, 0]):
            what = f"windows of shape {windows.shape}, or that end before they begin"
            self._refuse(what, "blank", "pass (start, stop) in seconds, one row a window")
        begin = self.times
        end, slack = begin + self.bin_width, 1e-9 * self.bin_width
        hidden = np.zeros(self.num_bins, bool)
        for start, stop in windows:
            hidden |= (begin < stop - slack) & (end > start + slack)
        return replace(self, masks=self.masks & ~hidden[:, None])

    def cut(self, rows: slice) -> Self:
        """Return a recording of a slice of the bins.

        The trial column "trial" has the numbers of the trials in the whole recording, from 0.
        """
        held, lengths, starts = cut_trials(self.lengths, self.start_times, self.bin_width, rows)
        return replace(
            self,
            counts=self.counts[rows],
            masks=self.masks[rows],
            lengths=lengths,
            start_times=starts,
            behaviour={name: values[rows] for name, values in self.behaviour.items()},
            trials={name: values[held] for name, values in self.trials.items()} | {"trial": held},
        )

    def _refuse(self, what: str, where: str, remedy: str) -> None:
        raise InputError(what, f"{self.source}: {where}", remedy)


def cut_trials(
    lengths: Sequence[int],
    start_times: Float[np.ndarray, " K"],
    bin_width: float,
    rows: slice,
) -> tuple[np.ndarray, tuple[int, ...], np.ndarray]:
    """Return which trials a slice of the bins holds, in whole or in part.

    The results are, for each of these trials, its number from 0, its number of bins in the slice,
    and the begin of its first bin in the slice in seconds.

    Example:
        >>> cut_trials((3, 2), np.array([0.0, 1.0]), 0.1, slice(2, 4))
        (array([0, 1]), (1, 1), array([0.2, 1. ]))
    """
    ends = np.cumsum(lengths)
    firsts = ends - lengths
    held = np.flatnonzero((firsts < rows.stop) & (ends > rows.start))
    cut = np.maximum(firsts[held], rows.start)
    parts = tuple((np.minimum(ends[held], rows.stop) - cut).tolist())
    return held, parts, start_times[held] + bin_width * (cut - firsts[held])


def _columns(given: Mapping[str, Any]) -> Columns:
    return {str(name): np.asarray(values) for name, values in given.items()}
