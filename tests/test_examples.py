"""Every example runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick import quick_environment

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_runs(script: Path):
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=quick_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
