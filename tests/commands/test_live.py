"""Commands of live sessions: one run from end to end, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evkf.cli import main
from tests.quick import quick_environment

BINS = 40


def run(*args: str) -> dict:
    command = [sys.executable, "-m", "evkf", *args, "--json", "-"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True, env=quick_environment()
    )
    return json.loads(done.stdout)


def test_a_session_from_end_to_end(tmp_path: Path):
    folder = tmp_path / "session"
    # A busy machine may not hold the rate, and learns less then; the results are the same.
    asked = ("--channels", "8", "--bins", str(BINS), "--no-real-time", "--overload")
    live = run("live", str(folder), *asked, "--web", "127.0.0.1:0")
    assert (live["phase"], live["bins"], live["acknowledged"]) == ("closed", BINS, BINS - 1)
    assert live["counters"]["lost"] == 0
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    assert (folder / "web.log").read_text() == ""
    again = run("replay", str(folder))
    assert (again["bins"], again["compared"], again["differ"]) == (BINS, BINS, [])
    assert again["learned"] == live["learned"]
    assert run("export", str(folder))["bins"] == BINS
    with np.load(folder / "session.npz") as found:
        assert found["latent_mean"].shape == (BINS, 2)
        assert np.isfinite(found["latent_cov"]).all()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["live", "{}", "--source", "telepathy"], "choose one of rig, replay, zeromq"),
        (["live", "{}", "--policy", "hope"], "choose one of process-crash, power-loss"),
        (["live", "{}", "--source", "zeromq"], "pass --model"),
        (["live", "{}", "--model", "m.safetensors"], "the rig has neurons of its own"),
        (["live", "{}", "--recording", "day1.nwb"], "pass it with replay"),
        (["live", "{}", "--publish", "tcp://*:5556"], "or pass --open"),
        (["live", "{}", "--web", "nonsense"], "pass HOST:PORT"),
        (["live", "{}", "--web", "0.0.0.0:8765"], "--tls-cert and --tls-key, or --no-tls"),
        (["live", "{}", "--web", "8765", "--tls-cert", "a.pem"], "pass both"),
        (["live", "{}", "--no-tls"], "pass them with --web"),
        (["resume", "{}"], "name the folder that `evkf live` wrote"),
        (["replay", "{}"], "name the folder that `evkf live` wrote"),
        (["export", "{}"], "name the folder that `evkf live` wrote"),
        (["export", "{}", "--out", "a.csv"], "end it in .nwb, .npz, .h5, .hdf5"),
    ],
)
def test_bad_usage_is_answered_in_a_line(
    args: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture
):
    with pytest.raises(SystemExit) as ended:
        main([arg.format(tmp_path) for arg in args])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_folder_in_use_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit):
        main(["live", str(tmp_path)])
    assert "there is something already" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
