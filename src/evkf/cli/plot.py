"""The command that judges a model on a recording in figures."""

from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evkf.analysis.decoding import decode_ridge, integrate, r2
from evkf.analysis.spike_metrics import Dispersion, dispersion, dispersion_hint, pit
from evkf.cli.console import (
    Config,
    Force,
    Json,
    Quiet,
    Seed,
    check_free,
    claim,
    console,
    emit,
    json_target,
)
from evkf.cli.console import progress_bar as bar
from evkf.cli.options import (
    Align,
    Behaviour,
    Condition,
    File,
    Group,
    LeaveOut,
    MinRate,
    ModelFile,
    ModelWidth,
    Reading,
    Trials,
    Units,
    Window,
    check_spikes,
    load_model,
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
from evkf.recordings.sessions import infer_in_chunks
from evkf.recordings.splits import held_out, in_blocks
from evkf.recordings.units import Inferred, UnitModel, check_units

SHOWN = 500
"""Bins that a raster shows at most."""
KINDS: dict[type, str] = {
    Poisson: "Poisson",
    NegativeBinomial: "negative binomial",
    Bernoulli: "Bernoulli",
}
"""Observations that are judged, in words."""


def plot(
    file: File,
    model_file: ModelFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write into.")],
    condition: Condition = None,
    behaviour: Behaviour = None,
    bin_width: ModelWidth = None,
    align: Align = None,
    window: Window = None,
    min_rate: MinRate = 0.0,
    group: Group = None,
    units: Units = None,
    trials: Trials = None,
    leave_out: LeaveOut = None,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Draw what a model makes of a recording, each figure as PNG and SVG.

    Spikes with rates, latents of single trials, calibration and dispersion of predictions; rates of
    the busiest unit with --condition, decoded reaches with --behaviour of two coordinates: a
    velocity, or a position where an NWB file says that it is one.

    \b
    Examples:
      evkf plot day2.nwb --model model.safetensors --out figures
      evkf plot day2.npz --model model.safetensors --out figures --condition target
    """
    options = dict(locals())
    names = ["raster", "latents", "calibration", "dispersion"]
    names += ["rates"] * (condition is not None) + ["reaches"] * (behaviour is not None)
    files = [out / f"{name}{end}" for name in names for end in (".png", ".svg")]
    check_free([*files, *json_target(json_file, file, model_file, *files)], force)
    say = console(quiet, json_file)
    model = load_model(model_file)
    check_spikes(model, model_file)
    reading = Reading.of(options, model.bin_width)
    recording = reading.read(say, file)
    check_units(model, recording)
    labels = _labels(recording, condition)
    colours = by_condition(labels, recording.num_trials)
    reading.note_trials(say, model, file)
    if behaviour is not None:
        _check_plane(recording, behaviour)
    with bar(say, "filtering") as tell:
        found = infer_in_chunks(model, recording, tell, variance=True)
    spread, values = judge(model, recording, found, seed)
    kind = KINDS[type(model.model.likelihood)]
    rates = np.nan_to_num(recording.rates())
    begin = (window or (0.0, 0.0))[0]
    axes = [
        _raster(recording, found, align, begin),
        latent_paths(new_axes(), found.mean, recording.lengths, labels, _pair(found), colours),
        calibration(new_axes(), values),
        dispersion_check(new_axes(), spread, rates, kind, recording.units["id"]),
    ]
    if condition is not None:
        event = ("trial start", 0.0) if align is None else (align, -begin)
        axes.append(_aligned(recording, found, labels, colours, int(np.argmax(rates)), *event))
    if behaviour is not None:
        axes.append(_reaches(recording, found, labels, colours, behaviour))
    lines = {"latents": {}, "rates": RATES, "reaches": PATHS}
    for name, ax in zip(names, axes, strict=True):
        if name in lines:
            legend(ax, colours, condition, lines[name])
    claim(files, force)
    with bar(say, "drawing") as tell:
        for done, (name, ax) in enumerate(zip(names, axes, strict=True), 1):
            for end in ("png", "svg"):
                with replacing(out / f"{name}.{end}", overwrite=force) as part:
                    cast(Figure, ax.figure).savefig(part, format=end, dpi=200)
            tell(done, len(names))
    hint = dispersion_hint(spread, kind, recording.units["id"])
    say.print(f"{hint}\nwritten: {', '.join(map(str, files))}")
    written = [str(path) for path in files]
    emit(json_file, result("plot", options | {"bin_width": reading.bin_width}, written=written))


def judge(
    model: UnitModel, recording: Recording, found: Inferred, seed: int
) -> tuple[Dispersion, np.ndarray]:
    """Dispersion of units and calibration of counts, by the mean and variance predicted of them.

    Units without spikes have no dispersion: there is nothing in them that could vary.
    """
    counts, masks = recording.observed, recording.masks
    mean, variance = found.predicted, found.variance
    silent = counts.sum(axis=0) == 0
    spread = Dispersion(
        *(np.where(silent, np.nan, x) for x in dispersion(counts, mean, masks, variance))
    )
    if isinstance(model.model.likelihood, Bernoulli):
        return spread, pit(counts, np.stack([1 - mean, mean], axis=-1), masks, seed=seed)
    return spread, pit(counts, mean, masks, variance, seed)


def _labels(recording: Recording, condition: str | None) -> np.ndarray:
    if condition is None:
        return np.zeros(recording.num_trials, int)
    check_known("column", condition, recording.trials, f"{recording.source}: trials")
    return recording.trials[condition]


def _pair(found: Inferred) -> tuple[int, int]:
    return 0, min(1, found.mean.shape[1] - 1)


def _raster(recording: Recording, found: Inferred, align: str | None, begin: float) -> Axes:
    """The first trial, in time from what trials are aligned to, else in that of the session."""
    rows = slice(0, min(recording.lengths[0], SHOWN))
    start = float(recording.start_times[0]) if align is None else begin
    counts, width, ids = recording.observed[rows], recording.bin_width, recording.units["id"]
    ax = raster(new_axes(6.5, 4.0), counts, found.rates[rows], width, start, ids, align)
    if recording.num_trials > 1:
        trial = recording.trials.get("id", np.zeros(1, int))[0]
        _name(ax, f"Trial {trial}")
    return ax


def _aligned(
    recording: Recording,
    found: Inferred,
    labels: np.ndarray,
    colours: Colours,
    unit: int,
    event: str,
    when: float,
) -> Axes:
    events = np.full(recording.num_trials, when)
    ax = aligned_rates(
        new_axes(),
        found.rates[:, unit],
        recording.lengths,
        labels,
        recording.bin_width,
        events,
        event,
        colours,
        np.where(recording.masks, recording.counts, np.nan)[:, unit] / recording.bin_width,
    )
    _name(ax, f"Unit {recording.units['id'][unit]}")
    return ax


def _name(ax: Axes, what: str) -> None:
    """Say what the axes are of before what they show."""
    title = ax.get_title("left")
    _entitle(ax, f"{what}: {title[0].lower()}{title[1:]}")


def _entitle(ax: Axes, title: str) -> None:
    ax.set_title(title, loc="left", size=9.5, weight="bold")


def _name_of(behaviour: str) -> str:
    """By which a recording has a series, whatever its path in the file."""
    return behaviour.rpartition("/")[2]


def _check_plane(recording: Recording, behaviour: str) -> None:
    """Refuse, before anything is computed, behaviour that cannot be drawn as reaches."""
    name = _name_of(behaviour)
    values, what = recording.behaviour[name], None
    if values.shape != (recording.num_bins, 2) or not np.isfinite(values).all():
        what = f"shape {values.shape}, or NaN"
    elif not np.ptp(values, axis=0).all():
        what = "a coordinate that never changes"
    if what is not None:
        remedy = "name a velocity or position of two coordinates that covers the trials"
        raise InputError(what, f"{recording.source}: behaviour {name!r}", remedy)


def _reaches(
    recording: Recording, found: Inferred, labels: np.ndarray, colours: Colours, behaviour: str
) -> Axes:
    """Of half of the trials, decoded by what the others taught."""
    name = _name_of(behaviour)
    values, about = recording.behaviour[name], recording.series.get(name, Series())
    what = "trials" if recording.num_trials > 1 else "blocks"
    recording = in_blocks(recording)
    labels = np.resize(labels, recording.num_trials)  # blocks of one trial are of its condition
    held = held_out(recording.num_trials, 2)
    test = np.repeat(held, recording.lengths)
    groups = recording.trial_of_bin
    decoded = decode_ridge(found.mean[~test], values[~test], groups[~test], found.mean[test])
    tested = recording.take(np.flatnonzero(held))
    lengths, width, own = tested.lengths, recording.bin_width, labels[held]
    true, unit, ax = values[test], about.of_path, new_axes()
    if about.velocity:
        paths = integrate(true, width, lengths, np.zeros((len(lengths), 2)))
        reaches(ax, paths, decoded, lengths, own, width, unit, colours)
    else:
        decoded_paths(ax, true, decoded, lengths, own, unit, colours)
    share = f"R² {r2(true, decoded):.2f}, {len(lengths)} {what} the decoder has not seen"
    _entitle(ax, f"{ax.get_title('left')}\n{share}")
    return ax
