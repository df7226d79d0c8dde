"""The exceptions of the package: what is wrong, where, and what to do about it."""

from typing import Any


class EvkfError(Exception):
    """Base of every exception this package raises on purpose."""


class InputError(EvkfError, ValueError):
    """Something handed over at the boundary cannot be used.

    Attributes:
        what: What is wrong, with the offending value.
        where: The argument, file or index it was found in.
        remedy: What the caller can do about it.

    Example:
        >>> raise InputError("negative count -3", "ys[10, 4]", "pass counts, or mask the bin")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: negative count -3 (in ys[10, 4]): pass counts, or mask the bin
    """

    def __init__(self, what: str, where: str, remedy: str):
        self.what, self.where, self.remedy = what, where, remedy
        super().__init__(f"{what} (in {where}): {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Processes hand exceptions to one another by their arguments.
        return type(self), (self.what, self.where, self.remedy)
