"""The command that keeps several sessions running."""

from pathlib import Path
from typing import Annotated

import typer

from evkf.cli.console import (
    FELL_SHORT,
    ForceJson,
    Json,
    Quiet,
    check_free,
    console,
    emit,
    json_target,
    result,
)
from evkf.cli.running import stopping
from evkf.live.supervisor import Fate, Supervisor


def serve(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder with a file NAME.toml for every session."),
    ],
    force: ForceJson = False,
    quiet: Quiet = False,
    json_file: Json = None,
) -> None:
    """Keep several live sessions running, a process each.

    DIR/NAME.toml has options of `evkf live` for a session, which lives in DIR/NAME; what its
    process says is in DIR/NAME.log. A session that dies is resumed from its journal, and the others
    do not notice. Sessions that are there already are resumed too. NAME.toml is read when a session
    begins, not when it is resumed. Ctrl-C ends all in good order.

    \b
    Examples:
      mkdir rigs
      echo 'neurons = 50' > rigs/left.toml
      echo 'neurons = 80' > rigs/right.toml
      evkf serve rigs

    Exits with 1 if a session was refused; its log says why.
    """
    options = dict(locals())
    check_free(json_target(json_file), force)
    say = console(quiet, json_file)
    supervisor = Supervisor(folder, say.print)
    with stopping() as stop:
        supervisor.run(stop)
    deaths = sum(each.deaths for each in supervisor.charges)
    say.print(f"{len(supervisor.charges)} sessions have ended; processes that died: {deaths}")
    told = {each.name: {"fate": each.fate, "deaths": each.deaths} for each in supervisor.charges}
    emit(json_file, result("serve", options, sessions=told))
    if any(charge.fate == Fate.REFUSED for charge in supervisor.charges):
        raise typer.Exit(FELL_SHORT)
