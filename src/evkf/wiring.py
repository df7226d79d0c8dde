"""The sources and sinks that a plan names."""

import socket
import warnings
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evkf.data import NwbWarning
from evkf.data.open import open_recording
from evkf.errors import InputError
from evkf.live.control import Steer, load
from evkf.live.feed import Tape, start_feed
from evkf.live.limits import Limits
from evkf.live.loop import Closed
from evkf.live.pipes import PipeSource, pair
from evkf.live.plan import MODEL, Plan
from evkf.live.ports import Sink, Source
from evkf.live.rig import rig_counts, rig_limits, rig_model
from evkf.live.subject import start_subject
from evkf.live.warden import PipeStimulator, start_guard
from evkf.model import Model
from evkf.units import UnitModel, check_units

TAPE_S = 60.0
"""Seconds of spikes that the rig makes, and sends over and over."""


def open_sinks(plan: Plan) -> list[Sink]:
    """Where estimates go."""
    if plan.publish is None:
        return []
    from evkf.live.zeromq import ZmqSink

    return [ZmqSink(plan.publish)]


def open_source(
    plan: Plan,
    folder: Path,
    first: int,
    stimulation: socket.socket | None = None,
    real_time: bool = False,
) -> tuple[Source, BaseProcess | None]:
    """Where bins come from, and the process that sends them if it is one of ours.

    Args:
        plan: Of the session.
        folder: Its folder, which holds the model.
        first: Number of the bin that is due.
        stimulation: What the rig hears stimulation from, if it responds to it.
        real_time: Whether such a rig takes real-time priority.
    """
    if plan.source == "zeromq":
        from evkf.live.zeromq import ZmqSource

        assert plan.address is not None
        return ZmqSource(plan.address), None
    if stimulation is not None:
        own, other = pair()
        left = None if plan.bins is None else max(plan.bins - first, 0)
        sizes = plan.latents, plan.channels, plan.bin_width, plan.seed
        pace = (plan.period, left, first)
        rig = start_subject(other, stimulation, sizes, *pace, real_time=real_time)
        return PipeSource(own), rig
    tape, num = _tape(plan, folder)
    own, other = pair()
    left = None if num is None else max(num - first, 0)
    return PipeSource(own), start_feed(other, tape, plan.period, left, first)


class Opened(NamedTuple):
    """A closed loop, and what it needs."""

    closed: Closed
    guard: BaseProcess
    stimulation: socket.socket | None
    """What the rig hears it from."""


def open_loop(plan: Plan, folder: Path, model: Model, real_time: bool) -> Opened | None:
    """What closes the loop, if something does: the controller, and a guard in its process.

    Args:
        plan: Of the session.
        folder: Its folder, where the guard has its door.
        model: That the session began with.
        real_time: Whether the guard takes real-time priority.
    """
    if not plan.stimulates:
        return None
    inputs = model.dynamics.num_inputs
    if not plan.period:
        raise InputError("no pace", "--speed 0", "stimulation needs one, such as --speed 1")
    limits = rig_limits(inputs) if plan.limits is None else Limits(*plan.limits)
    limits.check(inputs)
    if plan.steer is not None:
        controller = Steer.of(model, plan.steer)
    else:
        assert plan.controller is not None
        controller = load(plan.controller)(model)
    own, other = pair()
    rig = None
    if plan.stimulator is None:
        near, rig = pair()
        stimulator = PipeStimulator(near)
    else:
        stimulator = plan.stimulator
        load(stimulator)
    guard = start_guard(other, folder, limits, plan.period, stimulator, real_time)
    return Opened(Closed(controller, limits, own), guard, rig)


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
