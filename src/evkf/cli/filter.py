"""The command `evkf filter`, which filters one recording or several and writes estimates."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import typer

from evkf.analysis.estimates import Estimates
from evkf.cli.console import (
    Files,
    ModelFile,
    ModelReadingOptions,
    Run,
    check_ending,
    check_free,
    claim,
    config_file,
    console,
    counted,
    expanded,
    flatten,
    json_target,
    load_model,
    note_trials,
    noting,
    progress_bar,
    read_noting,
    read_settings,
    result,
    write_json,
)
from evkf.data.files import HDF5, check_file, unreadable
from evkf.data.nwb_write import check_source, check_unfiltered, write_nwb
from evkf.data.open import stream_recording
from evkf.data.recording import Reading, Recording
from evkf.errors import InputError
from evkf.recordings.units import check_units, filter_to_hdf5, infer, infer_many

FORMATS = ("nwb", "npz", "h5")


@dataclass(frozen=True)
class FilterOptions:
    """Options of `evkf filter`: output files, their format, and which units are the same."""

    out: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Ends in .nwb, .npz or .h5; with --batch, a folder."),
    ] = None
    batch: Annotated[
        bool, typer.Option("--batch", help="Filter several files at once, into the folder OUT.")
    ] = False
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Format of the files of --batch: {', '.join(FORMATS)}.",
            show_default="the file's own; npz for CSV and Kilosort",
        ),
    ] = None
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Add the results to the NWB file itself.")
    ] = False
    unit_map: Annotated[
        Path | None,
        typer.Option(metavar="MAP.csv", help="Columns unit,model_unit: units that are the same."),
    ] = None


@expanded
def run_filter(
    files: Files,
    model_file: ModelFile,
    target: FilterOptions,
    reading: ModelReadingOptions,
    run: Run,
) -> None:
    """Infer latents, rates and one-step predictions of every bin, without learning.

    If OUT ends in .nwb, it is a copy of the source with a processing module (group of results)
    named "evkf", or a new file if the source is not NWB. If OUT ends in .h5 and the source is an
    NWB session or an .h5 file, the source is filtered in chunks, so that it may be longer than
    memory holds. With --align, --trials, --min-rate or --unit-map the source is read as a whole.
    The options are written to OUT.config.json. With --batch, all files are read and checked before
    any is written, and are filtered together. The results of each file are written to the folder
    OUT, under the name of that file.

    \b
    Examples:
      evkf filter day1.nwb --model model.safetensors --out day1-latents.nwb
      evkf filter long.nwb --model model.safetensors --out latents.h5
      evkf filter day2.nwb --model model.safetensors --unit-map same.csv --out day2.npz
      evkf filter day1.nwb day2.nwb day3.nwb --model model.safetensors --batch --out latents
    """
    options = flatten(locals())
    if target.batch:
        _filter_batch(files, model_file, target, reading, run, options)
        return
    file, out = files[0], _output_file(files, target)
    overwrite = run.force or target.in_place
    if target.in_place and not run.force:
        check_unfiltered(file)
    outputs = [out, config_file(out)]
    check_free([out], overwrite)
    # --in-place allows no overwriting of OUT.config.json or of the file of --json
    written = json_target(run.json_file, file, model_file, *outputs)
    check_free([outputs[1], *written], run.force)
    say = console(run.quiet, run.json_file)
    model = load_model(model_file, learner=False)
    settings = read_settings(reading, model.bin_width, signals=model.signals)
    grows = out.suffix in HDF5 and target.unit_map is None
    chunks = _open_chunks(file, settings) if grows else None
    if chunks is not None:
        begin = list(islice(chunks, 1))  # errors of the file are raised before a folder is made
        for chunk in begin:
            check_units(model, chunk)
        note_trials(say, settings, model, file)
        claim(outputs, overwrite)
        numbers: set[int] = set()
        done = 0
        with progress_bar(say, "filtering") as tell:

            def report(chunk: Recording) -> None:
                nonlocal done
                done += chunk.num_bins
                numbers.update(chunk.trials["trial"].tolist())
                tell(done, None)

            bins, total = filter_to_hdf5(out, model, chain(begin, chunks), run.force, report)
        num_trials = len(numbers)
    else:
        recording = read_noting(say, file, settings)
        if target.unit_map is not None:
            from evkf.recordings.mapping import map_units

            model = map_units(model, recording, read_map(target.unit_map))
        if out.suffix == ".nwb":
            check_source(out, recording, overwrite)
        check_units(model, recording)
        note_trials(say, settings, model, file)
        with progress_bar(say, "filtering") as tell:
            estimates = infer(model, recording, progress=tell)
        claim(outputs, overwrite)
        with noting(say):
            _write(out, recording, estimates, overwrite)
        bins, total = recording.num_bins, float(estimates.elbo.sum())
        num_trials = recording.num_trials
    own = {"file": file} | {name: x for name, x in options.items() if name != "files"}
    resolved = result("filter", own | {"out": out, "bin_width": settings.bin_width})
    write_json(outputs[1], resolved)
    size = summarise_run(num_trials, model.model.dynamics.dim, bins, total / bins)
    say.print(f"{size}: {out}")
    run.emit(resolved | {"bins": bins, "elbo_per_bin": total / bins})


def _filter_batch(
    files: Sequence[Path],
    model_file: Path,
    target: FilterOptions,
    reading: ModelReadingOptions,
    run: Run,
    options: dict[str, Any],
) -> None:
    """Filter several files using one model, and write the estimates of each file.

    All files are read and checked before any file is written.
    """
    import jax

    outs = _output_files(files, target)
    outputs = [path for out in outs for path in (out, config_file(out))]
    say = run.start(outputs, *files, model_file)
    model = load_model(model_file, learner=False)
    settings = read_settings(reading, model.bin_width, signals=model.signals)
    recordings: list[Recording] = []
    with progress_bar(say, "reading") as tell:
        for file, out in zip(files, outs, strict=True):
            recording = read_noting(say, file, settings)
            check_units(model, recording)
            if out.suffix == ".nwb":
                check_source(out, recording, run.force)
            recordings.append(recording)
            tell(len(recordings), len(files))
    for file in files:
        note_trials(say, settings, model, file)
    with progress_bar(say, "filtering") as tell:
        results = infer_many(model, recordings, progress=tell)
    claim(outputs, run.force)
    options = options | {"bin_width": settings.bin_width}
    rows = []
    for file, out, recording, estimates in zip(files, outs, recordings, results, strict=True):
        with noting(say):
            _write(out, recording, estimates, run.force)
        own = {"file": file} | {name: x for name, x in options.items() if name != "files"}
        write_json(config_file(out), result("filter", own | {"out": out}))
        bins, mean = recording.num_bins, float(estimates.elbo.mean())
        rows.append({"file": str(file), "out": str(out), "bins": bins, "elbo_per_bin": mean})
        size = summarise_run(recording.num_trials, estimates.mean.shape[1], bins, mean)
        say.print(f"{file}: {size}: {out}")
    device = jax.devices()[0].device_kind
    bins = sum(row["bins"] for row in rows)
    say.print(f"{counted(len(rows), 'recording')}, {bins} bins, on {device}")
    run.emit(result("filter", options, files=rows, bins=bins, device=device))


def summarise_run(trials: int, latents: int, bins: int, elbo: float) -> str:
    """Return a line of text: numbers of trials, latents and bins, and the mean bound (ELBO).

    Example:
        >>> summarise_run(40, 2, 1600, -29.1)
        '40 trials, 2 latents, 1600 bins, -29.1000 nats per bin'
    """
    sizes = counted(trials, "trial"), counted(latents, "latent"), counted(bins, "bin")
    return f"{', '.join(sizes)}, {elbo:.4f} nats per bin"


def _write(out: Path, recording: Recording, estimates: Estimates, overwrite: bool) -> None:
    """Write the estimates of a recording in the format that the ending of the file gives."""
    if out.suffix == ".nwb":
        write_nwb(out, recording, estimates, overwrite=overwrite)
    else:
        from evkf.data.estimates import write_estimates

        write_estimates(out, recording, estimates, overwrite=overwrite)


def _output_file(files: Sequence[Path], target: FilterOptions) -> Path:
    """Return the file to write without `--batch`. Raise InputError if the options do not fit."""
    file, out, in_place = files[0], target.out, target.in_place
    if len(files) > 1:
        raise InputError(f"{len(files)} files", "evkf filter", "pass --batch and --out FOLDER")
    if target.format is not None:
        remedy = "end --out in the format, or pass --batch"
        raise InputError("--format without --batch", "evkf filter", remedy)
    if in_place == (out is not None):
        what = "--out with --in-place" if in_place else "neither --out nor --in-place"
        raise InputError(what, "evkf filter", "pass one of them: where to write the results")
    out = file if out is None else out
    check_ending(out, (".nwb",) if in_place else (".nwb", ".npz", *HDF5))
    if in_place:
        check_file(file)
    elif out.resolve() == file.resolve():
        remedy = "name another; --in-place adds to an NWB file"
        raise InputError("the source as output", str(out), remedy)
    return out


def _output_files(files: Sequence[Path], target: FilterOptions) -> list[Path]:
    """Return the files to write with `--batch`, one for each input file and named after it.

    Raise InputError if the options do not fit, or if two input files have the same name.
    """
    folder, format = target.out, target.format
    if folder is None or target.in_place:
        raise InputError("no folder", "evkf filter --batch", "pass --out FOLDER, not --in-place")
    if target.unit_map is not None:
        what, remedy = "--unit-map with --batch", "filter files of other units one by one"
        raise InputError(what, "evkf filter", remedy)
    if format is not None and format not in FORMATS:
        raise InputError(repr(format), "--format", f"choose among {', '.join(FORMATS)}")
    if folder.suffix in (".nwb", ".npz", *HDF5) and not folder.is_dir():
        raise InputError("a file", f"--out {folder}", "name a folder; --format chooses the format")
    sources = {file.resolve() for file in files}
    outs: dict[Path, Path] = {}
    for file in files:
        name = file.resolve().name if file.is_dir() else file.stem
        ending = file.suffix.removeprefix(".")
        own = "h5" if file.suffix in HDF5 else ending if ending in FORMATS else "npz"
        out = folder / f"{name}.{format or own}"
        if out in outs:
            what = f"{outs[out]} and {file}, which would both be written to {out}"
            raise InputError(what, "evkf filter --batch", "rename one, or filter it alone")
        if out.resolve() in sources:
            raise InputError("a source as output", str(out), "name another folder")
        check_ending(out, [f".{each}" for each in FORMATS])
        outs[out] = file
    return list(outs)


def _open_chunks(file: Path, reading: Reading) -> Iterator[Recording] | None:
    """Return an iterator over chunks of the file; None if the file must be read as a whole."""
    whole = reading.align, reading.window, reading.groups, reading.trials
    if reading.min_rate > 0 or any(x is not None for x in whole):
        return None
    if file.suffix not in (".nwb", *HDF5):
        return None
    if file.suffix in HDF5:
        try:
            with closing(stream_recording(file, reading, chunk_bins=1)) as chunks:
                next(chunks)
        except InputError:
            # another bin width, or counts by trial; other errors come again on reading the whole
            return None
    return stream_recording(file, reading)


def read_map(file: Path) -> dict[str, str]:
    """Return a dictionary from unit of the recording to unit of the model, from a CSV file.

    Raise InputError if the header is not `unit,model_unit`, or if a unit is named twice.
    """
    check_file(file)
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise unreadable(file, error) from error
    names = rows[0][1] if rows else []
    if names != ["unit", "model_unit"]:
        what = f"columns {', '.join(names) or '(none)'}"
        raise InputError(what, f"{file}: line 1", "name them unit,model_unit")
    same: dict[str, str] = {}
    for line, row in rows[1:]:
        if not row:
            continue
        if len(row) != 2 or not all(row) or row[0] in same:
            what = f"unit {' to '.join(map(repr, row))}"
            remedy = "name every unit once, with one of the model"
            raise InputError(what, f"{file}: line {line}", remedy)
        same[row[0]] = row[1]
    return same
