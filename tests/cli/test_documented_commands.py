"""What the README and the pages say to type can be typed.

Every command line is read by the parser that will read it, so that none has an option that is gone.
Those of `RUN` are run too, in order, in one folder; `NOT_RUN` says of the others why they are not,
and what runs the like of them.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from evkf.cli.app import app, main
from tests.quick import quick_compilation  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
DOCS = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "howto").glob("*.md"))]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
SMALL = {
    "--neurons 60 --trials 40": "--neurons 6 --trials 4 --bins 20",
    "--neurons 30 --trials 24": "--neurons 6 --trials 4 --bins 20",
}
"""In the README and the how-to pages, to be quick here."""
RUN = {
    "README.md": r"evkf (simulate|info|fit|filter|score|plot|--help)",
    "docs/howto/another_day.md": r".",
    "docs/howto/choose_a_model.md": r".",
    "docs/recordings.md": r".",
    "docs/start.md": r"evkf (?!live|replay)",
}
"""Lines of a page that are run, by how they begin."""
NOT_RUN = {
    r"(make|pip|python3 -m venv|source) ": "makes or needs an environment: `make release` does",
    r"evkf (live|resume|replay|export)\b": "goes on until it is ended: tests/cli/test_live.py",
    r"evkf (view|serve)\b": "goes on until it is ended: tests/web, tests/live/test_supervisor.py",
    r"evkf doctor\b": "measures the machine: tests/cli/test_live.py",
    r"evkf demo\b": "takes minutes: tests/recordings/test_demonstration.py",
    r"evkf reproduce\b": "takes minutes to days: tests/cli/test_reproduce.py",
    r"evkf --version": "tests/cli/test_app.py",
    r"evkf fit day1\.npz": "needs a recording of a rig: docs/recordings.md has the like",
    r"python examples/": "tests/test_examples.py",
    r"\.venv/bin/python docs/screenshots\.py": "needs a browser and a minute",
    r"python -c \"import jax": "needs a GPU",
    r"\.venv/bin/python -m pytest ": "tests, which run anyhow",
    r"\.venv/bin/python benchmarks/": "takes minutes to hours: `make long`",
    r"evkf (stop|arm)\b": "needs a session that stimulates: tests/live/test_loop.py",
    r"evkf data\b": "fetches from elsewhere: tests/cli/test_recordings.py",
    r"evkf (fit|filter) day1\.nwb": "a recording of yours: the like of it is run from others",
    r"(ulimit|export|ssh|openssl) ": "is of the machine",
    r"python3 -m http\.server": "goes on until it is ended",
    r"dask ": "goes on until it is ended: tests/reproduce, benchmarks/cluster.py",
    r"(curl|cd DIR) ": "needs a session that runs: tests/web, tests/live/test_loop.py",
}


def commands(page: Path) -> list[str]:
    """Lines of the console blocks, without their comments; those that go on are one."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = re.sub(r" *\\\n *", " ", "".join(blocks)).splitlines()
    return [re.sub(r"\s+# .*", "", line) for line in lines]


def is_run(name: str, line: str) -> bool:
    return name in RUN and re.match(RUN[name], line) is not None


LINES = [(page.relative_to(ROOT).as_posix(), line) for page in PAGES for line in commands(page)]


@pytest.mark.parametrize(("name", "line"), LINES)
def test_a_line_is_run_or_it_is_said_why_not(name: str, line: str):
    reasons = [why for begin, why in NOT_RUN.items() if re.match(begin, line)]
    assert is_run(name, line) or len(reasons) == 1, (name, line)


@pytest.mark.parametrize("begin", NOT_RUN)
def test_no_reason_is_left_over(begin: str):
    assert any(re.match(begin, line) for _, line in LINES)


@pytest.mark.parametrize("line", sorted({line for _, line in LINES if line.startswith("evkf ")}))
def test_options_are_those_of_the_command(line: str):
    command, args = typer.main.get_command(app), shlex.split(line)[1:]
    while args and args[0] in getattr(command, "commands", {}):
        command, args = command.commands[args[0]], args[1:]  # type: ignore[attr-defined]
    if args not in (["--help"], ["--version"]):
        command.make_context("evkf", args)


@pytest.mark.parametrize("line", sorted({line for _, line in LINES if line.startswith("make ")}))
def test_targets_are_those_of_the_makefile(line: str):
    target = line.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_lines_run_in_order(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    make_sorted(tmp_path / "sorted")
    ran = [line for page, line in LINES if page == name and is_run(page, line)]
    assert ran
    for line in ran:
        for whole, small in SMALL.items():
            line = line.replace(whole, small)
        if line.startswith("evkf "):
            with pytest.raises(SystemExit) as ended:
                main(shlex.split(line)[1:])
            assert not ended.value.code, line
        else:
            shell = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", line)
            subprocess.run(shell, shell=True, check=True, cwd=tmp_path)


def make_sorted(folder: Path) -> None:
    """What a sorter leaves, of three clusters."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    np.save(folder / "spike_times.npy", np.sort(rng.integers(0, 150_000, 600)))
    np.save(folder / "spike_clusters.npy", rng.integers(0, 3, 600))
    (folder / "params.py").write_text("sample_rate = 30000.\n")
    (folder / "cluster_group.tsv").write_text("cluster_id\tgroup\n0\tgood\n1\tmua\n2\tgood\n")
