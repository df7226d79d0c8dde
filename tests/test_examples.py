"""Every example runs, and has its figure."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick import quick_environment

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_runs_and_draws_its_figure(script: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, script, "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env=quick_environment() | {"MPLBACKEND": "agg"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert (tmp_path / f"{script.stem}.png").stat().st_size > 10_000


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_has_its_figure_in_the_documentation(script: Path):
    picture = ROOT / "docs" / "img" / f"{script.stem}.png"
    assert f"(../docs/img/{picture.name})" in script.read_text(encoding="utf-8")
    assert picture.stat().st_size < 400_000
