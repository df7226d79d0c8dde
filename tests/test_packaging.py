"""The package metadata and the locks agree with each other."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

import evkf

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ["run.txt", "dev.txt"]


def lock_text(name: str) -> str:
    return (ROOT / "requirements" / name).read_text(encoding="utf-8")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    assert match is not None, requirement
    return canonical(match.group())


def pins(name: str) -> dict[str, str]:
    """Each package of a lock with its whole line (version and marker)."""
    lines = [line.strip() for line in lock_text(name).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    pinned = {requirement_name(line): line for line in lines}
    assert len(pinned) == len(lines), f"{name} pins a package more than once"
    return pinned


@pytest.fixture(scope="module")
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LOCKS)
@pytest.mark.parametrize("fragment", ["http:", "https:", "file:", "@ ", "--index", "--find-links"])
def test_locks_name_no_place(name: str, fragment: str):
    assert fragment not in lock_text(name)


@pytest.mark.parametrize("name", LOCKS)
def test_locks_pin_exact_public_versions(name: str):
    exact = re.compile(r"[a-z0-9][a-z0-9-]*==[0-9][0-9a-z.]*( ; .+)?")
    for line in pins(name).values():
        assert exact.fullmatch(line), line


def test_core_dependencies_are_pinned(pyproject: dict):
    declared = {requirement_name(r) for r in pyproject["project"]["dependencies"]}
    assert declared <= pins("run.txt").keys()


def test_development_tools_are_pinned(pyproject: dict):
    groups = pyproject["dependency-groups"]
    declared = {requirement_name(r) for r in groups["dev"] + groups["docs"] if isinstance(r, str)}
    assert declared <= pins("dev.txt").keys()


def test_dev_lock_contains_run_lock():
    # A tool may need a package on every platform, where evkf does not; never on fewer.
    run, dev = pins("run.txt"), pins("dev.txt")
    for name, pin in run.items():
        assert dev.get(name) in (pin, pin.partition(" ;")[0])


def test_installed_version_is_the_source_version():
    assert importlib.metadata.version("evkf") == evkf.__version__, "run `make setup`"


def test_the_changelog_tells_of_this_version_and_the_citation_names_it():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(evkf.__version__)}\] - \d{{4}}-\d\d-\d\d$", changes, re.M)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {evkf.__version__}\n" in citation
