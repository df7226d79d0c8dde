"""Importing evkf, and its help, do no work: names and commands are imported at first use."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import evkf

PACKAGE = Path(evkf.__file__).parent
STUBS = sorted(PACKAGE.rglob("__init__.pyi"))
HEAVY = {"matplotlib", "pandas", "h5py", "pynwb", "zmq", "fastapi"}
"""Packages that no public name needs."""
COMPUTING = {"jax", "numpy", "scipy", "sklearn", "equinox", "optax", "rich"}
PRECISION = "evkf.types"
"""The module that sets the precision of matrix products."""
NO_PRODUCTS = {"evkf.data.storage", "evkf.reproduce.runner"}
"""Modules that use JAX, do not import that one, and multiply no matrices."""


def imported(code: str) -> set[str]:
    """Return the packages that a fresh process has imported after running code."""
    report = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    modules = json.loads(done.stdout.splitlines()[-1])
    return {name.partition(".")[0] for name in modules}


def test_importing_evkf_imports_nothing_else():
    assert not imported("import evkf") & (HEAVY | COMPUTING)


def test_public_names_need_no_files_figures_or_servers():
    code = "import evkf\nfor name in evkf.__all__: getattr(evkf, name)"
    # scikit-learn, the base of EVKF, imports pandas where it is installed.
    assert not imported(code) & (HEAVY - {"pandas"})


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["reproduce", "--help"]])
def test_help_imports_no_commands(args: list[str]):
    code = f"from evkf.cli.app import main\ntry: main({args})\nexcept SystemExit: pass"
    assert not imported(code) & (HEAVY | COMPUTING)


def test_importing_reads_no_files():
    """All modules, those of figures and of servers too; other packages are imported before."""
    code = """
import hashlib, importlib, pathlib, pkgutil, sys

def import_all():
    import evkf
    for module in pkgutil.walk_packages(evkf.__path__, "evkf."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

def refuse(*args, **settings):
    raise AssertionError("work at import")

import_all()
for name in [name for name in sys.modules if name.partition(".")[0] == "evkf"]:
    del sys.modules[name]
for name in ("open", "read_bytes", "read_text"):
    setattr(pathlib.Path, name, refuse)
hashlib.sha256 = refuse
import_all()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_names_of_a_stub_are_there(stub: Path):
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    (listed,) = (ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    room = importlib.import_module(".".join(stub.relative_to(PACKAGE.parent).parent.parts))
    assert sorted(listed) == sorted(room.__all__)
    for name, (module, own) in stub_names(room.__name__, stub).items():
        whole = importlib.import_module(module)
        assert getattr(room, name) is (getattr(whole, own) if own else whole)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="evkf attribute nothing"):
        _ = evkf.nothing  # type: ignore[attr-defined]


def test_products_are_precise_before_anything_is_computed():
    assert jax.config.jax_default_matmul_precision == "highest"  # type: ignore[attr-defined]
    graph = imports()
    computing = {name for name, found in graph.items() if "jax" in found or "equinox" in found}
    assert len(computing) > 50
    assert {name for name in computing if PRECISION not in reached(name, graph)} <= NO_PRODUCTS


@pytest.mark.parametrize(("given", "kept"), [("None", "highest"), ("'high'", "high")])
def test_the_precision_that_a_user_has_set_stays(given: str, kept: str):
    code = f"""
import jax
jax.config.update("jax_default_matmul_precision", {given})
from evkf import Model
assert jax.config.jax_default_matmul_precision == "{kept}"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def stub_names(room: str, stub: Path) -> dict[str, tuple[str, str]]:
    """Return module and name behind each name of a stub; for a module no name."""
    names = {}
    for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                target = f"{room}.{node.module}" if node.module else f"{room}.{alias.name}"
                names[alias.name] = (target, alias.name if node.module else "")
    return names


def imports() -> dict[str, set[str]]:
    """Return the modules that each module of evkf imports with itself, through stubs too."""
    behind = {}
    for stub in STUBS:
        room = ".".join(stub.relative_to(PACKAGE.parent).parent.parts)
        for name, (module, _) in stub_names(room, stub).items():
            behind[f"{room}.{name}"] = module
    graph = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found = graph[".".join(parts).removesuffix(".__init__")] = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found.update([node.module, *names, *(behind.get(name, name) for name in names)])
    return graph


def reached(name: str, graph: dict[str, set[str]]) -> set[str]:
    """Return all modules that are imported with a module."""
    found, todo = set(), [name]
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += [*graph.get(module, ()), module.rpartition(".")[0]]
    return found
