"""Lab Streaming Layer in: streams of binned counts, or of spikes.

A stream with a regular rate has one channel a unit, and every sample is a bin, whose time stamp is
its end. A stream without one has a sample a spike: its first channel is the number of the unit.
Time stamps are taken as they were sent: none of LSL's own corrections is asked for.
"""

import math
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from evkf.errors import InputError
from evkf.live.frames import Frame
from evkf.live.pipes import PipeSender
from evkf.rigs.clock import SECOND, Clock, Step
from evkf.rigs.gateway import Notes, RigError, Setup, heed, send
from evkf.rigs.intake import Intake, Moment, whole

LARGEST_STAMP, LARGEST_VALUE = 4e9, 2.0**62
"""Seconds that no clock shows, and a number that no bin may hold."""

NEAR = 0.01
"""Share by which the rate of a stream may differ from that of bins."""

FOLLOW = 0.1
"""How quickly the time that the next bin is due at follows the time stamps."""

LOOK_S, OPEN_S, ASK_S, WAIT_S, MOST = 1.0, 6.0, 2.0, 0.02, 1024
"""Seconds to look for a stream, to open it, to ask it for its description and to wait for a sample,
and samples that are taken at once. The first three together are less than a gateway has to end."""

SHOWN = 10
"""Streams that are named when the one that is wanted is not there."""


def read_stamp(stamp: float) -> int:
    """A time stamp in nanoseconds.

    Raises:
        RigError: If no clock shows it.

    Example:
        >>> read_stamp(0.07)
        70000000
    """
    if not (isinstance(stamp, float | int) and 0 < stamp < LARGEST_STAMP):
        raise RigError("bad_stamp", f"time stamp {stamp!r:.50}")
    return round(stamp * SECOND)


class Spikes:
    """Samples of spikes in, bins out; it does no input or output of its own.

    Args:
        setup: What the gateway was told.
        notes: Told of what is odd.
    """

    def __init__(self, setup: Setup, notes: Notes):
        self._num, self._notes = len(setup.units), notes
        self.intake = Intake(setup, Fraction(SECOND), notes, lasting=True)

    def take(self, values: Sequence[float], stamp: float, host_ns: int) -> list[Frame]:
        """A sample, and when it came; bins that are over then."""
        try:
            at, unit = read_stamp(stamp), whole(values[0] if len(values) else None, self._num)
            if unit is None:
                text = f"unit {values[:1]!r:.50}; they are numbered from 0 to {self._num - 1}"
                raise RigError("unknown_unit", text)
        except RigError as error:
            self._notes.refuse(error)
            return []
        return self.intake.take(Moment(at, unit), host_ns)

    def idle(self, host_ns: int) -> list[Frame]:
        """Bins that are over although nothing came."""
        return self.intake.idle(host_ns)

    def leave(self) -> None:
        """The stream is gone; what follows is not silence."""
        self.intake.leave()


class Rows:
    """Samples that are bins in, bins with numbers out; it does no input or output of its own.

    Values that cannot be of a bin are masked. Bins that are missing by the time stamps are left
    out, and their numbers with them.

    Args:
        setup: What the gateway was told.
        notes: Told of what is odd.

    Attributes:
        lost: Bins left out.
    """

    def __init__(self, setup: Setup, notes: Notes):
        self._setup, self._notes = setup, notes
        self._seq, self._since = setup.first, setup.since_ns
        self._width = round(setup.bin_width * SECOND)
        self._due: int | None = None
        self.clock = Clock(notes.flag)
        self.lost = 0

    def take(self, values: Sequence[float], stamp: float, host_ns: int) -> list[Frame]:
        """A sample, and when it came; bins that can be handed on then."""
        try:
            at = read_stamp(stamp)
            row = np.asarray(values, np.float64)
            if row.shape != (len(self._setup.units),):
                what = f"{row.shape} in place of {len(self._setup.units)} values"
                raise RigError("wrong_channels", what)
        except RigError as error:
            self._notes.refuse(error)
            return []
        found = []
        for each in self.clock.take(at, host_ns, (at, row)):
            if isinstance(each, Step):
                self._due = None if self._due is None else self._due + each.size_ns
            elif (seq := self._number(each[0])) is not None:
                found.append(self._frame(seq, *each))
        return found

    def idle(self, host_ns: int) -> list[Frame]:
        """None: a bin that does not come is not known to be empty."""
        return []

    def leave(self) -> None:
        """The stream is gone; time stamps will show for how long."""

    def _frame(self, seq: int, at: int, row: np.ndarray) -> Frame:
        good = np.abs(row) <= LARGEST_VALUE
        if self._setup.counts:
            good &= (row >= 0) & (row == np.floor(row))
        if good.all():
            return Frame(seq, row, sent_ns=at)
        first = int(np.argmin(good))
        text = f"channel {first} is {row[first]}; masked"
        self._notes.count("bad_value", text, int((~good).sum()))
        return Frame(seq, np.where(good, row, 0.0), good, sent_ns=at)

    def _number(self, at: int) -> int | None:
        """The number of the bin that ends then; None if bins have long gone on from there."""
        if self._due is None:
            self._due = self._since + self._width if self._since else at
            if at < self._due - 2 * self._width:
                text = "the source's clock began anew: bins are numbered on without a gap"
                self._notes.tell(text)
                self._due = at
        off = at - self._due
        if off < -2 * self._width:
            self._notes.count("stray", f"time stamp {at / SECOND:.3f} s, long past")
            return None
        missing = max(round(off / self._width), 0)
        if missing:
            self.lost += missing
            text = "missing by the time stamps, or while the session was away"
            self._notes.count("lost_bin", text, missing)
        strays = round(FOLLOW * (off - missing * self._width))
        self._due += (missing + 1) * self._width + strays
        seq = self._seq + missing
        self._seq = seq + 1
        return seq


def run(setup: Setup, sender: PipeSender, notes: Notes) -> None:
    """Take in a stream until the session is gone; one that is lost is looked for again."""
    import pylsl

    taker: Spikes | Rows | None = None
    while True:
        info = _find(setup.stream, sender, notes)
        regular = check(info, setup)
        if taker is None:
            taker = (Rows if regular else Spikes)(setup, notes)
        elif isinstance(taker, Rows) != regular:
            remedy = "stream the same kind again, or begin a new session"
            raise InputError(f"stream {setup.stream!r} of another kind", "--stream", remedy)
        inlet = pylsl.StreamInlet(info, recover=False, processing_flags=0)
        try:
            inlet.open_stream(timeout=OPEN_S)
            if regular:
                # What finds a stream leaves out its description.
                check_labels(inlet.info(ASK_S).get_channel_labels() or [], setup, notes)
            notes.tell(f"lsl: connected to {setup.stream!r} on {info.hostname()}")
            drain(inlet, notes)
            _follow(inlet, taker, sender, notes)
        except RuntimeError as error:
            # All that LSL raises: it is lost, or cannot be opened.
            notes.tell(f"lsl: {setup.stream!r}: {error}")
            taker.leave()
            time.sleep(WAIT_S)
        finally:
            inlet.close_stream()


def _find(name: str, sender: PipeSender, notes: Notes) -> Any:
    import pylsl

    notes.tell(f"lsl: looking for a stream called {name!r}")
    waiting = False
    while not (found := pylsl.resolve_byprop("name", name, 1, LOOK_S)):
        if not waiting:
            there = describe(pylsl.resolve_streams(LOOK_S))
            notes.tell(f"lsl: there is none yet called {name!r}; waiting for it; found: {there}")
        waiting = True
        heed(sender, notes)
    if len(found) > 1:
        notes.tell(f"lsl: {len(found)} streams are called {name!r}; taking one")
    return found[0]


def describe(streams: Sequence[Any]) -> str:
    """Streams in words, for one who looked for another."""
    told = [
        f"{info.name()!r} ({info.channel_count()} channels, {info.nominal_srate():g} Hz, "
        f"on {info.hostname()})"
        for info in streams[:SHOWN]
    ]
    more = [f"and {len(streams) - SHOWN} more"] if len(streams) > SHOWN else []
    return ", ".join(told + more) or "no stream"


def check(info: Any, setup: Setup) -> bool:
    """Refuse a stream that bins cannot be made of; whether its samples are bins."""
    import pylsl

    where = f"stream {setup.stream!r}"
    if info.channel_format() == pylsl.cf_string:
        raise InputError("samples of text", where, "stream numbers")
    rate = info.nominal_srate()
    if rate == pylsl.IRREGULAR_RATE:
        return False
    if not math.isclose(rate * setup.bin_width, 1.0, rel_tol=NEAR):
        due = 1 / setup.bin_width
        what = f"{rate:g} samples a second, where the model's bins are {due:g} a second"
        remedy = (
            "stream one sample a bin, or spikes without a rate, or fit with "
            f"--bin-width {1 / rate:g} if samples are bins"
        )
        raise InputError(what, where, remedy)
    if info.channel_count() != len(setup.units):
        what = f"{info.channel_count()} channels, the model has {len(setup.units)} units"
        remedy = (
            "stream one channel a unit, in the model's order, "
            "or name another stream, or begin a session with a model of this one"
        )
        raise InputError(what, where, remedy)
    return True


def check_labels(labels: Sequence[str | None], setup: Setup, notes: Notes) -> None:
    """Refuse a stream of bins whose channels are called otherwise than the model's units.

    Args:
        labels: Of the channels, as far as they have any.
        setup: What the gateway was told.
        notes: Told if the model's units are mere numbers, which labels cannot be compared with.

    Example:
        >>> check_labels(["b", "a"], Setup(("a", "b"), 0.01, stream="s"), Notes(print))
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: channel 0 is 'b', the model's unit there is 'a': the same units in \
another order (in stream 's'): send channels in the model's order, or fit a model of this stream
    """
    pairs = enumerate(zip(labels, setup.units, strict=False))
    wrong = [(at, label, unit) for at, (label, unit) in pairs if label and label != unit]
    if not wrong:
        return
    at, label, unit = wrong[0]
    what = f"channel {at} is {label!r}, the model's unit there is {unit!r}"
    mixed = sorted(filter(None, labels)) == sorted(setup.units)
    if not mixed and all(unit.isdecimal() for unit in setup.units):
        notes.tell(f"lsl: {what}: the model only numbers its units, so their order is not checked")
        return
    also = ": the same units in another order" if mixed else ""
    remedy = "send channels in the model's order, or fit a model of this stream"
    raise InputError(what + also, f"stream {setup.stream!r}", remedy)


def drain(inlet: Any, notes: Notes) -> int:
    """Leave out what waits: LSL hands out the oldest first, and a session begins with the present.

    Returns:
        How many samples were left out.
    """
    num, first, last = 0, 0.0, 0.0
    while (stamps := inlet.pull_chunk(timeout=0.0, max_samples=MOST)[1]) != []:
        first = stamps[0] if not num else first
        num, last = num + len(stamps), stamps[-1]
    if num:
        text = f"from {first:.3f} s to {last:.3f} s on the source's clock"
        many = "1 sample" if num == 1 else f"{num} samples"
        notes.tell(f"lsl: begins with the present: {many} from before left out, {text}")
    return num


def _follow(inlet: Any, taker: Spikes | Rows, sender: PipeSender, notes: Notes) -> None:
    while True:
        looked = time.monotonic_ns()
        # A chunk with a timeout would wait until it is full.
        values, stamp = inlet.pull_sample(timeout=WAIT_S)
        if stamp is None:
            # What had come by then has been seen; a process held up later is not silence.
            send(sender, taker.idle(looked))
        else:
            send(sender, taker.take(values, stamp, time.monotonic_ns()))
            rows, stamps = inlet.pull_chunk(timeout=0.0, max_samples=MOST)
            for values, stamp in zip(rows, stamps, strict=True):
                send(sender, taker.take(values, stamp, time.monotonic_ns()))
        heed(sender, notes)
