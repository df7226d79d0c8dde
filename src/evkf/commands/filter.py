"""The command that filters a recording, and how its results are written."""

import csv
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from evkf.commands.console import Config, Force, Json, Quiet, claim, console, emit, json_target
from evkf.commands.console import progress_bar as bar
from evkf.commands.options import (
    Align,
    File,
    MinRate,
    ModelFile,
    ModelWidth,
    Reading,
    Window,
    check_ending,
    load_model,
    result,
)
from evkf.data import Recording, Results, write_nwb
from evkf.data.arrays import HDF5
from evkf.data.estimates import write_estimates
from evkf.data.open import stream_recording
from evkf.errors import InputError
from evkf.session import filter_to_hdf5, to_estimates
from evkf.units import UnitModel, infer, map_units


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
    force: Force = False,
    quiet: Quiet = False,
    json_file: Json = None,
    config: Config = None,
) -> None:
    """Infer latents, rates and one-step predictions of every bin; nothing is learned.

    To .nwb: a copy of the source with a processing module "evkf", or a new file. To .h5 from an
    NWB session or an .h5 file: chunk by chunk, however long it is, unless --align, --min-rate or
    --unit-map ask for all of it.

    \b
    Examples:
      evkf filter day1.nwb --model model.safetensors --out day1-latents.nwb
      evkf filter long.nwb --model model.safetensors --out latents.h5
      evkf filter day2.nwb --model model.safetensors --unit-map same.csv --out day2.npz
    """
    options = dict(locals())
    target = _target(file, out, in_place)
    claim(json_target(json_file) + ([] if in_place else [target]), force)
    say = console(quiet, json_file)
    model = load_model(model_file)
    width = model.bin_width if bin_width is None else bin_width
    whole = align is not None or window is not None or min_rate > 0 or unit_map is not None
    if target.suffix in HDF5 and _streams(file, width) and not whole:
        with bar(say, "filtering") as tell:
            chunks = stream_recording(file, width)
            bins, total = filter_to_hdf5(target, model, chunks, force, _count(tell))
    else:
        recording = Reading(width, align, window, None, min_rate).read(say, file)
        if unit_map is not None:
            model = map_units(model, recording, read_map(unit_map))
        bins, total = _filter_whole(target, model, recording, force or in_place)
    say.print(f"{bins} bins, {total / bins:.4f} nats per bin: {target}")
    resolved = options | {"out": target, "bin_width": width}
    emit(json_file, result("filter", resolved, bins=bins, elbo_per_bin=total / bins))


def _target(file: Path, out: Path | None, in_place: bool) -> Path:
    if in_place == (out is not None):
        raise InputError("--out and --in-place", "evkf filter", "pass one of them")
    target = file if out is None else out
    check_ending(target, (".nwb",) if in_place else (".nwb", ".npz", *HDF5))
    if not in_place and target.resolve() == file.resolve():
        remedy = "name another; --in-place adds to an NWB file"
        raise InputError("the source as output", str(target), remedy)
    return target


def _streams(file: Path, width: float) -> bool:
    """Whether a file can be read in chunks of these bins."""
    if file.suffix not in HDF5:
        return file.suffix == ".nwb"
    try:
        with closing(stream_recording(file, width, 1)) as chunks:
            next(chunks)
    except InputError:
        # other bins, or trials side by side: what is wrong with the file is said on reading it
        return False
    return True


def _count(tell: Callable[[int, int | None], None]) -> Callable[[Recording], None]:
    done = 0

    def count(chunk: Recording) -> None:
        nonlocal done
        done += chunk.num_bins
        tell(done, None)

    return count


def _filter_whole(
    target: Path, model: UnitModel, recording: Recording, overwrite: bool
) -> tuple[int, float]:
    found = infer(model, recording)
    if target.suffix == ".nwb":
        results = Results(
            found.mean, found.cov, found.rates, found.elbo, {"counts": found.predicted}
        )
        write_nwb(target, recording, results, overwrite=overwrite)
    else:
        arrays = to_estimates(recording, recording.fresh, found)
        write_estimates(target, recording, arrays, overwrite)
    return recording.num_bins, float(found.elbo.sum())


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
