"""The digest of an experiment's code: what changes it, and what does not."""

import shutil
import subprocess
import sys

import pytest

from evkf.reproduce.catalogue import TITLES, load
from evkf.reproduce.source import ROOT, digest, sources

LOADED = """
import sys
from importlib import import_module
for name in sys.argv[1:]:
    import_module(name)
print(*(name for name in sys.modules if name.partition(".")[0] == "evkf"))
"""


@pytest.fixture
def package(tmp_path):
    """A package whose experiment imports one module by a lazy package, one in a function, and one
    by its package.
    """
    files = {
        "__init__.py": "import lazy_loader\n",
        "__init__.pyi": "from .live import session\n",
        "errors.py": "x = 1\n",
        "live/__init__.py": "",
        "live/session.py": "x = 1\n",
        "filters/__init__.py": "import lazy_loader\n",
        "filters/__init__.pyi": "from .base import Filter as Filter\nfrom .other import Other\n",
        "filters/base.py": "from ..errors import x\nclass Filter: ...\n",
        "filters/other.py": "class Other: ...\n",
        "learning/__init__.py": "from evkf.learning.learner import Learner\n",
        "learning/learner.py": "class Learner: ...\n",
        "learning/ring.py": "x = 1\n",
        "run.py": '"""Run."""\nfrom evkf.filters import Filter\n\ndef run(x):\n'
        '    """Run."""\n    from evkf.learning import ring\n    return x + 1  # more\n\n'
        'NUM = 1\n"""Number."""\n',
    }
    for name, text in files.items():
        path = tmp_path / "evkf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def changed(package, name, old, new):
    """True if an edit of a module changes the digest."""
    digest.cache_clear()
    before = digest("evkf.run", package)
    path = package / "evkf" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    digest.cache_clear()
    return digest("evkf.run", package) != before


def test_modules_are_those_that_are_imported(package):
    assert sorted(sources("evkf.run", package)) == [
        "evkf",
        "evkf.errors",
        "evkf.filters",
        "evkf.filters.base",
        "evkf.learning",
        "evkf.learning.learner",
        "evkf.learning.ring",
        "evkf.run",
    ]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("run.py", '"""Run."""', '"""Run it.\n\nNow.\n"""'),
        ("run.py", "# more", "# one more"),
        ("run.py", '"""Number."""', '"""A number."""'),
        ("run.py", "x + 1", "(x\n            + 1)"),
        ("errors.py", "x = 1", "# as it is\nx = 1"),
        ("live/session.py", "x = 1", "x = 2"),
        ("filters/other.py", "class Other", "class Others"),
    ],
)
def test_words_and_other_modules_do_not_change_it(package, name, old, new):
    assert not changed(package, name, old, new)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("run.py", "x + 1", "x + 2"),
        ("run.py", "NUM = 1", "NUM = '1'"),
        ("errors.py", "x = 1", "x = 2"),
        ("filters/base.py", "class Filter: ...", "class Filter: y = 1"),
        ("learning/learner.py", "class Learner", "class Learn"),
        ("learning/ring.py", "x = 1", "x = 2"),
        ("__init__.py", "import lazy_loader", "import lazy_loader, os"),
    ],
)
def test_code_of_imported_modules_changes_it(package, name, old, new):
    assert changed(package, name, old, new)


def test_it_is_computed_once(package):
    first = digest("evkf.run", package)
    shutil.rmtree(package)
    assert digest("evkf.run", package) == first
    with pytest.raises(ModuleNotFoundError):
        digest("evkf.other", package)


@pytest.mark.parametrize("room", ["live", "web", "rigs", "cli", "recordings", "plotting"])
def test_experiments_do_not_depend_on(room):
    for name in TITLES:
        names = sources(load(name).module.__name__)
        assert not [module for module in names if module.startswith(f"evkf.{room}")]


def test_every_module_that_experiments_load_is_in_a_digest():
    modules = sorted({load(name).module.__name__ for name in TITLES})
    assert len(modules) == 6
    command = [sys.executable, "-c", LOADED, *modules]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert loaded >= set(modules)
    assert loaded <= {name for module in modules for name in sources(module)}
    assert ROOT.name == "src"
