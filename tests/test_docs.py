"""The documentation is true: its code runs, its links lead somewhere, its names exist."""

import ast
import enum
import functools
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import evkf
from evkf.cli.app import app
from tests.quick import quick_environment

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "evkf"
SOURCES = [path for path in sorted(PACKAGE.rglob("*.py")) if "Paper: " in path.read_text("utf-8")]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS]

LABELS = [
    "eq:kalman_predict",
    "eq:kalman_update",
    "section:cvkf",
    "eq:expfam",
    "section:cvkf:prediction_step",
    "eq:true_prediction",
    "eq:approximate_prediction",
    "lemma:variational_prediction",
    "eq:nat_param_predict",
    "eq:variational_update",
    "section:cvkf:single_step",
    "theorem:single_step_tightness",
    "section:cvkf:optimal_prior",
    "eq:grad_elbo_hyper",
    "prop:cvkf_hyperparameter_training",
    "eq:hyperparameter_objective",
    "table:chaotic_rnn",
    "eq:vdp_generative_model",
    "fig:vdp_dynamics",
    "table:vdp",
    "table:cb_dynamics",
    "fig:cb_dynamics",
    "fig:mc_maze",
    "thm:tightness",
    "fig:supp:gaps",
    "thm:dynamics",
    "eq:kl_grad",
    "eq:alternative_grad",
    "fig:supp:vdp",
    "fig:supp:cb",
    "sec:algo",
    "alg:evkf",
    "alg::cvi_vlgp",
    "sec:gamma",
    "fig:gamma_dynamics",
]
"""Every label of the paper's source, in the order of print."""

LEAST_EXAMPLES = 100

FOREIGN = {"--upgrade", "--ulimit", "--cap-add", "--others", "--against"}
"""Options of other programs that pages name: of `make lock`, Docker and benchmarks/bench.py."""

DOCTESTS = """
import doctest, importlib, json, pkgutil
import evkf

names = [module.name for module in pkgutil.walk_packages(evkf.__path__, "evkf.")]
results = {}
for name in ["evkf", *(name for name in names if not name.endswith("__main__"))]:
    results[name] = doctest.testmod(importlib.import_module(name))[:2]
print(json.dumps(results))
"""


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def in_float32(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with JAX's default precision and quick compilation."""
    environment = quick_environment()
    environment.pop("JAX_ENABLE_X64", None)
    return subprocess.run(
        [sys.executable, "-"],
        input=code,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=900,
    )


def script(page: Path) -> str:
    """The Python blocks of a page, each on the lines where it stands there."""
    lines, inside = [], False
    for line in text(page).splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines)


@pytest.mark.parametrize("page", [p for p in DOCS if script(p).strip()], ids=lambda p: p.stem)
def test_python_blocks_run_in_order(page: Path):
    code = f"exec(compile({script(page)!r}, {page.name!r}, 'exec'), {{'__name__': 'page'}})"
    done = in_float32(code)
    assert done.returncode == 0, done.stderr


def test_extending_has_code():
    assert script(ROOT / "docs" / "extending.md").strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_relative_links_resolve(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(other), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """Names of the headings, as they stand in addresses."""
    titles = re.findall(r"^#+ (.*)$", text(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def quoted(page: Path) -> list[str]:
    """What a page has in inline code."""
    prose = re.sub(r"^ *```.*?^ *```", "", text(page), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_names_in_the_text_exist(page: Path):
    for span in quoted(page):
        if found := re.fullmatch(r"(evkf(?:\.\w+)+)(?:\(.*\))?", span):
            resolve(found[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_named_in_the_text_exist(page: Path):
    named = re.findall(r"\b(?:tests|benchmarks)/[\w/]*(?:\.py)?", text(page))
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def options(command: Any) -> set[str]:
    """All options of a command, and of those within it."""
    own = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    inner = getattr(command, "commands", {}).values()
    return own.union({"--help"}, *map(options, inner))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_options_named_in_the_text_exist(page: Path):
    """On the command that is named with them, or on any."""
    root = typer.main.get_command(app)
    commands = getattr(root, "commands", {})
    for span in quoted(page):
        command = commands.get(span.split()[1]) if re.match(r"evkf [a-z]", span) else root
        assert command is not None, span
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", span))
        assert named <= options(command) | FOREIGN, span


def rows() -> list[list[str]]:
    """Cells of the tables of the map, without their heads."""
    lines = text(ROOT / "docs" / "paper_map.md").splitlines()
    cells = [[c.strip() for c in line.strip("|").split(" | ")] for line in lines if line[:1] == "|"]
    return [row for row in cells if row[0] not in ("label", "place") and row[0][:3] != "---"]


def test_map_names_every_label_once_in_order():
    found = [m[1] for row in rows() if (m := re.fullmatch(r"`(\S+)`", row[0]))]
    assert found == LABELS


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0].strip("`"))
def test_map_names_what_exists(row: list[str]):
    assert len(row) == 4, "four cells a row"
    _, _, code, test = row
    for part in code.split(";"):
        for name in re.findall(r"`(evkf(?:\.\w+)+)`", part):
            resolve(name)
    assert re.search(r"`(evkf|eq:|alg:)", code), "a place"
    tests = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", test)
    assert tests or test.startswith("see `alg:"), "a test"
    for file, function in tests:
        assert (ROOT / file).is_file(), file
        assert not function or function in functions(file), f"{file}::{function}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_sources_cite_labels_that_the_map_knows(path: Path):
    for cited in re.findall(r"\bPaper: (.*?)(?:\n\n|\"\"\")", text(path), flags=re.DOTALL):
        found = re.findall(r"\b[a-z]+(?::+\w+)+", cited)
        assert set(found) <= set(LABELS), path
        assert found or "section" in cited, f"{path} cites nothing"


def test_the_architecture_names_every_module():
    """Those of a package in its own lines, for reports and figures that of what they are of."""
    tree = text(ROOT / "docs" / "architecture.md").split("```")[1]
    lines = re.findall(r"^  (\S+)(.*(?:\n {4}.*)*)", tree, flags=re.MULTILINE)
    top = set(re.findall(r"\w+\.py", tree))
    assert {path.name for path in PACKAGE.glob("[a-z]*.py")} <= top
    packages = {name.strip("/"): set(re.findall(r"\w+", rest)) for name, rest in lines}
    for path in PACKAGE.glob("[a-z]*/[a-z]*.py"):
        named = packages.get(path.parent.name, set())
        assert path.stem in named or path.stem.rpartition("_")[0] in named, path


@functools.cache
def listed() -> list[object]:
    """What the reference lists."""
    pages = (ROOT / "docs" / "api").glob("*.md")
    names = [name for page in pages for name in re.findall(r"^::: (\S+)", text(page), re.MULTILINE)]
    return [resolve(name) for name in names]


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *DOCS, *EXAMPLES], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_people_are_told_to_import_public_names_only(path: Path):
    """What the reference does not list may change without notice; it says so of `figures` too."""
    code = text(path) if path.suffix == ".py" else script(path)
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.ImportFrom) or not re.match(r"evkf\b", node.module or ""):
            continue
        for name in (f"{node.module}.{alias.name}" for alias in node.names):
            public = node.module == "evkf.plotting.style" or inspect.ismodule(resolve(name))
            assert public or any(resolve(name) is thing for thing in listed()), name


@functools.cache
def functions(file: str) -> set[str]:
    tree = ast.parse(text(ROOT / file))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def resolve(name: str) -> object:
    """The object at a dotted path: the longest importable module, then attributes."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        if _is_module(module):
            return functools.reduce(getattr, parts[end:], importlib.import_module(module))
    raise ModuleNotFoundError(name)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_doctests_run_in_the_default_precision():
    done = in_float32(DOCTESTS)
    assert done.returncode == 0, done.stderr
    report, _, last = done.stdout.rstrip().rpartition("\n")
    results = json.loads(last)
    assert not {name: failed for name, (failed, _) in results.items() if failed}, report
    assert sum(attempted for _, attempted in results.values()) >= LEAST_EXAMPLES


@pytest.mark.parametrize("name", evkf.__all__)
def test_public_names_are_documented(name: str):
    thing = getattr(evkf, name)
    doc = thing.__doc__
    assert doc
    assert doc.strip()
    if inspect.ismodule(thing):
        return
    exempt = inspect.isclass(thing) and issubclass(thing, Exception | enum.Enum)
    assert exempt or re.search(r"^\s*Example:\n\s+>>> ", doc, flags=re.MULTILINE)
