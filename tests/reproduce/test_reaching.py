"""Reaching: the protocol and its command, in small; the numbers on the real recording."""

import json

import numpy as np
import pytest

from evkf.data import Recording, recording_to_nwb, write_arrays
from evkf.errors import InputError
from evkf.recordings.scoring import linear_system
from evkf.recordings.simulation import simulate_recording
from evkf.reproduce.reaching import experiment as reaching
from evkf.reproduce.reaching.experiment import FitEffort, Reaches, Score
from evkf.reproduce.reaching.figure import best_plane
from evkf.reproduce.reaching.report import report
from tests.cli.test_recordings import invoke
from tests.quick import quick_compilation  # noqa: F401
from tests.real_recordings import MAZE, find

LEAST = FitEffort(passes=2, em_steps=2, steps=20)
METHODS = [
    "eVKF",
    "eVKF, learning on",
    "eVKF, learning on, decoder fixed",
    "eVKF on GPFA states",
    "random walk",
    "GPFA (not causal)",
    "linear dynamical system",
    "causal smoothing",
    "Wiener filter",
    "average of the condition",
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The command on a small recording, with the least effort."""
    folder = tmp_path_factory.mktemp("reaching")
    write_arrays(folder / "made.npz", simulate_recording(neurons=20, trials=12, bins=20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reaching, "QUICK", LEAST)
        patch.setattr(reaching, "LATENTS", 3)
        patch.setattr(reaching, "NETWORK", 4)
        patch.setenv("EVKF_DATA", str(folder / "made.npz"))
        out = ("--out", folder / "out")
        result = invoke("reproduce", "reaching", "--quick", "--json", "-", *out)
    return result, folder / "out"


def test_the_command_writes_rows_table_and_figure(ran):
    result, out = ran
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert told == json.loads((out / "reaching.json").read_text())
    assert [row["method"] for row in told["rows"]] == METHODS
    assert {row["seed"] for row in told["rows"]} == {0}
    assert told["config"]["trials"] == [6, 6]
    assert (told["targets"], told["missed"]) == (None, [])
    empty = {row["method"]: {name for name in row if row[name] is None} for row in told["rows"]}
    decoded = {"one_step", "co_smoothing", "psth"}
    assert {method: columns for method, columns in empty.items() if columns} == {
        "eVKF, learning on": decoded,
        "eVKF, learning on, decoder fixed": decoded,
        "GPFA (not causal)": {"one_step"},
        "causal smoothing": {"latents_r2"},
        "Wiener filter": {"psth", "latents_r2"},
        "average of the condition": {"rates_r2", "latents_r2"},
    }
    assert {path.name for path in out.iterdir()} == {
        f"reaching.{end}" for end in ("json", "md", "png", "svg")
    }
    assert (out / "reaching.png").stat().st_size > 50_000


def test_the_table_begins_with_ours_and_says_what_differs(ran):
    text = (ran[1] / "reaching.md").read_text()
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    assert rows == ["| method", *(f"| {method}" for method in METHODS)]
    for part in ("What differs from the paper", "6 to judge", "time 0 is the trial start"):
        assert part in text
    assert "seed 0 (1 of 1)" in ran[0].err


def test_nothing_is_overwritten(ran, monkeypatch):
    _, out = ran
    monkeypatch.setenv("EVKF_DATA", str(out.parent / "made.npz"))
    result = invoke("reproduce", "reaching", "--out", out)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "--force" in result.err


def test_missing_data_is_said_in_one_line(monkeypatch, tmp_path):
    monkeypatch.delenv("EVKF_DATA", raising=False)
    for args, code in (((), 2), (("--data", tmp_path), 2), (("--data", tmp_path / "a.nwb"), 2)):
        result = invoke("reproduce", "reaching", *args, "--out", tmp_path / "out")
        assert (result.code, result.out, result.err.count("\n")) == (code, "", 1)
        assert "--data" in result.err
        assert "EVKF_DATA" in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("trials", "halves"), [(500, (250, 250)), (600, (250, 250)), (7, (3, 4))])
def test_halves_are_disjoint(trials, halves):
    counts = np.ones((trials, 4), int)
    numbers = {"number": np.arange(trials)}
    still = np.zeros((trials, 2))
    recording = Recording(counts, 0.02, (1,) * trials, trials=numbers, behaviour={"v": still})
    parts = reaching.split(Reaches(recording, "v", None), seed=1)
    first, second = (set(half.trials["number"].tolist()) for half in parts[:2])
    assert (len(first), len(second)) == halves
    assert not first & second
    other = reaching.split(Reaches(recording, "v", None), seed=2)
    assert set(other.train.trials["number"].tolist()) != first


def test_nwb_is_read_with_what_goes_with_it(tmp_path):
    made = simulate_recording(neurons=5, trials=6, bins=20)
    recording_to_nwb(tmp_path / "a.nwb", made)
    read = reaching.read_reaches(tmp_path / "a.nwb")
    assert (read.velocity, read.condition, read.position) == ("hand_vel", "condition", None)
    assert (read.recording.num_trials, read.subset) == (6, False)
    np.testing.assert_array_equal(read.recording.counts, made.counts)


def test_the_subset_is_known_by_its_name(tmp_path):
    made = simulate_recording(neurons=5, trials=165, bins=4)
    for name, event in ((reaching.SUBSET, "movement onset"), ("other.npz", "trial start")):
        write_arrays(tmp_path / name, made)
        read = reaching.read_reaches(tmp_path / name)
        assert (read.subset, read.event) == (name == reaching.SUBSET, event)
        assert ("does not store it" in report([], read, 1, False)) == read.subset


def test_what_cannot_be_read(tmp_path):
    made = simulate_recording(neurons=5, trials=6, bins=20)
    write_arrays(tmp_path / "few.npz", made.take([0, 1]))
    with pytest.raises(InputError, match="four or more"):
        reaching.read_reaches(tmp_path / "few.npz")
    write_arrays(tmp_path / "none.npz", Recording(made.counts, 0.02, made.lengths))
    with pytest.raises(InputError, match="--behaviour"):
        reaching.read_reaches(tmp_path / "none.npz")
    flat = {"speed": made.behaviour["hand_vel"][:, 0]}
    write_arrays(tmp_path / "flat.npz", Recording(made.counts, 0.02, made.lengths, behaviour=flat))
    with pytest.raises(InputError, match="two coordinates"):
        reaching.read_reaches(tmp_path / "flat.npz", "speed")


def test_means_errors_and_targets():
    def rows(own: float, on: float, bits: float) -> list[Score]:
        return [
            Score("eVKF", co_smoothing=bits, rates_r2=own),
            Score("eVKF, learning on", rates_r2=on),
        ]

    means = reaching.summarise([rows(0.84, 0.85, 0.17), rows(0.86, 0.85, 0.19)])
    assert means[0]["rates_r2"] == pytest.approx({"mean": 0.85, "error": 0.01})
    assert means[1]["co_smoothing"] is None
    assert reaching.shortfalls(means) == []
    bad = reaching.summarise([rows(0.84, 0.83, 0.16)])
    assert [words.split(":")[0] for words in reaching.shortfalls(bad)] == [
        "learning_gain",
        "co_smoothing",
    ]
    made = simulate_recording(neurons=5, trials=6, bins=4)
    text = report(means, Reaches(made, "hand_vel", None, "go", 0.05), 2, False)
    assert "| eVKF | 0.850 ± 0.010 | — | 0.180 ± 0.010 |" in text
    assert "time 0 is the go, 50 ms into every trial" in text


def test_one_latent_has_a_plane_too():
    assert best_plane(np.arange(4.0)[:, None], (2, 2), np.zeros(2)).shape == (4, 2)


@pytest.mark.slow
def test_the_real_recording():
    reaches = reaching.read_reaches(find(MAZE))
    assert (reaches.velocity, reaches.condition) == ("hand_vel_mm_s", "trial_type")
    assert (reaches.position, reaches.event) == ("hand_pos_mm", "movement onset")
    assert reaches.subset
    parts = reaching.split(reaches, 0)
    assert (parts.train.num_trials, parts.test.num_trials) == (82, 83)
    assert int(parts.hide.sum()) == 40
    model = reaching.fit_recording(parts.train, reaching.LATENTS, hidden=32, passes=6)
    row = reaching.evkf(parts, model)
    assert row.rates_r2 > 0.6
    assert row.co_smoothing > 0.1


@pytest.mark.slow
def test_the_linear_system_predicts_counts_by_a_map():
    """Squares of its own expectations are far off where there are few spikes."""
    parts = reaching.split(reaching.read_reaches(find(MAZE)), 0)
    row = linear_system(parts, reaching.LATENTS, 30)
    assert row.one_step == pytest.approx(0.207, abs=0.01)
    assert row.psth == pytest.approx(0.367, abs=0.02)
