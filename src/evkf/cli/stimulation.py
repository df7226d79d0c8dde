"""Stimulation: options of a closed loop, and commands that stop it past the session."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from evkf.cli.console import (
    Config,
    Folder,
    ForceJson,
    Json,
    Quiet,
    check_free,
    console,
    emit,
    json_target,
    result,
)
from evkf.errors import InputError
from evkf.live.control import load
from evkf.live.guard import State, Word
from evkf.live.limits import Limits
from evkf.live.loop import SOUND
from evkf.live.warden import STOPPED, tell_guard

Steered = Annotated[
    str | None,
    typer.Option("--steer", metavar="X,Y", help="Steer the state of the simulated rig there."),
]
Controlled = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="MODULE:NAME",
        help="Your code, run here: called with the model, it gives a controller.",
    ),
]
Stimulated = Annotated[
    str | None,
    typer.Option(
        "--stimulator",
        metavar="MODULE:NAME",
        help="Your code, run by the guard: called without arguments, it gives the stimulator.",
    ),
]
Amplitude = Annotated[
    str | None,
    typer.Option("--max-amplitude", metavar="A,B", help="Largest absolute value, a channel each."),
]
Rate = Annotated[
    str | None,
    typer.Option("--max-rate", metavar="A,B", help="Fastest change per second, a channel each."),
]
Charge = Annotated[
    str | None,
    typer.Option(
        "--max-charge", metavar="A,B", help="Largest integral of |u| over --charge-window."
    ),
]
Window = Annotated[
    float | None,
    typer.Option(
        "--charge-window",
        metavar="SECONDS",
        help="Width of the sliding window.",
        show_default="1.0",
    ),
]


def read_loop(
    source: str,
    latents: int,
    steer: str | None,
    controller: str | None,
    stimulator: str | None,
    limits: Sequence[str | None],
    window: float | None,
) -> dict[str, Any]:
    """What a plan is to know of a closed loop; refuses what does not go together.

    Example:
        >>> read_loop("rig", 2, "1,0", None, None, (None, None, None), None)["steer"]
        [1.0, 0.0]
    """
    given = [text is not None for text in limits]
    some = any(given) or window is not None
    if steer is None and controller is None:
        if stimulator is not None or some:
            where = "--stimulator, --max-..., --charge-window"
            remedy = "pass --controller, or --steer for the rig"
            raise InputError("nothing that stimulates", where, remedy)
        return {}
    if steer is not None and (controller is not None or source != "rig"):
        remedy = "pass it with --source rig, and without --controller"
        raise InputError("--steer", f"--source {source}", remedy)
    if (source == "rig") != (stimulator is None):
        remedy = "pass --stimulator MODULE:NAME"
        if source == "rig":
            remedy = "leave out --stimulator: the simulated rig is its own"
        raise InputError(f"--source {source}", "--controller", remedy)
    if (source != "rig" or some) and not all(given):
        remedy = "pass --max-amplitude, --max-rate and --max-charge"
        what = "some limits, not all" if some else "stimulation without limits"
        raise InputError(what, "--charge-window, --max-..." if some else "--controller", remedy)
    if controller is not None:
        load(controller)  # a wrong name is told of now, not once all is compiled
    target = None if steer is None else _numbers(steer, "--steer")
    if target is not None and len(target) != latents:
        raise InputError(steer or "", "--steer", f"pass {latents} numbers, one a latent")
    bounds = None
    if all(given):
        names = ("--max-amplitude", "--max-rate", "--max-charge")
        read = [_numbers(text or "", name) for text, name in zip(limits, names, strict=True)]
        bounds = [*Limits(*read, window=1.0 if window is None else window).check(len(read[0]))]
    return {
        "steer": target,
        "controller": controller,
        "stimulator": stimulator,
        "limits": bounds,
    }


def _numbers(text: str, name: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(repr(text), name, "pass numbers with commas in between") from None


def stop(
    folder: Folder,
    force: ForceJson = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Stop the stimulation of a session, whatever state that is in; it goes on filtering.

    The guard is told, past the session. If it does not answer it is ended, and stimulation with
    it. A stop holds, also over a resume, until `evkf arm` or "Arm" on the page lifts it.

    \b
    Examples:
      evkf stop day2
    """
    _tell("stop", dict(locals()), Word.STOP)


def arm(
    folder: Folder,
    force: ForceJson = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Lift a stop: stimulation goes on when the estimates of the session are sound.

    \b
    Examples:
      evkf arm day2
    """
    _tell("arm", dict(locals()), Word.LIFT)


def _tell(command: str, options: dict[str, Any], word: Word) -> None:
    folder, json_file = options["folder"], options["json_file"]
    if word != Word.STOP:
        check_free(json_target(json_file), options["force"])
    if not folder.is_dir():
        raise InputError("no such folder", str(folder), "name that of a session")
    output = tell_guard(folder, word)
    if word == Word.STOP:  # which comes first, whatever is wrong besides
        check_free(json_target(json_file), options["force"])
    say = console(options["quiet"], json_file)
    if output is None:
        say.print("the guard did not answer and was ended; what it stimulated ends with it")
    elif output.state == State.STOPPED:
        say.print(f"stopped: {', '.join(map(str, output.values))} is on")
    else:
        say.print(f"the stop is lifted; {output.state} until {SOUND} estimates are sound")
    if word == Word.STOP and not (folder / STOPPED).exists():
        say.print("the disk refuses to keep it: a session that is resumed would not be stopped")
    told = {} if output is None else output._asdict()
    emit(json_file, result(command, options, answered=output is not None, **told))
