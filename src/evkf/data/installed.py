"""What is installed: versions that a result depends on, and packages that only some of it needs."""

import importlib.util
import platform
import sys
from importlib import metadata

from evkf.errors import InputError


def version() -> str:
    """Of this package.

    Example:
        >>> version().split(".")[0]
        '1'
    """
    return sys.modules["evkf"].__version__  # this module is below it, and does not import it


def versions() -> dict[str, str]:
    """What a result depends on besides its options.

    Example:
        >>> list(versions())
        ['evkf', 'jax', 'jaxlib', 'numpy', 'python']
    """
    libraries = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"evkf": version(), **libraries, "python": platform.python_version()}


def need(what: str, extra: str, *packages: str) -> None:
    """Refuse to go on without optional packages, which are not imported.

    Args:
        what: What needs them.
        extra: The extra of this package that brings them.
        packages: Their import names.

    Example:
        >>> need("the page", "web", "no_such_package")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: the page needs no_such_package (in this installation): \
pip install "evkf[web]"
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        remedy = f'pip install "evkf[{extra}]"'
        raise InputError(f"{what} needs {', '.join(missing)}", "this installation", remedy)
