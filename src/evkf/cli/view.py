"""The command that shows a session that was run, or that runs, on a page."""

import asyncio
from typing import Annotated

import typer

from evkf.cli.console import Config, Folder, Quiet, console
from evkf.cli.running import stopping
from evkf.cli.wiring import screen_of
from evkf.errors import InputError
from evkf.live.addresses import is_loopback
from evkf.live.desk import FASTEST, SLOWEST
from evkf.live.journal import is_written
from evkf.live.plan import JOURNAL, Plan, parts
from evkf.numerics.jax_config import low_latency
from evkf.web.access import Place, keep_token, listen
from evkf.web.process import check_installed, page_address
from evkf.web.refusals import Measured
from evkf.web.settings import Settings, describe_stream

WEB = "127.0.0.1:0"


def view(
    folder: Folder,
    web: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where to serve the page; port 0 takes a free one."),
    ] = WEB,
    speed: Annotated[
        float,
        typer.Option(min=SLOWEST, max=FASTEST, help="Pace at which an ended session is played."),
    ] = 1.0,
    quiet: Quiet = False,
    config: Config = None,
) -> None:
    """Show a session on a page: an ended one is played back, of a running one the newest bins are
    shown.

    All comes from its folder: nothing is asked of a session that runs, and it notices nothing.
    Ctrl-C ends it. `evkf live --web` shows more, and lets one act.

    \b
    Examples:
      evkf view day2
      evkf view day2 --speed 10 --web 127.0.0.1:8800
    """
    check_installed()
    plan, place = Plan.read(folder), Place.read(web)
    if not is_loopback(place.host):
        what = f"{place.host!r} can be reached from other machines"
        raise InputError(what, "--web", "name this machine; others reach it by a tunnel")
    if not (folder / JOURNAL).is_dir():
        raise InputError("a session without a journal", str(folder), "name another")
    low_latency()
    made = parts(plan, folder)
    grows = is_written(folder / JOURNAL)
    can = ("download",) if grows else ("download", "speed", "reset")
    more = {"can": can, "speed": None if grows else speed, "mode": "view", "horizon": 0}
    screen = screen_of(plan, folder, made)._replace(**more)
    shape = screen.latents, screen.units, plan.bin_width
    token, listener = keep_token(folder), listen(place)
    address = place.url(listener.getsockname()[1])
    console(quiet, None).print(f"the page is at {page_address(address, token)}")
    settings = Settings(
        listener=listener.detach(),
        desk=None,
        frames=None,
        token=str(token),
        loopback=True,
        names=[],
        tls=None,
        hello=describe_stream(plan.id, *shape, counts=made.counts),
        folder=str(folder),
        screen=screen._asdict(),
        grows=grows,
    )
    from evkf.web.serve import say, serve

    # The server ends by Ctrl-C, and hands it on afterwards, when there is nothing left to end.
    with stopping():
        asyncio.run(serve(settings, Measured(say)))
