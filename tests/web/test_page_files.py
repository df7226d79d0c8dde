"""Files of the page: small, complete, and nothing that comes from elsewhere."""

import re
from pathlib import Path

import pytest

import evkf.web
from evkf.web.static import POLICY

PAGE = Path(evkf.web.__file__).parent / "page"
SCRIPTS = sorted(PAGE.glob("*.js"))
ELSEWHERE = re.compile(r"""["'(]\s*(?:https?:)?//(?!www\.w3\.org/2000/svg)""")


@pytest.mark.parametrize("path", [*SCRIPTS, PAGE / "index.html", PAGE / "page.css"], ids=str)
def test_a_file_is_small_and_asks_nothing_of_others(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    assert not ELSEWHERE.search(text)
    assert not re.search(r"\beval\(|new Function|innerHTML|document\.write", text)


def test_scripts_import_only_one_another() -> None:
    names = {path.name for path in SCRIPTS}
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8")
        found = re.findall(r'^(?:import|export) .*? from "\./([^"]+)";$', text, re.MULTILINE)
        assert set(found) <= names
        assert text.count(" from ") >= len(found)


def test_the_page_has_no_script_of_its_own_and_forbids_those_of_others() -> None:
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
    assert scripts
    assert all("src=" in attributes and not body for attributes, body in scripts)
    assert not re.search(r"\son\w+=|style=", text)
    assert "Content-Security-Policy" not in text  # It is said once, in a header.
    assert POLICY.startswith("default-src 'none'; script-src 'self';")


def test_every_element_that_scripts_name_is_on_the_page() -> None:
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    there = set(re.findall(r'\bid="([^"]+)"', text))
    scripts = "".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    named = set(re.findall(r'(?:getElementById|\bget|show|click)\("([a-z0-9-]+)"', scripts))
    assert len(named) > 30
    assert named <= there
