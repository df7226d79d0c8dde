"""Lab Streaming Layer out: estimates as a stream, from a process of its own.

Time stamps are those of the bins on the source's clock, as they are: whoever records the stream
beside the source's has both on one clock.
"""

import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from evkf.live.answers import Estimate
from evkf.live.pipes import ROOM, beside, pair
from evkf.rigs.gateway import Notes

TYPE = "Latents"
"""Of the stream."""

LINGER_S = 0.5
"""Seconds in which readers get the last samples."""


class Channel(NamedTuple):
    """A channel of the stream."""

    label: str
    unit: str
    kind: str


def channels(latents: int, units: Sequence[str], horizon: int, counts: bool) -> list[Channel]:
    """The channels of a stream, in their order.

    Example:
        >>> [channel.label for channel in channels(2, ["a"], 1, True)]  # doctest: +ELLIPSIS
        ['bin', 'flags', 'status', 'elbo', 'mean 0', 'mean 1', 'cov 0 0', 'cov 0 1', ...]
    """
    L = range(latents)
    found = [Channel("bin", "number", "count"), Channel("flags", "bits", "flags")]
    found += [Channel("status", "bits", "flags"), Channel("elbo", "nats", "bound")]
    found += [Channel(f"mean {i}", "a.u.", "mean") for i in L]
    found += [Channel(f"cov {i} {j}", "a.u.^2", "cov") for i in L for j in L if i <= j]
    found += [Channel(f"rate {unit}", "1/bin" if counts else "", "rate") for unit in units]
    ahead = [(h + 1, i) for h in range(horizon) for i in L]
    found += [Channel(f"ahead {h} mean {i}", "a.u.", "ahead") for h, i in ahead]
    found += [Channel(f"ahead {h} var {i}", "a.u.^2", "ahead_var") for h, i in ahead]
    return found


def flatten(estimate: Estimate) -> list[float]:
    """An estimate as a sample of the stream.

    Example:
        >>> parts = np.array([1.0, 2.0]), np.eye(2), np.array([0.5]), -3.0, 0
        >>> ahead = np.zeros((0, 2))
        >>> flatten(Estimate(7, 2, *parts, ahead, ahead, 0, 0, 0))
        [7.0, 2.0, 0.0, -3.0, 1.0, 2.0, 1.0, 0.0, 1.0, 0.5]
    """
    head = (estimate.seq, estimate.flags, estimate.status, estimate.elbo)
    upper = np.triu_indices(len(estimate.mean))
    parts = (estimate.mean, estimate.cov[upper], estimate.rate, estimate.ahead, estimate.ahead_var)
    return np.concatenate([np.array(head, float), *(np.ravel(part) for part in parts)]).tolist()


class LslSink:
    """Estimates to an outlet of Lab Streaming Layer; it never waits. What the process of the outlet
    has no room for is left out, and all if that has ended; both are counted and told of.

    Args:
        name: Of the stream; its source id is `evkf-NAME`, the same whenever it is opened.
        layout: What `channels` gave.
        bin_width: Seconds.
        log: Told a line.
    """

    def __init__(
        self, name: str, layout: Sequence[Channel], bin_width: float, log: Callable[[str], None]
    ):
        self._own, other = pair()
        self._own.setblocking(False)
        self._notes = Notes(log)
        self._process = beside("evkf-lsl-out", _main, (other,), name, tuple(layout), bin_width)

    def publish(self, estimate: Estimate) -> None:
        """Hand on an estimate."""
        try:
            self._own.send(estimate.encode())
        except BlockingIOError:
            self._notes.count("lsl_left_out", "estimates not streamed: no room")
        except ConnectionError:
            text = "estimates not streamed: the process of --lsl-out has ended; the session goes on"
            self._notes.count("lsl_gone", text)
        except OSError as error:
            self._notes.count("lsl_left_out", f"estimates not streamed: {error}")

    def close(self) -> None:
        """Let the outlet send what it has, and end."""
        self._own.close()
        self._process.join(timeout=10.0)
        if self._process.is_alive():
            self._process.kill()


def _main(own: socket.socket, name: str, layout: Sequence[Channel], bin_width: float) -> None:
    import pylsl

    # An interrupt of the terminal is the session's: its end is sent too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rate = 1.0 / bin_width
    source_id = f"evkf-{name}"
    info = pylsl.StreamInfo(name, TYPE, len(layout), rate, pylsl.cf_double64, source_id)
    described = info.desc()
    described.append_child_value("manufacturer", "evkf")
    described.append_child_value("time_stamps", "end of the bin on the source's clock")
    listed = described.append_child("channels")
    for each in layout:
        channel = listed.append_child("channel")
        channel.append_child_value("label", each.label)
        channel.append_child_value("unit", each.unit)
        channel.append_child_value("type", each.kind)
    outlet = pylsl.StreamOutlet(info)
    told = f"lsl: streaming {name!r}, to all who can reach this machine"
    print(told, file=sys.stderr, flush=True)
    while data := own.recv(ROOM):
        said = Estimate.decode(data)
        # Zero has LSL stamp it: the time of the bin is not known.
        outlet.push_sample(flatten(said), max(said.sent_ns, 0) / 1e9)
    if outlet.have_consumers():
        time.sleep(LINGER_S)
