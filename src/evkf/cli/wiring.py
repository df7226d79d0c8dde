"""The sources and sinks that a plan names."""

import socket
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evkf.data import NwbWarning
from evkf.data.files import need
from evkf.data.open import open_recording
from evkf.errors import InputError
from evkf.live.addresses import check_zmq
from evkf.live.control import Steer, load
from evkf.live.feed import READY, Tape, start_feed
from evkf.live.limits import Limits
from evkf.live.loop import Closed
from evkf.live.pipes import PipeSource, pair
from evkf.live.plan import LOG, MODEL, Parts, Plan
from evkf.live.ports import Due, Sink, Source
from evkf.live.rig import rig_counts, rig_limits, rig_model, tape_bins
from evkf.live.subject import start_subject
from evkf.live.warden import PipeStimulator, start_guard
from evkf.model import Model
from evkf.recordings.units import UnitModel, check_units
from evkf.rigs import lsl, open_ephys
from evkf.rigs.gateway import RigSource, Run, Setup
from evkf.rigs.lsl_out import LslSink, channels
from evkf.web.access import Place, Tls, check_tls, listen
from evkf.web.process import WebProcess, check_installed
from evkf.web.reel import Screen
from evkf.web.settings import describe_stream

WEB = "127.0.0.1:8765"
"""Where the web process is, unless told."""


class Gateway(NamedTuple):
    """A process that speaks to a source: what it does, the package it needs, the extra."""

    run: Run
    package: str
    extra: str


GATEWAYS = {
    "open-ephys": Gateway(open_ephys.run, "zmq", "live"),
    "lsl": Gateway(lsl.run, "pylsl", "lsl"),
}

Sending = tuple[Source, BaseProcess | None]
"""Where bins come from, and the process that sends them if it is to be ended with the session."""


def listening(
    plan: Plan,
    open_to_all: bool,
    web: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    no_tls: bool,
) -> Plan:
    """The plan, with where it listens and who may reach it; refused now if it may not."""
    check_packages(plan)
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
    for address in (plan.address if plan.source == "zeromq" else None, plan.publish):
        if address is not None:
            from evkf.live.zeromq import check_free

            check_zmq(address, plan.open_to_all)
            check_free(address)
    if plan.web is not None:
        check_installed()
        check_tls(Place.read(plan.web), _tls(plan), plan.no_tls)
        listen(Place.read(plan.web)).close()
    elif files[0] or no_tls:
        raise InputError("nothing to encrypt", "--tls-cert, --no-tls", "pass them with --web")
    return plan


def check_packages(plan: Plan) -> None:
    """Refuse a plan whose sources and sinks need packages that are not installed."""
    if plan.source in GATEWAYS:
        _, package, extra = GATEWAYS[plan.source]
        need(f"--source {plan.source}", extra, package)
    if plan.source == "zeromq" or plan.publish is not None:
        need("ZeroMQ", "live", "zmq")
    if plan.lsl_out is not None:
        need("--lsl-out", "lsl", "pylsl")
    if plan.recording is not None and plan.recording.endswith(".nwb"):
        need("--recording", "nwb", "h5py")


def _tls(plan: Plan) -> Tls | None:
    if plan.tls_cert is None or plan.tls_key is None:
        return None
    return Tls(plan.tls_cert, plan.tls_key)


def open_sinks(plan: Plan, made: Parts, log: Callable[[str], None]) -> list[Sink]:
    """Where estimates go; what is wrong with that is logged."""
    sinks: list[Sink] = []
    if plan.publish is not None:
        from evkf.live.zeromq import ZmqSink

        sinks.append(ZmqSink(plan.publish, open_to_all=plan.open_to_all))
    if plan.lsl_out is not None:
        latents = made.model.family.dim
        layout = channels(latents, made.units, plan.horizon, made.counts)
        sinks.append(LslSink(plan.lsl_out, layout, plan.bin_width, log))
    return sinks


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
    place, screen = Place.read(plan.web), screen_of(plan, folder, made)
    return WebProcess(place, folder, hello, takes, _tls(plan), plan.no_tls, log, screen=screen)


def screen_of(plan: Plan, folder: Path, made: Parts) -> Screen:
    """What the page of a session shows, and lets one ask for."""
    can = ["freeze", "thaw", "mark", "save", "download"]
    can += ["stop", "arm"] if plan.stimulates else []
    can += ["speed", "reset"] if plan.paced else []
    return Screen(
        session=plan.id,
        source=plan.source,
        bin_width=plan.bin_width,
        latents=made.model.family.dim,
        units=tuple(made.units),
        horizon=plan.horizon,
        counts=made.counts,
        has_truth=plan.source == "rig",
        can=tuple(can),
        speed=(plan.speed or None) if plan.paced else None,
        folder=str(folder),
    )


def open_source(
    plan: Plan,
    folder: Path,
    made: Parts,
    due: Due,
    web: WebProcess | None = None,
    stimulation: socket.socket | None = None,
    real_time: bool = False,
    sending: Future[Sending] | None = None,
) -> tuple[Source, BaseProcess | None]:
    """Where bins come from, and the process that sends them if it is one of ours.

    Args:
        plan: Of the session.
        folder: Its folder, which holds the model.
        made: What its engine is built from.
        due: The bin that is due.
        web: The web process, if there is one.
        stimulation: What the rig hears stimulation from, if it responds to it.
        real_time: Whether such a rig takes real-time priority.
        sending: What `made_ready` gave, if it was asked.
    """
    if plan.source == "websocket":
        assert web is not None
        assert web.source is not None
        return web.source, None
    if plan.source == "zeromq":
        from evkf.live.zeromq import ZmqSource

        assert plan.address is not None
        return ZmqSource(plan.address, open_to_all=plan.open_to_all), None
    if stimulation is not None:
        own, other = pair()
        left = None if plan.bins is None else max(plan.bins - due.seq, 0)
        sizes = plan.latents, plan.channels, plan.bin_width, plan.seed
        pace = (plan.period, left, due.seq)
        rig = start_subject(other, stimulation, sizes, *pace, real_time=real_time)
        return PipeSource(own), rig
    if plan.source in GATEWAYS:
        source = _gateway(plan, folder, made) if sending is None else sending.result()[0]
        assert isinstance(source, RigSource)
        source.due(due.seq, due.sent_ns)
        return source, None
    return _start_sending(plan, folder, due.seq) if sending is None else sending.result()


@contextmanager
def made_ready(
    plan: Plan, folder: Path, made: Parts, resumed: bool = False
) -> Iterator[Future[Sending] | None]:
    """While programs are compiled: what a new session's rig or replay sends, and who sends it, or
    the gateway to a rig.

    Args:
        plan: Of the session.
        folder: Its folder, which holds the model.
        made: What its engine is built from.
        resumed: Whether it is taken up again: then what rig and replay send is not known yet.
    """
    gateway = plan.source in GATEWAYS
    if not gateway and (resumed or not plan.paced):
        yield None
        return
    doubled = jnp.result_type(float) == jnp.float64

    def start() -> Sending:
        if gateway:
            source = _gateway(plan, folder, made)
            source.wait_until_up()
            return source, None
        # This setting is a thread's own.
        with jax.enable_x64(doubled):
            return _start_sending(plan, folder, 0)

    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(start)
        try:
            yield started
        finally:
            # Perhaps nobody came to listen: then who sends is to end.
            if started.exception() is None:
                started.result()[0].close()


def _start_sending(plan: Plan, folder: Path, first: int) -> Sending:
    tape, num = _tape(plan, folder)
    own, other = pair()
    left = None if num is None else max(num - first, 0)
    process = start_feed(other, tape, plan.period, left, first, plan.bin_width)
    return PipeSource(own, READY), process


def _gateway(plan: Plan, folder: Path, made: Parts) -> RigSource:
    if plan.source == "open-ephys":
        open_ephys.listening(plan.address or "")
    setup = Setup(
        units=tuple(made.units),
        bin_width=plan.bin_width,
        counts=made.counts,
        address=plan.address or "",
        stream=plan.stream or "",
        sample_rate=plan.sample_rate,
        lateness=plan.lateness,
        blank=None if plan.blank is None else read_blank(plan.blank),
        log=folder.resolve() / LOG,
    )
    return RigSource(GATEWAYS[plan.source].run, setup)


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
        model: As it is when the session begins, or is taken up again.
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
    return Opened(Closed(controller, own), guard, rig)


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
        recording = open_recording(plan.recording, bin_width=unit.bin_width, signals=unit.signals)
    check_units(unit, recording)
    num = min(plan.bins or recording.num_bins, recording.num_bins)
    return Tape(recording.counts, recording.fresh, recording.masks), num
