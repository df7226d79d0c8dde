"""The command line: `evkf COMMAND`.

Every command but `view` has `--quiet` and `--json`, refuses to overwrite without `--force`, and
tells its resolved configuration with its result. Bad input is answered in one line.
"""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, NoReturn

import jax
import typer

import evkf
from evkf.cli.demo import run_demo
from evkf.cli.doctor import doctor
from evkf.cli.filter import run_filter
from evkf.cli.fit import fit
from evkf.cli.journal import export, replay
from evkf.cli.live import live, resume
from evkf.cli.live_options import LiveCommand
from evkf.cli.plot import plot
from evkf.cli.reaching import reaching
from evkf.cli.recording import data, info, simulate
from evkf.cli.reproduce import ExperimentCommand, run_all
from evkf.cli.reproduce import command as reproduction
from evkf.cli.score import score
from evkf.cli.serve import serve
from evkf.cli.stimulation import arm, stop
from evkf.cli.view import view
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

app = typer.Typer(
    name="evkf",
    help=f"""Real-time inference of neural latent dynamics from spikes and other signals.

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

{EXIT_CODES}""",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
reproduce_app = typer.Typer(
    help="Compute a table or figure of the paper anew.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(reproduce_app, name="reproduce")
for name in TITLES:
    reproduce_app.command(name, cls=ExperimentCommand)(reproduction(name))
reproduce_app.command()(reaching)
reproduce_app.command("all")(run_all)
COMMANDS = {
    run_demo: "Watch the dynamics of simulated neurons being learned.",
    info: "Say what is in a recording.",
    simulate: "Make a recording to try things on.",
    fit: "Learn a model of a recording.",
    run_filter: "Infer latents and rates of every bin.",
    score: "Score a model on held-out trials, beside baselines.",
    plot: "Draw what a model makes of a recording.",
    data: "Fetch a public recording, or say how to.",
    live: "Run a live session: bins in, latents out.",
    resume: "Go on with a session that stopped or crashed.",
    view: "Show a session on a page, also afterwards.",
    stop: "Stop the stimulation of a session.",
    arm: "Lift a stop of stimulation.",
    replay: "Compute a session again, and compare bit for bit.",
    export: "Write a session as a recording.",
    doctor: "Say whether this machine can hold a rate of bins.",
    serve: "Keep several live sessions running.",
}
"""With what the list of commands says of each."""
for command, short in COMMANDS.items():
    kind = LiveCommand if command is live else None
    app.command(command.__name__.removeprefix("run_"), cls=kind, short_help=short)(command)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit; the entry point of `evkf`.

    Args:
        args: What follows `evkf`; those of the process when left out.
    """
    # A step is short: run it in the calling thread, for waking another costs more than the step.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        with insistent_interrupt():
            app(args, prog_name="evkf")
    except EvkfError as error:
        _fail(str(error))
    except OSError as error:
        _fail(_one_line(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@contextmanager
def insistent_interrupt(every: float = 0.5) -> Iterator[None]:
    """Repeat an interrupt until the block ends.

    Python drops an exception raised inside a callback of native code, as JAX has many while it
    compiles; without repetition one Ctrl-C may not be heard.
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


def _one_line(error: OSError) -> str:
    """What the system says, and of which file; HDF5 names none, and says it in many lines."""
    what = " ".join(str(error.strerror or error).split())
    return what if error.filename is None else f"{error.filename}: {what}"


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
