"""Groups of commands that are imported when they are run or their help is asked, not before.

The list of commands is then there at once: importing JAX and the library takes seconds.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """A command that is not imported yet."""

    place: str
    """Module of `evkf.cli` and function in it, as `module:function`."""
    summary: str
    """Line in the list of commands."""
    kind: str | None = None
    """Class of the command where it is not the usual one, as `module:class`."""
    argument: str | None = None
    """Argument with which the function returns the command's function."""


class LazyCommands(Mapping[str, Any]):
    """Commands by name; each is imported when it is first looked up.

    Args:
        entries: Commands to import.
        groups: Groups of commands, which come last.
    """

    def __init__(self, entries: Mapping[str, Entry], groups: Mapping[str, Any]):
        self.entries = entries
        self.names = [*entries, *groups]
        self.loaded = dict(groups)

    def __getitem__(self, name: str) -> Any:
        if name not in self.loaded:
            self.loaded[name] = _load(name, self.entries[name])
        return self.loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _load(name: str, entry: Entry) -> Any:
    """Import a command."""
    import jax

    # A step is short: run it in the calling thread, for waking another costs more than the step.
    jax.config.update("jax_cpu_enable_async_dispatch", False)

    def look_up(place: str) -> Any:
        module, _, attribute = place.partition(":")
        return getattr(importlib.import_module(f"evkf.cli.{module}"), attribute)

    function = look_up(entry.place)
    if entry.argument is not None:
        function = function(entry.argument)
    kind = None if entry.kind is None else look_up(entry.kind)
    only = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    only.command(name, cls=kind)(function)
    return typer.main.get_command(only)


class LazyGroup(TyperGroup):
    """A group whose list of commands imports none of them.

    Attributes:
        entries: The commands of a subclass.
    """

    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, *, commands: Any = None, **settings: Any):
        super().__init__(**settings)
        self.commands: Any = LazyCommands(self.entries, commands or {})

    def list_commands(self, ctx: Any) -> list[str]:
        """Return names in the order of the list."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        listed: dict[str, Any] = {
            name: TyperCommand(name, help=self.entries[name].summary)
            if name in self.entries
            else self.commands[name]
            for name in self.commands
        }
        TyperGroup(name=self.name, commands=listed).format_commands(ctx, formatter)
