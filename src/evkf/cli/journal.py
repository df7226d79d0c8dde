"""Commands on sessions that were run: compute one again, write one as a recording."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from evkf.cli.console import (
    FELL_SHORT,
    Config,
    Folder,
    Force,
    ForceJson,
    Json,
    Quiet,
    check_ending,
    check_free,
    claim,
    console,
    counted,
    emit,
    json_target,
    note,
    progress_bar,
    result,
)
from evkf.data import recording_to_nwb, write_estimates, write_nwb
from evkf.errors import InputError
from evkf.live.export import Exported, recall_recording
from evkf.live.plan import Plan, keep_compiled, parts
from evkf.live.run import replay as replay_session
from evkf.numerics.jax_config import low_latency


def replay(
    folder: Folder,
    force: ForceJson = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Compute a session again from its journal, and compare with what it published, bit for bit.

    Exits with 1 if something differs. It takes as long as filtering and learning took in the
    session, which is less than the session lasted, and up to a minute to compile.

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
    with progress_bar(say, "records of the journal") as progress:
        found = replay_session(folder, plan, progress)
    if not found.bins:
        raise InputError("a session without bins", str(folder), "name another")
    for words in found.differ:
        say.print(f"differs: {words}")
    if found.holes:
        note(say, f"{counted(found.holes, 'gap')} in the records, which could not be kept")
    same = "the same to the last bit" if not found.differ else "not the same"
    say.print(
        f"{found.bins} bins, {found.lost} of them bridged, learned after {found.learned}: "
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

    They are computed again from the journal. Rates are those expected before a bin was seen. What
    the operator marked is there too, and the stamp of each bin on the clock of its source. Counts
    of spikes are written to .nwb only, with bins that were lost masked; .npz and .h5 have no counts
    and no masks. The session may still be running: what is durable is written. It takes as long as
    filtering and learning took in the session, which is less than the session lasted, and up to a
    minute to compile.

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
    with progress_bar(say, "records of the journal") as progress:
        exported = recall_recording(folder, plan, made, progress)
    recording = exported.recording
    claim([target], force)
    _write(target, exported, made.counts, force)
    bins, lost = recording.num_bins, int((~recording.masks).all(axis=1).sum())
    say.print(
        f"{bins} bins, {lost} of them lost or wholly masked, "
        f"{counted(recording.num_trials, 'trial')}: {target}"
    )
    emit(json_file, result("export", options, bins=bins, lost=lost, written=str(target)))


def _write(target: Path, made: Exported, counts: bool, force: bool) -> None:
    recording, estimates, notes = made
    if target.suffix != ".nwb" or not counts:
        write_estimates(target, recording, estimates, notes=notes, overwrite=force)
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as beside:
        spikes = Path(beside) / "spikes.nwb"
        recording_to_nwb(spikes, recording, began=notes.began)
        write_nwb(target, recording, estimates, notes=notes, into=spikes, overwrite=force)
