"""The sources and sinks that a plan names."""

import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from evkf.data import NwbWarning
from evkf.data.open import open_recording
from evkf.errors import InputError
from evkf.live.addresses import check_zmq
from evkf.live.feed import Tape, start_feed
from evkf.live.pipes import PipeSource, pair
from evkf.live.plan import MODEL, Parts, Plan
from evkf.live.ports import Sink, Source
from evkf.live.rig import rig_counts, rig_model, tape_bins
from evkf.units import UnitModel, check_units
from evkf.web.access import Place, Tls, check_tls, listen
from evkf.web.process import WebProcess
from evkf.web.reel import Screen
from evkf.web.settings import describe_stream

WEB = "127.0.0.1:8765"
"""Where the web process is, unless told."""


def listening(
    plan: Plan,
    open_to_all: bool,
    web: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    no_tls: bool,
) -> Plan:
    """The plan, with where it listens and who may reach it; refused now if it may not."""
    if (tls_cert is None) != (tls_key is None):
        raise InputError("one alone", "--tls-cert, --tls-key", "pass both, or neither")
    files = [None if file is None else str(file.resolve()) for file in (tls_cert, tls_key)]
    plan = plan._replace(
        open_to_all=open_to_all or plan.open_to_all,
        web=web or plan.web or (WEB if plan.source == "websocket" else None),
        tls_cert=files[0] or plan.tls_cert,
        tls_key=files[1] or plan.tls_key,
        no_tls=no_tls or plan.no_tls,
    )
    for address in (plan.address, plan.publish):
        if address is not None:
            check_zmq(address, plan.open_to_all)
    if plan.web is not None:
        check_tls(Place.read(plan.web), _tls(plan), plan.no_tls)
        listen(Place.read(plan.web)).close()
    elif files[0] or no_tls:
        raise InputError("nothing to encrypt", "--tls-cert, --no-tls", "pass them with --web")
    return plan


def _tls(plan: Plan) -> Tls | None:
    if plan.tls_cert is None or plan.tls_key is None:
        return None
    return Tls(plan.tls_cert, plan.tls_key)


def open_sinks(plan: Plan) -> list[Sink]:
    """Where estimates go."""
    if plan.publish is None:
        return []
    from evkf.live.zeromq import ZmqSink

    return [ZmqSink(plan.publish, open_to_all=plan.open_to_all)]


def open_web(
    plan: Plan, folder: Path, made: Parts, log: Callable[[str], None]
) -> WebProcess | None:
    """The web process, if there is to be one. Call it before real-time priority is taken.

    Args:
        plan: Of the session.
        folder: Its folder, which the token is kept in.
        made: What its engine is built from.
        log: Told when the process dies.
    """
    if plan.web is None:
        return None
    hello = describe_stream(
        plan.id, made.model.family.dim, made.units, plan.bin_width, plan.horizon, made.counts
    )
    takes = plan.source == "websocket"
    place, screen = Place.read(plan.web), screen_of(plan, made)
    return WebProcess(place, folder, hello, takes, _tls(plan), plan.no_tls, log, screen=screen)


def screen_of(plan: Plan, made: Parts) -> Screen:
    """What the page of a session shows, and lets one ask for."""
    can = ["freeze", "thaw", "mark", "save", "download"]
    return Screen(
        session=plan.id,
        source=plan.source,
        bin_width=plan.bin_width,
        latents=made.model.family.dim,
        units=tuple(made.units),
        horizon=plan.horizon,
        counts=made.counts,
        has_truth=plan.source == "rig",
        can=(*can, "speed", "reset") if plan.steered else tuple(can),
        speed=(plan.speed or None) if plan.steered else None,
    )


def open_source(
    plan: Plan, folder: Path, first: int, web: WebProcess | None = None
) -> tuple[Source, BaseProcess | None]:
    """Where bins come from, and the process that sends them if it is one of ours.

    Args:
        plan: Of the session.
        folder: Its folder, which holds the model.
        first: Number of the bin that is due.
        web: The web process, if there is one.
    """
    if plan.source == "websocket":
        assert web is not None
        assert web.source is not None
        return web.source, None
    if plan.source == "zeromq":
        from evkf.live.zeromq import ZmqSource

        assert plan.address is not None
        return ZmqSource(plan.address, open_to_all=plan.open_to_all), None
    tape, num = _tape(plan, folder)
    own, other = pair()
    left = None if num is None else max(num - first, 0)
    return PipeSource(own), start_feed(other, tape, plan.period, left, first, plan.bin_width)


def _tape(plan: Plan, folder: Path) -> tuple[Tape, int | None]:
    """What rig or replay send, and how many bins."""
    if plan.source == "rig":
        num = tape_bins(plan.bins, plan.channels, plan.bin_width)
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
