"""Compute the digest (a hash) of the code that the results of an experiment depend on.

The runner puts the digest into the specification of every task. A stored result is therefore used
only while the code that computed it is unchanged.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Folder that contains the package evkf."""


@cache
def digest(module: str, root: Path = ROOT) -> str:
    """Return a hash of a module and of all modules of evkf that it imports, directly or indirectly.

    The hash does not depend on comments, docstrings and layout. No module is imported: imports are
    read from the syntax tree, including imports inside functions.

    Args:
        module: Name of the module.
        root: Folder that contains the package evkf.

    Example:
        >>> len(digest("evkf.reproduce.source"))
        16
    """
    code = hashlib.sha256()
    for name, tree in sorted(sources(module, root).items()):
        code.update(f"{name} {''.join(_tokens(tree))}\n".encode())
    return code.hexdigest()[:16]


def sources(module: str, root: Path = ROOT) -> dict[str, ast.Module]:
    """Return the syntax trees of a module and of all modules of evkf that it imports, by name.

    Imports are followed indirectly. Raise ModuleNotFoundError if `module` does not exist.

    Example:
        >>> "evkf.errors" in sources("evkf.data.files")
        True
    """
    trees: dict[str, ast.Module] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in trees:
            continue
        path = _file(name, root)
        if path is None:  # a module outside of the package, such as one of a test
            spec = find_spec(name)
            if spec is None or spec.origin is None:
                raise ModuleNotFoundError(name)
            path = Path(spec.origin)
        trees[name] = ast.parse(path.read_bytes())
        package, _, _ = name.rpartition(".")
        inside = name if path.name == "__init__.py" else package
        for node in ast.walk(trees[name]):
            waiting += _imported(node, inside, root)
        if _file(package, root):  # the package is loaded before its modules
            waiting.append(package)
    return trees


def _file(name: str, root: Path) -> Path | None:
    """Return the path of a module of evkf, or None if there is no such module."""
    if name.partition(".")[0] != "evkf":
        return None
    place = root.joinpath(*name.split("."))
    paths = (place / "__init__.py", place.with_suffix(".py"))
    return next((path for path in paths if path.is_file()), None)


def _imported(node: ast.AST, package: str, root: Path) -> Iterator[str]:
    """Yield the names of the modules of evkf that an import statement loads.

    If an `__init__.py` has a stub beside it (`__init__.pyi`), the package loads a name when the
    name is first used, from the module that the stub imports the name from. Then the package itself
    and the modules of the wanted names are yielded.
    """
    if isinstance(node, ast.Import):
        pairs = [(alias.name, "*") for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: 1 - node.level or None] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        pairs = [(origin, alias.name) for alias in node.names]
    else:
        return
    for origin, wanted in pairs:
        if _file(f"{origin}.{wanted}", root):
            origin, wanted = f"{origin}.{wanted}", "*"
        path = _file(origin, root)
        if path is None:
            continue
        yield origin
        stub = path.with_suffix(".pyi")
        for line in ast.parse(stub.read_bytes()).body if stub.is_file() else ():
            names = line.names if isinstance(line, ast.ImportFrom) else []
            if any(wanted in ("*", alias.asname or alias.name) for alias in names):
                yield from _imported(line, origin, root)


def _tokens(value: object) -> Iterator[str]:
    """Yield the text of a syntax tree, without docstrings and empty fields.

    Empty fields are left out because versions of Python differ in them.
    """
    if isinstance(value, list):
        yield "["
        for item in value:
            if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)):
                yield from _tokens(item)
        yield "]"
    elif isinstance(value, ast.AST):
        yield type(value).__name__
        for name, field in ast.iter_fields(value):
            if field is not None and field != []:
                yield name
                yield from _tokens(field)
    else:
        yield repr(value)
