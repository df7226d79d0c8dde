"""Options, files, results and progress of commands; recordings and models as they read them."""

import functools
import inspect
import json
import os
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from evkf.data.files import HDF5, finite, need, replacing, versions
from evkf.data.nwb_file import NwbWarning
from evkf.data.open import open_recording
from evkf.data.recording import Reading, Recording
from evkf.errors import InputError

if TYPE_CHECKING:
    from evkf.recordings.units import UnitModel
FELL_SHORT = 1
"""Exit code of a command whose result fell short of a check or a target."""
LINE_S = 5.0
"""Seconds between lines of progress."""
EXTRAS = {
    ".safetensors": ("storage", "safetensors"),
    ".nwb": ("nwb", "pynwb", "h5py"),
    **dict.fromkeys(HDF5, ("hdf5", "h5py")),
}
"""Extra and packages that files of an ending need."""


def read_config(context: typer.Context, file: Path | None) -> Path | None:
    """Take options that are not given from a TOML file."""
    if file is None:
        return None
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError("no such file", str(file), "check the name") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not TOML: {error}", str(file), "write option = value") from error
    options = {
        name.lstrip("-"): option
        for option in context.command.params
        if option.param_type_name == "option" and option.name not in ("config", "help")
        for name in option.opts
    }
    defaults = {}
    for key, value in given.items():
        option = options.get(key.replace("_", "-"))
        if option is None:
            known = ", ".join(name for name in options if len(name) > 1)
            raise InputError(f"unknown key {key!r}", str(file), f"choose among {known}")
        if isinstance(value, dict):
            raise InputError("a table", f"{file}: {key}", "write option = value")
        many = getattr(option, "multiple", False) and not isinstance(value, list)
        defaults[option.name] = [value] if many else value
    context.default_map = {**(context.default_map or {}), **defaults}
    return file


Seed = Annotated[int, typer.Option(min=0, help="Seed of all randomness.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - prints it."),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite files that exist.")]
ForceJson = Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file of --json.")]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.toml",
        is_eager=True,
        callback=read_config,
        help="Options by name, such as bin-width = 0.02; options of the command line win.",
    ),
]
FILE = "An .nwb, .npz, .h5 or .csv file, or a Kilosort folder"
File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help=f"{FILE}.")]
Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", show_default=False, help=f"{FILE}; several with --batch."),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a session.")]
ModelFile = Annotated[Path, typer.Option("--model", metavar="MODEL", help="A model of `evkf fit`.")]
Behaviour = Annotated[
    str | None, typer.Option(metavar="NAME", help="Series of the behaviour, such as hand_vel.")
]
Condition = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column of the trials with their conditions.")
]


BinWidth = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Width of a bin.",
        show_default="the file's own; 0.02 for spike times; a CSV file needs it",
    ),
]
ModelWidth = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Width of a bin.", show_default="the model's"),
]
CLUSTERS = "Clusters to take from a Kilosort folder; repeatable."
Group = Annotated[
    list[str] | None, typer.Option(metavar="LABEL", help=CLUSTERS, show_default="good")
]
UNITS = "Units of an NWB file to take, such as quality=good or id=3; repeatable."
TRIALS = "Trials of an NWB file to take, such as split=train; repeatable."
SKIP = "Arrays of an .npz or .h5 file, or columns of a .csv file, not to read; repeatable."
LeaveOut = Annotated[list[str] | None, typer.Option(metavar="NAME", help=SKIP)]


@dataclass(frozen=True)
class ReadingOptions:
    """Options of reading a recording, of `evkf fit`."""

    bin_width: BinWidth = None
    align: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Times in the NWB trials table that trials begin at."),
    ] = None
    window: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="FROM TO", help="Seconds from there, negative before it, such as -0.3 0.7."
        ),
    ] = None
    min_rate: Annotated[
        float, typer.Option(min=0, metavar="HZ", help="Leave out units with a lower rate.")
    ] = 0.0
    group: Group = None
    units: Annotated[list[str] | None, typer.Option(metavar="COLUMN=VALUE", help=UNITS)] = None
    trials: Annotated[list[str] | None, typer.Option(metavar="COLUMN=VALUE", help=TRIALS)] = None
    leave_out: LeaveOut = None


@dataclass(frozen=True)
class ModelReadingOptions(ReadingOptions):
    """Options of reading a recording for a model, of `evkf filter`, `score` and `plot`."""

    bin_width: ModelWidth = None


@dataclass(frozen=True)
class Run:
    """Options of the result of a command, and its configuration file."""

    force: Force = False
    quiet: Quiet = False
    json_file: Json = None
    config: Config = None

    def start(self, outputs: Sequence[Path], *inputs: Path) -> Console:
        """Check that all outputs can be written; return the console for people."""
        check_free([*outputs, *json_target(self.json_file, *inputs, *outputs)], self.force)
        return console(self.quiet, self.json_file)

    def emit(self, result: dict) -> None:
        """Write a result to the file of `--json`, or print it."""
        emit(self.json_file, result)


@dataclass(frozen=True)
class RunJson(Run):
    """Options of a command that writes no file but that of --json."""

    force: ForceJson = False


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command whose parameters of settings become one option a field.

    Typer takes options as parameters; commands share them as dataclasses.
    """
    hints = get_type_hints(command, include_extras=True)
    grouped: dict[str, list[str]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            parameters.append(parameter.replace(annotation=kind))
            continue
        own = get_type_hints(kind, include_extras=True)
        grouped[parameter.name] = [field.name for field in fields(kind)]
        for field in fields(kind):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(
                inspect.Parameter(
                    field.name, parameter.kind, default=default, annotation=own[field.name]
                )
            )

    @functools.wraps(command)
    def run(**given: Any) -> None:
        settings = {
            name: hints[name](**{field: given.pop(field) for field in own})
            for name, own in grouped.items()
        }
        command(**given, **settings)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in parameters]
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def flatten(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a command by name, from its arguments."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        options |= vars(value) if is_dataclass(value) else {name: value}
    return options


def check_free(paths: Iterable[Path], force: bool) -> None:
    """Raise an error for files that exist, unless forced, and for places that are not writable."""
    for path in paths:
        if path.exists() and not force:
            raise InputError("file exists", str(path), "pass --force to overwrite it")
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            what = f"{folder} is not a folder that can be written to"
            raise InputError(what, str(path), "name another place")


def claim(paths: Iterable[Path], force: bool) -> None:
    """Check files just before writing, and make their folders."""
    paths = list(paths)
    check_free(paths, force)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)


def check_ending(path: Path, endings: Sequence[str]) -> None:
    """Raise an error for a file whose format is unknown or cannot be written here."""
    if path.suffix not in endings:
        remedy = f"end it in {', '.join(endings)}"
        raise InputError(f"a file named {path.name!r}", str(path), remedy)
    if path.suffix in EXTRAS:
        need(f"a {path.suffix} file", *EXTRAS[path.suffix])


def to_json(value: dict) -> str:
    """Return strict JSON: numbers that are not finite become null."""
    return json.dumps(finite(value), indent=2, allow_nan=False)


def write_json(path: Path, value: dict) -> None:
    """Write a JSON file, in place of an existing one; it is complete or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, overwrite=True) as part:
        part.write_text(to_json(value) + "\n", encoding="utf-8")


def result_files(out: Path, name: str, figures: Iterable[str]) -> list[Path]:
    """Return the files of `write_results`."""
    drawn = [out / f"{figure}.{end}" for figure in figures for end in ("png", "svg")]
    return [out / f"{name}.json", out / f"{name}.md", *drawn]


def write_results(
    out: Path, name: str, result: dict, text: str, figures: Mapping[str, Any], force: bool
) -> None:
    """Write a result as JSON, a page about it, and figures by name: all files or none."""
    files = result_files(out, name, figures)
    claim(files, force)
    with ExitStack() as stack:
        parts = [stack.enter_context(replacing(path, overwrite=force)) for path in files]
        for part, content in zip(parts[:2], (to_json(result) + "\n", text), strict=True):
            part.write_text(content, encoding="utf-8")
        for path, part in zip(files[2:], parts[2:], strict=True):
            figures[path.stem].savefig(part, format=path.suffix[1:], dpi=200)


def verdict(missed: Iterable[str], judged: bool) -> str:
    """Return the missed targets of a result in words, one a line."""
    lines = "\n".join(f"missed: {words}" for words in missed)
    return lines or ("all targets met" if judged else "no targets for this run")


def config_file(out: Path) -> Path:
    """Return the name of the configuration file beside an output."""
    return out.with_name(f"{out.name}.config.json")


def json_target(file: Path | None, *others: Path) -> list[Path]:
    """Return the file named by `--json`, if any; it must be none of the others."""
    if file is None or str(file) == "-":
        return []
    if file.resolve() in {other.resolve() for other in others}:
        raise InputError("a file of this command", f"--json {file}", "name another")
    return [file]


def result(command: str, options: Mapping[str, Any], **found: Any) -> dict[str, Any]:
    """Return the result of a command for `--json`: options, findings and versions."""

    def plain(x: Any) -> Any:
        if isinstance(x, list):
            return [plain(each) for each in x]
        return str(x) if isinstance(x, Path) else x

    options = {name: plain(x) for name, x in options.items()}
    return {"command": command, "options": options, **found, "versions": versions()}


def emit(file: Path | None, result: dict) -> None:
    """Write a result to the file of `--json`, or print it."""
    for path in json_target(file):
        write_json(path, result)
    if str(file) == "-":
        print(to_json(result))


def console(quiet: bool, json_file: Path | None) -> Console:
    """Return the console for people: standard error if standard output is for a program."""
    return Console(
        quiet=quiet, stderr=str(json_file) == "-", highlight=False, markup=False, soft_wrap=True
    )


def note(say: Console, text: str) -> None:
    """Print a note on standard error, unless quiet."""
    if not say.quiet:
        print(f"note: {text}", file=sys.stderr)


@contextmanager
def noting(say: Console) -> Iterator[None]:
    """Print warnings as notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NwbWarning)
        yield
    for warning in caught:
        note(say, str(warning.message))


def counted(number: int, what: str) -> str:
    """Return a number of things in words.

    Example:
        >>> counted(1, "trial"), counted(20, "trial")
        ('1 trial', '20 trials')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextmanager
def progress_bar(say: Console, text: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show progress, by a function of the numbers done and of all, as a bar or as lines."""
    columns = (
        TextColumn(text),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=say, disable=say.quiet or not say.is_terminal) as bar:
        task = bar.add_task("", total=None)
        printed = time.monotonic()

        def tell(done: int, total: int | None = None) -> None:
            nonlocal printed
            bar.update(task, completed=done, total=total)
            if not say.is_terminal and done != total and time.monotonic() >= printed + LINE_S:
                printed = time.monotonic()
                say.print(f"{text}: {done}{'' if total is None else f' of {total}'}")

        yield tell


def read_settings(
    options: ReadingOptions, bin_width: float | None = None, **settings: Any
) -> Reading:
    """Return the settings of reading for options, with a default bin width and other fields.

    Example:
        >>> read_settings(ReadingOptions(units=["area=M1", "area=PMd", "quality=good"])).units
        {'area': ['M1', 'PMd'], 'quality': ['good']}
    """
    queries: dict[str, dict[str, list[str]]] = {"units": {}, "trials": {}}
    for name, query in queries.items():
        for each in getattr(options, name) or ():
            column, _, value = each.partition("=")
            if not column or not value:
                remedy = "write COLUMN=VALUE, such as quality=good"
                raise InputError(repr(each), f"--{name}", remedy)
            query.setdefault(column, []).append(value)
    return Reading(
        bin_width if options.bin_width is None else options.bin_width,
        options.align,
        options.window,
        min_rate=options.min_rate,
        groups=options.group,
        units=queries["units"] or None,
        trials=queries["trials"] or None,
        leave_out=options.leave_out or (),
        **settings,
    )


def read_noting(say: Console, file: Path, reading: Reading) -> Recording:
    """Read a recording; print notes of what had to be left out."""
    with noting(say):
        return open_recording(file, reading)


def load_model(file: Path, *, learner: bool = True, spikes: bool = False) -> "UnitModel":
    """Return a model of `evkf fit`.

    Args:
        file: The file.
        learner: False to read it without its estimator, which is faster.
        spikes: True to raise an error for a model of continuous signals.
    """
    from evkf.recordings.units import UnitModel

    if not file.is_file():
        raise InputError("no such file", str(file), "check the name, or make it with `evkf fit`")
    if file.suffix != ".safetensors":
        remedy = "pass a .safetensors file that `evkf fit` wrote"
        raise InputError("not a model", str(file), remedy)
    model = UnitModel.load(file, learner=learner)
    if spikes and model.signals:
        remedy = "pass one of spikes; `evkf filter` takes both"
        raise InputError("a model of continuous signals", str(file), remedy)
    return model


def open_to_judge(
    say: Console, file: Path, model_file: Path, options: ReadingOptions, behaviour: str | None
) -> tuple["UnitModel", Recording, Reading]:
    """Return a model of spikes, a recording of its units, and the settings of reading it."""
    from evkf.recordings.units import check_units

    model = load_model(model_file, learner=False, spikes=True)
    wanted = () if behaviour is None else (behaviour,)
    settings = read_settings(options, model.bin_width, behaviour=wanted)
    recording = read_noting(say, file, settings)
    check_units(model, recording)
    return model, recording, settings


def cut_of_trials(reading: Reading, file: Path) -> dict[str, Any]:
    """Return how trials of an NWB file are cut, to be kept with a model; else nothing."""
    window = None if reading.window is None else list(reading.window)
    return {"align": reading.align, "window": window} if file.suffix == ".nwb" else {}


def describe_trials(align: str | None, window: Sequence[float] | None) -> str:
    """Return in words which part of an NWB session a trial is.

    Example:
        >>> describe_trials("go", (-0.2, 0.6)), describe_trials("go", None)
        ('-0.2 to 0.6 s from go', 'from go to stop_time')
    """
    if align is None:
        return "the whole session"
    if window is None:
        return f"from {align} to stop_time"
    return f"{window[0]:g} to {window[1]:g} s from {align}"


def note_trials(say: Console, reading: Reading, model: "UnitModel", file: Path) -> None:
    """Print a note if the model was fitted to trials that were cut in another way."""
    here = cut_of_trials(reading, file)
    then = {name: x for name, x in (model.fitted or {}).items() if name in here}
    if then in ({}, here):
        return
    align, window = then["align"], then["window"]
    if align is None:
        remedy = "leave out --align"
    elif window is None:
        remedy = f"pass --align {align} without --window"
    else:
        remedy = f"pass --align {align} --window {window[0]:g} {window[1]:g}"
    what = f"a trial of {file} is {describe_trials(**here)} here, a trial of the model's was"
    note(say, f"{what} {describe_trials(align, window)}; for the same, {remedy}")
