"""The sources and sinks that a plan names."""

import warnings
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from evkf.data import NwbWarning
from evkf.data.open import open_recording
from evkf.live.feed import Tape, start_feed
from evkf.live.pipes import PipeSource, pair
from evkf.live.plan import MODEL, Plan
from evkf.live.ports import Sink, Source
from evkf.live.rig import rig_counts, rig_model
from evkf.units import UnitModel, check_units

TAPE_S = 60.0
"""Seconds of spikes that the rig makes, and sends over and over."""


def open_sinks(plan: Plan) -> list[Sink]:
    """Where estimates go."""
    if plan.publish is None:
        return []
    from evkf.live.zeromq import ZmqSink

    return [ZmqSink(plan.publish)]


def open_source(plan: Plan, folder: Path, first: int) -> tuple[Source, BaseProcess | None]:
    """Where bins come from, and the process that sends them if it is one of ours.

    Args:
        plan: Of the session.
        folder: Its folder, which holds the model.
        first: Number of the bin that is due.
    """
    if plan.source == "zeromq":
        from evkf.live.zeromq import ZmqSource

        assert plan.address is not None
        return ZmqSource(plan.address), None
    tape, num = _tape(plan, folder)
    own, other = pair()
    left = None if num is None else max(num - first, 0)
    return PipeSource(own), start_feed(other, tape, plan.period, left, first)


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
