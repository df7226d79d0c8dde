"""Options of live sessions."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from evkf.cli.wiring import WEB
from evkf.live.journal import Policy
from evkf.live.machine import MOST

SOURCES = ("rig", "replay", "zeromq", "websocket", "open-ephys", "lsl")
POLICIES = get_args(Policy)
ADDRESSES = {"zeromq": "tcp://127.0.0.1:5555", "open-ephys": "tcp://127.0.0.1:5556"}
ONLY_OF = {
    "speed": (("rig", "replay"), 1.0),
    "bins": (("rig", "replay"), None),
    "latents": (("rig",), 2),
    "neurons": (("rig",), 100),
    "address": (tuple(ADDRESSES), None),
    "stream": (("lsl",), None),
    "sample_rate": (("open-ephys",), None),
    "blank": (("open-ephys",), None),
    "lateness": (("open-ephys", "lsl"), 0.025),
}
"""Options that say nothing to other sources than these, and what they are if left out."""
AHEAD = 25
"""Bins that the page looks ahead, unless told."""

PANELS = {
    "Arguments": "folder",
    "Source": "source model_file recording speed address stream sample_rate lateness blank "
    "bin_width latents neurons bins reorder patience",
    "Page and estimates": "web tls_cert tls_key no_tls publish open_to_all lsl_out horizon",
    "Learning": "learn",
    "Stimulation": "steer controller stimulator max_amplitude max_rate max_charge charge_window",
    "Session": "seconds policy checkpoint_every real_time overload seed",
}
"""Under which headings --help lists what."""


class LiveCommand(TyperCommand):
    """A command whose help has the headings of `PANELS`; what they leave out comes last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options."""
        rows = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for title, names in PANELS.items():
            with formatter.section(title):
                formatter.write_dl([rows.pop(name) for name in names.split()])
        with formatter.section("Other options"):
            formatter.write_dl(list(rows.values()))


NewFolder = Annotated[
    Path | None,
    typer.Argument(metavar="DIR", help="Folder of the session.", show_default="out/live/TIME"),
]
SourceName = Annotated[
    str, typer.Option(metavar="NAME", help=f"Where bins come from: {', '.join(SOURCES)}.")
]
ModelFile = Annotated[
    Path | None,
    typer.Option("--model", metavar="MODEL", help="Model to filter with: what `evkf fit` wrote."),
]
Replayed = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Recording to send again, for --source replay.")
]
Speed = Annotated[
    float,
    typer.Option(min=0, help="Pace of rig and replay: 2 is twice real time, 0 as fast as can be."),
]
_STREAM = "Name of the stream to read, for --source lsl."
Stream = Annotated[str | None, typer.Option(metavar="NAME", help=_STREAM)]
StreamAgain = Annotated[
    str | None,
    typer.Option("--stream", metavar="NAME", help=_STREAM, show_default="as it began"),
]
SampleRate = Annotated[
    float | None,
    typer.Option(
        min=1, metavar="HZ", help="Sample rate of open-ephys.", show_default="as it tells"
    ),
]
Lateness = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How long a bin waits for late spikes."),
]
Blank = Annotated[
    str | None,
    typer.Option(
        metavar="LINE:SECONDS", help="Mask bins around edges of a TTL line of open-ephys."
    ),
]
_PUBLISH = "Publish estimates by ZeroMQ, say at tcp://127.0.0.1:5556."
Publish = Annotated[str | None, typer.Option(metavar="ADDRESS", help=_PUBLISH)]
PublishAgain = Annotated[
    str | None,
    typer.Option("--publish", metavar="ADDRESS", help=_PUBLISH, show_default="as it began"),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of zeromq or open-ephys.",
        show_default=", ".join(f"{name} {address}" for name, address in ADDRESSES.items()),
    ),
]
AddressAgain = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="ADDRESS",
        help="Address of zeromq or open-ephys.",
        show_default="as it began",
    ),
]
Open = Annotated[
    bool,
    typer.Option("--open", help="Let ZeroMQ listen to other machines: no token, no encryption."),
]
_WEB = f"Serve the session's page, say at {WEB}."
Web = Annotated[str | None, typer.Option(metavar="HOST:PORT", help=_WEB)]
WebAgain = Annotated[
    str | None,
    typer.Option("--web", metavar="HOST:PORT", help=_WEB, show_default="as it began"),
]
TlsCert = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificate (PEM), to encrypt --web.")
]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the certificate (PEM).")]
NoTls = Annotated[
    bool, typer.Option("--no-tls", help="Let --web listen to other machines unencrypted.")
]
LslOut = Annotated[
    str | None, typer.Option(metavar="NAME", help="Stream estimates by LSL, under this name.")
]
BinWidth = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Width of a bin.", show_default="the model's; 0.01"),
]
Latents = Annotated[int, typer.Option(min=2, help="Latent dimensions of the simulated rig.")]
Neurons = Annotated[int, typer.Option(min=1, help="Neurons of the simulated rig.")]
Bins = Annotated[int | None, typer.Option(min=1, help="End rig or replay after this many bins.")]
Seconds = Annotated[
    float | None,
    typer.Option(min=0, help="Stop this many seconds after it is ready, whether bins come or not."),
]
Horizon = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="BINS",
        help="How far every estimate looks ahead.",
        show_default=f"0; with a page {AHEAD}; when stimulating 1",
    ),
]
Learn = Annotated[bool, typer.Option(help="Learn in the time that filtering leaves.")]
Durable = Annotated[
    str,
    typer.Option(metavar="NAME", help=f"What acknowledged bins survive: {', '.join(POLICIES)}."),
]
Reorder = Annotated[
    int, typer.Option(min=1, help="Give up a missing bin once one this far ahead has come.")
]
Patience = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="Give up a missing bin after this long.")
]
Every = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between checkpoints.")]
RealTime = Annotated[
    bool, typer.Option(help="Take real-time priority (SCHED_FIFO) where it is permitted.")
]
RealTimeAgain = Annotated[
    bool | None,
    typer.Option(
        "--real-time/--no-real-time",
        help="Take real-time priority (SCHED_FIFO) where it is permitted.",
        show_default="as it began",
    ),
]
Overload = Annotated[
    bool, typer.Option("--overload", help=f"Begin even if filtering takes over {MOST:.0%} of bins.")
]
