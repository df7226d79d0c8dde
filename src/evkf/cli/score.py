"""The command `evkf score`: the scores of a model on a recording, and those of baselines.

Bits per spike are computed by `evkf.analysis.spike_metrics.bits_per_spike`, which the methods
`one_step` and `co_smoothing` of `evkf.recordings.halves.Halves` call.
"""

from rich.table import Column, Table

from evkf.cli.console import (
    Behaviour,
    Condition,
    File,
    ModelFile,
    ModelReadingOptions,
    RunJson,
    Seed,
    expanded,
    flatten,
    note_trials,
    open_to_judge,
    progress_bar,
    result,
)
from evkf.recordings.halves import halved
from evkf.recordings.scoring import score_recording
from evkf.recordings.units import trials_seen


@expanded
def score(
    file: File,
    model_file: ModelFile,
    condition: Condition = None,
    behaviour: Behaviour = None,
    *,
    reading: ModelReadingOptions,
    seed: Seed = 0,
    run: RunJson,
) -> None:
    """Score a model on half of the trials, and baselines that learn from the other half.

    The scores are bits per spike for counts predicted one bin ahead; bits per spike for a quarter
    of the units, held out and predicted from the other units (co-smoothing); with --condition, R²
    of averages over the trials of each condition; with --behaviour, R² of behaviour decoded from
    rates and from latents. The baselines are the same filter with a random walk as dynamics, GPFA,
    a linear system, causal smoothing, a Wiener filter and, with --condition, the average of the
    condition. The command reports how many of the scored trials the model was fitted to. To have
    none, fit the model with --held-out, or to another recording.

    \b
    Examples:
      evkf score day2.nwb --model model.safetensors
      evkf score day2.npz --model model.safetensors --condition target --behaviour hand_vel
    """
    options = flatten(locals())
    say = run.start((), file, model_file)
    model, recording, settings = open_to_judge(say, file, model_file, reading, behaviour)
    blocks, judged = halved(recording)
    seen = {
        "judged_trials": int(judged.sum()),
        "fitted_trials": int(trials_seen(model, blocks)[judged].sum()),
    }
    note_trials(say, settings, model, file)
    say.print("scoring the model and its baselines, one by one")
    with progress_bar(say, "scored") as tell:
        rows = score_recording(model, recording, condition, behaviour, seed, tell)
    shown = headings(condition, behaviour)
    method = Column("method", no_wrap=True)
    table = Table(method, *shown.values(), box=None, pad_edge=False)
    for row in rows:
        cells = (getattr(row, name) for name in shown)
        table.add_row(row.method, *("—" if x is None else f"{x:.3f}" for x in cells))
    say.print(table)
    say.print(f"judged on {seen['judged_trials']} of {blocks.num_trials} trials")
    if seen["fitted_trials"]:
        share = f"{seen['fitted_trials']} of the {seen['judged_trials']} held-out trials"
        say.print(f"fitted to {share}: the row of eVKF includes trials that it was fitted to")
    scores = [row._asdict() for row in rows]
    resolved = options | {"bin_width": settings.bin_width}
    run.emit(result("score", resolved, **seen, scores=scores))


def headings(condition: str | None, behaviour: str | None) -> dict[str, str]:
    """Return headings of the table by field of `Score`, for the scores that are computed.

    Headings are broken into lines, so that the table fits 80 characters.

    Example:
        >>> list(headings(None, "hand_vel"))
        ['one_step', 'co_smoothing', 'rates_r2', 'latents_r2']
    """
    shown = {
        "one_step": "one bin\nahead,\nbits/spike",
        "co_smoothing": "held-out\nunits,\nbits/spike",
    }
    if condition is not None:
        shown["psth"] = f"{condition}\naverages,\nR²"
    if behaviour is not None:
        name = behaviour.rpartition("/")[2]
        shown |= {f"{part}_r2": f"{name}\nR² from\n{part}" for part in ("rates", "latents")}
    return shown
