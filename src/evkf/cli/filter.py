"""The command that filters a recording, and how its results are written."""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from evkf.cli.batch import FORMATS, alone, filter_batch, summary, write_found
from evkf.cli.console import (
    Config,
    Force,
    Json,
    Quiet,
    check_free,
    claim,
    config_file,
    console,
    emit,
    json_target,
    write_config,
)
from evkf.cli.console import progress_bar as bar
from evkf.cli.options import (
    Align,
    Files,
    Group,
    LeaveOut,
    MinRate,
    ModelFile,
    ModelWidth,
    Reading,
    Trials,
    Units,
    Window,
    check_ending,
    load_model,
    noting,
    parse_query,
    result,
)
from evkf.data import Recording
from evkf.data.arrays import HDF5
from evkf.data.files import check_file, unreadable
from evkf.data.nwb_write import check_source, check_unfiltered
from evkf.data.open import stream_recording
from evkf.errors import InputError
from evkf.recordings.sessions import filter_to_hdf5, infer_in_chunks
from evkf.recordings.units import check_units, map_units


def run_filter(
    files: Files,
    model_file: ModelFile,
    out: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Ends in .nwb, .npz or .h5; with --batch, a folder."),
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Filter several files at once, into the folder OUT.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"What --batch writes: {', '.join(FORMATS)}.",
            show_default="the file's own; npz for CSV and Kilosort",
        ),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Add the results to the NWB file itself.")
    ] = False,
    unit_map: Annotated[
        Path | None,
        typer.Option(metavar="MAP.csv", help="Columns unit,model_unit: which units are the same."),
    ] = None,
    bin_width: ModelWidth = None,
    align: Align = None,
    window: Window = None,
    min_rate: MinRate = 0.0,
    group: Group = None,
    units: Units = None,
    trials: Trials = None,
    leave_out: LeaveOut = None,
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Infer latents, rates and one-step predictions of every bin; nothing is learned.

    To .nwb: a copy of the source with a processing module "evkf", or a new file. To .h5 from an
    NWB session or an .h5 file: chunk by chunk, however long it is, unless --align, --trials,
    --min-rate or --unit-map ask for all of it. The options are written beside OUT, to
    OUT.config.json. With --batch, files are read, checked and filtered all together, and each is
    written to OUT under its own name.

    \b
    Examples:
      evkf filter day1.nwb --model model.safetensors --out day1-latents.nwb
      evkf filter long.nwb --model model.safetensors --out latents.h5
      evkf filter day2.nwb --model model.safetensors --unit-map same.csv --out day2.npz
      evkf filter day1.nwb day2.nwb day3.nwb --model model.safetensors --batch --out latents
    """
    options = dict(locals())
    if batch:
        filter_batch(files, model_file, _folder(out, in_place, unit_map), options)
        return
    file = _only(files, format)
    target = _target(file, out, in_place)
    overwrite = force or in_place
    if in_place and not force:
        check_unfiltered(file)
    outputs = [target, config_file(target)]
    check_free([target], overwrite)
    # The configuration of an earlier run stands beside results that would be replaced.
    check_free([outputs[1], *json_target(json_file, file, model_file, *outputs)], force)
    say = console(quiet, json_file)
    model = load_model(model_file)
    reading = Reading.of(options, model.bin_width)
    grows = target.suffix in HDF5 and unit_map is None
    chunks = _chunks(file, reading, model.signals) if grows else None
    if chunks is not None:
        begin = list(islice(chunks, 1))  # a bad file is refused before a folder is made
        for chunk in begin:
            check_units(model, chunk)
        reading.note_trials(say, model, file)
        claim(outputs, overwrite)
        seen: set[int] = set()
        with bar(say, "filtering") as tell:
            told = _count(tell, seen)
            bins, total = filter_to_hdf5(target, model, chain(begin, chunks), force, told)
        trials_read = len(seen)
    else:
        recording = reading.read(say, file, model.signals)
        if unit_map is not None:
            model = map_units(model, recording, read_map(unit_map))
        if target.suffix == ".nwb":
            check_source(target, recording, overwrite)
        check_units(model, recording)
        reading.note_trials(say, model, file)
        with bar(say, "filtering") as tell:
            found = infer_in_chunks(model, recording, tell)
        claim(outputs, overwrite)
        with noting(say):
            write_found(target, recording, found, overwrite, model.signals)
        bins, total = recording.num_bins, float(found.elbo.sum())
        trials_read = recording.num_trials
    options = alone(options, file) | {"out": target, "bin_width": reading.bin_width}
    resolved = result("filter", options)
    write_config(target, resolved)
    size = summary(trials_read, model.model.dynamics.dim, bins, total / bins)
    say.print(f"{size}: {target}")
    emit(json_file, resolved | {"bins": bins, "elbo_per_bin": total / bins})


def _folder(out: Path | None, in_place: bool, unit_map: Path | None) -> Path:
    """Where results of several files go; what they cannot share is refused."""
    if out is None or in_place:
        raise InputError("no folder", "evkf filter --batch", "pass --out FOLDER, not --in-place")
    if unit_map is not None:
        what, remedy = "--unit-map with --batch", "filter files of other units one by one"
        raise InputError(what, "evkf filter", remedy)
    return out


def _only(files: Sequence[Path], format: str | None) -> Path:
    if len(files) > 1:
        raise InputError(f"{len(files)} files", "evkf filter", "pass --batch and --out FOLDER")
    if format is not None:
        remedy = "end --out in the format, or pass --batch"
        raise InputError("--format without --batch", "evkf filter", remedy)
    return files[0]


def _target(file: Path, out: Path | None, in_place: bool) -> Path:
    if in_place == (out is not None):
        what = "--out with --in-place" if in_place else "neither --out nor --in-place"
        raise InputError(what, "evkf filter", "pass one of them: where to write the results")
    target = file if out is None else out
    check_ending(target, (".nwb",) if in_place else (".nwb", ".npz", *HDF5))
    if in_place:
        check_file(file)
    elif target.resolve() == file.resolve():
        remedy = "name another; --in-place adds to an NWB file"
        raise InputError("the source as output", str(target), remedy)
    return target


def _chunks(file: Path, reading: Reading, signals: bool) -> Iterator[Recording] | None:
    """The file in chunks, if it can be read so."""
    if not reading.streams or file.suffix not in (".nwb", *HDF5):
        return None
    units = parse_query(reading.units, "--units")
    stream = partial(stream_recording, file, reading.bin_width, units=units, signals=signals)
    stream = partial(stream, leave_out=reading.leave_out or ())
    if file.suffix in HDF5:
        try:
            with closing(stream(chunk_bins=1)) as chunks:
                next(chunks)
        except InputError:
            # other bins, or trials side by side: what is wrong with the file is said on reading it
            return None
    return stream()


def _count(
    tell: Callable[[int, int | None], None], trials: set[int]
) -> Callable[[Recording], None]:
    """Tell of bins, and keep the numbers of the trials that were seen."""
    done = 0

    def count(chunk: Recording) -> None:
        nonlocal done
        done += chunk.num_bins
        trials.update(chunk.trials["trial"].tolist())
        tell(done, None)

    return count


def read_map(file: Path) -> dict[str, str]:
    """Units of a recording to those of a model, from a CSV file."""
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
            what, remedy = (
                " to ".join(map(repr, row)),
                "name every unit once, with one of the model",
            )
            raise InputError(f"unit {what}", f"{file}: line {line}", remedy)
        same[row[0]] = row[1]
    return same
