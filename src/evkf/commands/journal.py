"""Commands on sessions that were run: compute one again, write one as a recording."""

import tempfile
from datetime import datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from evkf.commands.console import (
    FELL_SHORT,
    Config,
    Force,
    Json,
    Quiet,
    check_free,
    claim,
    console,
    emit,
    json_target,
)
from evkf.commands.options import check_ending, result
from evkf.data import Recording, recording_to_nwb
from evkf.data.estimates import write_estimates
from evkf.data.nwb_write import Results, write_nwb
from evkf.errors import InputError
from evkf.latency import low_latency
from evkf.live.engine import Latent
from evkf.live.frames import Frame
from evkf.live.plan import JOURNAL, PLAN, Parts, Plan, build, keep_compiled, parts
from evkf.live.recall import Player
from evkf.live.run import replay as replay_session
from evkf.live.segments import read
from evkf.session import to_estimates
from evkf.units import Inferred

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a session.")]


def replay(
    folder: Folder,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Compute a session again from its journal, and compare with what it published, bit for bit.

    Exits with 1 if something differs.

    \b
    Examples:
      evkf replay day2
    """
    options = dict(locals())
    check_free(json_target(json_file), force)
    say = console(quiet, json_file)
    plan = Plan.read(folder)
    low_latency()
    keep_compiled(folder)
    found = replay_session(folder, plan)
    for words in found.differ:
        say.print(f"differs: {words}")
    if found.holes:
        say.print(f"note: {found.holes} stretches of records could not be kept")
    same = "the same to the last bit" if not found.differ else "not the same"
    say.print(
        f"{found.bins} bins, {found.lost} of them bridged, {found.learned} gradient steps: "
        f"{found.compared} results compared, {same}"
    )
    emit(json_file, result("replay", options, **found._asdict()))
    if found.differ:
        raise typer.Exit(FELL_SHORT)


def export(
    folder: Folder,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Ends in .nwb, .npz or .h5.", show_default="DIR/session.npz"
        ),
    ] = None,
    nwb: Annotated[bool, typer.Option("--nwb", help="Write NWB, to DIR/session.nwb.")] = False,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Write a session as a recording, with latents, rates and bounds of every bin.

    They are computed again from the journal. Bins that were lost are masked. Rates are those
    expected before a bin was seen. The session may still be running: what is durable is written.

    \b
    Examples:
      evkf export day2 --nwb
      evkf export day2 --out day2.npz
    """
    options = dict(locals())
    target = out or folder / ("session.nwb" if nwb else "session.npz")
    check_ending(target, (".nwb",) if nwb else (".nwb", ".npz", ".h5", ".hdf5"))
    check_free([target, *json_target(json_file, target)], force)
    say = console(quiet, json_file)
    plan = Plan.read(folder)
    low_latency()
    keep_compiled(folder)
    made = parts(plan, folder)
    recording, found = _recalled(folder, plan, made)
    claim([target], force)
    if target.suffix == ".nwb":
        _write_nwb(target, recording, found, made.counts, _began(plan, folder), force)
    else:
        arrays = to_estimates(recording, recording.fresh, found)
        write_estimates(target, recording, arrays, force)
    bins, lost = recording.num_bins, int((~recording.masks).all(axis=1).sum())
    trials = "1 trial" if recording.num_trials == 1 else f"{recording.num_trials} trials"
    say.print(f"{bins} bins, {lost} of them lost, {trials}: {target}")
    emit(json_file, result("export", options, bins=bins, lost=lost, written=str(target)))


def _recalled(folder: Path, plan: Plan, made: Parts) -> tuple[Recording, Inferred]:
    """The bins of a session, and what came of them."""
    seqs: list[int] = []
    frames: list[Frame | None] = []
    latents: list[Latent] = []

    def keep(seq: int, frame: Frame | None, latent: Latent) -> None:
        seqs.append(seq)
        frames.append(frame)
        latents.append(latent)

    engine = build(plan, made)
    Player(engine, made.counts, keep=keep).play(read(folder / JOURNAL))
    if not seqs:
        raise InputError("a session without bins", str(folder), "name another")
    shape = len(seqs), engine.num_channels
    counts, masks = np.zeros(shape, np.int64 if made.counts else float), np.zeros(shape, bool)
    fresh = np.zeros(len(seqs), bool)
    for i, frame in enumerate(frames):
        if frame is not None:
            counts[i], fresh[i] = frame.y, frame.fresh
            masks[i] = True if frame.mask is None else frame.mask
    starts = np.flatnonzero(fresh | (np.arange(len(seqs)) == 0))
    recording = Recording(
        counts,
        plan.bin_width,
        lengths=tuple(np.diff(starts, append=len(seqs)).tolist()),
        start_times=plan.bin_width * np.asarray(seqs, float)[starts],
        masks=masks,
        units={"id": np.asarray(made.units)},
        source=str(folder),
    )
    ahead = np.stack([latent.rate for latent in latents])
    predicted = np.concatenate([ahead[:1], ahead[:-1]])
    found = Inferred(
        np.stack([latent.mean for latent in latents]),
        np.stack([latent.cov for latent in latents]),
        predicted / (plan.bin_width if made.counts else 1.0),
        predicted,
        np.array([latent.elbo for latent in latents]),
    )
    return recording, found


def _began(plan: Plan, folder: Path) -> datetime | None:
    """When the session began, if its plan knows."""
    if not plan.began:
        return None
    try:
        return datetime.fromisoformat(plan.began).astimezone()
    except ValueError:
        remedy = "write a time such as 2026-05-04T10:30:00+02:00, or nothing"
        raise InputError(f"began = {plan.began!r}", str(folder / PLAN), remedy) from None


def _write_nwb(
    target: Path,
    recording: Recording,
    found: Inferred,
    counts: bool,
    began: datetime | None,
    force: bool,
) -> None:
    results = Results(found.mean, found.cov, found.rates, found.elbo)
    if not counts:
        results = results._replace(rates_unit="a.u.")
        write_nwb(target, recording, results, overwrite=force, began=began)
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as made:
        spikes = Path(made) / "spikes.nwb"
        recording_to_nwb(spikes, recording, began=began)
        write_nwb(target, recording, results, into=spikes, overwrite=force)
