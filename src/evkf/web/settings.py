"""What a session hands to its web process, in JSON: plain values and numbers of open sockets."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Settings(NamedTuple):
    """Of a web process.

    Attributes:
        listener: Socket that listens.
        desk: End of a pair of sockets; at the other is the session's desk. None where a journal is
            shown, and no session.
        frames: The same, with the session's source at the other; None if bins come from elsewhere.
        token: File with the token.
        loopback: Whether only this machine can reach it.
        names: Under which others know this machine.
        tls: Files of certificate and key, if it is to be encrypted.
        hello: What describes the stream.
        room: Bytes that may wait for a client; None is what is usual.
        folder: Of the session; None if there is no page.
        screen: What the page shows, as `evkf.web.reel.Screen`.
        grows: Whether the journal that is shown is being written.
    """

    listener: int
    desk: int | None
    frames: int | None
    token: str
    loopback: bool
    names: Sequence[str]
    tls: Sequence[str] | None
    hello: Any
    room: int | None = None
    folder: str | None = None
    screen: Any = None
    grows: bool = False


def describe_stream(
    session: str,
    latents: int,
    channels: Sequence[str],
    bin_width: float,
    horizon: int = 0,
    counts: bool = True,
) -> dict[str, Any]:
    """What a client is told first of the estimates it will get.

    Args:
        session: Name of the session, the same whenever it is taken up again.
        latents: How many.
        channels: Their labels.
        bin_width: Seconds.
        horizon: Bins that are looked ahead.
        counts: Whether channels are counts.

    Example:
        >>> told = describe_stream("a1b2", 2, ["7", "9"], 0.01)
        >>> told["latents"], told["units"]["rate"]
        (['z0', 'z1'], 'spikes per bin')
    """
    return {
        "format": "eVKE",
        "version": 1,
        "session": session,
        "bin_width": bin_width,
        "horizon": horizon,
        "latents": [f"z{index}" for index in range(latents)],
        "channels": list(channels),
        "units": {
            "mean": "a.u.",
            "cov": "a.u.^2",
            "ahead": "a.u.",
            "ahead_var": "a.u.^2",
            "rate": "spikes per bin" if counts else "a.u.",
            "elbo": "nats",
            "bin_width": "s",
            "sent_ns": "ns of the sender's clock",
            "received_ns": "ns of the session's clock",
            "published_ns": "ns of the session's clock",
        },
    }
