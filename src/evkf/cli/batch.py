"""Many recordings filtered at once, and how what was inferred of one is written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from evkf.cli.console import (
    check_free,
    claim,
    config_file,
    console,
    counted,
    emit,
    json_target,
    write_config,
)
from evkf.cli.console import progress_bar as bar
from evkf.cli.options import Reading, check_ending, load_model, noting, result
from evkf.data import Recording, Results, write_nwb
from evkf.data.arrays import HDF5
from evkf.data.estimates import write_estimates
from evkf.data.nwb_write import check_source
from evkf.errors import InputError
from evkf.recordings.sessions import infer_many, to_estimates
from evkf.recordings.units import Inferred, check_units

FORMATS = ("nwb", "npz", "h5")


def filter_batch(
    files: Sequence[Path], model_file: Path, folder: Path, options: dict[str, Any]
) -> None:
    """Filter files with one model; all of them are read and checked before any is written."""
    targets = _targets(files, folder, options["format"])
    for target in targets:
        check_ending(target, [f".{format}" for format in FORMATS])
    force, json_file = options["force"], options["json_file"]
    outputs = [path for target in targets for path in (target, config_file(target))]
    check_free([*outputs, *json_target(json_file, *files, model_file, *outputs)], force)
    say = console(options["quiet"], json_file)
    model = load_model(model_file)
    reading = Reading.of(options, model.bin_width)
    recordings: list[Recording] = []
    with bar(say, "reading") as tell:
        for file, target in zip(files, targets, strict=True):
            recording = reading.read(say, file, model.signals)
            check_units(model, recording)
            if target.suffix == ".nwb":
                check_source(target, recording, force)
            recordings.append(recording)
            tell(len(recordings), len(files))
    for file in files:
        reading.note_trials(say, model, file)
    with bar(say, "filtering"):
        every = infer_many(model, recordings)
    claim(outputs, force)
    options = options | {"bin_width": reading.bin_width}
    rows = []
    for file, target, recording, found in zip(files, targets, recordings, every, strict=True):
        with noting(say):
            write_found(target, recording, found, force, model.signals)
        write_config(target, result("filter", alone(options, file) | {"out": target}))
        bins, mean = recording.num_bins, float(found.elbo.mean())
        rows.append({"file": str(file), "out": str(target), "bins": bins, "elbo_per_bin": mean})
        size = summary(recording.num_trials, found.mean.shape[1], bins, mean)
        say.print(f"{file}: {size}: {target}")
    device = jax.devices()[0].device_kind
    bins = sum(row["bins"] for row in rows)
    say.print(f"{counted(len(rows), 'recording')}, {bins} bins, on {device}")
    emit(json_file, result("filter", options, files=rows, bins=bins, device=device))


def summary(trials: int, latents: int, bins: int, elbo: float) -> str:
    """What was filtered, and how well it was foretold.

    Example:
        >>> summary(40, 2, 1600, -29.1)
        '40 trials, 2 latents, 1600 bins, -29.1000 nats per bin'
    """
    sizes = counted(trials, "trial"), counted(latents, "latent"), counted(bins, "bin")
    return f"{', '.join(sizes)}, {elbo:.4f} nats per bin"


def alone(options: dict[str, Any], file: Path) -> dict[str, Any]:
    """The options of one of the files.

    Example:
        >>> a, b = Path("a.nwb"), Path("b.nwb")
        >>> alone({"files": [a, b], "batch": True}, b) == {"file": b, "batch": True}
        True
    """
    return {"file": file} | {name: x for name, x in options.items() if name != "files"}


def write_found(
    target: Path, recording: Recording, found: Inferred, overwrite: bool, signals: bool
) -> None:
    """Write what was inferred of a recording in the format that the name ends in."""
    if target.suffix == ".nwb":
        predictions = {"signals" if signals else "counts": found.predicted}
        results = Results(found.mean, found.cov, found.rates, found.elbo, predictions)
        results = results._replace(rates_unit="a.u.") if signals else results
        write_nwb(target, recording, results, overwrite=overwrite)
    else:
        arrays = to_estimates(recording, recording.fresh, found)
        write_estimates(target, recording, arrays, overwrite)


def _targets(files: Sequence[Path], folder: Path, format: str | None) -> list[Path]:
    """A file for each in the folder, named after it."""
    if format is not None and format not in FORMATS:
        raise InputError(repr(format), "--format", f"choose among {', '.join(FORMATS)}")
    if folder.suffix in (".nwb", ".npz", *HDF5) and not folder.is_dir():
        raise InputError("a file", f"--out {folder}", "name a folder; --format chooses the format")
    targets: dict[Path, Path] = {}
    for file in files:
        name = file.resolve().name if file.is_dir() else file.stem
        target = folder / f"{name}.{format or _own_format(file)}"
        if target in targets:
            what = f"{targets[target]} and {file}, which would both be written to {target}"
            raise InputError(what, "evkf filter --batch", "rename one, or filter it alone")
        targets[target] = file
    sources = {file.resolve() for file in files}
    for target in targets:
        if target.resolve() in sources:
            raise InputError("a source as output", str(target), "name another folder")
    return list(targets)


def _own_format(file: Path) -> str:
    ending = file.suffix.removeprefix(".")
    return "h5" if file.suffix in HDF5 else ending if ending in FORMATS else "npz"
