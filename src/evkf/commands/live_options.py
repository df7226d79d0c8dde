"""Options of live sessions."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from evkf.live.journal import Policy
from evkf.live.machine import MOST
from evkf.wiring import WEB

SOURCES = ("rig", "replay", "zeromq", "websocket", "open-ephys", "lsl")
POLICIES = get_args(Policy)
ADDRESS = "tcp://127.0.0.1:5555"
ADDRESSES = {"zeromq": ADDRESS, "open-ephys": "tcp://127.0.0.1:5556"}
AHEAD = 25
"""Bins that the page looks ahead, unless told."""

NewFolder = Annotated[
    Path | None,
    typer.Argument(metavar="DIR", help="Of the session.", show_default="out/live/TIME"),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Of a session.")]
SourceName = Annotated[str, typer.Option(metavar="NAME", help=f"Of bins: {', '.join(SOURCES)}.")]
ModelFile = Annotated[
    Path | None, typer.Option("--model", metavar="MODEL", help="What `evkf fit` wrote.")
]
Replayed = Annotated[Path | None, typer.Option(metavar="FILE", help="That --source replay sends.")]
Speed = Annotated[
    float,
    typer.Option(min=0, help="Of rig and replay; 2 is twice real time, 0 as fast as can be."),
]
Stream = Annotated[str | None, typer.Option(metavar="NAME", help="That --source lsl takes in.")]
SampleRate = Annotated[
    float | None,
    typer.Option(min=1, metavar="HZ", help="Of open-ephys.", show_default="as it tells"),
]
Lateness = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="Time that a bin waits for late spikes."),
]
Blank = Annotated[
    str | None,
    typer.Option(metavar="LINE:SECONDS", help="Mask around edges of a line of open-ephys."),
]
Publish = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Publish here by ZeroMQ, say tcp://127.0.0.1:5556."),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help=f"Of zeromq and open-ephys, such as {ADDRESS}."),
]
Open = Annotated[
    bool,
    typer.Option("--open", help="Let ZeroMQ listen to other machines: no token, no encryption."),
]
Web = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help=f"Serve it over the web, say at {WEB}.")
]
TlsCert = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificate (PEM), to encrypt --web.")
]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")]
NoTls = Annotated[
    bool, typer.Option("--no-tls", help="Let --web listen to other machines unencrypted.")
]
LslOut = Annotated[
    str | None, typer.Option(metavar="NAME", help="Stream estimates by LSL under this name.")
]
BinWidth = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Width of a bin.", show_default="the model's; 0.01"),
]
Latents = Annotated[int, typer.Option(min=2, help="Of the rig.")]
Channels = Annotated[int, typer.Option(min=1, help="Of the rig.")]
Bins = Annotated[int | None, typer.Option(min=1, help="End the rig or the replay after so many.")]
Seconds = Annotated[
    float | None, typer.Option(min=0, help="Stop after so many, whatever the source.")
]
Horizon = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="BINS",
        help="Look so far ahead in every estimate.",
        show_default=f"0, with --web {AHEAD}",
    ),
]
Learn = Annotated[bool, typer.Option(help="Learn in the time that bins leave.")]
Durable = Annotated[
    str, typer.Option(metavar="NAME", help=f"What durable means: {', '.join(POLICIES)}.")
]
Reorder = Annotated[
    int, typer.Option(min=1, help="Give up a missing bin when one so many ahead is there.")
]
Patience = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="Give it up after so long.")
]
Every = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between checkpoints.")]
RealTime = Annotated[
    bool, typer.Option(help="Take real-time priority (SCHED_FIFO) where it is permitted.")
]
Overload = Annotated[
    bool, typer.Option("--overload", help=f"Begin even if filtering takes over {MOST:.0%} of bins.")
]
