"""Commands of live sessions: one run from end to end, and what is refused."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from rich.console import Console

from evkf.analysis.estimates import Estimates
from evkf.cli.app import main
from evkf.cli.journal import _write
from evkf.cli.live_options import AHEAD
from evkf.cli.running import _end
from evkf.cli.wiring import listening
from evkf.data import Annotations, Mark, Recording, read_annotations, read_estimates
from evkf.errors import InputError
from evkf.live.export import Exported, _Kept, recall_recording
from evkf.live.guard import Output, State, Word
from evkf.live.journal import Journal
from evkf.live.plan import JOURNAL, Plan, new_folder, parts
from evkf.live.ports import Report
from evkf.live.records import Bin, Kind, encode_words
from evkf.live.segments import Record, frame, frame_header, segment_path
from evkf.live.zeromq import ZmqSink
from tests.cli.test_app import invoke
from tests.quick import quick_environment

BINS = 40
LIMITS = ("--max-amplitude", "1,1", "--max-rate", "1,1", "--max-charge", "1,1")


@pytest.fixture(autouse=True)
def in_a_process_that_has_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused in this process is refused whatever it did before."""
    monkeypatch.setattr("evkf.cli.live.low_latency", lambda: None)


def run(*args: str) -> dict:
    command = [sys.executable, "-m", "evkf", *args, "--json", "-"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True, env=quick_environment()
    )
    return json.loads(done.stdout)


def test_a_session_from_end_to_end(tmp_path: Path):
    folder = tmp_path / "session"
    # A busy machine may not hold the rate, and learns less then; the results are the same.
    asked = ("--neurons", "8", "--bins", str(BINS), "--no-real-time", "--overload")
    before = datetime.now(UTC)
    live = run("live", str(folder), *asked, "--web", "127.0.0.1:0")
    assert (live["phase"], live["bins"], live["acknowledged"]) == ("closed", BINS, BINS - 1)
    assert live["counters"]["lost"] == 0
    assert not Plan.read(folder).real_time
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    assert (folder / "web.log").read_text() == ""
    again = run("replay", str(folder))
    assert (again["bins"], again["compared"], again["differ"]) == (BINS, BINS, [])
    assert again["learned"] == live["learned"]
    assert run("export", str(folder))["bins"] == BINS
    with np.load(folder / "session.npz") as found:
        assert found["latent_mean"].shape == (BINS, 2)
        assert np.isfinite(found["latent_cov"]).all()
        # The rig's clock, at which a bin was sent when it was over.
        assert np.allclose(np.diff(found["source_times"]), 0.01, atol=0.2)
        assert found["mark_times"].shape == (0,)
        assert not {"counts", "masks"} & set(found.files)  # as the help says
    plan = Plan.read(folder)
    exported = recall_recording(folder, plan, parts(plan, folder))
    assert before < exported.notes.began < datetime.now(UTC)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["live", "{}", "--source", "telepathy"], "choose one of rig, replay, zeromq"),
        (["live", "{}", "--policy", "hope"], "choose one of process-crash, power-loss"),
        (["live", "{}", "--source", "zeromq"], "pass --model"),
        (["live", "{}", "--model", "m.safetensors"], "the simulated rig has neurons of its own"),
        (["live", "{}", "--recording", "day1.nwb"], "it is for replay"),
        (["live", "{}", "--source", "zeromq", "--model", "m", "--bins", "9"], "rig and replay"),
        (["live", "{}", "--source", "lsl", "--stream", "s", "--model", "m", "--speed", "2"], "rig"),
        (["live", "{}", "--blank", "3:0.005"], "it is for --source open-ephys"),
        (
            ["live", "{}", "--address", "tcp://127.0.0.1:5555"],
            "it is for --source zeromq and open-ephys",
        ),
        (
            ["live", "{}", "--source", "replay", "--recording", "no.nwb", "--model", "m"],
            "no such file",
        ),
        (["live", "{}", "--steer", "1"], "pass 2 numbers"),
        (["live", "{}", "--steer", "a,b"], "pass numbers with commas"),
        (["live", "{}", "--steer", "1,0", "--controller", "a:b"], "without --controller"),
        (["live", "{}", "--max-rate", "1"], "pass --controller"),
        (["live", "{}", "--steer", "1,0", "--max-rate", "1,1"], "pass --max-amplitude"),
        (["live", "{}", "--charge-window", "2"], "pass --controller"),
        (["live", "{}", "--steer", "1,0", "--charge-window", "2"], "pass --max-amplitude"),
        (
            ["live", "{}", "--steer", "1,0", *LIMITS, "--charge-window", "0"],
            "pass 0.001 s or more",
        ),
        (["live", "{}", "--controller", "a:b", "--stimulator", "a:b"], "leave out --stimulator"),
        (["live", "{}", "--controller", "nowhere:make"], "write MODULE:NAME"),
        (["stop", "{}"], "no guard"),
        (["arm", "{}/nowhere"], "name that of a session"),
        (["live", "{}", "--source", "lsl", "--model", "m"], "no --stream"),
        (["live", "{}", "--source", "lsl", "--stream", "s"], "docs/rig.md"),
        (["live", "{}", "--stream", "spikes"], "--source lsl"),
        (["live", "{}", "--stream", "spikes", "--model", "m"], "open-ephys, lsl"),
        (["live", "{}", "--blank", "3"], "pass LINE:SECONDS"),
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


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (frame(9, b"damaged")[:-1] + b"?" + frame(9, b"whole"), "restore the segment from a copy"),
        (b"", "a session without bins"),
    ],
    ids=["damaged", "empty"],
)
def test_a_journal_that_cannot_be_replayed_is_told_of_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    records: bytes,
    words: str,
):
    for name in ("low_latency", "keep_compiled"):
        monkeypatch.setattr(f"evkf.cli.journal.{name}", lambda *_: None)
    Plan("rig", 0.01, channels=3).write(tmp_path)
    (tmp_path / JOURNAL).mkdir()
    segment_path(tmp_path / JOURNAL, 0).write_bytes(frame_header(0, bytes(16)) + records)
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(tmp_path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_stop_comes_before_what_is_wrong_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told = []

    def tell(folder: Path, word: Word) -> Output:
        told.append(word)
        return Output(State.STOPPED, 7, (0.0,), 1, 1, "the operator")

    monkeypatch.setattr("evkf.cli.stimulation.tell_guard", tell)
    taken = tmp_path / "taken.json"
    taken.write_text("mine")
    for command in ("stop", "arm"):
        said = invoke(command, str(tmp_path), "--json", str(taken))
        assert (said.code, "file exists" in said.err) == (2, True)
    assert told == [Word.STOP]
    assert taken.read_text() == "mine"
    assert "would not be stopped" in " ".join(invoke("stop", str(tmp_path)).out.split())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["live", "{}/new", "--publish", "tcp://127.0.0.1:0"], 'ZeroMQ needs zmq.*"evkf[live]"'),
        (["live", "{}/new", "--web", "127.0.0.1:0"], 'the page needs fastapi.*"evkf[web]"'),
        (["view", "{}"], 'the page needs fastapi.*"evkf[web]"'),
    ],
)
def test_without_its_extra_a_command_names_it(
    args: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    monkeypatch.setattr("evkf.data.files.importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        main([arg.format(tmp_path) for arg in args])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert re.search(says.replace("[", r"\["), said)
    assert said.count("\n") == 1


def test_a_folder_in_use_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit):
        main(["live", str(tmp_path)])
    assert "there is something already" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("args", "wanted"), [([], False), (["--real-time"], True), (["--no-real-time"], False)]
)
def test_a_session_that_is_taken_up_again_has_the_priority_it_began_with(
    args: list[str], wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plans: list[Plan] = []
    monkeypatch.setattr("evkf.cli.live._go_on", lambda _, plan, *__: plans.append(plan) or {})
    Plan("rig", 0.01, channels=3, real_time=False).write(tmp_path)
    assert invoke("resume", str(tmp_path), *args).code == 0
    assert [plan.real_time for plan in plans] == [wanted]


def test_a_session_is_taken_up_again_with_another_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plans: list[Plan] = []
    monkeypatch.setattr("evkf.cli.live._go_on", lambda _, plan, *__: plans.append(plan) or {})
    Plan("lsl", 0.01, channels=3, stream="spike").write(tmp_path)
    for args in ((), ("--stream", "spikes")):
        assert invoke("resume", str(tmp_path), *args).code == 0
    assert [plan.stream for plan in plans] == ["spike", "spikes"]
    (tmp_path / "rig").mkdir()
    Plan("rig", 0.01, channels=3).write(tmp_path / "rig")
    assert "it is for --source lsl" in invoke("resume", str(tmp_path / "rig"), *args).err


def test_a_session_that_runs_does_not_notice_that_it_is_to_be_taken_up_again(tmp_path: Path):
    Plan("rig", 0.01, channels=3, web="127.0.0.1:0").write(tmp_path)
    with Journal.open(tmp_path / JOURNAL, "process-crash"):
        before = sorted(path.name for path in tmp_path.iterdir())
        ran = invoke("resume", str(tmp_path))
        assert ran.code == 2
        assert "end the session that runs there" in ran.err
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_page_of_a_source_that_brings_one_looks_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plans: list[Plan] = []
    for name, put in {
        "load_model": lambda _: SimpleNamespace(bin_width=0.01),
        "keep_model": lambda *_: None,
        "listening": lambda plan, *_: plan,
        "run_new": lambda _, plan, *__: plans.append(plan) or Report.starting(""),
    }.items():
        monkeypatch.setattr(f"evkf.cli.live.{name}", put)
    asked = ("--source", "websocket", "--model", "m.safetensors")
    assert invoke("live", str(tmp_path / "day"), *asked).code == 0
    assert plans[0].horizon == AHEAD


def test_stimulation_without_limits_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture):
    asked = ("--source", "zeromq", "--model", "m.safetensors", "--controller", "a:b")
    with pytest.raises(SystemExit):
        main(["live", str(tmp_path), *asked, "--stimulator", "a:b"])
    assert "stimulation without limits" in capsys.readouterr().err


def test_a_closed_loop_from_end_to_end(tmp_path: Path):
    folder = tmp_path / "session"
    sizes = ("--neurons", "8", "--bins", str(BINS), "--speed", "0.5")
    live = run("live", str(folder), *sizes, "--steer", "1,0", "--no-real-time", "--overload")
    assert live["phase"] == "closed"
    assert live["stimulation"].split(":")[0] in ("armed", "held")
    again = run("replay", str(folder))
    assert (again["compared"], again["differ"]) == (BINS, [])


def test_a_beginning_that_failed_can_be_begun_again(tmp_path):
    folder = tmp_path / "day"
    (folder / "compiled").mkdir(parents=True)
    assert new_folder(folder) == folder
    (folder / "session.json").write_text("{}")
    with pytest.raises(InputError, match="something already"):
        new_folder(folder)


def test_the_name_of_a_new_folder_survives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: list[Path] = []
    monkeypatch.setattr("evkf.live.plan.DISK.sync_folder", synced.append)
    new_folder(tmp_path / "days" / "one")
    assert synced == [tmp_path, tmp_path / "days"]


class Stubborn:
    """A process that ends when it is killed, or not even then."""

    name = "evkf-guard"

    def __init__(self, mortal: bool):
        self._mortal, self._lives = mortal, True

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        self._lives = not self._mortal

    def join(self, timeout: float) -> None:
        assert timeout > 0

    def is_alive(self) -> bool:
        return self._lives


@pytest.mark.parametrize(("mortal", "how"), [(True, "was killed"), (False, "is still there")])
def test_a_process_that_does_not_end_is_killed_and_told_of(
    mortal: bool, how: str, capsys: pytest.CaptureFixture
):
    _end(Stubborn(mortal), Console())
    assert f"evkf-guard did not end within 5 s, and {how}" in capsys.readouterr().out


RECORDING = Recording(np.ones((4, 3), int), bin_width=0.01)
FOUND = Estimates(np.zeros((4, 2)), np.zeros((4, 2, 2)), np.ones(4), predicted=np.ones((4, 3)))


@pytest.mark.parametrize("counts", [True, False])
def test_an_export_knows_when_the_session_began_and_what_was_marked(tmp_path: Path, counts: bool):
    began, sent = "2026-05-04T10:30:00.250+02:00", np.array([1.5, np.nan, 1.52, 1.53])
    marks = (Mark(0.01, "stimulus on"), Mark(0.03, "größer"))
    for said, due in ((began, began), (None, "2000-01-01T00:00:00+00:00")):
        when = None if said is None else datetime.fromisoformat(said)
        found = FOUND._replace(signals=not counts)
        made = Exported(RECORDING, found, Annotations(None, sent, marks, when))
        _write(tmp_path / "out.nwb", made, counts, force=True)
        with h5py.File(tmp_path / "out.nwb") as file:
            found = file["session_start_time"].asstr()[()]
            unknown = "not known" in file["session_description"].asstr()[()]
            rates = file["processing/evkf/rates"].attrs["description"]
        assert "before the bin was seen" in rates
        assert datetime.fromisoformat(found) == datetime.fromisoformat(due)
        assert unknown == (said is None)
        notes, stored = (read(tmp_path / "out.nwb") for read in (read_annotations, read_estimates))
        assert (notes.marks, notes.began) == (marks, when)
        np.testing.assert_array_equal(notes.source_times, sent)
        assert (stored.rates, stored.signals) == (None, not counts)
        np.testing.assert_allclose(stored.predicted, FOUND.predicted)


def record(kind: Kind, payload: bytes) -> Record:
    return Record(0, kind, payload)


def test_marks_and_the_beginning_are_told_by_the_clock_of_the_recording():
    """Second 0 is when bin 0 began, by the clock of the process that took in the first bin."""
    kept = _Kept(0.5)
    begin = [encode_words(wall_ns=wall, monotonic_ns=10**9) for wall in (5 * 10**9, 10**11)]
    mark = encode_words(ask="mark", text="now", seq=7)
    records = [
        (Kind.BEGIN, begin[0]),
        (Kind.BEGIN, begin[1]),
        (Kind.BIN, Bin(4 * 10**9, b"").encode()),
    ]
    records += [(Kind.ACTION, encode_words(ask="freeze", text="", seq=4)), (Kind.ACTION, mark)]
    for each in kept.watch(record(*each) for each in records):
        if each.kind == Kind.BIN:
            kept.keep(3, None, None)
    assert kept.zero_ns == 10**11 + 3 * 10**9 - 2 * 10**9
    assert kept.marks == [Mark(3.5, "now")]


def test_time_goes_on_where_numbers_begin_anew():
    kept = _Kept(0.5)
    mark = encode_words(ask="mark", text="now", seq=3)
    for seq in (5, 6, 8, 1, 2):
        kept.keep(seq, None, None)
    list(kept.watch([record(Kind.ACTION, mark)]))
    assert kept.places == [5, 6, 8, 9, 10]
    assert kept.marks == [Mark(5.5, "now")]


def test_a_busy_port_is_told_of_before_anything_is_compiled(tmp_path):
    busy = ZmqSink("tcp://127.0.0.1:0")
    ran = invoke("live", str(tmp_path / "day"), "--publish", busy.address)
    busy.close()
    assert ran.code == 2
    assert "cannot bind" in ran.err
    assert "compiling" not in ran.out


def test_options_are_listed_under_headings():
    told = invoke("live", "--help").out
    words = ("Source:", "--stream ", "Page and", "--web ", "Stimulation:", "--steer ", "Other")
    places = [told.rindex(f"\n{word}" if word[0] != "-" else f"  {word}") for word in words]
    assert places == sorted(places)


def test_a_missing_package_is_told_of_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("evkf.data.files.importlib.util.find_spec", lambda name: None)
    places = None, None, None, False
    for plan, extra in (
        (Plan("lsl", 0.01, stream="s"), "lsl"),
        (Plan("open-ephys", 0.01), "live"),
        (Plan("zeromq", 0.01, address="tcp://127.0.0.1:0"), "live"),
        (Plan("rig", 0.01, lsl_out="latents"), "lsl"),
        (Plan("replay", 0.01, recording="day1.nwb"), "nwb"),
    ):
        with pytest.raises(InputError, match=rf"evkf\[{extra}\]"):
            listening(plan, False, *places)
