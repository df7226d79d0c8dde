"""The command that filters a recording, and how its results are written."""

import csv
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from evkf.commands.console import (
    Config,
    Force,
    Json,
    Quiet,
    claim,
    config_file,
    console,
    emit,
    json_target,
    write_config,
)
from evkf.commands.console import progress_bar as bar
from evkf.commands.options import (
    Align,
    File,
    Group,
    MinRate,
    ModelFile,
    ModelWidth,
    Reading,
    Trials,
    Units,
    Window,
    check_ending,
    load_model,
    parse_query,
    result,
)
from evkf.data import Recording, Results, write_nwb
from evkf.data.arrays import HDF5
from evkf.data.estimates import write_estimates
from evkf.data.files import check_file
from evkf.data.open import stream_recording
from evkf.errors import InputError
from evkf.likelihoods import Gaussian
from evkf.session import filter_to_hdf5, infer_in_chunks, to_estimates
from evkf.units import Inferred, map_units


def run_filter(
    file: File,
    model_file: ModelFile,
    out: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Ends in .nwb, .npz or .h5.")
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
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Infer latents, rates and one-step predictions of every bin; nothing is learned.

    To .nwb: a copy of the source with a processing module "evkf", or a new file. To .h5 from an
    NWB session or an .h5 file: chunk by chunk, however long it is, unless --align, --trials,
    --min-rate or --unit-map ask for all of it. The options are written beside OUT, to
    OUT.config.json.

    \b
    Examples:
      evkf filter day1.nwb --model model.safetensors --out day1-latents.nwb
      evkf filter long.nwb --model model.safetensors --out latents.h5
      evkf filter day2.nwb --model model.safetensors --unit-map same.csv --out day2.npz
    """
    options = dict(locals())
    target = _target(file, out, in_place)
    overwrite = force or in_place
    claim([target, config_file(target)], overwrite)
    claim(json_target(json_file), force)
    say = console(quiet, json_file)
    model = load_model(model_file)
    signals = isinstance(model.model.likelihood, Gaussian)
    reading = Reading.of(options, model.bin_width)
    grows = target.suffix in HDF5 and unit_map is None
    chunks = _chunks(file, reading, signals) if grows else None
    if chunks is not None:
        with bar(say, "filtering") as tell:
            bins, total = filter_to_hdf5(target, model, chunks, force, _count(tell))
    else:
        recording = reading.read(say, file, signals)
        if unit_map is not None:
            model = map_units(model, recording, read_map(unit_map))
        with bar(say, "filtering") as tell:
            found = infer_in_chunks(model, recording, tell)
        _write(target, recording, found, overwrite)
        bins, total = recording.num_bins, float(found.elbo.sum())
    resolved = result("filter", options | {"out": target, "bin_width": reading.bin_width})
    write_config(target, resolved)
    say.print(f"{bins} bins, {total / bins:.4f} nats per bin: {target}")
    emit(json_file, resolved | {"bins": bins, "elbo_per_bin": total / bins})


def _target(file: Path, out: Path | None, in_place: bool) -> Path:
    if in_place == (out is not None):
        raise InputError("--out and --in-place", "evkf filter", "pass one of them")
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
    if file.suffix in HDF5:
        try:
            with closing(stream(chunk_bins=1)) as chunks:
                next(chunks)
        except InputError:
            # other bins, or trials side by side: what is wrong with the file is said on reading it
            return None
    return stream()


def _count(tell: Callable[[int, int | None], None]) -> Callable[[Recording], None]:
    done = 0

    def count(chunk: Recording) -> None:
        nonlocal done
        done += chunk.num_bins
        tell(done, None)

    return count


def _write(target: Path, recording: Recording, found: Inferred, overwrite: bool) -> None:
    if target.suffix == ".nwb":
        results = Results(
            found.mean, found.cov, found.rates, found.elbo, {"counts": found.predicted}
        )
        write_nwb(target, recording, results, overwrite=overwrite)
    else:
        arrays = to_estimates(recording, recording.fresh, found)
        write_estimates(target, recording, arrays, overwrite)


def read_map(file: Path) -> dict[str, str]:
    """Units of a recording to those of a model, from a CSV file."""
    if not file.is_file():
        raise InputError("no such file", str(file), "check the name")
    with file.open(encoding="utf-8-sig", newline="") as text:
        rows = csv.DictReader(text)
        names = [name.strip() for name in rows.fieldnames or []]
        if names != ["unit", "model_unit"]:
            what = f"columns {', '.join(names) or '(none)'}"
            raise InputError(what, f"{file}: line 1", "name them unit,model_unit")
        same: dict[str, str] = {}
        for row in rows:
            unit, target = (str(row[name] or "").strip() for name in rows.fieldnames or [])
            if not unit or not target or unit in same:
                what = f"unit {unit!r} to {target!r}"
                remedy = "name every unit once, with one of the model"
                raise InputError(what, f"{file}: line {rows.line_num}", remedy)
            same[unit] = target
    return same
