"""Bins as the page shows them, and the message that many of them go in."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evkf.live.answers import Estimate, Flags
from evkf.live.frames import FRESH, HEADER, MASKED, WIRE
from evkf.live.records import Step
from evkf.web.packing import pack

UNSEEN = 255
"""In place of a count: masked, lost or not known."""

MIDDLE, SCALE = 127, 32
"""What is shown of a signal: this, and so much for every unit."""

FEW = 200
"""With so many channels or fewer, the rates of every bin are sent; with more, of the last."""


class Row(NamedTuple):
    """A bin.

    Attributes:
        seq: Its number.
        time: Seconds since the first bin of the session.
        mean: Of the state, (L,).
        var: Its variances, (L,).
        elbo: In nats.
        flags: Bits of `Flags`.
        latency: From taken in to published, in ms; NaN if that is not known.
        counts: u1, one a channel; `UNSEEN` where there is none.
        rate: Expected counts of the next bin, (N,); empty if they are not known.
        cov: (L, L).
        ahead: Means of the next bins, (H, L).
        ahead_var: Their variances.
    """

    seq: int
    time: float
    mean: np.ndarray
    var: np.ndarray
    elbo: float
    flags: int
    latency: float
    counts: np.ndarray
    rate: np.ndarray
    cov: np.ndarray
    ahead: np.ndarray
    ahead_var: np.ndarray


def of_estimate(said: Estimate, time: float, counts: np.ndarray) -> Row:
    """A bin as the session published it."""
    return Row(
        said.seq,
        time,
        said.mean,
        said.cov.diagonal(),
        said.elbo,
        int(said.flags),
        (said.published_ns - said.received_ns) / 1e6,
        counts,
        said.rate.astype(np.float32),
        said.cov,
        said.ahead,
        said.ahead_var,
    )


def of_step(step: Step, time: float, flags: Flags, counts: np.ndarray) -> Row:
    """A bin as the journal tells of it: without covariances, rates, forecasts or times."""
    mean, var = step.mean.astype(np.float64), step.var.astype(np.float64)
    none = np.zeros((0, len(mean)))
    rate = np.zeros(0, np.float32)
    latent = mean, var, step.elbo, int(flags), np.nan
    return Row(step.seq, time, *latent, counts, rate, np.diag(var), none, none)


def seen(frame: bytes, counts: bool = True) -> np.ndarray:
    """What was seen in a bin, u1, from its frame.

    Args:
        frame: One that a session has taken.
        counts: Whether these are counts; 254 is shown for all that are larger.

    Example:
        >>> from evkf.live.frames import Frame, encode
        >>> mask = np.array([True, True, False])
        >>> seen(encode(Frame(7, np.array([1, 300, 2]), mask))).tolist()
        [1, 254, 255]
    """
    _, _, _, code, flags, _, _, num, _ = HEADER.unpack_from(frame)
    values = np.frombuffer(frame, WIRE[code], num, HEADER.size)
    if not counts:
        values = MIDDLE + SCALE * values.astype(np.float64)
    if values.dtype.kind == "f":
        # What is masked may be anything.
        values = np.nan_to_num(values)
    shown = np.minimum(np.maximum(values, 0), UNSEEN - 1).astype(np.uint8)
    if flags & MASKED:
        at = HEADER.size + num * WIRE[code].itemsize
        packed = np.frombuffer(frame, np.uint8, -(-num // 8), at)
        observed = np.unpackbits(packed, count=num, bitorder="little").view(bool)
        shown = np.where(observed, shown, np.uint8(UNSEEN))
    return shown


def number_of(frame: bytes) -> int:
    """Of the bin that a frame is of."""
    return HEADER.unpack_from(frame)[5]


def begins(frame: bytes) -> bool:
    """Whether the bin that a frame is of is the first of a trial."""
    return bool(HEADER.unpack_from(frame)[4] & FRESH)


def pack_rows(rows: Sequence[Row], latents: int, channels: int, header: Mapping[str, Any]) -> bytes:
    """The message of some bins.

    Args:
        rows: One after the other; none is a message with a header alone.
        latents: How many.
        channels: How many.
        header: What else to say.
    """

    def column(name: str, dtype: str, *shape: int) -> np.ndarray:
        values = [getattr(row, name) for row in rows]
        return np.array(values, dtype).reshape(len(rows), *shape)

    last = rows[-1] if rows else None
    rates = [row.rate for row in (rows if channels <= FEW else rows[-1:]) if row.rate.size]
    none = np.zeros((0, latents))
    arrays = {
        "time": column("time", "f8"),
        "mean": column("mean", "f8", latents),
        "var": column("var", "f8", latents),
        "elbo": column("elbo", "f8"),
        "flags": column("flags", "u1"),
        "latency": column("latency", "f4"),
        "counts": column("counts", "u1", channels),
        "rate": np.array(rates, np.float32).reshape(len(rates), channels),
        "cov": none if last is None else last.cov,
        "ahead": none if last is None else last.ahead,
        "ahead_var": none if last is None else last.ahead_var,
    }
    ends = {"first": rows[0].seq, "last": rows[-1].seq} if rows else {"first": None, "last": None}
    return pack({"kind": "bins", **ends, **header}, arrays)
