"""What commands share: options, files claimed before any work, JSON, words for people."""

import json
import os
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from evkf.data.files import replacing
from evkf.errors import InputError
from evkf.web.packing import finite

if TYPE_CHECKING:  # half a second of commands that draw nothing
    from matplotlib.figure import Figure

FELL_SHORT = 1
"""Exit code of what was done, but fell short of a check or a target."""
LINE_S = 5.0
"""Seconds between lines that say how far something is."""


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


Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
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
        help="Options by name, such as bin-width = 0.02; those given here win.",
    ),
]


def check_free(paths: Iterable[Path], force: bool) -> None:
    """Before any work: refuse to overwrite unless forced, and places that cannot be written to."""
    for path in paths:
        if path.exists() and not force:
            raise InputError("file exists", str(path), "pass --force to overwrite it")
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            what = f"{folder} is not a folder that can be written to"
            raise InputError(what, str(path), "name another place")


def claim(paths: Iterable[Path], force: bool) -> None:
    """Before writing: refuse to overwrite unless forced, and make the folders."""
    paths = list(paths)
    check_free(paths, force)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)


def to_json(value: dict) -> str:
    """Strict JSON: a number that is not finite becomes null."""
    return json.dumps(finite(value), indent=2, allow_nan=False)


def write_json(path: Path, value: dict) -> None:
    """Write JSON into a file, in place of one that is there; it is complete or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, overwrite=True) as part:
        part.write_text(to_json(value) + "\n", encoding="utf-8")


def result_files(out: Path, name: str, figures: Iterable[str]) -> list[Path]:
    """What `write_results` writes."""
    drawn = [out / f"{figure}.{end}" for figure in figures for end in ("png", "svg")]
    return [out / f"{name}.json", out / f"{name}.md", *drawn]


def write_results(
    out: Path, name: str, result: dict, text: str, figures: "Mapping[str, Figure]", force: bool
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
    """How a result compares with its targets, if it is held to any."""
    told = "\n".join(f"missed: {words}" for words in missed)
    return told or ("all targets met" if judged else "no targets for this run")


def config_file(out: Path) -> Path:
    """Where the configuration behind an output is written."""
    return out.with_name(f"{out.name}.config.json")


def write_config(out: Path, config: dict) -> None:
    """Write the configuration behind an output beside it."""
    write_json(config_file(out), config)


def json_target(file: Path | None, *others: Path) -> list[Path]:
    """The file that `--json` names, if it names one; it may be none of the others."""
    if file is None or str(file) == "-":
        return []
    if file.resolve() in {other.resolve() for other in others}:
        raise InputError("a file of this command", f"--json {file}", "name another")
    return [file]


def emit(file: Path | None, result: dict) -> None:
    """Write a result where `--json` wants it."""
    for path in json_target(file):
        write_json(path, result)
    if str(file) == "-":
        print(to_json(result))


def console(quiet: bool, json_file: Path | None) -> Console:
    """Where people are told what happens: standard error when standard output is for a program."""
    return Console(
        quiet=quiet, stderr=str(json_file) == "-", highlight=False, markup=False, soft_wrap=True
    )


def note(say: Console, text: str) -> None:
    """Tell on standard error what someone should know of a result, unless all is quiet."""
    if not say.quiet:
        print(f"note: {text}", file=sys.stderr)


def counted(number: int, what: str) -> str:
    """A number of things, one or more.

    Example:
        >>> counted(1, "trial"), counted(20, "trial")
        ('1 trial', '20 trials')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextmanager
def progress_bar(say: Console, text: str) -> Iterator[Callable[[int, int | None], None]]:
    """Told how many of how many are done, with the time left.

    Drawn in a terminal; elsewhere a line now and then says how far it is.
    """
    columns = (
        TextColumn(text),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=say, disable=say.quiet or not say.is_terminal) as bar:
        task = bar.add_task("", total=None)
        said = time.monotonic()

        def tell(done: int, total: int | None = None) -> None:
            nonlocal said
            bar.update(task, completed=done, total=total)
            if not say.is_terminal and done != total and time.monotonic() >= said + LINE_S:
                said = time.monotonic()
                say.print(f"{text}: {done}{'' if total is None else f' of {total}'}")

        yield tell


@contextmanager
def stopping(seconds: float | None = None) -> Iterator[Callable[[], bool]]:
    """Whether to stop: on Ctrl-C, on being terminated, or when time is up."""
    asked = False
    until = None if seconds is None else time.monotonic() + seconds

    def ask(_number: int, _frame: Any) -> None:
        nonlocal asked
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked or (until is not None and time.monotonic() > until)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
