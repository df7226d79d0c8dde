"""Nothing that is loaded can run code: no pickle, no eval, in any path of the package.

Processes of our own are started by `multiprocessing`, which hands them their arguments as pickles;
those come from this program and go to its child through an inherited pipe, not from a file or a
network. Its listeners, which unpickle what others send, are forbidden like the rest.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])

MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "pickletools",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "jsonpickle",
    "joblib",
    "multiprocessing.connection",
    "multiprocessing.managers",
    "xmlrpc",
}
"""Not to be imported."""

CALLS = {
    "eval",
    "exec",
    "compile",
    "torch.load",
    "torch.jit.load",
    "pandas.read_pickle",
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.unsafe_load",
    "code.interact",
    "code.InteractiveInterpreter",
    "code.InteractiveConsole",
    "runpy.run_path",
}
"""Not to be called."""

IMPORTS = {"__import__", "importlib.import_module"}
"""Not to be called with the name of such a module."""

UNLESS_SAFE = {
    "numpy.load",
    "jax.numpy.load",
    "numpy.lib.npyio.NpzFile",
    "numpy.lib.format.read_array",
}
"""To be called with allow_pickle=False, and that written out."""


def faults(source: str) -> list[str]:
    """What in a module could run what it loads."""
    tree = ast.parse(source)
    names = _imported(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [f"{node.lineno}: imports {name}" for name in _modules(node) if _bad(name)]
        elif isinstance(node, ast.Call):
            name = _called(node.func, names)
            if name in UNLESS_SAFE and not _refuses_pickle(node):
                found.append(f"{node.lineno}: {name} without allow_pickle=False")
            elif name in CALLS or _bad(name) or (name in IMPORTS and _names_bad(node)):
                found.append(f"{node.lineno}: calls {name}")
            found += [
                f"{node.lineno}: {key.arg}"
                for key in node.keywords
                if key.arg == "allow_pickle" and not _false(key.value)
            ]
    return found


def _imported(tree: ast.AST) -> dict[str, str]:
    """Names of a module, and what they were imported as."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                name = each.name if each.asname else each.name.partition(".")[0]
                names[each.asname or name] = name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for each in node.names:
                names[each.asname or each.name] = f"{node.module}.{each.name}"
    return names


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [f"{node.module}.{each.name}" for each in node.names]


def _bad(name: str) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:size]) in MODULES for size in range(1, len(parts) + 1))


def _names_bad(node: ast.Call) -> bool:
    return any(isinstance(arg, ast.Constant) and _bad(str(arg.value)) for arg in node.args)


def _called(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of what is called; empty if that is a method of something."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    whole = ".".join([names.get(node.id, node.id), *reversed(parts)])
    return whole.removeprefix("builtins.")


def _refuses_pickle(node: ast.Call) -> bool:
    return any(key.arg == "allow_pickle" and _false(key.value) for key in node.keywords)


def _false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_is_loaded_can_run(path: Path):
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import _pickle",
        "import marshal",
        "import shelve",
        "import dill",
        "import cloudpickle",
        "import joblib",
        "from joblib import load",
        "from multiprocessing.connection import Listener",
        "from multiprocessing import connection",
        "import multiprocessing\nmultiprocessing.connection.Listener()",
        "eval('1')",
        "exec('1')",
        "compile('1', '', 'eval')",
        "import builtins\nbuiltins.eval('1')",
        "from builtins import exec as run\nrun('1')",
        "__import__('pickle')",
        "import importlib\nimportlib.import_module('pickle')",
        "import numpy as np\nnp.load('a.npy')",
        "import numpy\nnumpy.load('a.npy', allow_pickle=True)",
        "import numpy as np\nnp.load('a.npy', allow_pickle=maybe)",
        "from numpy import load\nload('a.npy')",
        "from numpy import load as get\nget('a.npy')",
        "import jax.numpy as jnp\njnp.load('a.npy')",
        "import numpy as np\nnp.savez('a.npz', allow_pickle=True)",
        "import yaml\nyaml.load(file)",
        "from yaml import unsafe_load\nunsafe_load(file)",
        "import torch\ntorch.load('a.pt')",
        "import pandas as pd\npd.read_pickle('a.pkl')",
        "def f():\n    import pickle",
    ],
)
def test_the_check_finds(source: str):
    assert faults(source)


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.load('a.npy', allow_pickle=False)",
        "import json\njson.load(file)",
        "import ast\nast.literal_eval('1')",
        "step.lower(x).compile()",
        "model.eval()",
        "import re\nre.compile('a')",
        "import multiprocessing\nmultiprocessing.get_context('spawn')",
        "import yaml\nyaml.safe_load(file)",
        "safetensors.numpy.load(data)",
    ],
)
def test_the_check_passes(source: str):
    assert faults(source) == []


def test_the_check_sees_the_whole_package():
    assert ROOT / "src" / "evkf" / "data" / "storage.py" in FILES
    assert ROOT / "benchmarks" / "web_safety.py" in FILES
    assert len(FILES) > 200
