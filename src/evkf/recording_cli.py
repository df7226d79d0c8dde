"""Commands on recordings: look at one, make one, fit a model, get data."""

import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from evkf.console import Config, Force, Json, Quiet, Seed, claim, console, emit, json_target
from evkf.console import progress_bar as bar
from evkf.data import recording_to_nwb, write_arrays
from evkf.data.arrays import HDF5
from evkf.data.describe import describe
from evkf.dimension import suggest_latents
from evkf.errors import InputError
from evkf.filter_cli import run_filter
from evkf.recording_options import (
    Align,
    Behaviour,
    BinWidth,
    File,
    MinRate,
    Reading,
    Window,
    check_ending,
    result,
)
from evkf.score_cli import plot, score
from evkf.simulation import simulate_recording
from evkf.units import fit_recording

FELL_SHORT = 1
DANDI = {"mc_maze_large": ("000138", "MC_Maze_Large of the Neural Latents Benchmark")}
LIKELIHOODS = ("poisson", "negative_binomial", "bernoulli", "gaussian")


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    for command in (info, simulate, fit, run_filter, score, plot, data):
        app.command(command.__name__.removeprefix("run_"))(command)


def info(
    file: File,
    bin_width: BinWidth = None,
    force: Force = False,
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
    claim(json_target(json_file), force)
    found = describe(file, bin_width)
    say = console(quiet, json_file)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.items():
        if name == "rates":
            value = ", ".join(f"{key} {x:.3g} Hz" for key, x in value.items())
        elif name == "behaviour":
            value = ", ".join(f"{key} {tuple(shape)}" for key, shape in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        elif name in ("duration", "bin_width"):
            value = f"{value:g} s"
        table.add_row(name.replace("_", " "), str(value) or "none")
    say.print(table)
    emit(json_file, found)


def simulate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Ends in .nwb, .npz or .h5.")] = Path(
        "simulated.npz"
    ),
    nwb: Annotated[bool, typer.Option("--nwb", help="Write NWB whatever the ending.")] = False,
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
    claim([out, *json_target(json_file)], force)
    recording = simulate_recording(neurons, latents, trials, bins, bin_width, seed)
    if out.suffix == ".nwb":
        recording_to_nwb(out, recording, seed, overwrite=force)
    else:
        write_arrays(out, recording, overwrite=force)
    spikes = int(recording.counts.sum())
    console(quiet, json_file).print(f"{trials} trials, {neurons} neurons, {spikes} spikes: {out}")
    emit(json_file, result("simulate", options | {"out": out}, spikes=spikes))


def fit(
    file: File,
    out: Annotated[Path, typer.Option(metavar="MODEL", help="Ends in .safetensors.")],
    latents: Annotated[
        int | None, typer.Option(min=1, help="Latent dimensions.", show_default="suggested")
    ] = None,
    likelihood: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(LIKELIHOODS)}.")
    ] = "poisson",
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units of the dynamics.")] = 64,
    passes: Annotated[
        int | None,
        typer.Option(min=1, help="Times to go through the recording.", show_default="by its size"),
    ] = None,
    bin_width: BinWidth = None,
    align: Align = None,
    window: Window = None,
    min_rate: MinRate = 0.0,
    behaviour: Behaviour = None,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Learn a model of a recording: readout, dynamics, noise and initial state.

    Without --latents, numbers of latent dimensions are tried on a fifth of the trials, with fewer
    passes, and the best is taken.

    \b
    Examples:
      evkf fit day1.nwb --out model.safetensors --align move_onset_time --window -0.25 0.45
      evkf fit counts.npz --out model.safetensors --latents 8 --likelihood negative_binomial
      evkf fit day1.nwb --config fit.toml
    """
    options = dict(locals())
    check_ending(out, (".safetensors",))
    if likelihood not in LIKELIHOODS:
        remedy = f"choose among {', '.join(LIKELIHOODS)}"
        raise InputError(f"unknown likelihood {likelihood!r}", "--likelihood", remedy)
    claim([out, *json_target(json_file)], force)
    say = console(quiet, json_file)
    recording = Reading(bin_width, align, window, behaviour, min_rate).read(say, file)
    scores: dict[int, float] = {}
    if latents is None:
        say.print("latents  held-out nats per bin")
        few = None if passes is None else max(passes // 4, 1)
        latents, scores = suggest_latents(
            recording,
            likelihood=likelihood,
            hidden=hidden,
            passes=few,
            seed=seed,
            progress=lambda number, found: say.print(f"{number:7d}  {found:.4f}"),
        )
        say.print(f"taking {latents} latents")
    with bar(say, "fitting") as tell:
        model = fit_recording(
            recording,
            latents,
            likelihood,
            hidden=hidden,
            passes=passes,
            seed=seed,
            progress=tell,
        )
    model.save(out)
    size = f"{recording.num_units} units, {recording.num_trials} trials, {recording.num_bins} bins"
    say.print(f"{latents} latents of {size}: {out}")
    resolved = options | {"latents": latents, "bin_width": recording.bin_width}
    emit(json_file, result("fit", resolved, scores={str(k): x for k, x in scores.items()}))


def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(DANDI)}.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to fetch into.")] = Path("data"),
    quiet: Quiet = False,
    json_file: Json = None,
    force: Force = False,
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
    claim(json_target(json_file), force)
    number, title = DANDI[name]
    say = console(quiet, json_file)
    say.print(f"{title}: https://dandiarchive.org/dandiset/{number}")
    client = shutil.which("dandi")
    fetched = False
    if client is None:
        say.print("the DANDI client is not installed; to get the files:\n  pip install dandi")
    else:
        out.mkdir(parents=True, exist_ok=True)
        command = [client, "download", "--output-dir", str(out), f"DANDI:{number}"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        fetched = done.returncode == 0
        say.print(f"fetched into {out}" if fetched else "DANDI did not answer; try again later:")
    if not fetched:
        say.print(f"  dandi download --output-dir {out} DANDI:{number}")
        say.print("or load sub-Jenkins_ses-large_desc-train_behavior+ecephys.nwb from that page")
    emit(json_file, result("data", {"name": name, "out": out}, fetched=fetched))
    if not fetched:
        raise typer.Exit(FELL_SHORT)
