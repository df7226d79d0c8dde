"""The command `evkf plot`: figures of a recording and of a model's estimates of it."""

from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evkf.analysis.decoding import decode_ridge, integrate, r2
from evkf.analysis.estimates import Estimates
from evkf.analysis.spike_metrics import Dispersion, dispersion, dispersion_hint, pit
from evkf.cli.console import (
    Behaviour,
    Condition,
    File,
    ModelFile,
    ModelReadingOptions,
    Run,
    Seed,
    claim,
    expanded,
    flatten,
    note_trials,
    open_to_judge,
    progress_bar,
    result,
)
from evkf.data import Recording, Series
from evkf.data.files import replacing
from evkf.errors import InputError
from evkf.likelihoods import Bernoulli, NegativeBinomial, Poisson
from evkf.numerics.checks import check_known
from evkf.plotting.colours import Colours
from evkf.plotting.recordings import (
    PATHS,
    RATES,
    Event,
    aligned_rates,
    by_condition,
    calibration,
    decoded_paths,
    dispersion_check,
    latent_paths,
    legend,
    new_axes,
    raster,
    reaches,
)
from evkf.recordings.halves import held_out, in_blocks
from evkf.recordings.units import UnitModel, infer

SHOWN = 500
"""Most bins in the plot of spikes and rates."""
KINDS: dict[type, str] = {
    Poisson: "Poisson",
    NegativeBinomial: "negative binomial",
    Bernoulli: "Bernoulli",
}
"""Names, in text, of the likelihoods whose predictions can be plotted."""

TITLE: dict[str, Any] = {"loc": "left", "size": 9.5, "weight": "bold"}
"""Position and font of titles."""


@expanded
def plot(
    file: File,
    model_file: ModelFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write into.")],
    condition: Condition = None,
    behaviour: Behaviour = None,
    *,
    reading: ModelReadingOptions,
    seed: Seed = 0,
    run: Run,
) -> None:
    """Plot the estimates of a model for a recording; each figure is written as PNG and SVG.

    The figures show spikes with rates, latents of single trials, and calibration and dispersion of
    predicted counts. With --condition, a figure shows the rates of the unit with the highest rate
    for each condition. With --behaviour, a figure shows decoded reaches. The behaviour must have
    two coordinates. It is taken as a velocity, unless an NWB file marks it as a position.

    \b
    Examples:
      evkf plot day2.nwb --model model.safetensors --out figures
      evkf plot day2.npz --model model.safetensors --out figures --condition target
    """
    options = flatten(locals())
    names = ["raster", "latents", "calibration", "dispersion"]
    names += ["rates"] * (condition is not None) + ["reaches"] * (behaviour is not None)
    files = [out / f"{name}{end}" for name in names for end in (".png", ".svg")]
    say = run.start(files, file, model_file)
    model, recording, settings = open_to_judge(say, file, model_file, reading, behaviour)
    labels = np.zeros(recording.num_trials, int)
    if condition is not None:
        check_known("column", condition, recording.trials, f"{recording.source}: trials")
        labels = recording.trials[condition]
    colours = by_condition(labels, recording.num_trials)
    note_trials(say, settings, model, file)
    if behaviour is not None:
        _check_plane(recording, behaviour)
    with progress_bar(say, "filtering") as tell:
        estimates = infer(model, recording, variance=True, progress=tell)
    spread, values = judge(model, recording, estimates, seed)
    kind = KINDS[type(model.model.likelihood)]
    rates = np.nan_to_num(recording.rates())
    pair = 0, min(1, estimates.mean.shape[1] - 1)
    begin = (settings.window or (0.0, 0.0))[0]
    axes = [
        _raster(recording, estimates, settings.align, begin),
        latent_paths(new_axes(), estimates.mean, recording.lengths, labels, pair, colours),
        calibration(new_axes(), values),
        dispersion_check(new_axes(), spread, rates, kind, recording.units["id"]),
    ]
    if condition is not None:
        name, when = ("trial start", 0.0) if settings.align is None else (settings.align, -begin)
        event = Event(np.full(recording.num_trials, when), name)
        axes.append(_aligned(recording, estimates, labels, colours, int(np.argmax(rates)), event))
    if behaviour is not None:
        axes.append(_reaches(recording, estimates, labels, colours, behaviour))
    lines = {"latents": {}, "rates": RATES, "reaches": PATHS}
    for name, ax in zip(names, axes, strict=True):
        if name in lines:
            legend(ax, colours, condition, lines[name])
    claim(files, run.force)
    with progress_bar(say, "drawing") as tell:
        for done, (name, ax) in enumerate(zip(names, axes, strict=True), 1):
            for end in ("png", "svg"):
                with replacing(out / f"{name}.{end}", overwrite=run.force) as part:
                    cast(Figure, ax.figure).savefig(part, format=end, dpi=200)
            tell(done, len(names))
    hint = dispersion_hint(spread, kind, recording.units["id"])
    say.print(f"{hint}\nwritten: {', '.join(map(str, files))}")
    written = [str(path) for path in files]
    run.emit(result("plot", options | {"bin_width": settings.bin_width}, written=written))


def judge(
    model: UnitModel, recording: Recording, estimates: Estimates, seed: int
) -> tuple[Dispersion, np.ndarray]:
    """Return how well the predicted means and variances fit the counts.

    The results are the dispersion of each unit (NaN without spikes), and the calibration values
    (probability integral transform) of the counts, which are uniform for perfect predictions.
    """
    counts, masks = recording.observed, recording.masks
    mean, variance = estimates.predicted, estimates.variance
    assert mean is not None
    silent = counts.sum(axis=0) == 0
    spread = Dispersion(
        *(np.where(silent, np.nan, x) for x in dispersion(counts, mean, masks, variance))
    )
    if isinstance(model.model.likelihood, Bernoulli):
        return spread, pit(counts, np.stack([1 - mean, mean], axis=-1), masks, seed=seed)
    return spread, pit(counts, mean, masks, variance, seed)


def _raster(recording: Recording, estimates: Estimates, align: str | None, begin: float) -> Axes:
    """Plot spikes and rates of the first trial, at most `SHOWN` bins, and return the axes.

    Time is in seconds from the event that the trial is aligned to, or of the session.
    """
    assert estimates.rates is not None
    rows = slice(0, min(recording.lengths[0], SHOWN))
    start = float(recording.start_times[0]) if align is None else begin
    counts, width, ids = recording.observed[rows], recording.bin_width, recording.units["id"]
    ax = raster(new_axes(6.5, 4.0), counts, estimates.rates[rows], width, start, ids, align)
    if recording.num_trials > 1:
        trial = recording.trials.get("id", np.zeros(1, int))[0]
        _name(ax, f"Trial {trial}")
    return ax


def _aligned(
    recording: Recording,
    estimates: Estimates,
    labels: np.ndarray,
    colours: Colours,
    unit: int,
    event: Event,
) -> Axes:
    assert estimates.rates is not None
    ax = aligned_rates(
        new_axes(),
        estimates.rates[:, unit],
        recording.lengths,
        labels,
        recording.bin_width,
        event,
        colours,
        np.where(recording.masks, recording.counts, np.nan)[:, unit] / recording.bin_width,
    )
    _name(ax, f"Unit {recording.units['id'][unit]}")
    return ax


def _name(ax: Axes, what: str) -> None:
    """Put the name of what is shown before the title of a plot."""
    title = ax.get_title("left")
    ax.set_title(f"{what}: {title[0].lower()}{title[1:]}", **TITLE)


def _check_plane(recording: Recording, behaviour: str) -> None:
    """Raise InputError if behaviour cannot be plotted as reaches in a plane.

    The behaviour must be an array (bins, 2) of finite values, and both coordinates must change.
    """
    name = behaviour.rpartition("/")[2]
    values, what = recording.behaviour[name], None
    if values.shape != (recording.num_bins, 2) or not np.isfinite(values).all():
        what = f"shape {values.shape}, or NaN"
    elif not np.ptp(values, axis=0).all():
        what = "a coordinate that never changes"
    if what is not None:
        remedy = "name a velocity or position of two coordinates that covers the trials"
        raise InputError(what, f"{recording.source}: behaviour {name!r}", remedy)


def _reaches(
    recording: Recording, estimates: Estimates, labels: np.ndarray, colours: Colours, behaviour: str
) -> Axes:
    """Plot true and decoded reaches of half of the trials, and return the axes.

    Ridge regression from latents to behaviour is fitted to the other half.
    """
    name = behaviour.rpartition("/")[2]
    values, about = recording.behaviour[name], recording.series.get(name, Series())
    what = "trials" if recording.num_trials > 1 else "blocks"
    recording = in_blocks(recording)
    labels = np.resize(labels, recording.num_trials)  # blocks have the condition of their trial
    held = held_out(recording.num_trials, 2)
    test = np.repeat(held, recording.lengths)
    groups = recording.trial_of_bin
    mean = estimates.mean
    decoded = decode_ridge(mean[~test], values[~test], groups[~test], mean[test])
    tested = recording.take(np.flatnonzero(held))
    lengths, width, own = tested.lengths, recording.bin_width, labels[held]
    true, unit, ax = values[test], about.of_path, new_axes()
    if about.velocity:
        paths = integrate(true, width, lengths, np.zeros((len(lengths), 2)))
        reaches(ax, paths, decoded, lengths, own, width, unit, colours)
    else:
        decoded_paths(ax, true, decoded, lengths, own, unit, colours)
    share = f"R² {r2(true, decoded):.2f}, {len(lengths)} {what} the decoder has not seen"
    ax.set_title(f"{ax.get_title('left')}\n{share}", **TITLE)
    return ax
