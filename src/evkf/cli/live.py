"""Commands of live sessions: run one, and take one up again."""

import secrets
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from evkf.cli import live_options as asked
from evkf.cli.console import (
    Config,
    Folder,
    ForceJson,
    Json,
    Quiet,
    Seed,
    check_free,
    console,
    emit,
    json_target,
    load_model,
    result,
)
from evkf.cli.running import run, run_new, serving, tell_costs, told
from evkf.cli.stimulation import (
    Amplitude,
    Charge,
    Controlled,
    Rate,
    Steered,
    Stimulated,
    Window,
    read_loop,
)
from evkf.cli.wiring import GATEWAYS, listening, made_ready, read_blank
from evkf.errors import InputError
from evkf.live.journal import Journal, Policy
from evkf.live.machine import reckon, rehearse
from evkf.live.plan import Plan, build, keep_compiled, keep_model, new_folder, parts
from evkf.live.ports import Phase, Report
from evkf.live.run import open_journal, recall
from evkf.numerics.jax_config import low_latency
from evkf.recordings.units import UnitModel


def live(
    folder: asked.NewFolder = None,
    source: asked.SourceName = "rig",
    model_file: asked.ModelFile = None,
    recording: asked.Replayed = None,
    speed: asked.Speed = 1.0,
    address: asked.Address = None,
    stream: asked.Stream = None,
    sample_rate: asked.SampleRate = None,
    lateness: asked.Lateness = 0.025,
    blank: asked.Blank = None,
    publish: asked.Publish = None,
    lsl_out: asked.LslOut = None,
    open_to_all: asked.Open = False,
    web: asked.Web = None,
    tls_cert: asked.TlsCert = None,
    tls_key: asked.TlsKey = None,
    no_tls: asked.NoTls = False,
    bin_width: asked.BinWidth = None,
    latents: asked.Latents = 2,
    neurons: asked.Neurons = 100,
    bins: asked.Bins = None,
    seconds: asked.Seconds = None,
    horizon: asked.Horizon = None,
    steer: Steered = None,
    controller: Controlled = None,
    stimulator: Stimulated = None,
    max_amplitude: Amplitude = None,
    max_rate: Rate = None,
    max_charge: Charge = None,
    charge_window: Window = None,
    learn: asked.Learn = True,
    policy: asked.Durable = "process-crash",
    reorder: asked.Reorder = 8,
    patience: asked.Patience = 0.1,
    checkpoint_every: asked.Every = 5.0,
    real_time: asked.RealTime = True,
    overload: asked.Overload = False,
    seed: Seed = 0,
    force: ForceJson = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Run a live session: bins in, latents out, all of it in a journal.

    Without options a simulated rig sends bins. Ctrl-C ends the session in good order; after a
    crash, `evkf resume DIR` goes on. What goes over the wire is described in docs/live_protocol.md.

    \b
    Examples:
      evkf live                                  100 simulated neurons, bins of 10 ms
      evkf live --steer 1,0                      and stimulation that steers them
      evkf live --latents 4 --bin-width 0.001 --bins 10000
      evkf live day2 --source zeromq --model m.safetensors --publish tcp://127.0.0.1:5556
      evkf live --source replay --recording day1.nwb --model m.safetensors --speed 2
      evkf live --source open-ephys --model m.safetensors --lsl-out latents
      evkf live --source lsl --stream spikes --model m.safetensors
      evkf live --web 127.0.0.1:8765             with a page to look at, and more over the web
    """
    options = dict(locals())
    check_free(json_target(json_file), force)
    # Before a controller is imported, which may compute.
    low_latency()
    durable = _check(source, policy, model_file, recording, stream)
    bounds = (max_amplitude, max_rate, max_charge)
    loop = read_loop(source, latents, steer, controller, stimulator, bounds, charge_window)
    if blank is not None:
        read_blank(blank)
    _check_heeded(source, options)
    say = console(quiet, json_file)
    unit = None if model_file is None else load_model(model_file)
    _check_width(unit, bin_width)
    width = bin_width or (0.01 if unit is None else unit.bin_width)
    plan = Plan(
        source=source,
        bin_width=width,
        latents=latents,
        channels=neurons,
        seed=seed,
        modelled=unit is not None,
        learn=learn,
        policy=durable,
        reorder=reorder,
        patience=patience,
        checkpoint_every=checkpoint_every,
        recording=None if recording is None else str(recording.resolve()),
        speed=speed if source in ("rig", "replay") else 1.0,
        bins=bins,
        address=(address or asked.ADDRESSES[source]) if source in asked.ADDRESSES else None,
        publish=publish,
        horizon=_horizon(horizon, web is not None or source == "websocket", bool(loop)),
        stream=stream,
        sample_rate=sample_rate,
        lateness=lateness,
        blank=blank,
        lsl_out=lsl_out,
        id=secrets.token_hex(8),
        real_time=real_time,
        **loop,
    )
    plan = listening(plan, open_to_all, web, tls_cert, tls_key, no_tls)
    folder = new_folder(folder or Path("out/live") / time.strftime("%Y-%m-%d_%H-%M-%S"))
    if model_file is not None:
        keep_model(model_file, folder)
    report = run_new(folder, plan, say, overload, seconds)
    emit(json_file, result("live", options, **told(folder, report)))


def resume(
    folder: Folder,
    address: asked.AddressAgain = None,
    stream: asked.StreamAgain = None,
    publish: asked.PublishAgain = None,
    open_to_all: asked.Open = False,
    web: asked.WebAgain = None,
    tls_cert: asked.TlsCert = None,
    tls_key: asked.TlsKey = None,
    no_tls: asked.NoTls = False,
    seconds: asked.Seconds = None,
    real_time: asked.RealTimeAgain = None,
    force: ForceJson = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Go on with a session that was stopped or has crashed, from the last bin that is durable.

    \b
    Examples:
      evkf resume day2
    """
    options = dict(locals())
    check_free(json_target(json_file), force)
    plan = Plan.read(folder)
    _check_heeded(plan.source, {"address": address, "stream": stream})
    say = console(quiet, json_file)
    changed = {
        "address": address or plan.address,
        "stream": stream or plan.stream,
        "publish": publish or plan.publish,
        "real_time": plan.real_time if real_time is None else real_time,
    }
    plan = plan._replace(**changed)
    # Before all else: a session that runs there must not notice.
    with open_journal(folder, plan) as journal:
        plan = listening(plan, open_to_all, web, tls_cert, tls_key, no_tls)
        found = _go_on(folder, plan, journal, seconds, say)
    emit(json_file, result("resume", options, **found))


def _go_on(
    folder: Path, plan: Plan, journal: Journal, seconds: float | None, say: Console
) -> dict[str, Any]:
    """Take up a session; what there is to tell of it then."""
    low_latency()
    keep_compiled(folder)
    say.print(f"starting: compiling, {folder}")
    made = parts(plan, folder)
    beside = made_ready(plan, folder, made, resumed=True)
    with serving(folder, plan, made, say) as page, beside as sending:
        engine = build(plan, made)
        if sending is not None:
            # A process that starts would be in the way of what is measured.
            sending.result()
        costs = rehearse(engine, plan.real_time)
        tell_costs(costs, reckon(costs, plan.period), say)
        player = recall(folder, engine, made.counts)
        if player.due.ended:
            if page is not None:
                page.desk.tell(Report.starting("the stream has ended")._replace(phase=Phase.CLOSED))
            say.print(f"its stream has ended; `evkf export {folder}` writes it out")
            return {"folder": str(folder), "bins": engine.bins}
        say.print(f"recalled {engine.bins} bins from the journal; the next is bin {player.due.seq}")
        ready = plan, made, engine, costs, journal, player, sending
        return told(folder, run(folder, *ready, page, seconds, say))


def _check(
    source: str,
    policy: str,
    model_file: Path | None,
    recording: Path | None,
    stream: str | None,
) -> Policy:
    """Refuse what does not go together; the policy, which is known then."""
    for name, given, known in (
        ("--source", source, asked.SOURCES),
        ("--policy", policy, asked.POLICIES),
    ):
        if given not in known:
            raise InputError(repr(given), name, f"choose one of {', '.join(known)}")
    if source != "rig" and model_file is None:
        remedy = "pass --model, what `evkf fit` wrote"
        if source in GATEWAYS:
            remedy += "; docs/rig.md, `The first day`, says how to come by one"
        raise InputError("no model", f"--source {source}", remedy)
    if source == "rig" and model_file is not None:
        remedy = (
            f"say where its bins come from: --source {', '.join(asked.SOURCES[1:])}; "
            "the simulated rig has neurons of its own"
        )
        raise InputError("a model for the rig", "--model", remedy)
    if source == "replay" and recording is None:
        raise InputError("no recording", "--source replay", "pass --recording FILE")
    if source != "replay" and recording is not None:
        raise InputError("--recording", f"--source {source}", "leave it out: it is for replay")
    if recording is not None and not recording.exists():
        raise InputError("no such file", str(recording), "check the name")
    if source == "lsl" and stream is None:
        remedy = "name the LSL stream to read, such as --stream spikes"
        raise InputError("no --stream", "--source lsl", remedy)
    return "power-loss" if policy == "power-loss" else "process-crash"


def _check_heeded(source: str, options: dict[str, Any]) -> None:
    """Refuse an option that says nothing to the source."""
    for name, (sources, default) in asked.ONLY_OF.items():
        if source not in sources and options.get(name, default) != default:
            remedy = f"leave it out: it is for --source {' and '.join(sources)}"
            raise InputError(f"--{name.replace('_', '-')}", f"--source {source}", remedy)


def _horizon(given: int | None, page: bool, loop: bool) -> int:
    """Bins to look ahead: a page shows some, and a controller needs one."""
    if given is not None:
        return max(given, 1) if loop else given
    return asked.AHEAD if page else int(loop)


def _check_width(unit: UnitModel | None, bin_width: float | None) -> None:
    if bin_width is not None and not 0 < bin_width < 1e3:
        raise InputError(f"{bin_width} s", "--bin-width", "pass seconds above zero")
    if unit is not None and bin_width is not None and bin_width != unit.bin_width:
        what = f"bins of {bin_width} s, where the model has {unit.bin_width} s"
        raise InputError(what, "--bin-width", "leave it out, or fit another model")
