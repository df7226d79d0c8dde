"""The sources and sinks that a plan names."""

import warnings
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from evkf.data import NwbWarning
from evkf.data.open import open_recording
from evkf.errors import InputError
from evkf.live.feed import Tape, start_feed
from evkf.live.pipes import PipeSource, pair
from evkf.live.plan import LOG, MODEL, Parts, Plan
from evkf.live.ports import Due, Sink, Source
from evkf.live.rig import rig_counts, rig_model
from evkf.rigs import lsl, open_ephys
from evkf.rigs.gateway import RigSource, Run, Setup, need
from evkf.rigs.lsl_out import LslSink, channels
from evkf.units import UnitModel, check_units

TAPE_S = 60.0
"""Seconds of spikes that the rig makes, and sends over and over."""


GATEWAYS: dict[str, tuple[Run, str, str]] = {
    "open-ephys": (open_ephys.run, "zmq", "live"),
    "lsl": (lsl.run, "pylsl", "lsl"),
}
"""Sources that a process of their own speaks to: what it does, the package it needs, the extra."""


def open_sinks(plan: Plan, made: Parts) -> list[Sink]:
    """Where estimates go."""
    sinks: list[Sink] = []
    if plan.publish is not None:
        from evkf.live.zeromq import ZmqSink

        sinks.append(ZmqSink(plan.publish))
    if plan.lsl_out is not None:
        need("pylsl", "--lsl-out", "lsl")
        latents = made.model.family.dim
        layout = channels(latents, made.units, plan.horizon, made.counts)
        sinks.append(LslSink(plan.lsl_out, layout, plan.bin_width))
    return sinks


def open_source(
    plan: Plan, folder: Path, made: Parts, due: Due
) -> tuple[Source, BaseProcess | None]:
    """Where bins come from, and the process that sends them if it is one of ours.

    Args:
        plan: Of the session.
        folder: Its folder, which holds the model.
        made: What its engine is built from.
        due: The bin that is due.
    """
    if plan.source == "zeromq":
        from evkf.live.zeromq import ZmqSource

        assert plan.address is not None
        return ZmqSource(plan.address), None
    if plan.source in GATEWAYS:
        run, package, extra = GATEWAYS[plan.source]
        need(package, f"--source {plan.source}", extra)
        return RigSource(run, _setup(plan, folder, made, due)), None
    tape, num = _tape(plan, folder)
    own, other = pair()
    left = None if num is None else max(num - due.seq, 0)
    return PipeSource(own), start_feed(other, tape, plan.period, left, due.seq)


def _setup(plan: Plan, folder: Path, made: Parts, due: Due) -> Setup:
    """What a gateway is told."""
    if plan.source == "open-ephys":
        open_ephys.listening(plan.address or "")
    return Setup(
        units=tuple(made.units),
        bin_width=plan.bin_width,
        counts=made.counts,
        first=due.seq,
        since_ns=due.sent_ns,
        address=plan.address or "",
        stream=plan.stream or "",
        sample_rate=plan.sample_rate,
        lateness=plan.lateness,
        blank=None if plan.blank is None else read_blank(plan.blank),
        log=folder.resolve() / LOG,
    )


def read_blank(text: str) -> tuple[int, float]:
    """A line of TTL events, and seconds around each of its edges.

    Example:
        >>> read_blank("3:0.005")
        (3, 0.005)
    """
    line, _, seconds = text.partition(":")
    try:
        found = int(line), float(seconds)
    except ValueError:
        found = -1, 0.0
    if not (0 <= found[0] < 256 and 0 < found[1] < 1e3):
        raise InputError(repr(text), "--blank", "pass LINE:SECONDS, such as 3:0.005")
    return found


def _tape(plan: Plan, folder: Path) -> tuple[Tape, int | None]:
    """What rig or replay send, and how many bins."""
    if plan.source == "rig":
        num = int(min(plan.bins or np.inf, max(TAPE_S / plan.bin_width, 1)))
        true = rig_model(plan.latents, plan.channels, plan.bin_width, plan.seed)
        return Tape(rig_counts(true, num, plan.seed), np.arange(num) == 0), plan.bins
    assert plan.recording is not None
    unit = UnitModel.load(folder / MODEL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NwbWarning)
        recording = open_recording(plan.recording, unit.bin_width, signals=unit.signals)
    check_units(unit, recording)
    num = min(plan.bins or recording.num_bins, recording.num_bins)
    return Tape(recording.counts, recording.fresh, recording.masks), num
