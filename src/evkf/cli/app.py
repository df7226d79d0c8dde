"""The command line: `evkf COMMAND`.

Every command except `view` has the options `--quiet` and `--json`, overwrites files only with
`--force`, and reports the options that it used with its result. For bad input the command line
prints one line and exits with 2.

To add a command, write its function in a module of this package and add a line to `COMMANDS`. The
module of a command is imported only when the command runs or its help is printed, so that
`evkf --help` is fast.
"""

import importlib
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, ClassVar, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import evkf
from evkf.errors import EvkfError
from evkf.reproduce.catalogue import TITLES

BAD_INPUT = 2
INTERRUPTED = 130

EXIT_CODES = """\b
Exit codes:
  0    done
  1    a check or a target fell short, a session failed,
       or nothing could be fetched
  2    bad usage, bad input, or an output that cannot be written
  130  interrupted (Ctrl-C ends live, resume and serve in good order,
       which is 0)"""

HELP = f"""Real-time inference of neural latent dynamics from spikes and other signals.

\b
Examples:
  evkf demo                          learn an oscillator from 150 simulated neurons
  evkf info day1.nwb                 what is in a recording
  evkf fit day1.nwb --out m.safetensors
  evkf filter day1.nwb --model m.safetensors --out day1-latents.nwb
  evkf live                          a live session, on a simulated rig
  evkf view DIR                      a session on a page, while it runs or afterwards
  evkf doctor                        whether this machine can hold a rate of bins
  evkf serve rigs                    keep several live sessions running
  evkf reproduce reaching --data day1.nwb
  evkf COMMAND --help                all options of a command

{EXIT_CODES}"""


class Entry(NamedTuple):
    """Module and function of a command, and its line in the list of commands."""

    place: str
    """Module of `evkf.cli` and function in that module, as `module:function`."""
    summary: str
    """Line in the list of commands."""
    kind: str | None = None
    """Class of the command as `module:class`; None for the class that Typer uses."""
    argument: str | None = None
    """Argument of `function`, which then returns the function of the command; None for none."""


COMMANDS = {
    "demo": Entry("demo:run_demo", "Watch the dynamics of simulated neurons being learned."),
    "info": Entry("recording:info", "Say what is in a recording."),
    "simulate": Entry("recording:simulate", "Make a recording to try things on."),
    "fit": Entry("fit:fit", "Learn a model of a recording."),
    "filter": Entry("filter:run_filter", "Infer latents and rates of every bin."),
    "score": Entry("score:score", "Score a model on held-out trials, beside baselines."),
    "plot": Entry("plot:plot", "Draw what a model makes of a recording."),
    "data": Entry("recording:data", "Fetch a public recording, or say how to."),
    "live": Entry(
        "live:live", "Run a live session: bins in, latents out.", "live_options:LiveCommand"
    ),
    "resume": Entry("live:resume", "Go on with a session that stopped or crashed."),
    "view": Entry("view:view", "Show a session on a page, also afterwards."),
    "stop": Entry("stimulation:stop", "Stop the stimulation of a session."),
    "arm": Entry("stimulation:arm", "Lift a stop of stimulation."),
    "replay": Entry("journal:replay", "Compute a session again, and compare bit for bit."),
    "export": Entry("journal:export", "Write a session as a recording."),
    "doctor": Entry("doctor:doctor", "Say whether this machine can hold a rate of bins."),
    "serve": Entry("serve:serve", "Keep several live sessions running."),
}
EXPERIMENTS = {
    name: Entry("reproduce:command", title, "reproduce:ExperimentCommand", name)
    for name, title in TITLES.items()
} | {
    "reaching": Entry(
        "reaching:reaching",
        "Decode reaches from the rates of motor cortex, beside what people use today (Figure 4).",
    ),
    "all": Entry(
        "reproduce:run_all", "Compute every table and figure of the paper but that of reaching."
    ),
}


class LazyCommands(Mapping[str, Any]):
    """Mapping from name to command, which imports a command when it is first looked up.

    Args:
        entries: Where to import each command from, by name.
        groups: Groups of commands by name, listed after the commands.
    """

    def __init__(self, entries: Mapping[str, Entry], groups: Mapping[str, Any]):
        self.entries = entries
        self.names = [*entries, *groups]
        self.loaded = dict(groups)

    def __getitem__(self, name: str) -> Any:
        if name in self.loaded:
            return self.loaded[name]
        import jax

        # Run JAX functions in the calling thread: waking another thread takes longer than a step.
        jax.config.update("jax_cpu_enable_async_dispatch", False)

        def look_up(place: str) -> Any:
            module, _, attribute = place.partition(":")
            return getattr(importlib.import_module(f"evkf.cli.{module}"), attribute)

        entry = self.entries[name]
        function = look_up(entry.place)
        if entry.argument is not None:
            function = function(entry.argument)
        kind = None if entry.kind is None else look_up(entry.kind)
        one = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        one.command(name, cls=kind)(function)
        self.loaded[name] = typer.main.get_command(one)
        return self.loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class LazyGroup(TyperGroup):
    """Group of commands that can be listed without importing a command.

    Attributes:
        entries: Where to import each command of the group from, by name.
    """

    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, *, commands: Any = None, **settings: Any):
        super().__init__(**settings)
        self.commands: Any = LazyCommands(self.entries, commands or {})

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order in which help lists them."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands for the help of the group."""
        listed: dict[str, Any] = {
            name: TyperCommand(name, help=self.entries[name].summary)
            if name in self.entries
            else self.commands[name]
            for name in self.commands
        }
        TyperGroup(name=self.name, commands=listed).format_commands(ctx, formatter)


class CommandGroup(LazyGroup):
    """The commands of `evkf`."""

    entries = COMMANDS


class ExperimentGroup(LazyGroup):
    """The experiments of `evkf reproduce`."""

    entries = EXPERIMENTS


app = typer.Typer(
    name="evkf",
    help=HELP,
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
reproduce_app = typer.Typer(
    help="Compute a table or figure of the paper anew.",
    cls=ExperimentGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(reproduce_app, name="reproduce")


def main(args: Sequence[str] | None = None) -> None:
    """Run a command of `evkf` and exit the process.

    The exit code is 2 after an error of evkf or of the operating system, whose message is printed
    in one line, and 130 after Ctrl-C. Installation makes the program `evkf` call this function.

    Args:
        args: Words of the command line after `evkf`; by default those of the process.
    """
    try:
        with insistent_interrupt():
            app(args, prog_name="evkf")
    except EvkfError as error:
        _fail(str(error))
    except OSError as error:
        # errors of HDF5 have no file name, and several lines
        what = " ".join(str(error.strerror or error).split())
        _fail(what if error.filename is None else f"{error.filename}: {what}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@contextmanager
def insistent_interrupt(every: float = 0.5) -> Iterator[None]:
    """Repeat the interrupt of a Ctrl-C every `every` seconds until the block ends.

    Python drops an exception that is raised inside a callback of native code. JAX runs many such
    callbacks while it compiles, so that a single Ctrl-C may have no effect.
    """
    ended, pressed = threading.Event(), threading.Event()

    def insist() -> None:
        pressed.wait()
        while not ended.wait(every):
            signal.raise_signal(signal.SIGINT)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        pressed.set()
        if not ended.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    threading.Thread(target=insist, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        pressed.set()
        signal.signal(signal.SIGINT, before)


def _fail(problem: str) -> NoReturn:
    print(f"evkf: {problem}", file=sys.stderr)
    sys.exit(BAD_INPUT)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"evkf {evkf.__version__}")
        raise typer.Exit()


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...
