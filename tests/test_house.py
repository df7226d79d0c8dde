"""The size and the words of the package: how much there is in one place, and how it is named.

`pytest -s` prints each figure with its bound, and `python -m tests.test_house` all of them with
what counts. Packages and commands whose turn has not come are those for which `pyproject.toml`
ignores ruff's PLR0913.
"""

import ast
import functools
import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "evkf"
REGISTRIES = {"families", "likelihoods", "filters/peers", "cli", "data", "live/sources"}
"""Packages in which each module is one entry of a kind."""
LAYER_LINES = 14
MOST_LINES = 500
QUESTIONS = {"What", "Whether", "Who", "How", "Where", "When", "Which", "Of", "That", "If"}
"""Words that open a riddle."""


@functools.cache
def config() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]


def layers() -> list[str]:
    """Lines of the layers, top to bottom."""
    contracts = config()["importlinter"]["contracts"]
    (lines,) = [found["layers"] for found in contracts if found.get("containers") == ["evkf"]]
    return lines


class Source(NamedTuple):
    """A module."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(PACKAGE).as_posix()


@functools.cache
def sources() -> list[Source]:
    """Modules, without those that are exempt."""
    ignored = config()["ruff"]["lint"]["per-file-ignores"]
    exempt = [pattern for pattern, rules in ignored.items() if "PLR0913" in rules]
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not any(name.startswith(pattern.removesuffix("**")) for pattern in exempt):
            text = path.read_text(encoding="utf-8")
            found.append(Source(path, text, ast.parse(text)))
    return found


def rooms() -> Counter[str]:
    """Modules of each package; `.` is the root."""
    named = [Path(source.name) for source in sources()]
    return Counter(str(path.parent) for path in named if not path.stem.startswith("__"))


def crowded(most: int, which: Callable[[str], bool]) -> list[str]:
    return [f"{room}: {num}" for room, num in rooms().items() if which(room) and num > most]


def classes_named_alike() -> list[str]:
    places: dict[str, list[str]] = {}
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(source.name)
    return [f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1]


def questions(of_attributes: bool) -> list[str]:
    """Docstrings that open with one of `QUESTIONS`: those below attributes, or all others."""
    found = []
    for source in sources():
        for node in ast.walk(source.tree):
            body = getattr(node, "body", None)
            for place, child in enumerate(body if isinstance(body, list) else []):
                match child:
                    case ast.Expr(value=ast.Constant(value=str(text))) if text.split():
                        if text.split()[0] in QUESTIONS and bool(place) == of_attributes:
                            words = " ".join(text.split()[:8])
                            found.append(f"{source.name}:{child.lineno}: {words}")
    return found


@functools.cache
def many_parameters() -> list[tuple[str, bool]]:
    """Functions with more parameters than ruff allows, and whether a reason stands beside."""
    command = ["-m", "ruff", "check", "--select", "PLR0913", "--ignore-noqa", "--exit-zero"]
    done = subprocess.run(
        [sys.executable, *command, "--output-format", "json", str(PACKAGE)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    found = []
    for problem in json.loads(done.stdout):
        path, row = Path(problem["filename"]), problem["location"]["row"]
        line = path.read_text(encoding="utf-8").splitlines()[row - 1]
        where = f"{path.relative_to(PACKAGE)}:{row}: {line.strip()}"
        found.append((where, "# noqa: PLR0913 - " in line))
    return found


def long_files() -> list[str]:
    lengths = {source.name: source.text.count("\n") for source in sources()}
    return [f"{name}: {lines}" for name, lines in lengths.items() if lines > MOST_LINES]


def functions() -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        f"{source.name}: {node.name}"
        for source in sources()
        for node in source.tree.body
        if isinstance(node, kinds)
    ]


FIGURES: dict[str, tuple[Callable[[], list[str]], int]] = {
    "modules at the root": (
        lambda: [source.name for source in sources() if "/" not in source.name.replace("__", "/")],
        5,
    ),
    "packages with more than 10 modules": (
        lambda: crowded(10, lambda room: room != "." and room not in REGISTRIES),
        0,
    ),
    "registries with more than 30": (lambda: crowded(30, lambda room: room in REGISTRIES), 0),
    "lines of layers": (layers, LAYER_LINES),
    "class names used twice": (classes_named_alike, 0),
    "docstrings that open with a question": (lambda: questions(of_attributes=False), 0),
    "the same below attributes": (lambda: questions(of_attributes=True), 0),
    "functions with more than 8 parameters and no reason": (
        lambda: [where for where, reason in many_parameters() if not reason],
        0,
    ),
    "functions with more than 8 parameters and a reason": (
        lambda: [where for where, reason in many_parameters() if reason],
        10,
    ),
    f"files above {MOST_LINES} lines": (long_files, 0),
    "functions of modules": (functions, 750),
}
"""What is counted, and the most there may be."""


@pytest.mark.parametrize("figure", FIGURES)
def test_the_package_keeps_its_bounds(figure: str):
    count, most = FIGURES[figure]
    found = count()
    print(f"{figure}: {len(found)} (at most {most})")
    assert len(found) <= most, "\n".join(found)


def test_strict_types_are_checked_from_the_analysis_down():
    """The list of pyright.core.json is the lower layers of the contract."""
    text = (ROOT / "pyright.core.json").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.strip().startswith("//")]
    included = json.loads("\n".join(lines))["include"]
    lower = layers()[layers().index("analysis") :]
    core = {name for line in lower for name in line.replace(":", "|").replace(" ", "").split("|")}
    assert {Path(name).stem for name in included} == core
    assert all((ROOT / name).exists() for name in included)


if __name__ == "__main__":
    for figure, (count, most) in FIGURES.items():
        found = count()
        print(f"{figure}: {len(found)} (at most {most})")
        if len(found) > most and "--list" in sys.argv:
            print(*found, sep="\n", end="\n\n")
