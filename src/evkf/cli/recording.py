"""Commands on recordings: look at one, make one, get one."""

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from evkf.cli.console import (
    FELL_SHORT,
    Config,
    Force,
    ForceJson,
    Json,
    Quiet,
    Seed,
    check_free,
    claim,
    console,
    counted,
    emit,
    json_target,
)
from evkf.cli.options import BinWidth, File, Group, LeaveOut, check_ending, result
from evkf.data import recording_to_nwb, write_arrays
from evkf.data.arrays import HDF5
from evkf.data.describe import describe
from evkf.errors import InputError
from evkf.numerics.checks import first_of
from evkf.recordings.simulation import simulate_recording

DANDI = {"mc_maze_large": ("000138", "MC_Maze_Large of the Neural Latents Benchmark")}


def info(
    file: File,
    bin_width: BinWidth = None,
    group: Group = None,
    leave_out: LeaveOut = None,
    force: ForceJson = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Say what is in a recording: units, duration, trials, behaviour, rates.

    \b
    Examples:
      evkf info day1.nwb
      evkf info counts.csv --bin-width 0.02 --json -
    """
    options = dict(locals())
    check_free(json_target(json_file, file), force)
    found = describe(file, bin_width, group, leave_out or ())
    say = console(quiet, json_file)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.items():
        if name == "rates":
            value = ", ".join(f"{key} {x:.3g} Hz" for key, x in value.items())
        elif name == "behaviour":
            value = ", ".join(f"{key} {tuple(shape)}" for key, shape in value.items())
        elif isinstance(value, list):
            value = first_of(value) if name == "silent_units" else ", ".join(value)
        elif name in ("duration", "observed_for", "bin_width"):
            value = f"{value:g} s"
        table.add_row(name.replace("_", " "), str(value) or "none")
    say.print(table)
    emit(json_file, result("info", options, **found))


def simulate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Ends in .nwb, .npz or .h5.")] = Path(
        "simulated.npz"
    ),
    nwb: Annotated[
        bool, typer.Option("--nwb", help="Write NWB: OUT gets the ending .nwb.")
    ] = False,
    neurons: Annotated[int, typer.Option(min=1, help="Number of neurons.")] = 60,
    latents: Annotated[
        int, typer.Option(min=2, help="2: Van der Pol oscillator; more: chaotic network.")
    ] = 2,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials.")] = 40,
    bins: Annotated[int, typer.Option(min=2, help="Bins of a trial.")] = 100,
    bin_width: Annotated[float, typer.Option(metavar="SECONDS", help="Width of a bin.")] = 0.02,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Make a recording of Poisson neurons with trials, conditions and hand velocity.

    \b
    Examples:
      evkf simulate --out made.nwb
      evkf simulate --nwb --out made.nwb --neurons 100 --latents 8 --seed 3
    """
    options = dict(locals())
    out = out.with_suffix(".nwb") if nwb else out
    check_ending(out, (".nwb", ".npz", *HDF5))
    if not 0 < bin_width < float("inf"):
        raise InputError(f"{bin_width} s", "--bin-width", "pass seconds above zero")
    check_free([out, *json_target(json_file, out)], force)
    recording = simulate_recording(neurons, latents, trials, bins, bin_width, seed)
    claim([out], force)
    if out.suffix == ".nwb":
        recording_to_nwb(out, recording, seed, overwrite=force)
    else:
        write_arrays(out, recording, overwrite=force)
    spikes = int(recording.counts.sum())
    console(quiet, json_file).print(
        f"{counted(trials, 'trial')}, {counted(neurons, 'neuron')}, {spikes} spikes: {out}"
    )
    emit(json_file, result("simulate", options | {"out": out}, spikes=spikes))


def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(DANDI)}.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to fetch into.")] = Path("data"),
    quiet: Quiet = False,
    json_file: Json = None,
    force: ForceJson = False,
    config: Config = None,
) -> None:
    """Say how to get a public recording, and fetch it if the DANDI client is installed.

    \b
    Examples:
      evkf data mc_maze_large
      evkf data mc_maze_large --out recordings

    Exits with 1 if nothing could be fetched.
    """
    if name not in DANDI:
        raise InputError(f"no data set {name!r}", "NAME", f"choose among {', '.join(DANDI)}")
    check_free(json_target(json_file), force)
    number, title = DANDI[name]
    say = console(quiet, json_file)
    say.print(f"{title}: https://dandiarchive.org/dandiset/{number}")
    download = ["download", "--existing", "skip", "--output-dir", str(out), f"DANDI:{number}"]
    client = shutil.which("dandi")
    fetched = False
    if client is None:
        say.print("the DANDI client is not installed; to get the files:\n  pip install dandi")
    else:
        out.mkdir(parents=True, exist_ok=True)
        command = [client, *download]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        fetched = done.returncode == 0
        said = done.stdout.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        say.print(f"fetched into {out}" if fetched else f"DANDI client: {said}\ntry again later:")
    if not fetched:
        say.print(f"  {shlex.join(['dandi', *download])}")
        say.print("or load sub-Jenkins_ses-large_desc-train_behavior+ecephys.nwb from that page")
    emit(json_file, result("data", {"name": name, "out": out}, fetched=fetched))
    if not fetched:
        raise typer.Exit(FELL_SHORT)
