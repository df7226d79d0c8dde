"""The README says nothing that is not so: its code runs, its exit codes are the real ones."""

import re
from pathlib import Path

from evkf.cli.app import EXIT_CODES
from tests.quick import quick_compilation  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def test_python_blocks_run_in_order(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["trace"].belief.mean.shape == (500, 2)
    assert int(names["trace"].info.status.max()) == 0
    assert capsys.readouterr().out


def test_exit_codes_are_those_of_the_command_line():
    rows = re.sub(r"\n {7}", " ", EXIT_CODES).splitlines()[2:]
    assert len(rows) == 4
    for row in rows:
        code, meaning = row.split(maxsplit=1)
        assert f"| {code} | {meaning} |" in COMMANDS.replace("`", "")


def test_is_short():
    assert len(README.splitlines()) < 200


def test_pictures_are_there_and_small():
    pictures = re.findall(r"^!\[.*\]\((.*)\)", README, flags=re.MULTILINE)
    assert pictures
    assert all((ROOT / picture).stat().st_size < 600_000 for picture in pictures)
