"""What commands on recordings share: how a file is read, and which model it is for."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import typer
from rich.console import Console

from evkf.cli.console import note
from evkf.data import NwbWarning, Recording
from evkf.data.arrays import HDF5
from evkf.data.installed import need, versions
from evkf.data.open import open_recording
from evkf.errors import InputError
from evkf.recordings.units import UnitModel

EXTRAS = {
    ".safetensors": ("storage", "safetensors"),
    ".nwb": ("nwb", "pynwb", "h5py"),
    **dict.fromkeys(HDF5, ("hdf5", "h5py")),
}
"""What files need to be written: an extra, and the packages that it brings."""
WIDTH = "the file's own; 0.02 for spike times; a CSV file needs it"

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="An .nwb, .npz, .h5 or .csv file, or a Kilosort folder.",
    ),
]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="An .nwb, .npz, .h5 or .csv file, or a Kilosort folder; several with --batch.",
    ),
]
BinWidth = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Width of a bin.", show_default=WIDTH),
]
ModelWidth = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Width of a bin.", show_default="the model's"),
]
Align = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Times in the NWB trials table that trials begin at."),
]
Window = Annotated[
    tuple[float, float] | None,
    typer.Option(
        metavar="FROM TO", help="Seconds from there, negative before it, such as -0.3 0.7."
    ),
]
MinRate = Annotated[
    float, typer.Option(min=0, metavar="HZ", help="Leave out units that fire less.")
]
Behaviour = Annotated[
    str | None, typer.Option(metavar="NAME", help="Series of the behaviour, such as hand_vel.")
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL",
        help="Clusters to take from a Kilosort folder; repeatable.",
        show_default="good",
    ),
]
Units = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=VALUE",
        help="Units of an NWB file to take, such as quality=good or id=3; repeatable.",
    ),
]
Trials = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=VALUE",
        help="Trials of an NWB file to take, such as split=train; repeatable.",
    ),
]
LeaveOut = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Arrays of an .npz or .h5 file, or columns of a .csv file, not to read; repeatable.",
    ),
]
Condition = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column of the trials that tells conditions.")
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a session.")]
ModelFile = Annotated[Path, typer.Option("--model", metavar="MODEL", help="What `evkf fit` wrote.")]


class Reading(NamedTuple):
    """How a file is to be read: the options of that name."""

    bin_width: float | None = None
    align: str | None = None
    window: tuple[float, float] | None = None
    behaviour: str | None = None
    min_rate: float = 0.0
    group: list[str] | None = None
    units: list[str] | None = None
    trials: list[str] | None = None
    leave_out: list[str] | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], bin_width: float | None = None) -> Self:
        """Of all options of a command, with this width of a bin if they do not say."""
        given = {name: options[name] for name in cls._fields if name in options}
        if given["bin_width"] is None:
            given["bin_width"] = bin_width
        return cls(**given)

    @property
    def streams(self) -> bool:
        """Whether a stream of chunks can be read so."""
        asked = self.align, self.window, self.group, self.trials
        return self.min_rate == 0 and all(x is None for x in asked)

    def read(self, say: Console, file: Path, signals: bool = False) -> Recording:
        """The recording; what had to be left out is noted."""
        names = () if self.behaviour is None else (self.behaviour,)
        with noting(say):
            return open_recording(
                file,
                self.bin_width,
                self.align,
                self.window,
                names,
                self.min_rate,
                self.group,
                parse_query(self.units, "--units"),
                parse_query(self.trials, "--trials"),
                signals,
                self.leave_out or (),
            )

    @property
    def trials_are(self) -> str:
        """What a trial of an NWB file is.

        Example:
            >>> Reading(align="go", window=(-0.2, 0.6)).trials_are, Reading(align="go").trials_are
            ('-0.2 to 0.6 s from go', 'from go to stop_time')
        """
        if self.align is None:
            return "the whole session"
        if self.window is None:
            return f"from {self.align} to stop_time"
        return f"{self.window[0]:g} to {self.window[1]:g} s from {self.align}"

    def remembered(self, file: Path) -> dict[str, Any]:
        """What a model fitted to the file keeps of how its trials were made."""
        if file.suffix != ".nwb":
            return {}
        return {"align": self.align, "window": None if self.window is None else list(self.window)}

    def note_trials(self, say: Console, model: UnitModel, file: Path) -> None:
        """Note that the model was fitted to trials made in another way, if it is known."""
        here, known = self.remembered(file), model.fitted or {}
        then = {name: known[name] for name in here if name in known}
        if then in ({}, here):
            return
        align, window = then["align"], then["window"]
        before = Reading(align=align, window=None if window is None else tuple(window))
        if align is None:
            remedy = "leave out --align"
        elif window is None:
            remedy = f"pass --align {align} without --window"
        else:
            remedy = f"pass --align {align} --window {window[0]:g} {window[1]:g}"
        what = f"a trial of {file} is {self.trials_are} here, one of the model's was"
        note(say, f"{what} {before.trials_are}; for the same, {remedy}")


@contextmanager
def noting(say: Console) -> Iterator[None]:
    """Say what would be warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NwbWarning)
        yield
    for warning in caught:
        note(say, str(warning.message))


def parse_query(given: Sequence[str] | None, option: str) -> dict[str, list[str]] | None:
    """Columns with the values wanted of them: one of those of every column.

    Example:
        >>> parse_query(["area=M1", "area=PMd", "quality=good"], "--units")
        {'area': ['M1', 'PMd'], 'quality': ['good']}
    """
    query: dict[str, list[str]] = {}
    for each in given or ():
        column, _, value = each.partition("=")
        if not column or not value:
            raise InputError(repr(each), option, "write COLUMN=VALUE, such as quality=good")
        query.setdefault(column, []).append(value)
    return query or None


def load_model(file: Path) -> UnitModel:
    """A model that `evkf fit` wrote."""
    if not file.is_file():
        raise InputError("no such file", str(file), "check the name, or make it with `evkf fit`")
    if file.suffix != ".safetensors":
        remedy = "pass a .safetensors file that `evkf fit` wrote"
        raise InputError("not a model", str(file), remedy)
    return UnitModel.load(file)


def check_spikes(model: UnitModel, file: Path) -> None:
    """Refuse a model of continuous signals."""
    if model.signals:
        what, remedy = (
            "a model of continuous signals",
            "pass one of spikes; `evkf filter` takes both",
        )
        raise InputError(what, str(file), remedy)


def check_ending(path: Path, endings: Sequence[str]) -> None:
    """Refuse a name whose format is not known or cannot be written here, before any work."""
    if path.suffix not in endings:
        what = f"a file named {path.name!r}"
        raise InputError(what, str(path), f"end it in {', '.join(endings)}")
    if path.suffix in EXTRAS:
        need(f"a {path.suffix} file", *EXTRAS[path.suffix])


def result(command: str, options: dict[str, Any], **found: Any) -> dict[str, Any]:
    """What `--json` gets."""

    def plain(x: Any) -> Any:
        if isinstance(x, list):
            return [plain(each) for each in x]
        return str(x) if isinstance(x, Path) else x

    told = {name: plain(x) for name, x in options.items()}
    return {"command": command, "options": told, **found, "versions": versions()}
