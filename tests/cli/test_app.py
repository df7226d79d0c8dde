"""The command line: help, exit codes, what is written and what is refused."""

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

import evkf
from evkf.cli.app import EXIT_CODES, insistent_interrupt, main
from evkf.cli.console import to_json
from tests.quick import quick_compilation  # noqa: F401

SMALL = ("--offline", "--bins", "80", "--neurons", "20", "--seed", "3")
DEMO_FILES = {"demo.png", "demo.svg", "summary.json", "config.json"}


class Result(NamedTuple):
    code: int
    out: str
    err: str


def invoke(*args: str) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stop,
    ):
        main(args)
    code = stop.value.code
    assert code is None or isinstance(code, int)
    return Result(code or 0, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("demo") / "first"
    return out, invoke("demo", *SMALL, "--out", str(out), "--json", "-")


def without_timing(summary: dict) -> dict:
    return {key: value for key, value in summary.items() if key != "timing"}


def test_version():
    assert invoke("--version") == Result(0, f"evkf {evkf.__version__}\n", "")


def test_help_explains_exit_codes_and_has_examples():
    result = invoke("--help")
    assert result.code == 0
    codes = [line[:7].strip() for line in EXIT_CODES.splitlines()[2:]]
    assert [code for code in codes if code] == ["0", "1", "2", "130"]
    assert "a session failed" in EXIT_CODES
    for line in EXIT_CODES.splitlines()[2:]:
        assert line in result.out
    assert "evkf demo" in result.out


def test_a_command_has_examples_and_the_common_options():
    result = invoke("demo", "--help")
    for part in ("evkf demo", "--quiet", "--json", "--seed", "--force"):
        assert part in result.out


def test_demo_writes_figure_summary_and_configuration(demo: tuple[Path, Result]):
    out, result = demo
    assert result.code == 0, result.err
    assert {path.name for path in out.iterdir()} == DEMO_FILES
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "demo.svg").read_text(encoding="utf-8")
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["options"] == {
        "bins": 80,
        "neurons": 20,
        "seed": 3,
        "dtype": "float32",
        "realtime": False,
        "out": str(out),
    }
    assert config["versions"].keys() == {"evkf", "jax", "jaxlib", "numpy", "python"}


def test_json_stands_alone_on_stdout_and_words_go_to_stderr(demo: tuple[Path, Result]):
    out, result = demo
    assert json.loads(result.out) == json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert "RMSE" in result.err
    assert "80/80 bins" in result.err


def test_demo_refuses_to_overwrite(demo: tuple[Path, Result]):
    out, _ = demo
    before = (out / "summary.json").read_bytes()
    result = invoke("demo", *SMALL, "--out", str(out))
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert str(out / "demo.png") in result.err
    assert "--force" in result.err
    assert (out / "summary.json").read_bytes() == before


def test_same_seed_gives_the_same_numbers_and_quiet_says_nothing(demo: tuple[Path, Result]):
    out, first = demo
    assert invoke("demo", *SMALL, "--out", str(out), "--force", "--quiet") == Result(0, "", "")
    second = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert without_timing(second) == without_timing(json.loads(first.out))


@pytest.mark.parametrize(
    "args",
    [("nonsense",), ("demo", "--bins", "one"), ("demo", "--bins", "0"), ("demo", "--seed", "-1")],
)
def test_bad_usage_exits_2(args: tuple[str, ...]):
    result = invoke(*args)
    assert (result.code, result.out) == (2, "")
    assert "Error" in result.err


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path):
    blocker = tmp_path / "file"
    blocker.touch()
    result = invoke("demo", *SMALL, "--out", str(blocker / "below"))
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert str(blocker) in result.err


def test_interrupt_exits_130(tmp_path: Path):
    command = [sys.executable, "-m", "evkf", "demo", "--offline", "--realtime", "--bins", "10000"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("simulating")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_an_interrupt_lost_in_native_code_is_repeated(monkeypatch: pytest.MonkeyPatch):
    """Python ignores what a destructor raises, as in many callbacks of native code."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: lost.append(event.exc_type))

    class Deaf:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def work():
        with insistent_interrupt(every=0.05):
            Deaf()
            for _ in range(500):
                time.sleep(0.01)

    # A run in the background may have been told to ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert lost == [KeyboardInterrupt]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_json_is_strict():
    text = to_json({"a": [float("nan"), 1.5], "b": {"c": float("inf")}})
    assert json.loads(text) == {"a": [None, 1.5], "b": {"c": None}}


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            OSError("Unable to open file\n(file   is locked)"),
            "Unable to open file (file is locked)",
        ),
        (OSError(28, "No space left on device", "a.h5"), "a.h5: No space left on device"),
    ],
)
def test_errors_of_the_system_are_one_line(monkeypatch, error, says):
    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("evkf.cli.app.app", fail)
    assert invoke("info") == Result(2, "", f"evkf: {says}\n")
