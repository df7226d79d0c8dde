"""The command `evkf fit`, which fits a model to a recording."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from evkf.cli.console import (
    File,
    ReadingOptions,
    Run,
    Seed,
    check_ending,
    claim,
    config_file,
    counted,
    cut_of_trials,
    describe_trials,
    expanded,
    flatten,
    note,
    progress_bar,
    read_noting,
    read_settings,
    result,
    write_json,
)
from evkf.errors import InputError
from evkf.learning.warm_up import KINDS
from evkf.numerics.checks import first_of
from evkf.recordings.dimension import Difference, possible_latents, suggest_latents
from evkf.recordings.halves import halved
from evkf.recordings.units import fit_recording, passes_for

LIKELIHOODS = tuple(KINDS)


@dataclass(frozen=True)
class FitOptions:
    """Options of `evkf fit`: the model, and how to learn it."""

    out: Annotated[Path, typer.Option(metavar="MODEL", help="Ends in .safetensors.")]
    latents: Annotated[
        int | None, typer.Option(min=1, help="Latent dimensions.", show_default="suggested")
    ] = None
    likelihood: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(LIKELIHOODS)}.")
    ] = "poisson"
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units of the dynamics.")] = 64
    passes: Annotated[
        int | None,
        typer.Option(min=1, help="Passes over the recording.", show_default="by its size"),
    ] = None
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Leave out the held-out trials of `evkf score`.")
    ] = False


@expanded
def fit(
    file: File,
    learning: FitOptions,
    reading: ReadingOptions,
    *,
    seed: Seed = 0,
    run: Run,
) -> None:
    """Learn a model of a recording: readout, dynamics, noise and initial state.

    Without --latents, models with several numbers of latent dimensions are fitted to four fifths
    of the trials, with fewer passes than the final fit, and scored on the remaining trials. The
    smallest number whose score is within one standard error of the best score is used. The options
    are written to MODEL.config.json.

    \b
    Examples:
      evkf fit day1.nwb --out model.safetensors --align move_onset_time --window -0.25 0.45
      evkf fit day1.nwb --out model.safetensors --align start_time --held-out
      evkf fit counts.npz --out model.safetensors --latents 8 --likelihood negative_binomial
      evkf fit day1.nwb --config fit.toml
    """
    options = flatten(locals())
    out, latents, likelihood = learning.out, learning.latents, learning.likelihood
    hidden, passes = learning.hidden, learning.passes
    check_ending(out, (".safetensors",))
    if likelihood not in LIKELIHOODS:
        remedy = f"choose among {', '.join(LIKELIHOODS)}"
        raise InputError(f"unknown likelihood {likelihood!r}", "--likelihood", remedy)
    outputs = [out, config_file(out)]
    say = run.start(outputs, file)
    settings = read_settings(reading, signals=likelihood == "gaussian")
    recording = read_noting(say, file, settings)
    silent = recording.units["id"][~recording.observed.any(axis=0)]
    if learning.held_out:
        blocks, judged = halved(recording)
        recording = blocks.take(np.flatnonzero(~judged))
    if len(silent) and likelihood != "gaussian":
        have, them = ("has", "it") if len(silent) == 1 else ("have", "them")
        share = f"{len(silent)} of {counted(recording.num_units, 'unit')} ({first_of(silent)})"
        note(say, f"{share} {have} no spikes in these trials; --min-rate 0.1 leaves {them} out")
    scores: dict[int, float] = {}
    behind: dict[int, Difference] = {}
    if latents is None:
        tried = ", ".join(map(str, possible_latents(recording)))
        say.print(f"trying {tried} latents on held-out trials; --latents N goes straight to one")
        say.print("latents  held-out nats per bin")
        few = None if passes is None else max(passes // 4, 1)
        latents, scores, behind = suggest_latents(
            recording,
            likelihood=likelihood,
            hidden=hidden,
            passes=few,
            seed=seed,
            progress=lambda number, found: say.print(f"{number:7d}  {found:.4f}"),
        )
        best = max(scores, key=lambda number: scores[number])
        for number, short in behind.items():
            if number != best:
                error = f" ± {short.error:.4f}" if short.error else ""
                say.print(f"{number} falls short of {best} by {short.mean:.4f}{error} nats per bin")
        near = "" if latents == best else f", within one standard error of the best, {best}"
        say.print(f"taking {latents} latents{near}")
    passes = passes_for(recording) if passes is None else passes
    with progress_bar(say, "fitting") as tell:
        model = fit_recording(
            recording,
            latents,
            likelihood,
            hidden=hidden,
            passes=passes,
            seed=seed,
            progress=tell,
        )
    found = {"latents": latents, "passes": passes, "bin_width": recording.bin_width}
    resolved = result("fit", options | found)
    claim(outputs, run.force)
    model._replace(fitted={**(model.fitted or {}), **cut_of_trials(settings, file)}).save(out)
    write_json(outputs[1], resolved)
    size = f"{counted(recording.num_units, 'unit')}, {counted(recording.num_trials, 'trial')}, "
    size += f"{counted(recording.num_bins, 'bin')} of {recording.bin_width * 1e3:g} ms"
    if settings.window is not None:
        size += f", {describe_trials(settings.align, settings.window)}"
    say.print(f"{counted(latents, 'latent')} of {size}: {out}")
    tried_scores = {str(k): x for k, x in scores.items()}
    tried_behind = {str(k): short._asdict() for k, short in behind.items()}
    run.emit(resolved | {"scores": tried_scores, "behind": tried_behind})
