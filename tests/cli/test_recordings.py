"""Commands on recordings: the way through, and what is refused."""

import contextlib
import hashlib
import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest

from evkf.cli.app import main
from evkf.cli.filter import read_map
from evkf.data import open_recording, read_estimates, read_nwb
from evkf.errors import InputError
from evkf.recordings.dimension import Difference, Suggestion
from evkf.recordings.halves import halve, held_out
from evkf.recordings.scoring import evkf as evkf_row
from evkf.recordings.units import UnitModel, infer, trials_seen
from tests.bad_recordings import (
    before_the_session,
    empty_trial,
    nan_for_behaviour,
    no_trials,
    no_units,
    not_there,
    out_of_order,
    text_for_counts,
    truncated,
    truncated_nwb,
    with_holes,
)
from tests.data.nwb_files import session
from tests.quick import quick_compilation  # noqa: F401

COMMANDS = ("info", "simulate", "fit", "filter", "score", "plot", "data")
ALIGNED = ("--align", "start_time")


class Result(NamedTuple):
    code: int
    out: str
    err: str


def invoke(*args: object) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stop,
    ):
        main([str(arg) for arg in args])
    code = stop.value.code
    assert code is None or isinstance(code, int)
    return Result(code or 0, out.getvalue(), err.getvalue())


def run(*args: object) -> Result:
    result = invoke(*args)
    assert result.code == 0, result.err
    return result


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a recording and a model of it, which commands made."""
    folder = tmp_path_factory.mktemp("recordings")
    small = ("--neurons", 10, "--trials", 6, "--bins", 30, "--seed", 1)
    run("simulate", "--nwb", "--out", folder / "made.nwb", *small)
    text = 'latents = 3\nhidden = 4\nalign = "start_time"\nwindow = [0.0, 0.6]\npasses = 2\n'
    (folder / "fit.toml").write_text(f"{text}out = '{folder / 'model.safetensors'}'\n")
    options = ("--config", folder / "fit.toml", "--latents", 2, "--quiet")
    assert run("fit", folder / "made.nwb", *options) == Result(0, "", "")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_the_common_options(command):
    text = run(command, "--help").out
    for part in (f"evkf {command}", "--quiet", "--json", "--force", "--config"):
        assert part in text


def test_flags_win_over_the_file_of_options(place):
    model = UnitModel.load(place / "model.safetensors")
    assert model.model.dynamics.dim == 2
    assert model.units == tuple(map(str, range(10)))


def test_filtered_nwb_is_what_infer_gives_and_the_source_is_untouched(place, tmp_path):
    source, before = place / "made.nwb", digest(place / "made.nwb")
    model_file, out = place / "model.safetensors", tmp_path / "out.nwb"
    run("filter", source, "--model", model_file, "--out", out, *ALIGNED)
    recording = read_nwb(source, 0.02, "start_time")
    found, stored = infer(UnitModel.load(model_file), recording), read_estimates(out)
    for got, want in (
        (stored.mean, found.mean),
        (stored.cov, found.cov),
        (stored.rates, found.rates),
        (stored.elbo, found.elbo),
        (stored.predicted, found.predicted),
    ):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(stored.times, recording.times)
    assert digest(source) == before
    told = run("info", out).out
    assert "results of evkf" in told
    assert "processing/evkf" not in told
    np.testing.assert_array_equal(read_nwb(out, 0.02, "start_time").counts, recording.counts)


def test_filter_says_how_many_trials_it_read(place, tmp_path):
    """So that an alignment that was forgotten is seen, as the model remembers it."""
    source, model = place / "made.nwb", place / "model.safetensors"
    same = ("--align", "start_time", "--window", 0, 0.6)
    for name, trials in (("a.npz", ()), ("a.h5", ()), ("b.npz", same)):
        result = run("filter", source, "--model", model, "--out", tmp_path / name, *trials)
        size = "6 trials, 2 latents, 180 bins" if trials else "1 trial, 2 latents, 180 bins"
        assert result.out.startswith(size), result.out
        assert ("--align start_time --window 0 0.6" in result.err) == (not trials)
        stored = read_all(tmp_path / name)
        assert ("trial" in stored) == bool(trials)  # a session as one trial has no id
        if trials:
            np.testing.assert_array_equal(stored["trial"], np.repeat(np.arange(6), 30))
    asked = ("--model", model, "--batch", "--out", tmp_path / "latents")
    result = run("filter", source, *asked, "--quiet")
    assert (result.out, result.err) == ("", "")
    result = run("filter", source, *asked, "--force")
    assert "made.nwb: 1 trial, 2 latents, 180 bins" in result.out
    assert result.err.startswith("note: a trial of")


def test_silent_units_are_named_where_they_can_be_left_out(tmp_path):
    counts = np.ones((40, 3), int)
    counts[:, 1] = 0
    np.savez(tmp_path / "a.npz", counts=counts, bin_width=0.02, unit_id=["a", "b", "c"])
    made = ("--out", tmp_path / "m.safetensors", "--latents", 1, "--hidden", 2, "--passes", 1)
    said = run("fit", tmp_path / "a.npz", *made)
    note = "note: 1 of 3 units (b) has no spikes in these trials; --min-rate 0.1 leaves it out\n"
    assert said.err == note
    assert said.out.startswith("1 latent of 3 units, 1 trial, 40 bins of 20 ms")
    model = ("--model", made[1])
    for command in (("filter", "--out", tmp_path / "b.npz"), ("plot", "--out", tmp_path / "c")):
        assert "no spikes" not in "".join(run(*command, tmp_path / "a.npz", *model)[1:])
    assert run("fit", tmp_path / "a.npz", *made, "--min-rate", 0.1, "--force").err == ""
    assert json.loads(run("info", tmp_path / "a.npz", "--json", "-").out)["silent_units"] == ["b"]


def test_a_recording_in_place_of_a_model_is_refused_in_one_line(place, tmp_path):
    source = place / "made.nwb"
    result = invoke("filter", source, "--model", source, "--out", tmp_path / "a.npz")
    want = f"evkf: not a model (in {source}): pass a .safetensors file that `evkf fit` wrote\n"
    assert (result.code, result.err) == (2, want)


def test_streamed_hdf5_is_what_the_whole_gives(place, tmp_path):
    source, model = place / "made.nwb", place / "model.safetensors"
    for name in ("out.h5", "out.npz"):
        run("filter", source, "--model", model, "--out", tmp_path / name)
    with h5py.File(tmp_path / "out.h5") as streamed, np.load(tmp_path / "out.npz") as whole:
        assert set(streamed) == set(whole.files)
        for name in whole.files:
            np.testing.assert_allclose(streamed[name][()], whole[name], rtol=1e-5, atol=1e-6)


def test_in_place_only_on_request(place, tmp_path):
    source = tmp_path / "made.nwb"
    source.write_bytes((place / "made.nwb").read_bytes())
    before, model = digest(source), ("--model", place / "model.safetensors")
    refused = invoke("filter", source, *model, "--out", source, "--force")
    assert (refused.code, digest(source)) == (2, before)
    assert "--in-place" in refused.err
    assert invoke("filter", source, *model).code == 2
    run("filter", source, *model, "--in-place")
    assert read_estimates(source).elbo.shape == (180,)
    there = digest(source)
    again = invoke("filter", source, *model, "--in-place")
    assert (again.code, digest(source)) == (2, there)
    (tmp_path / "made.nwb.config.json").unlink()
    for told in (again, invoke("filter", source, *model, "--in-place")):
        assert (told.code, "results of evkf are in made.nwb already" in told.err) == (2, True)
        assert "--force" in told.err
    assert digest(source) == there
    run("filter", source, *model, "--in-place", "--force")


def test_nothing_is_overwritten_without_force(place):
    before = digest(place / "model.safetensors")
    result = invoke("fit", place / "made.nwb", "--out", place / "model.safetensors")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "--force" in result.err
    assert digest(place / "model.safetensors") == before


@pytest.mark.parametrize(
    ("command", "out", "package", "extra"),
    [
        ("fit", "a.safetensors", "safetensors", "storage"),
        ("simulate", "a.h5", "h5py", "hdf5"),
        ("filter", "a.nwb", "pynwb", "nwb"),
        ("filter", "folder", "pynwb", "nwb"),
    ],
)
def test_what_an_output_needs_is_asked_first(tmp_path, monkeypatch, command, out, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    given = () if command == "simulate" else (tmp_path / "nowhere.nwb",)
    given += ("--model", tmp_path / "nowhere") if command == "filter" else ()
    given += ("--batch",) if out == "folder" else ()
    result = invoke(command, *given, "--out", tmp_path / out)
    assert (result.code, f'pip install "evkf[{extra}]"' in result.err) == (2, True), result.err


def test_mapped_units(place, tmp_path):
    model = ("--model", place / "model.safetensors")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["counts"] = read_nwb(place / "made.nwb", 0.02).counts
        file["bin_width"] = 0.02
        file["unit_id"] = np.arange(10) + 100
    refused = invoke("filter", tmp_path / "other.h5", *model, "--out", tmp_path / "out.h5")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    for part in ("other.h5", "units", "'100'", "unit map"):
        assert part in refused.err
    assert not (tmp_path / "out.h5").exists()
    rows = "".join(f"{n + 100},{n}\n" for n in range(10))
    (tmp_path / "map.csv").write_text("unit,model_unit\n" + rows)
    mapped = ("--unit-map", tmp_path / "map.csv", "--out", tmp_path / "out.npz")
    run("filter", tmp_path / "other.h5", *model, *mapped)
    found = infer(UnitModel.load(model[1]), read_nwb(place / "made.nwb", 0.02))
    with np.load(tmp_path / "out.npz") as stored:
        np.testing.assert_allclose(stored["latent_mean"], found.mean, rtol=1e-4, atol=1e-5)


def test_suggested_latents_are_told(tmp_path):
    source, out = tmp_path / "a.npz", tmp_path / "model.safetensors"
    run("simulate", "--out", source, "--neurons", 4, "--trials", 5, "--bins", 20)
    result = run("fit", source, "--out", out, "--passes", 1, "--hidden", 2, "--json", "-")
    told = json.loads(result.out)
    assert (told["options"]["latents"], list(told["scores"])) == (2, ["2"])
    assert "trying 2 latents on held-out trials; --latents N" in result.err
    assert told["behind"] == {"2": {"mean": 0.0, "error": 0.0}}
    assert "falls short" not in result.err


def test_the_choice_of_latents_can_be_followed(tmp_path, monkeypatch):
    behind = {2: Difference(0.01, 0.02), 4: Difference(0.0, 0.0), 8: Difference(0.5, 0.0)}
    found = Suggestion(2, {2: -5.0, 4: -4.99, 8: -5.49}, behind)
    monkeypatch.setattr("evkf.cli.fit.suggest_latents", lambda *_, **__: found)
    source, out = tmp_path / "a.npz", tmp_path / "model.safetensors"
    run("simulate", "--out", source, "--neurons", 9, "--trials", 2, "--bins", 20)
    said = run("fit", source, "--out", out, "--passes", 1, "--hidden", 2).out.splitlines()
    assert said[2:5] == [
        "2 falls short of 4 by 0.0100 ± 0.0200 nats per bin",
        "8 falls short of 4 by 0.5000 nats per bin",
        "taking 2 latents, within one standard error of the best, 4",
    ]


def test_score_has_the_baselines_beside_the_model(place):
    asked = ("--condition", "condition", "--behaviour", "hand_vel", "--json", "-", *ALIGNED)
    result = run("score", place / "made.nwb", "--model", place / "model.safetensors", *asked)
    told = json.loads(result.out)
    rows = told["scores"]
    assert [row["method"] for row in rows] == [
        "eVKF",
        "random walk",
        "GPFA (not causal)",
        "linear dynamical system",
        "causal smoothing",
        "Wiener filter",
        "average of the condition",
    ]
    recording = read_nwb(place / "made.nwb", 0.02, "start_time", behaviour=["hand_vel"])
    train, test = (np.flatnonzero(half) for half in (~held_out(6, 2), held_out(6, 2)))
    halves = halve(recording, train, test, "condition", "hand_vel")
    own = evkf_row(halves, UnitModel.load(place / "model.safetensors"))
    np.testing.assert_allclose(list(rows[0].values())[1:], own[1:], rtol=1e-6)
    assert all((row["psth"] is None) == (row["method"] == "Wiener filter") for row in rows)
    for part in ("hand_vel", "R² from", "bits/spike", "judged on 3 of 6 trials"):
        assert part in result.err
    assert (told["judged_trials"], told["fitted_trials"]) == (3, 3)
    assert "fitted to 3 of the 3 held-out trials" in result.err


def test_plot_writes_every_figure_twice(place, tmp_path):
    asked = ("--condition", "condition", "--behaviour", "hand_vel", *ALIGNED)
    model = ("--model", place / "model.safetensors")
    result = run("plot", place / "made.nwb", *model, "--out", tmp_path / "figs", *asked)
    names = {"raster", "latents", "calibration", "dispersion", "rates", "reaches"}
    assert {path.name for path in (tmp_path / "figs").iterdir()} == {
        f"{name}.{end}" for name in names for end in ("png", "svg")
    }
    assert re.search(r"\d+ of 10 units vary .* the Poisson model", result.out)


def test_held_out_trials_are_not_fitted_to(place, tmp_path):
    out = tmp_path / "model.safetensors"
    asked = ("--held-out", "--latents", 2, "--hidden", 2, "--passes", 1, *ALIGNED)
    said = run("fit", place / "made.nwb", "--out", out, *asked, "--window", "-0.1", 0.5).out
    assert "3 trials" in said
    assert "-0.1 to 0.5 s from start_time" in said
    source = read_nwb(place / "made.nwb", 0.02, "start_time")
    model = UnitModel.load(out)
    np.testing.assert_array_equal(trials_seen(model, source), ~held_out(6, 2))
    whole = read_nwb(place / "made.nwb", 0.02)
    assert trials_seen(UnitModel.load(place / "model.safetensors"), whole).tolist() == [True]
    result = run("score", place / "made.nwb", "--model", out, *ALIGNED, "--json", "-")
    assert json.loads(result.out)["fitted_trials"] == 0
    assert "fitted to" not in result.err


def test_signals_have_no_rates_in_hz(tmp_path):
    values = 7 + np.cumsum(np.random.default_rng(0).normal(size=(60, 3)), axis=0)
    source, model = tmp_path / "a.npz", tmp_path / "model.safetensors"
    np.savez(source, counts=values, bin_width=0.01, lengths=[30, 30])
    small = ("--latents", 1, "--hidden", 2, "--passes", 2, "--bin-width", 0.02)
    run("fit", source, "--out", model, "--likelihood", "gaussian", *small)
    for end in ("npz", "nwb"):
        run("filter", source, "--model", model, "--out", tmp_path / f"out.{end}")
    with np.load(tmp_path / "out.npz") as stored:
        assert abs(stored["rates"].mean() - values.mean()) < 3
    results = read_estimates(tmp_path / "out.nwb")
    assert results.signals
    assert results.predicted is not None
    for command in (("score",), ("plot", "--out", tmp_path / "figures")):
        result = invoke(*command, source, "--model", model)
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert "continuous signals" in result.err
    refused = invoke(
        "filter", source, "--model", model, "--out", tmp_path / "b.npz", "--min-rate", 1
    )
    assert (refused.code, "signals do not fire" in refused.err) == (2, True)


@pytest.mark.parametrize("name", ["a.npz", "model.safetensors"])
def test_json_does_not_replace_what_is_read(place, tmp_path, name):
    np.savez(tmp_path / "a.npz", counts=np.ones((30, 10), int), bin_width=0.02)
    model = shutil.copy(place / "model.safetensors", tmp_path / "model.safetensors")
    asked = ("--json", tmp_path / "x" / ".." / name, "--force")
    (tmp_path / "x").mkdir()
    before = digest(tmp_path / name)
    result = invoke("score", tmp_path / "a.npz", "--model", model, *asked)
    assert (result.code, result.err.count("\n"), "--json" in result.err) == (2, 1, True)
    assert digest(tmp_path / name) == before


def test_what_does_not_fit_is_left_out_as_the_remedy_says(tmp_path):
    counts, events = np.ones((6, 2), int), np.zeros(57)
    np.savez(tmp_path / "a.npz", counts=counts, bin_width=0.02, events=events)
    refused = invoke("info", tmp_path / "a.npz")
    assert (refused.code, "--leave-out events" in refused.err) == (2, True)
    found = json.loads(run("info", tmp_path / "a.npz", "--leave-out", "events", "--json", "-").out)
    assert found["units"] == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"unit,model_unit\n\xff,1\n", "cannot be read"),
        (b"unit,model_unit\n1,2,3\n", "line 2"),
        (b"unit,model_unit\n1\n", "line 2"),
        (b"unit,model_unit\n1,1\n1,2\n", "line 3"),
        (b"unit,model_unit\n" + b"1" * 200_000 + b",1\n", "cannot be read"),
        (b"unit\n1\n", "line 1"),
        (b"", "line 1"),
    ],
)
def test_maps_that_are_wrong(tmp_path, content, says):
    (tmp_path / "map.csv").write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        read_map(tmp_path / "map.csv")
    assert "map.csv" in str(caught.value)


def test_info_of_nwb_and_of_counts(place, tmp_path):
    found = json.loads(run("info", place / "made.nwb", "--json", "-").out)
    assert (found["units"], found["silent_units"], found["trials"]) == (10, [], 6)
    assert (found["command"], found["options"]["bin_width"]) == ("info", None)
    assert "jax" in found["versions"]
    for wrong in (("--bin-width", 0.02), ("--group", "good"), ("--leave-out", "a")):
        assert "for an NWB file" in invoke("info", place / "made.nwb", *wrong).err
    assert found["trial_columns"] == ["start_time", "stop_time", "condition"]
    (tmp_path / "a.csv").write_text("a,b\n0,1\n2,0\n")
    assert "least 25 Hz" in run("info", tmp_path / "a.csv", "--bin-width", "0.02").out


def test_a_window_may_begin_before_the_event(place):
    model, asked = ("--model", place / "model.safetensors"), ("--window", "-0.1", "0.3")
    result = run("score", place / "made.nwb", *model, *ALIGNED, *asked, "--json", "-")
    assert json.loads(result.out)["options"]["window"] == [-0.1, 0.3]


def test_more_latents_are_simulated(tmp_path):
    small = ("--neurons", 3, "--trials", 2, "--bins", 5, "--latents", 4)
    run("simulate", "--out", tmp_path / "a.h5", *small)
    found = json.loads(run("info", tmp_path / "a.h5", "--json", "-").out)
    assert (found["bins"], found["behaviour"]) == (10, {"hand_vel": [10, 2]})


@pytest.mark.parametrize(
    ("text", "says"),
    [("lattents = 2\n", "'lattents'"), ("latents =\n", "TOML"), ("[fit]\nlatents = 2\n", "'fit'")],
)
def test_a_file_of_options_that_is_wrong(place, tmp_path, text, says):
    (tmp_path / "bad.toml").write_text(text)
    options = ("--out", tmp_path / "m.safetensors", "--config", tmp_path / "bad.toml")
    result = invoke("fit", place / "made.nwb", *options)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert says in result.err
    assert "bad.toml" in result.err


BAD = [
    (no_units, (), "units", "pass a file"),
    (no_trials, ALIGNED, "trials", "leave out align"),
    (empty_trial, (), "lengths", "one or more"),
    (out_of_order, (), "units/spike_times of unit 11, index 1", "sort them"),
    (before_the_session, (), "units/spike_times of unit 10, index 0", "shift"),
    (with_holes, ("--behaviour", "holes"), "acquisition/holes", "mend the file"),
    (nan_for_behaviour, ("--behaviour", "hand"), "behaviour", "NaN in bin 2"),
    (text_for_counts, ("--bin-width", "0.02"), "line 3, column 'b'", "pass a number"),
    (truncated, (), "bad.h5", "is it complete?"),
    (truncated_nwb, (), "bad.nwb", "is it complete?"),
    (not_there, (), "bad.npz", "check the name"),
]


def assert_refused(command: str, bad: Path, *options: object, says: tuple[str, ...]) -> None:
    """In one line, with the source as it was and nothing else in its folder."""

    def files() -> dict[Path, str]:
        there = bad.parent.rglob("*")
        return {path: digest(path) if path.is_file() else "" for path in there}

    before = files()
    result = invoke(command, bad, *options)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    for part in (str(bad), *says):
        assert part in result.err
    assert files() == before


@pytest.mark.parametrize(("make", "options", "field", "remedy"), BAD)
def test_bad_files_are_refused_in_one_line(tmp_path, make, options, field, remedy):
    if "--behaviour" in options:
        pytest.skip("behaviour is not fitted to")
    out = tmp_path / "out"
    asked = ("--out", out / "model.safetensors", "--latents", 1, *options)
    assert_refused("fit", make(tmp_path), *asked, says=(field, remedy))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("filter", "filtered.nwb"),
        ("filter", "filtered.npz"),
        ("filter", "filtered.h5"),
        ("score", None),
        ("plot", "figures"),
    ],
)
@pytest.mark.parametrize(("make", "options", "field", "remedy"), BAD)
def test_no_command_takes_bad_files(place, tmp_path, make, options, field, remedy, command, name):
    if command == "filter" and "--behaviour" in options:
        pytest.skip("behaviour is not filtered")
    out = tmp_path / "out"
    asked = ("--model", place / "model.safetensors", *options)
    asked += () if name is None else ("--out", out / name)
    assert_refused(command, make(tmp_path), *asked, says=(field, remedy))


@pytest.mark.parametrize("ending", [".nwb", ".npz", ".h5"])
def test_units_of_another_model_are_refused_and_nothing_is_left(place, tmp_path, ending):
    out = tmp_path / "out"
    asked = ("--model", place / "model.safetensors", "--out", out / f"filtered{ending}")
    says = ("units", "'10'", "unit map")
    assert_refused("filter", session(tmp_path / "bad.nwb"), *asked, says=says)


def test_units_and_clusters_are_chosen(place, tmp_path):
    out, path = tmp_path / "out", session(tmp_path / "bad.nwb")
    asked = ("--model", place / "model.safetensors", "--out", out / "filtered.h5")
    chosen = (*asked, "--units", "quality=bad")
    assert_refused("filter", path, *chosen, says=("1 units that", "'12'"))
    assert_refused("filter", path, *asked, "--group", "mua", says=("groups", "pass a folder"))
    wrong = (*asked, "--units", "quality")
    result = invoke("filter", path, *wrong)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "--units" in result.err
    assert "COLUMN=VALUE" in result.err


def test_configuration_is_beside_the_output(place, tmp_path):
    fitted = json.loads((place / "model.safetensors.config.json").read_text())
    assert (fitted["command"], fitted["options"]["latents"]) == ("fit", 2)
    assert (fitted["options"]["passes"], fitted["options"]["window"]) == (2, [0.0, 0.6])
    model = ("--model", place / "model.safetensors")
    (tmp_path / "a.h5.config.json").touch()
    refused = invoke("filter", place / "made.nwb", *model, "--out", tmp_path / "a.h5")
    assert (refused.code, "--force" in refused.err) == (2, True)
    assert not (tmp_path / "a.h5").exists()
    run("filter", place / "made.nwb", *model, "--out", tmp_path / "a.h5", "--force")
    found = json.loads((tmp_path / "a.h5.config.json").read_text())
    assert (found["command"], found["options"]["bin_width"]) == ("filter", 0.02)
    assert "jax" in found["versions"]


def test_a_file_that_goes_wrong_late_leaves_nothing(place, tmp_path):
    counts = read_nwb(place / "made.nwb", 0.02).counts.astype(float)
    counts[-1, 3] = 0.5
    with h5py.File(tmp_path / "bad.h5", "w") as file:
        file["counts"], file["bin_width"] = counts, 0.02
    out = tmp_path / "out" / "filtered.h5"
    model = ("--model", place / "model.safetensors")
    result = invoke("filter", tmp_path / "bad.h5", *model, "--out", out)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "counts[179, 3]" in result.err
    assert not out.parent.exists()


@pytest.fixture(scope="module")
def days(place) -> list[Path]:
    """A session and parts of it, in files of other kinds."""
    counts = read_nwb(place / "made.nwb", 0.02).counts
    np.savez(place / "day2.npz", counts=counts[:70], bin_width=0.02, lengths=[50, 20])
    with h5py.File(place / "day3.hdf5", "w") as file:
        file["counts"], file["bin_width"] = counts[100:], 0.02
    return [place / name for name in ("made.nwb", "day2.npz", "day3.hdf5")]


def test_a_batch_is_each_file_alone(place, days, tmp_path):
    model, out = ("--model", place / "model.safetensors"), tmp_path / "latents"
    asked = (*days, *model, "--batch", "--out", out)
    result = run("filter", *asked, "--json", "-")
    told = json.loads(result.out)
    targets = [out / name for name in ("made.nwb", "day2.npz", "day3.h5")]
    assert [row["out"] for row in told["files"]] == list(map(str, targets))
    assert [row["bins"] for row in told["files"]] == [180, 70, 80]
    assert told["options"]["files"] == list(map(str, days))
    assert "3 recordings, 330 bins, on cpu" in result.err
    loaded = UnitModel.load(model[1])
    for day, target, row in zip(days, targets, told["files"], strict=True):
        found = infer(loaded, open_recording(day, bin_width=0.02))
        np.testing.assert_allclose(row["elbo_per_bin"], found.elbo.mean(), rtol=1e-6)
        options = json.loads(target.with_name(f"{target.name}.config.json").read_text())["options"]
        assert (options["file"], options["out"]) == (str(day), str(target))
        if target.suffix == ".nwb":
            stored = read_estimates(target)
            got = stored.mean, stored.rates
        else:
            got = (np.asarray(read_all(target)[name]) for name in ("latent_mean", "rates"))
        for array, want in zip(got, (found.mean, found.rates), strict=True):
            np.testing.assert_allclose(array, want, rtol=1e-6, atol=1e-9)
    refused = invoke("filter", *asked)
    assert (refused.code, "--force" in refused.err) == (2, True)
    run("filter", *asked, "--force", "--format", "npz", "--quiet")
    assert {path.suffix for path in out.iterdir()} == {".nwb", ".npz", ".h5", ".json"}
    assert (out / "made.npz").exists()


def read_all(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) if path.suffix == ".h5" else np.load(path) as file:
        return {name: file[name][()] for name in file}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), ("3 files", "--batch")),
        (("--batch",), ("--out FOLDER",)),
        (("--batch", "--in-place"), ("--out FOLDER",)),
        (("--batch", "--out", "OUT", "--unit-map", "map.csv"), ("--unit-map", "one by one")),
        (("--batch", "--out", "OUT.nwb"), ("OUT.nwb", "folder")),
        (("--batch", "--out", "OUT", "--format", "mat"), ("'mat'", "nwb, npz, h5")),
        (("--batch", "--out", "."), ("made.nwb", "source")),
        (("--batch", "--out", "OUT", "other/made.nwb"), ("other/made.nwb", "rename one")),
        (("--batch", "--out", "OUT", "nowhere.npz"), ("nowhere.npz", "no such file")),
        (("--batch", "--out", "OUT", "units.npz"), ("units.npz: units", "unit map")),
        (("--batch", "--out", "OUT", "filtered.nwb"), ("an earlier run in filtered.nwb",)),
    ],
)
def test_batches_that_are_refused_leave_nothing(place, days, tmp_path, monkeypatch, options, says):
    for day in days:
        shutil.copy(day, tmp_path)
    (tmp_path / "other").mkdir()
    shutil.copy(days[0], tmp_path / "other")
    np.savez(tmp_path / "units.npz", counts=np.ones((5, 3), int), bin_width=0.02)
    shutil.copy(days[0], tmp_path / "filtered.nwb")
    with h5py.File(tmp_path / "filtered.nwb", "a") as file:
        file.create_group("processing/evkf")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    model = ("--model", place / "model.safetensors")
    result = invoke("filter", *(day.name for day in days), *model, *options)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    for part in says:
        assert part in result.err
    assert sorted(tmp_path.rglob("*")) == before


def test_data_without_a_client_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = invoke("data", "mc_maze_large", "--out", tmp_path / "data")
    assert result.code == 1
    for part in ("000138", "pip install dandi", "dandi download"):
        assert part in result.out
    assert invoke("data", "nonsense").code == 2


@pytest.mark.parametrize(("status", "says"), [(0, "fetched into"), (1, "client: no route\n")])
def test_data_with_a_client(monkeypatch, tmp_path, status, says):
    client = tmp_path / "dandi"
    client.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/said\necho hello\necho no route >&2\nexit {status}\n'
    )
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = invoke("data", "mc_maze_large", "--out", tmp_path / "data")
    assert (result.code, says in result.out) == (status, True)
    said = (tmp_path / "said").read_text()
    assert said == f"download --existing skip --output-dir {tmp_path}/data DANDI:000138\n"
