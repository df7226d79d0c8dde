"""The command that judges a model on a recording in numbers."""

from rich.table import Table

from evkf.commands.console import (
    Config,
    Force,
    Json,
    Quiet,
    Seed,
    claim,
    console,
    emit,
    json_target,
)
from evkf.commands.console import progress_bar as bar
from evkf.commands.options import (
    Align,
    Behaviour,
    Condition,
    File,
    Group,
    MinRate,
    ModelFile,
    ModelWidth,
    Reading,
    Trials,
    Units,
    Window,
    load_model,
    result,
)
from evkf.scoring import score_recording
from evkf.units import check_units

HEADINGS = ("method", "one step", "co-smoothing", "PSTH R²", "rates R²", "latents R²")


def score(
    file: File,
    model_file: ModelFile,
    condition: Condition = None,
    behaviour: Behaviour = None,
    bin_width: ModelWidth = None,
    align: Align = None,
    window: Window = None,
    min_rate: MinRate = 0.0,
    group: Group = None,
    units: Units = None,
    trials: Trials = None,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Score a model on half of the trials, beside baselines that learn from the others.

    One step and co-smoothing are bits per spike: of counts one bin ahead, and of a quarter of the
    units from the rest. Behaviour is decoded from rates and from latents. Baselines are the same
    filter with a random walk for dynamics, GPFA, a linear system, causal smoothing, a Wiener filter
    and, with --condition, the average of the condition. If the model was fitted to these very
    trials, its row is of what it has seen.

    \b
    Examples:
      evkf score day2.nwb --model model.safetensors
      evkf score day2.npz --model model.safetensors --condition target --behaviour hand_vel
    """
    options = dict(locals())
    claim(json_target(json_file), force)
    say = console(quiet, json_file)
    model = load_model(model_file)
    reading = Reading.of(options, model.bin_width)
    recording = reading.read(say, file)
    check_units(model, recording)
    with bar(say, "scoring") as tell:
        rows = score_recording(model, recording, condition, behaviour, seed, tell)
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.method, *("—" if x is None else f"{x:.3f}" for x in row[1:]))
    say.print(table)
    scores = [row._asdict() for row in rows]
    emit(json_file, result("score", options | {"bin_width": reading.bin_width}, scores=scores))
