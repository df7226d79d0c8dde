"""The commands `evkf info`, `simulate` and `data`: describe, simulate or download a recording."""

import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from evkf.cli.console import (
    FELL_SHORT,
    BinWidth,
    File,
    Group,
    LeaveOut,
    Run,
    RunJson,
    Seed,
    check_ending,
    claim,
    counted,
    expanded,
    flatten,
    result,
)
from evkf.data import describe, recording_to_nwb, write_arrays
from evkf.data.files import HDF5
from evkf.errors import InputError
from evkf.numerics.checks import first_of
from evkf.recordings.simulation import simulate_recording

DANDI = {"mc_maze_large": ("000138", "MC_Maze_Large of the Neural Latents Benchmark")}


@expanded
def info(
    file: File,
    bin_width: BinWidth = None,
    group: Group = None,
    leave_out: LeaveOut = None,
    *,
    run: RunJson,
) -> None:
    """Print what is in a recording: units, duration, trials, behaviour, rates.

    \b
    Examples:
      evkf info day1.nwb
      evkf info counts.csv --bin-width 0.02 --json -
    """
    options = flatten(locals())
    say = run.start((), file)
    skipped = leave_out or ()
    found = describe(file, bin_width=bin_width, groups=group, leave_out=skipped)
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
    run.emit(result("info", options, **found))


@dataclass(frozen=True)
class Simulation:
    """Options of `evkf simulate` that describe the recording."""

    neurons: Annotated[int, typer.Option(min=1, help="Number of neurons.")] = 60
    latents: Annotated[
        int, typer.Option(min=2, help="2: Van der Pol oscillator; more: chaotic network.")
    ] = 2
    trials: Annotated[int, typer.Option(min=1, help="Number of trials.")] = 40
    bins: Annotated[int, typer.Option(min=2, help="Bins of a trial.")] = 100
    bin_width: Annotated[float, typer.Option(metavar="SECONDS", help="Width of a bin.")] = 0.02
    seed: Seed = 0


@expanded
def simulate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Ends in .nwb, .npz or .h5.")] = Path(
        "simulated.npz"
    ),
    nwb: Annotated[
        bool, typer.Option("--nwb", help="Write NWB: OUT gets the ending .nwb.")
    ] = False,
    *,
    simulation: Simulation,
    run: Run,
) -> None:
    """Simulate a recording of Poisson neurons with trials, conditions and hand velocity.

    \b
    Examples:
      evkf simulate --out made.nwb
      evkf simulate --nwb --out made.nwb --neurons 100 --latents 8 --seed 3
    """
    options = flatten(locals())
    out = out.with_suffix(".nwb") if nwb else out
    check_ending(out, (".nwb", ".npz", *HDF5))
    if not 0 < simulation.bin_width < float("inf"):
        raise InputError(f"{simulation.bin_width} s", "--bin-width", "pass seconds above zero")
    say = run.start([out])
    recording = simulate_recording(**vars(simulation))
    claim([out], run.force)
    if out.suffix == ".nwb":
        recording_to_nwb(out, recording, simulation.seed, overwrite=run.force)
    else:
        write_arrays(out, recording, overwrite=run.force)
    spikes = int(recording.counts.sum())
    size = f"{counted(simulation.trials, 'trial')}, {counted(simulation.neurons, 'neuron')}"
    say.print(f"{size}, {spikes} spikes: {out}")
    run.emit(result("simulate", options | {"out": out}, spikes=spikes))


@expanded
def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(DANDI)}.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to fetch into.")] = Path("data"),
    *,
    run: RunJson,
) -> None:
    """Print how to get a public recording, and download it if the DANDI client is installed.

    \b
    Examples:
      evkf data mc_maze_large
      evkf data mc_maze_large --out recordings

    Exits with 1 if nothing could be fetched.
    """
    if name not in DANDI:
        raise InputError(f"no data set {name!r}", "NAME", f"choose among {', '.join(DANDI)}")
    say = run.start(())
    number, title = DANDI[name]
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
        last = done.stdout.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        say.print(f"fetched into {out}" if fetched else f"DANDI client: {last}\ntry again later:")
    if not fetched:
        say.print(f"  {shlex.join(['dandi', *download])}")
        say.print("or load sub-Jenkins_ses-large_desc-train_behavior+ecephys.nwb from that page")
    run.emit(result("data", {"name": name, "out": out}, fetched=fetched))
    if not fetched:
        raise typer.Exit(FELL_SHORT)
